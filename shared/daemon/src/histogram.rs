//! Histogram of durations with buckets at powers of two.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of buckets: up to 1 us, 2 us, 4 us and so on to 67 s, and one for longer durations.
const BUCKETS: usize = 28;

/// Durations by order of magnitude. The memory does not depend on their number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Number of durations per bucket, not cumulative.
    counts: Vec<u64>,
    /// Sum of all durations, in microseconds.
    sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            sum_us: 0,
        }
    }
}

impl Histogram {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        self.record_us(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds one duration of this number of microseconds.
    #[inline]
    pub fn record_us(&mut self, us: u64) {
        // The first bucket whose limit of 2^bucket us is not below the duration.
        let bucket = us
            .saturating_sub(1)
            .checked_ilog2()
            .map_or(0, |log| log as usize + 1);
        let bucket = if us <= 1 { 0 } else { bucket.min(BUCKETS - 1) };
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all durations, in microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// For each bucket with a limit: the limit in microseconds, and the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut sum = 0;
        let limited = self.counts.len().saturating_sub(1);
        self.counts[..limited]
            .iter()
            .enumerate()
            .map(move |(at, count)| {
                sum += count;
                (1 << at, sum)
            })
    }

    /// The smallest bucket limit, in microseconds, that covers `share` of all durations; `None` for an empty histogram,
    /// and when the last limit does not cover them.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "an estimate by powers of two")]
        let wanted = count as f64 * share;
        #[expect(clippy::cast_precision_loss, reason = "an estimate by powers of two")]
        let mut limits = self
            .cumulative()
            .filter(|(_, below)| *below as f64 >= wanted);
        limits.next().map(|(limit, _)| limit).filter(|_| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_that_holds_them() {
        let check = |us: u64, limit: Option<u64>| {
            let mut histogram = Histogram::default();
            histogram.record(Duration::from_micros(us));
            assert_eq!(histogram.quantile_us(1.0), limit, "{us} us");
            assert_eq!((histogram.count(), histogram.sum_us()), (1, us));
        };
        check(0, Some(1));
        check(1, Some(1));
        check(2, Some(2));
        check(3, Some(4));
        check(4, Some(4));
        check(5, Some(8));
        check(1 << 26, Some(1 << 26));
        check((1 << 26) + 1, None);
        assert_eq!(Histogram::default().quantile_us(0.5), None);
    }

    #[test]
    fn quantiles_are_those_of_all() {
        let mut histogram = Histogram::default();
        for us in 1..=100 {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.quantile_us(0.5), Some(64));
        assert_eq!(histogram.quantile_us(0.99), Some(128));
        assert_eq!(histogram.cumulative().last(), Some((1 << 26, 100)));
    }
}
