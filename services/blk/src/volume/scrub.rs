//! A scrub while the volume serves: one at a time, at a limited rate, until it is stopped.

use super::repair::ScrubReport;
use super::state::{Volume, add};
use crate::error::{BlkError, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How fast a scrub reads the volume.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    rate: u64,
}

impl Pace {
    /// At most `rate` bytes of the volume per second.
    ///
    /// # Errors
    /// The rate is 0.
    pub fn new(rate: u64) -> Result<Self> {
        match rate {
            0 => Err(BlkError::Argument(
                "rate 0: give bytes per second, as 64M".to_owned(),
            )),
            rate => Ok(Self { rate }),
        }
    }

    /// Least time for so many bytes.
    fn time(self, bytes: u64) -> Duration {
        // Cannot overflow: a volume has less than 2^53 bytes, which takes less than 2^83 ns.
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// The right to scrub, from [`Volume::begin_scrub`]. Dropping it ends the scrub.
#[derive(Debug)]
pub struct ScrubTurn(Arc<Volume>);

impl Drop for ScrubTurn {
    fn drop(&mut self) {
        self.0.scrubbing.state().runs = false;
    }
}

impl ScrubTurn {
    /// As [`Volume::scrub`], at a limited rate, until its end or [`Volume::stop_scrub`].
    ///
    /// # Errors
    /// As [`Volume::scrub`].
    pub fn scrub(self, pace: Pace) -> Result<ScrubReport> {
        let volume = &self.0;
        let begun = Instant::now();
        let size = volume.geometry().block_len() as u64;
        let mut told = ScrubReport::default();
        let result = volume.scrub_while(|report| {
            volume.count(&told, report);
            told = *report;
            let due = begun.checked_add(pace.time(report.blocks * size));
            due.is_some_and(|due| volume.scrubbing.wait(due))
        });
        add(&volume.counters.scrubs, 1);
        result
    }
}

impl Volume {
    /// Begins a scrub, which the status shows from here on.
    ///
    /// # Errors
    /// One runs.
    pub fn begin_scrub(self: &Arc<Self>) -> Result<ScrubTurn> {
        let mut state = self.scrubbing.state();
        if state.runs {
            return Err(BlkError::Argument(
                "a scrub runs: wait for its end, or stop it".to_owned(),
            ));
        }
        (state.runs, state.stops) = (true, false);
        Ok(ScrubTurn(Arc::clone(self)))
    }

    /// Lets the scrub that runs end. False if none does.
    pub fn stop_scrub(&self) -> bool {
        let mut state = self.scrubbing.state();
        state.stops = state.runs;
        self.scrubbing.stopped.notify_all();
        state.runs
    }

    fn count(&self, before: &ScrubReport, now: &ScrubReport) {
        let counters = &self.counters;
        add(&counters.scrubbed_blocks, now.blocks - before.blocks);
        add(
            &counters.scrub_bad_halves,
            now.bad_halves - before.bad_halves,
        );
        add(
            &counters.scrub_lost_blocks,
            now.lost_blocks - before.lost_blocks,
        );
    }

    pub(super) fn damaged_entries(&self) -> u64 {
        self.counters.damaged_entries.load(Ordering::Relaxed)
    }
}

impl fmt::Display for ScrubReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} blocks, {} half blocks absent or wrong, {} written again, {} blocks cannot be read",
            self.blocks, self.bad_halves, self.repaired_halves, self.lost_blocks
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limits_bytes_per_second() {
        let pace = Pace::new(64 << 20).unwrap();
        assert_eq!(pace.time(0), Duration::ZERO);
        assert_eq!(pace.time(128 << 20), Duration::from_secs(2));
        assert_eq!(
            Pace::new(1).unwrap().time(1 << 52).as_secs(),
            u64::MAX / 1_000_000_000
        );
        assert!(Pace::new(0).is_err());
    }
}
