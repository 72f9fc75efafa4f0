//! One value for a whole process.

use crate::error::Forked;
use std::sync::{Mutex, PoisonError};

/// A value that the first call opens and that lives until the process ends. A forked child gets an error in its place.
///
/// ```
/// use xgvmi_verbs::{PerProcess, VerbsError};
/// static LENGTH: PerProcess<usize> = PerProcess::new();
/// assert_eq!(*LENGTH.get(|| Ok::<_, VerbsError>(7))?, 7);
/// assert_eq!(*LENGTH.get(|| Ok::<_, VerbsError>(8))?, 7);
/// # Ok::<(), VerbsError>(())
/// ```
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    opened: Mutex<Option<(u32, &'static T)>>,
}

impl<T> PerProcess<T> {
    /// Nothing is open.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            opened: Mutex::new(None),
        }
    }

    /// The value. The first call opens it while other threads wait; after an error the next call tries again.
    ///
    /// # Errors
    /// Those of `open`, and [`Forked`] in a child of the process that has opened it.
    pub fn get<E: From<Forked>>(
        &self,
        open: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        let own = std::process::id();
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let (process, value) = match *opened {
            Some(opened) => opened,
            None => *opened.insert((own, Box::leak(Box::new(open()?)))),
        };
        match process == own {
            true => Ok(value),
            false => Err(Forked.into()),
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::VerbsError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_that_come_together_open_one_value() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let open = || Ok::<_, VerbsError>(OPENED.fetch_add(1, Ordering::Relaxed));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(*VALUE.get(open).expect("opens"), 0));
            }
        });
        assert_eq!(OPENED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failed_open_is_tried_again() {
        let value = PerProcess::new();
        let refused: Result<&u32, VerbsError> =
            value.get(|| Err(VerbsError::Refused { status: 4 }));
        assert!(matches!(refused, Err(VerbsError::Refused { status: 4 })));
        assert_eq!(*value.get(|| Ok::<_, VerbsError>(3)).expect("opens"), 3);
    }

    #[test]
    fn another_process_gets_an_error() {
        let value = PerProcess {
            // The state that a child inherits.
            opened: Mutex::new(Some((std::process::id() ^ 1, &5))),
        };
        let got: Result<&u32, VerbsError> = value.get(|| Ok(6));
        assert!(matches!(got, Err(VerbsError::Forked(Forked))), "{got:?}");
    }
}
