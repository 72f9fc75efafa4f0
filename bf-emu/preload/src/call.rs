//! Common parts of all interposed functions: whether this process has devices, which path or device a call concerns,
//! and the conversion of results to C.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use bf_emu::process;
use bf_emu::sys::{self, Errno};
use bf_emu::view::paths::{PathBuffer, Paths, Place};
use bf_emu::view::state;

/// Whether the environment asks for devices. Found out at the first call, whoever makes it: other
/// libraries' constructors run before ours.
pub(crate) fn enabled() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ENABLED: AtomicU8 = AtomicU8::new(UNKNOWN);

    match ENABLED.load(Ordering::Relaxed) {
        UNKNOWN => {}
        known => return known == YES,
    }
    let asked = is_set(c"BFEMU_STATE") && is_set(c"BFEMU_AS");
    // SAFETY: getauxval has no preconditions.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let enabled = asked && !privileged;
    ENABLED.store(if enabled { YES } else { NO }, Ordering::Relaxed);
    enabled
}

fn is_set(name: &CStr) -> bool {
    // SAFETY: the name is a C string; the answer is NULL or a C string.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        !value.is_null() && *value != 0
    }
}

/// The device, attached to if need be; None if the environment does not ask for it.
pub(crate) fn device() -> Option<&'static process::Process> {
    enabled().then(process::current)?
}

/// What `path` names for this process, with its other path in `buffer`.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn place(path: *const c_char, buffer: &mut PathBuffer) -> Place<'_> {
    if path.is_null() || !enabled() {
        return Place::Elsewhere;
    }
    // SAFETY: not NULL, hence a C string by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !Paths::candidate(path) {
        return Place::Elsewhere;
    }
    guarded(Place::Elsewhere, || match view_paths() {
        Some(paths) => paths.place(path, buffer),
        None => Place::Elsewhere,
    })
}

/// The paths of this process's view, read at the first use. A process that only looks at names, as
/// `ibv_devices` or `ls` do, never attaches to the device.
pub(crate) fn view_paths() -> Option<&'static Paths> {
    static PATHS: OnceLock<Option<Paths>> = OnceLock::new();
    thread_local! {
        /// This thread reads the view. The state's own files lie elsewhere, whatever their path looks like.
        static LOADS: Cell<bool> = const { Cell::new(false) };
    }
    if let Some(paths) = PATHS.get() {
        return paths.as_ref();
    }
    if LOADS.replace(true) {
        return None;
    }
    let load = || {
        let state = std::env::var_os(state::ENV_STATE)?;
        let view = std::env::var(state::ENV_AS).ok()?;
        match state::load_view(Path::new(&state), &view) {
            Ok(view) => Some(Paths::new(&view)),
            Err(error) => {
                say(&format!("no device for this process: {error}"));
                None
            }
        }
    };
    let paths = PATHS.get_or_init(load).as_ref();
    LOADS.set(false);
    paths
}

/// Runs `act`, and answers `fallback` if it panics, which is a bug in the device that must not
/// unwind into C.
pub(crate) fn guarded<T>(fallback: T, act: impl FnOnce() -> T) -> T {
    // Whatever state a panic leaves behind is the device's, and it guards that itself.
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(value) => value,
        Err(_) => {
            say("internal error, see the message above; the call fails");
            set_errno(Errno(libc::EIO));
            fallback
        }
    }
}

/// Writes one line to stderr. A stderr that is closed or full changes nothing.
pub(crate) fn say(message: &str) {
    let _ = sys::write(
        libc::STDERR_FILENO,
        format!("bf-emu: {message}\n").as_bytes(),
    );
}

/// The result of a call as C wants it: -1 and errno for an error.
pub(crate) fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno.0 };
}
