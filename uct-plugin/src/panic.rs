//! No panic leaves this library, because UCX is C and cannot be unwound. A panic is a bug of this
//! library. It costs one log line, and the call takes UCX's own path.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::hot::{self, BROKEN};
use crate::log;

/// True after a panic. From then on nothing new is served. Existing objects are still released.
#[inline]
pub(crate) fn is_broken() -> bool {
    hot::has(BROKEN)
}

/// The result of `work`, or `None` if it panicked.
///
/// The state that `work` may leave half changed is behind locks, whose data is valid at any point
/// where the code can panic.
#[inline]
pub(crate) fn guard<T>(what: &str, work: impl FnOnce() -> T) -> Option<T> {
    let work = || {
        here(what);
        work()
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => Some(value),
        Err(cause) => {
            caught(what, &*cause);
            None
        }
    }
}

/// Injects a panic for a test: `XGVMI_PANIC=PLACE` in the environment of a debug build. The release
/// library does not contain this code.
#[inline(always)]
pub(crate) fn here(place: &str) {
    #[cfg(debug_assertions)]
    if std::env::var("XGVMI_PANIC").is_ok_and(|wanted| wanted == place) {
        std::panic::panic_any("asked for by a test");
    }
    #[cfg(not(debug_assertions))]
    let _place = place;
}

#[cold]
fn caught(what: &str, cause: &(dyn Any + Send)) {
    let first = !hot::set(BROKEN, true);
    let cause = cause
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| cause.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    if first {
        // Writing the line must not panic.
        let _written = catch_unwind(|| {
            log::error!("internal error in {what}, the library is disabled from now on: {cause}");
        });
    }
}

/// Keeps the standard library from printing panics to the host program's error output: [`guard`]
/// logs them. The hook is this library's own, another Rust library in the process has another one.
pub(crate) fn silence() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stops_at_the_guard() {
        assert_eq!(guard("a test", || 7), Some(7));
        assert!(!is_broken());
        assert_eq!(
            guard("a test", || -> u32 { std::panic::panic_any("on purpose") }),
            None
        );
        assert!(is_broken());
    }
}
