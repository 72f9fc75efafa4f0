//! Tells which aliases have rested for too long, without a clock on the path of those that are used:
//! uses are numbered, and now and then somebody notes how far the numbers have got.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::upkeep::LOOKS_PER_AGE;

/// Notes of how far the numbers had got, of the last rest and a little before.
#[derive(Debug)]
pub(crate) struct Expiry {
    rest: Duration,
    /// The oldest first. Bounded: a note is made each quarter of the rest, and goes after a rest.
    notes: Mutex<VecDeque<(Instant, u64)>>,
}

impl Expiry {
    /// Nothing expires before it has rested for so long.
    pub(crate) fn new(rest: Duration) -> Self {
        Self {
            rest,
            notes: Mutex::default(),
        }
    }

    /// The number of the last use that was a rest ago, the last use of all being number `used`;
    /// `None` if that is not known yet.
    pub(crate) fn last_expired(&self, now: Instant, used: u64) -> Option<u64> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: Instant| now.saturating_duration_since(at);
        if notes
            .back()
            .is_none_or(|(at, _)| since(*at) >= self.rest / LOOKS_PER_AGE)
        {
            notes.push_back((now, used));
        }
        // The latest note that is old enough tells most.
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
