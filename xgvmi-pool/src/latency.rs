//! Latency histograms with two significant digits, and their summaries.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest time that the histograms resolve, in nanoseconds: one minute. Every wait has ended by
/// then.
const LONGEST_NS: u64 = 60_000_000_000;

/// Significant digits of the histograms. With two digits a histogram takes 15 KiB.
const DIGITS: u8 = 2;

/// A summary of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Number of samples.
    pub count: u64,
    /// Median in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile in nanoseconds.
    pub p999_ns: u64,
    /// Maximum in nanoseconds.
    pub max_ns: u64,
}

/// Times of one kind of event.
pub(crate) struct Times(Option<Mutex<Histogram<u32>>>);

impl Times {
    fn new() -> Self {
        // The constructor fails only for bounds or digits out of range, and these are in range.
        Self(
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
                .ok()
                .map(Mutex::new),
        )
    }

    pub(crate) fn record(&self, time: Duration) {
        if let Some(histogram) = &self.0 {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            lock(histogram).saturating_record(ns.max(1));
        }
    }

    pub(crate) fn summary(&self) -> Latency {
        let Some(histogram) = &self.0 else {
            return Latency::default();
        };
        let histogram = lock(histogram);
        Latency {
            count: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(f)
    }
}

fn lock(histogram: &Mutex<Histogram<u32>>) -> MutexGuard<'_, Histogram<u32>> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All times of a pool.
#[derive(Debug)]
pub(crate) struct Latencies {
    pub(crate) create: Times,
    pub(crate) destroy: Times,
    pub(crate) bind: Times,
    pub(crate) invalidate: Times,
    pub(crate) wait: Times,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self {
            create: Times::new(),
            destroy: Times::new(),
            bind: Times::new(),
            invalidate: Times::new(),
            wait: Times::new(),
        }
    }

    pub(crate) fn summary(&self) -> PoolLatencies {
        PoolLatencies {
            create: self.create.summary(),
            destroy: self.destroy.summary(),
            bind: self.bind.summary(),
            invalidate: self.invalidate.summary(),
            wait: self.wait.summary(),
        }
    }
}

/// Latencies of the operations of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLatencies {
    /// Creating a key and opening it to other functions.
    pub create: Latency,
    /// Destroying a key.
    pub destroy: Latency,
    /// A chain of requests with at least one bind, from posting to completion. One chain in 64 is
    /// timed.
    pub bind: Latency,
    /// A chain of invalidations, from posting to completion. One chain in 64 is timed.
    pub invalidate: Latency,
    /// Waiting for a key at the cap.
    pub wait: Latency,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up_to_two_digits() {
        let times = Times::new();
        assert_eq!(times.summary(), Latency::default());
        (1..=1000).for_each(|us| times.record(Duration::from_micros(us)));
        times.record(Duration::from_secs(3600));
        let summary = times.summary();
        assert_eq!(summary.count, 1001);
        let near = |value: u64, expect: u64| value.abs_diff(expect) * 100 <= expect;
        assert!(near(summary.p50_ns, 501_000), "{summary:?}");
        assert!(near(summary.p99_ns, 991_000), "{summary:?}");
        assert!(near(summary.max_ns, LONGEST_NS), "{summary:?}");
    }
}
