//! An object of a memory domain that is opened at its first use. A refusal that may be transient is
//! not final: the next use tries again, after a delay that grows.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use xgvmi_pool::Backoff;

/// Reason why an object is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The device can never open it.
    Forever,
    /// A later attempt may succeed.
    Now,
}

/// The object, or the state of its attempts.
#[derive(Debug)]
pub(crate) struct Opened<T> {
    object: OnceLock<T>,
    attempts: Mutex<Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    is_refused: bool,
    backoff: Backoff,
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self {
            object: OnceLock::new(),
            attempts: Mutex::default(),
        }
    }
}

impl<T> Opened<T> {
    /// The object, if it is open.
    pub(crate) fn get(&self) -> Option<&T> {
        self.object.get()
    }

    /// The object. Calls `open` if it is not open yet and an attempt is due.
    pub(crate) fn get_or_open(&self, open: impl FnOnce() -> Result<T, Refused>) -> Option<&T> {
        match self.object.get() {
            Some(object) => Some(object),
            None => self.open(Instant::now(), open),
        }
    }

    #[cold]
    fn open(&self, now: Instant, open: impl FnOnce() -> Result<T, Refused>) -> Option<&T> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = self.object.get() {
            return Some(object);
        }
        if attempts.is_refused || !attempts.backoff.is_due(now) {
            return None;
        }
        match open() {
            Ok(object) => Some(self.object.get_or_init(|| object)),
            Err(Refused::Forever) => {
                attempts.is_refused = true;
                None
            }
            Err(Refused::Now) => {
                attempts.backoff.failed(now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_transient_refusal_is_not_final() {
        let opened = Opened::default();
        assert_eq!(opened.get_or_open(|| Err(Refused::Now)), None);
        assert_eq!(opened.get_or_open(|| Ok(7)), Some(&7));
        assert_eq!(opened.get_or_open(|| Err(Refused::Forever)), Some(&7));
    }

    #[test]
    fn a_device_that_is_not_suitable_is_asked_once() {
        let opened: Opened<u32> = Opened::default();
        assert_eq!(opened.get_or_open(|| Err(Refused::Forever)), None);
        assert_eq!(opened.get_or_open(|| Ok(7)), None);
        assert_eq!(opened.get(), None);
    }

    #[test]
    fn a_device_that_always_refuses_is_asked_rarely() {
        let opened: Opened<u32> = Opened::default();
        let asked = Cell::new(0);
        let now = Instant::now();
        for _ in 0..1000 {
            let open = || {
                asked.set(asked.get() + 1);
                Err(Refused::Now)
            };
            assert_eq!(opened.open(now, open), None);
        }
        assert_eq!(asked.get(), 2);
    }
}
