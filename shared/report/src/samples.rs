//! Latency samples and exact percentiles. All samples are kept.

/// Times of one measurement, in microseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    us: Vec<f64>,
}

impl Samples {
    /// Adds times measured in nanoseconds.
    pub fn extend_ns(&mut self, times_ns: &[u64]) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact below 2^53 ns, which is 104 days"
        )]
        self.us.extend(times_ns.iter().map(|ns| *ns as f64 / 1e3));
    }

    /// Adds times measured in microseconds.
    pub fn extend_us(&mut self, times_us: &[f64]) {
        self.us.extend(times_us);
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.us.len()
    }

    /// True without samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.us.is_empty()
    }

    /// The nearest-rank percentile in microseconds: the smallest sample that is greater than or
    /// equal to at least `percent` of 100 samples. `None` without samples.
    #[must_use]
    pub fn percentile(&self, percent: u32) -> Option<f64> {
        let mut sorted = self.us.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent.min(100) as usize).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(times_us: &[u64], percent: u32, expect: Option<f64>) {
        let mut samples = Samples::default();
        samples.extend_ns(&times_us.iter().map(|us| us * 1000).collect::<Vec<_>>());
        assert_eq!(
            samples.percentile(percent),
            expect,
            "{percent} of {times_us:?}"
        );
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        check(&[], 50, None);
        check(&[7], 0, Some(7.0));
        check(&[7], 99, Some(7.0));
        check(&[4, 1, 3, 2], 50, Some(2.0));
        check(&[5, 4, 1, 3, 2], 50, Some(3.0));
        check(&[5, 4, 1, 3, 2], 99, Some(5.0));
        check(&(1..=200).collect::<Vec<_>>(), 99, Some(198.0));
        check(&(1..=200).collect::<Vec<_>>(), 100, Some(200.0));
    }

    #[test]
    fn nanoseconds_become_microseconds() {
        let mut samples = Samples::default();
        samples.extend_ns(&[1_500]);
        assert_eq!((samples.len(), samples.percentile(50)), (1, Some(1.5)));
    }
}
