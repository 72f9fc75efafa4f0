//! The size of a queue over time: mean and percentile, both weighted by time.

/// Buckets per power of two.
const STEPS: u32 = 16;
const BUCKETS: usize = 40 * STEPS as usize;

/// How long a queue had each size.
#[derive(Debug, Clone)]
pub(crate) struct OverTime {
    /// Picoseconds per bucket. Empty: not recorded.
    buckets: Vec<u64>,
    byte_ps: u128,
    since_ps: u64,
    total_ps: u64,
    peak: u64,
}

impl OverTime {
    pub(crate) fn new(is_recorded: bool) -> Self {
        Self {
            buckets: vec![0; if is_recorded { BUCKETS } else { 0 }],
            byte_ps: 0,
            since_ps: 0,
            total_ps: 0,
            peak: 0,
        }
    }

    /// The queue had `bytes` since the last call.
    #[inline]
    pub(crate) fn add(&mut self, now_ps: u64, bytes: u64) {
        let span = now_ps - self.since_ps;
        self.since_ps = now_ps;
        if let Some(bucket) = self.buckets.get_mut(bucket(bytes)) {
            *bucket += span;
            self.byte_ps += u128::from(bytes) * u128::from(span);
            self.total_ps += span;
            self.peak = self.peak.max(bytes);
        }
    }

    /// Forgets what is before `now_ps`.
    pub(crate) fn restart(&mut self, now_ps: u64) {
        self.buckets.fill(0);
        self.byte_ps = 0;
        self.total_ps = 0;
        self.peak = 0;
        self.since_ps = now_ps;
    }

    pub(crate) fn is_recorded(&self) -> bool {
        !self.buckets.is_empty()
    }

    pub(crate) fn mean(&self) -> u64 {
        let mean = self.byte_ps / u128::from(self.total_ps.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// The size that the queue did not exceed for this part of the time, within 1/16.
    pub(crate) fn percentile(&self, percent: u64) -> u64 {
        let limit = u128::from(self.total_ps) * u128::from(percent);
        let mut passed = 0;
        for (bucket, ps) in self.buckets.iter().enumerate() {
            passed += u128::from(*ps) * 100;
            if passed >= limit {
                return upper(bucket).min(self.peak);
            }
        }
        self.peak
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }
}

/// Sizes below the number of steps have a bucket each.
fn bucket(bytes: u64) -> usize {
    let steps = u64::from(STEPS);
    let at = if bytes < steps {
        bytes
    } else {
        let power = bytes.ilog2() - STEPS.ilog2();
        u64::from(power + 1) * steps + ((bytes >> power) - steps)
    };
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The largest size in a bucket.
fn upper(bucket: usize) -> u64 {
    let (bucket, steps) = (bucket as u64, u64::from(STEPS));
    match (bucket / steps).checked_sub(1) {
        None => bucket,
        Some(power) => ((bucket % steps + steps + 1) << power) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_sizes_within_a_sixteenth() {
        for bytes in (0..100_000).chain([1 << 20, (1 << 30) + 12_345]) {
            let upper = upper(bucket(bytes));
            assert!(
                bytes <= upper && upper - bytes <= bytes / 16,
                "{bytes}: {upper}"
            );
        }
    }

    #[test]
    fn mean_and_percentile_are_weighted_by_time() {
        let mut queue = OverTime::new(true);
        queue.add(1_000, 77_777);
        queue.restart(1_000);
        queue.add(1_900, 0);
        queue.add(1_990, 1_000);
        queue.add(2_000, 100_000);
        assert_eq!(queue.mean(), (90 * 1_000 + 10 * 100_000) / 1_000);
        assert_eq!(queue.percentile(50), 0);
        assert!((1_000..1_063).contains(&queue.percentile(99)));
        assert_eq!((queue.percentile(100), queue.peak()), (100_000, 100_000));
    }
}
