//! Intervals between attempts of something that the device refuses.

use std::time::{Duration, Instant};

/// Failures without a delay. A single failure is often transient.
const FREE_FAILURES: u32 = 2;
/// Delay after the first failure that has one. Each further failure doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay: a device that works again is used again within a minute.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Decides when a failed operation may be tried again. The delay grows with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// True if the operation may be tried.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Records a failure.
    pub fn failed(&mut self, now: Instant) {
        let delayed = self.failures.checked_sub(FREE_FAILURES - 1);
        self.until = delayed.map(|times| {
            let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
            now + FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY)
        });
        self.failures = self.failures.saturating_add(1);
    }

    /// Records a success. The next failure is a first one again.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_end_with_a_success() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        assert!(backoff.is_due(now));
        backoff.failed(now);
        assert!(backoff.is_due(now), "a single failure may be transient");
        let mut before = Duration::ZERO;
        for _ in 0..100 {
            backoff.failed(now);
            let until = backoff.until.expect("a delay");
            let delay = until - now;
            assert!(!backoff.is_due(now) && backoff.is_due(until));
            assert!(delay > before || delay == LONGEST_DELAY, "{delay:?}");
            (before, now) = (delay, until);
        }
        assert_eq!(before, LONGEST_DELAY);
        backoff.succeeded();
        assert!(backoff.is_due(now));
        backoff.failed(now);
        assert!(backoff.is_due(now));
    }
}
