//! Times of the uses of aliases, without a line that all threads write. Each thread counts its own uses. A thread that
//! needs an order of all of them advances a common time, and every later use has a later time. The order of one thread's
//! uses is exact. Between two advances, that of different threads' uses is not.
//!
//! Any order of evictions is correct, so the loom tests leave the clock out.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts. Threads beyond this number share them.
const COUNTS: usize = 16;

/// A count, on a line of its own.
#[derive(Debug)]
#[cfg_attr(target_arch = "aarch64", repr(align(128)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(64)))]
struct Count(AtomicU64);

const _: () = assert!(size_of::<Count>() == crate::sync::LINE_BYTES);

/// The clock.
#[derive(Debug)]
pub(crate) struct UseClock {
    /// Not later than any later use.
    common: AtomicU64,
    counts: Box<[Count]>,
}

impl UseClock {
    pub(crate) fn new() -> Self {
        let counts = (0..COUNTS).map(|_| Count(AtomicU64::new(0)));
        Self {
            common: AtomicU64::new(1),
            counts: counts.collect(),
        }
    }

    /// The time of a use by the thread with this number.
    #[inline]
    pub(crate) fn tick(&self, thread: usize) -> u64 {
        let count = &self.counts[thread % COUNTS].0;
        let own = count.load(Ordering::Relaxed) + 1;
        let now = own.max(self.common.load(Ordering::Relaxed));
        // Threads that share the count may get equal times.
        count.store(now, Ordering::Relaxed);
        now
    }

    /// Returns the time of the last use. Later uses have later times.
    pub(crate) fn advance(&self) -> u64 {
        let counts = self.counts.iter();
        let last = counts.map(|count| count.0.load(Ordering::Relaxed)).max();
        let last = last.unwrap_or(0);
        let before = self.common.fetch_max(last + 1, Ordering::Relaxed);
        last.max(before.saturating_sub(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn uses_of_a_thread_and_uses_around_an_advance_are_in_order() {
        let clock = UseClock::new();
        let times: Vec<_> = (0..3).map(|_| clock.tick(0)).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
        let last = clock.advance();
        assert_eq!(last, times[2]);
        assert!(clock.tick(1) > last);
        assert_eq!(clock.advance(), last + 1);
        assert_eq!(clock.advance(), last + 1, "no use in between");
        assert!(clock.tick(0) > last + 1);
    }
}
