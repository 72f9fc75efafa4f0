//! How long the main loop goes without a look at its timers. Beats are sent there: other SPs and ranks give up an SP whose
//! loop stands still for the silence limit.

use std::time::{Duration, Instant};

/// Gap from which on the log has a line. A sleep takes half a second at most.
const STANDSTILL: Duration = Duration::from_secs(2);

/// The parts of the main loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Messages, reads and the device calls of jobs.
    Jobs,
    /// Waiting for descriptors.
    Sleep,
    /// Frames, callers and signals.
    Connections,
}

/// The gaps since the start.
#[derive(Debug)]
pub(super) struct Pulse {
    /// The last look at the timers, and the thread's processor time then.
    looked: Instant,
    processor: Duration,
    /// End of the last part, and the longest part since the last look.
    passed: Instant,
    longest: (Duration, Part),
    most: Duration,
}

/// A gap that others may notice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Standstill {
    gap: Duration,
    processor: Duration,
    part: (Duration, Part),
}

impl Pulse {
    pub(super) fn new(now: Instant, processor: Duration) -> Self {
        Self {
            looked: now,
            processor,
            passed: now,
            longest: (Duration::ZERO, Part::Jobs),
            most: Duration::ZERO,
        }
    }

    /// The longest gap so far.
    pub(super) fn most(&self) -> Duration {
        self.most
    }

    /// A part of the loop has ended.
    pub(super) fn passed(&mut self, part: Part, now: Instant) {
        let took = now.saturating_duration_since(self.passed);
        self.passed = now;
        if took > self.longest.0 {
            self.longest = (took, part);
        }
    }

    /// The loop looks at its timers. Returns a gap of two seconds or more.
    pub(super) fn look(&mut self, now: Instant, processor: Duration) -> Option<Standstill> {
        let gap = now.saturating_duration_since(self.looked);
        let standstill = Standstill {
            gap,
            processor: processor.saturating_sub(self.processor),
            part: self.longest,
        };
        self.most = self.most.max(gap);
        (self.looked, self.processor) = (now, processor);
        self.longest = (Duration::ZERO, Part::Jobs);
        (gap >= STANDSTILL).then_some(standstill)
    }
}

impl std::fmt::Display for Standstill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (longest, part) = self.part;
        let part = match part {
            Part::Jobs => "the data of jobs and their device calls",
            Part::Sleep => "a sleep: the process was stopped, or got no processor",
            Part::Connections => "connections and callers",
        };
        write!(
            f,
            "the main loop stood still for {} ms, with {} ms of processor time; its longest part, {} ms, was {part}",
            self.gap.as_millis(),
            self.processor.as_millis(),
            longest.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_kept_and_a_long_one_is_described() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut pulse = Pulse::new(start, ms(5));
        pulse.passed(Part::Connections, start + ms(100));
        assert_eq!(pulse.look(start + ms(600), ms(6)), None);
        assert_eq!(pulse.most(), ms(600));
        pulse.passed(Part::Connections, start + ms(700));
        pulse.passed(Part::Jobs, start + ms(20_700));
        pulse.passed(Part::Sleep, start + ms(20_800));
        let long = pulse.look(start + ms(20_900), ms(106)).expect("a long gap");
        assert_eq!(
            long.to_string(),
            "the main loop stood still for 20300 ms, with 100 ms of processor time; its longest part, 20000 ms, was the \
             data of jobs and their device calls"
        );
        assert_eq!(pulse.look(start + ms(21_000), ms(106)), None);
        assert_eq!(pulse.most(), ms(20_300));
    }
}
