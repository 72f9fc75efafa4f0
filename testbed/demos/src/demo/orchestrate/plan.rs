//! The plan of a run: schemes, sizes and time limits.

use std::path::PathBuf;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::foreign::Foreign;

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Schemes to compare, in the order of the table.
    pub schemes: Vec<Scheme>,
    /// Sizes and their iteration counts.
    pub cases: Vec<Case>,
    /// The device's cost profile, for the report.
    pub profile: String,
    /// What its ports are connected to, for the report.
    pub link: String,
    /// The `libucp` of all processes; the loader's search without it.
    pub ucx_library: Option<PathBuf>,
    /// The processor of the DPUs, if it is another one.
    pub dpu: Option<Foreign>,
    /// Polling time of a process before it sleeps.
    pub spin: Duration,
    /// Directory for reports and logs.
    pub output: PathBuf,
    /// Time limit of the whole run.
    pub limit: Duration,
}

impl Plan {
    /// Name of the DPUs' processor.
    pub fn dpu_arch(&self) -> &str {
        let foreign = self.dpu.as_ref();
        foreign.map_or(std::env::consts::ARCH, |foreign| &foreign.architecture)
    }

    /// A time limit that only bounds a hang: longer for processors that an emulator executes.
    pub(super) fn limit_of(&self, usual: Duration) -> Duration {
        match self.dpu {
            None => usual,
            Some(_) => 10 * usual,
        }
    }
}

/// One source of keys: the same binary in another environment.
#[derive(Debug, Clone)]
pub struct Scheme {
    /// Name in the report.
    pub name: String,
    /// A device of its own, so that its counters are separate, with the environment of its processes.
    pub device: Cluster,
}

/// One size.
///
/// `openings` times, each scheme runs a first iteration in a new UCX context. In the last of these contexts the schemes
/// then take turns, in a rotating order, for `rounds` rounds of `warm_up` uncounted and `batch` counted iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Bytes per transfer.
    pub size: usize,
    /// First iterations per scheme.
    pub openings: u64,
    /// Turns per scheme.
    pub rounds: u64,
    /// Uncounted iterations at the start of each turn.
    pub warm_up: u64,
    /// Counted iterations per turn.
    pub batch: u64,
}

/// Length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Enough for a check: less than half a minute.
    Quick,
    /// Enough for a steady median: less than a minute.
    Full,
}

impl Case {
    /// The case of a size: as many iterations as move `budget` bytes, within limits, so that the large sizes neither
    /// take all the time nor get too few samples. `iterations` overrides the number.
    #[must_use]
    pub fn new(size: usize, effort: Effort, iterations: Option<u64>) -> Self {
        let (openings, rounds, budget, fewest, most) = match effort {
            Effort::Quick => (1, 16, 768 << 20, 48, 192),
            Effort::Full => (3, 24, 1 << 30, 48, 288),
        };
        let by_budget = (budget / size.max(1)) as u64;
        let wanted = iterations.unwrap_or(by_budget.clamp(fewest, most)).max(1);
        let rounds = rounds.min(wanted);
        Self {
            size,
            openings,
            rounds,
            warm_up: 1,
            batch: wanted.div_ceil(rounds),
        }
    }

    /// Counted iterations per scheme.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.rounds * self.batch
    }
}

/// The order of `count` schemes in a round: each scheme is first, second, ... equally often.
pub(super) fn order(round: u64, count: usize) -> impl Iterator<Item = usize> {
    let first = usize::try_from(round).expect("a machine of 64 bits") % count.max(1);
    (0..count).map(move |index| (first + index) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_iterations_follows_the_size() {
        let check = |size, effort, iterations, expect: (u64, u64)| {
            let case = Case::new(size, effort, iterations);
            assert_eq!((case.rounds, case.batch), expect, "{size} {effort:?}");
        };
        check(16 << 10, Effort::Quick, None, (16, 12));
        check(16 << 20, Effort::Quick, None, (16, 3));
        check(16 << 10, Effort::Full, None, (24, 12));
        check(16 << 20, Effort::Full, None, (24, 3));
        check(1 << 30, Effort::Full, None, (24, 2));
        check(16 << 10, Effort::Full, Some(2), (2, 1));
        check(16 << 10, Effort::Quick, Some(20), (16, 2));
        check(1 << 40, Effort::Quick, Some(0), (1, 1));
    }

    #[test]
    fn schemes_rotate() {
        let check = |round, expect: [usize; 3]| {
            assert_eq!(order(round, 3).collect::<Vec<_>>(), expect);
        };
        check(0, [0, 1, 2]);
        check(1, [1, 2, 0]);
        check(5, [2, 0, 1]);
    }
}
