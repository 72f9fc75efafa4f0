//! Detects idle aliases without a clock on the path of a use. The map numbers the uses, and upkeep
//! records from time to time the number of the last use.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::keeper::LOOKS_PER_AGE;

/// Records of the number of the last use, over one ttl and a little more.
#[derive(Debug)]
pub(crate) struct Expiry {
    rest: Duration,
    /// The oldest first. Bounded: upkeep adds a record every quarter of the ttl and drops it after
    /// one ttl.
    notes: Mutex<VecDeque<(Instant, u64)>>,
}

impl Expiry {
    /// Nothing expires before it was idle for `rest`.
    pub(crate) fn new(rest: Duration) -> Self {
        Self {
            rest,
            notes: Mutex::default(),
        }
    }

    /// The number of the last use that is at least `rest` ago, where `used` is the number of the
    /// last use of all. `None` if that number is not known yet.
    pub(crate) fn last_expired(&self, now: Instant, used: u64) -> Option<u64> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: Instant| now.saturating_duration_since(at);
        if notes
            .back()
            .is_none_or(|(at, _)| since(*at) >= self.rest / LOOKS_PER_AGE)
        {
            notes.push_back((now, used));
        }
        // The latest record that is old enough is the most precise.
        while notes.get(1).is_some_and(|(at, _)| since(*at) >= self.rest) {
            notes.pop_front();
        }
        let (at, used) = *notes.front()?;
        (since(at) >= self.rest).then_some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_expires_after_a_rest_and_within_a_quarter_more() {
        let start = Instant::now();
        let expiry = Expiry::new(Duration::from_millis(400));
        let at = |ms, used| expiry.last_expired(start + Duration::from_millis(ms), used);
        assert_eq!(at(0, 5), None);
        assert_eq!(at(50, 7), None, "too soon for another note");
        assert_eq!(at(100, 9), None);
        assert_eq!(at(399, 20), None);
        assert_eq!(at(400, 20), Some(5));
        assert_eq!(at(500, 20), Some(9));
        assert_eq!(at(10_000, 20), Some(20));
        assert!(expiry.notes.lock().is_ok_and(|notes| notes.len() <= 6));
    }

    #[test]
    fn without_a_rest_everything_that_was_used_has_expired() {
        let expiry = Expiry::new(Duration::ZERO);
        assert_eq!(expiry.last_expired(Instant::now(), 3), Some(3));
    }
}
