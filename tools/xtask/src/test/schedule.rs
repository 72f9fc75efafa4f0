//! The order of the phases: each starts when those that it needs have ended.

use super::tally::{Case, Tally};
use super::{Phase, World, show_progress};
use crate::process;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// When a phase may start. A phase that is not requested delays no other.
pub(super) enum Start {
    /// After the named phases, beside others. Such a phase asserts nothing about wall time.
    After(&'static [&'static str]),
    /// After all phases before it in the list, and with none beside it.
    Alone,
}

/// The chosen phases, and how far each is.
struct Schedule<'a> {
    chosen: &'a [&'static Phase],
    progress: Vec<Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waits,
    Runs,
    Ended,
}

impl Schedule<'_> {
    fn is_over(&self) -> bool {
        !self.progress.contains(&Progress::Waits)
    }

    /// The first phase that may start now.
    fn next(&self) -> Option<usize> {
        let may_start = |number: &usize| {
            let before = &self.progress[..*number];
            self.progress[*number] == Progress::Waits
                && match self.chosen[*number].start {
                    Start::Alone => before.iter().all(|one| *one == Progress::Ended),
                    Start::After(names) => self.chosen.iter().zip(&self.progress).enumerate().all(
                        |(other, (phase, progress))| {
                            let is_needed = names.contains(&phase.name)
                                || other < *number && matches!(phase.start, Start::Alone);
                            !is_needed || *progress == Progress::Ended
                        },
                    ),
                }
        };
        (0..self.chosen.len()).find(may_start)
    }

    /// Names of the phases that run.
    fn running(&self) -> String {
        let phases = self.chosen.iter().zip(&self.progress);
        let running = phases.filter(|(_, progress)| **progress == Progress::Runs);
        let names: Vec<&str> = running.map(|(phase, _)| phase.name).collect();
        names.join(", ")
    }
}

/// Runs the phases, each in a thread, and adds the result of each as it ends. One more than there are cores runs at the
/// same time, because each phase leaves about a third of a core idle.
pub(super) fn run(chosen: &[&'static Phase], world: &World, tally: &Mutex<Tally>) {
    let schedule = Mutex::new(Schedule {
        chosen,
        progress: vec![Progress::Waits; chosen.len()],
    });
    let ended = Condvar::new();
    let work = || {
        let mut state = schedule.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over() {
            let Some(number) = state.next() else {
                state = ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.progress[number] = Progress::Runs;
            show_progress(&state.running());
            drop(state);
            let phase = chosen[number];
            let (started, used) = (Instant::now(), process::used());
            let cases = (phase.run)(phase, world)
                .unwrap_or_else(|error| vec![Case::fail(phase.name, format!("{error:#}"))]);
            state = schedule.lock().unwrap_or_else(PoisonError::into_inner);
            state.progress[number] = Progress::Ended;
            show_progress("");
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            let used = process::used().saturating_sub(used);
            tally.add(phase.name, [started.elapsed(), used], cases);
            ended.notify_all();
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::super::choose;
    use super::*;

    /// The phases that may start, in order, when each of those in `ended` has ended and none other has started.
    fn startable(chosen: &[&'static Phase], ended: &[&str]) -> Vec<&'static str> {
        let of = |phase: &&Phase| match ended.contains(&phase.name) {
            true => Progress::Ended,
            false => Progress::Waits,
        };
        let mut schedule = Schedule {
            chosen,
            progress: chosen.iter().map(of).collect(),
        };
        let mut names = Vec::new();
        while let Some(number) = schedule.next() {
            schedule.progress[number] = Progress::Runs;
            names.push(chosen[number].name);
        }
        names
    }

    #[test]
    fn a_phase_starts_when_those_that_it_needs_have_ended() {
        let all = choose(&[]).unwrap().unwrap();
        let names = |phases: &[&'static Phase]| -> Vec<&str> {
            phases.iter().map(|phase| phase.name).collect()
        };
        assert_eq!(startable(&all, &[]), ["setup", "fmt", "build", "tidy"]);
        assert_eq!(
            startable(&all, &["setup", "fmt", "tidy"]),
            ["build", "clippy"]
        );
        // The longest ones first, whichever of the builds ends first.
        let before = ["setup", "fmt", "tidy", "build"];
        assert_eq!(startable(&all, &before), ["clippy", "suites"]);
        let builds = [&before[..], &["clippy"]].concat();
        assert_eq!(startable(&all, &builds)[..3], ["system", "suites", "unit"]);
        let last = all.len() - 1;
        assert_eq!(startable(&all, &names(&all[..last])), ["demo"]);
        assert_eq!(
            startable(&all, &names(&all[..last - 1])),
            ["patches"],
            "no two of those that run alone"
        );
        let chosen = ["demo", "unit"].map(str::to_owned);
        let some = choose(&chosen).unwrap().unwrap();
        assert_eq!(
            startable(&some, &["setup"]),
            ["unit"],
            "the build is not asked for"
        );
        // Each run comes to its end.
        let mut ended: Vec<&str> = Vec::new();
        while ended.len() < all.len() {
            let next = startable(&all, &ended);
            assert!(!next.is_empty(), "{ended:?}");
            ended.extend(next);
        }
    }
}
