//! How long a call is waited for. A rank may come late to a collective, and a program may compute between its tests, so only
//! a limit that the user sets ends a call; otherwise a warning says that it takes long.

use std::time::{Duration, Instant};

/// Time until the first warning; each later one comes after twice the time.
const FIRST_WARNING: Duration = Duration::from_secs(60);

/// The most that the time between two looks counts: in longer ones the program has done something else.
const LOOK: Duration = Duration::from_secs(1);

/// The wait for one call.
#[derive(Debug)]
pub struct Patience {
    limit: Option<Duration>,
    waited: Duration,
    warn_at: Duration,
    looked: Instant,
}

/// What to do about a call that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Wait,
    /// Say that the call has been waited for this long, and go on.
    Warn(Duration),
    /// The limit is over.
    GiveUp(Duration),
}

impl Patience {
    /// A wait that begins now. Without a limit it does not end.
    #[must_use]
    pub fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self {
            limit,
            waited: Duration::ZERO,
            warn_at: FIRST_WARNING,
            looked: now,
        }
    }

    /// The call is not complete.
    pub fn look(&mut self, now: Instant) -> Verdict {
        self.waited += now.saturating_duration_since(self.looked).min(LOOK);
        self.looked = now;
        match self.limit {
            Some(limit) if self.waited > limit => Verdict::GiveUp(limit),
            _ if self.waited > self.warn_at => {
                self.warn_at = self.waited * 2;
                Verdict::Warn(self.waited)
            }
            _ => Verdict::Wait,
        }
    }

    /// Time until the limit.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The verdicts of looks after these seconds.
    fn verdicts(limit_s: Option<u64>, looks: impl Iterator<Item = u32>) -> Vec<Verdict> {
        let start = Instant::now();
        let mut patience = Patience::new(limit_s.map(Duration::from_secs), start);
        looks.map(|at| patience.look(start + SECOND * at)).collect()
    }

    #[test]
    fn a_program_that_computes_between_its_tests_keeps_its_call() {
        let looks = verdicts(Some(60), [61, 3600, 3601].into_iter());
        assert_eq!(looks, [Verdict::Wait; 3]);
    }

    #[test]
    fn a_limit_ends_a_call_that_is_tested_all_the_time() {
        let looks = verdicts(Some(5), 1..=6);
        assert_eq!(looks[4], Verdict::Wait);
        assert_eq!(looks[5], Verdict::GiveUp(SECOND * 5));
    }

    #[test]
    fn without_a_limit_a_call_is_warned_of_and_does_not_end() {
        let looks = verdicts(None, 1..=1000);
        let other: Vec<&Verdict> = looks
            .iter()
            .filter(|look| **look != Verdict::Wait)
            .collect();
        let expect = [61, 123, 247, 495, 991].map(|s| Verdict::Warn(SECOND * s));
        assert_eq!(other, expect.iter().collect::<Vec<_>>());
    }
}
