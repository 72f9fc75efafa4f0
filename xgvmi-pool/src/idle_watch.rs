//! Detects free keys that were idle for long: how many keys of the free list upkeep may destroy.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::keeper::ROUND_MAX;

/// Upkeep's record of idle keys.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Start of the present observation of idle keys.
    since: Option<Instant>,
    /// Idle keys still to destroy.
    surplus: usize,
}

impl IdleWatch {
    /// Number of keys to destroy in this round. `above_mark` counts the keys above the high mark
    /// that were idle during the whole observation, and is called once per `age`.
    pub(crate) fn surplus(&self, age: Duration, above_mark: impl FnOnce() -> usize) -> usize {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = *seen.since.get_or_insert(now);
        if now.duration_since(since) >= age {
            seen.since = Some(now);
            seen.surplus = above_mark();
        }
        let surplus = seen.surplus.min(ROUND_MAX as usize);
        seen.surplus -= surplus;
        surplus
    }
}
