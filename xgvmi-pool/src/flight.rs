//! The result of one thread's work, with other threads waiting for it.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock};

/// The future result. The working thread sets it exactly once.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    result: Mutex<Option<T>>,
    completed: Condvar,
}

impl<T: Clone> Flight<T> {
    pub(crate) fn new() -> Self {
        Self {
            result: Mutex::new(None),
            completed: Condvar::new(),
        }
    }

    /// Passes the result to all present and later waiters.
    pub(crate) fn complete(&self, result: T) {
        let mut slot = lock(&self.result);
        assert!(slot.is_none(), "a flight completes once");
        *slot = Some(result);
        drop(slot);
        self.completed.notify_all();
    }

    /// Waits for the result, at most for `limit`.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self, limit: Duration) -> Option<T> {
        let slot = lock(&self.result);
        if limit == Duration::MAX {
            let slot = self
                .completed
                .wait_while(slot, |slot| slot.is_none())
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            return slot.clone();
        }
        let (slot, _timed_out) = self
            .completed
            .wait_timeout_while(slot, limit, |slot| slot.is_none())
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        slot.clone()
    }

    /// Waits for the result. Loom has no clock: a wait with a limit of zero fails at once, and any
    /// other wait has no limit.
    #[cfg(loom)]
    pub(crate) fn wait(&self, limit: Duration) -> Option<T> {
        let mut slot = lock(&self.result);
        while slot.is_none() && limit != Duration::ZERO {
            slot = self
                .completed
                .wait(slot)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        slot.clone()
    }
}
