//! Deferred mode: work completes later than its doorbell.
//!
//! By default a request is complete when the doorbell store returns. A program that depends on this
//! fails on hardware only. In deferred mode a doorbell only records that work exists. The process's
//! thread executes it after a pseudo-random delay, executes some of the requests and leaves the
//! rest for later, and reports some completions later than their data. An adapter may do all of
//! this. Requests and completions of one queue stay in order. Different queues overtake each other.
//!
//! The same seed gives the same delays. The scheduling between them depends on the machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::adversary::{self, Choice, Which};
use super::polling;
use crate::fabric::{Locked, QPN_BASE};
use crate::model::faults::mixed;
use crate::sys;

/// Environment variable that names the mode of a process: `trap`, `polling`, `deferred`,
/// `deferred:SEED`, `adversary:SEED` or `adversary:SEED:N`.
pub const ENV_MODE: &str = "BFEMU_MODE";
/// Default seed.
pub const SEED_DEFAULT: u64 = 1;

static ON: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(SEED_DEFAULT);
/// Draws made so far.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The thread that executes posted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The posting thread, at its doorbell store.
    Trap,
    /// A thread of the posting process, which watches the doorbell records.
    Polling,
    /// A thread of the posting process, after a delay.
    Deferred {
        /// Seed of the pseudo-random delays.
        seed: u64,
    },
    /// Like deferred mode, and data and requests take any order that an adapter may use.
    Adversary {
        /// Seed of the decisions.
        seed: u64,
        /// One request in so many is reported as failed after its data has arrived; 0 for none.
        fails_one_in: u32,
    },
}

/// The text names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a mode: trap, polling, deferred, deferred:SEED, adversary:SEED, or adversary:SEED:N; \
     SEED is a number up to 2^64 - 1, and one request in N (up to 2^32 - 1) fails after its data has arrived"
)]
pub struct ModeError {
    text: String,
}

impl std::str::FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        let error = || ModeError {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            None if text == "trap" => Ok(Self::Trap),
            None if text == "polling" => Ok(Self::Polling),
            None if text == "deferred" => Ok(Self::Deferred { seed: SEED_DEFAULT }),
            Some(("deferred", seed)) => {
                let seed = seed.parse().map_err(|_| error())?;
                Ok(Self::Deferred { seed })
            }
            Some(("adversary", rest)) => {
                let (seed, fails) = rest.split_once(':').unwrap_or((rest, "0"));
                let seed = seed.parse().map_err(|_| error())?;
                let fails_one_in = fails.parse().map_err(|_| error())?;
                Ok(Self::Adversary { seed, fails_one_in })
            }
            _ => Err(error()),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Trap => f.write_str("trap"),
            Self::Polling => f.write_str("polling"),
            Self::Deferred { seed } => write!(f, "deferred:{seed}"),
            Self::Adversary { seed, fails_one_in } => write!(f, "adversary:{seed}:{fails_one_in}"),
        }
    }
}

/// Sets the mode of this process, before it posts anything.
pub(crate) fn set(mode: Mode) {
    if let Mode::Deferred { seed } = mode {
        SEED.store(seed, Ordering::Relaxed);
    }
    let adversary = match mode {
        Mode::Adversary { seed, fails_one_in } => Some((seed, fails_one_in)),
        _ => None,
    };
    adversary::set(adversary);
    let defers = matches!(mode, Mode::Deferred { .. } | Mode::Adversary { .. });
    ON.store(defers, Ordering::Relaxed);
    polling::set(mode == Mode::Polling);
}

/// True if this process defers its work.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The number that decides about a request. Adversary mode draws by request, so that a seed gives the
/// same decisions in each run.
fn draw(which: Which, choice: Choice) -> u64 {
    adversary::draw(which, choice).unwrap_or_else(next)
}

fn next() -> u64 {
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    mixed(SEED.load(Ordering::Relaxed), number)
}

/// The delay that follows from `drawn`: mostly short, sometimes long enough for many operations of
/// other processes.
fn delay_ns(drawn: u64) -> u64 {
    let most_us = match drawn % 16 {
        0..8 => 20,
        8..14 => 200,
        _ => 2000,
    };
    (drawn >> 8) % (most_us * 1000)
}

/// Defers the work on a queue pair of this process. Returns false if the work is to be executed
/// now.
pub(crate) fn postpone(locked: &mut Locked<'_>, function: usize, slot: u32) -> bool {
    if !is_on() {
        return false;
    }
    let tables = locked.peek(function);
    let owner = tables.qps.owner(slot);
    // The thread that executes deferred work serves only queues of its own process.
    if owner.and_then(|owner| locked.pid(owner.process)) != Some(sys::pid()) {
        return false;
    }
    let Some(qp) = locked.function(function).qps.get_mut(slot) else {
        return false;
    };
    let which = Which {
        function,
        queue: slot + QPN_BASE,
        index: qp.sq_done,
    };
    let until_ns = sys::now_ns().saturating_add(delay_ns(draw(which, Choice::Delay)));
    // A second doorbell does not extend the delay of the first.
    if !qp.pending || qp.defer_until_ns == 0 {
        qp.defer_until_ns = until_ns;
    }
    qp.pending = true;
    true
}

/// True if the requests behind the executed one are deferred.
pub(super) fn leaves_the_rest(which: Which) -> bool {
    is_on() && draw(which, Choice::Rest).is_multiple_of(4)
}

/// Time at which the completion of an executed request is written; None for immediately.
pub(super) fn shows_later(which: Which) -> Option<u64> {
    if !is_on() {
        return None;
    }
    let drawn = draw(which, Choice::Completion);
    (drawn % 4 < 2).then(|| sys::now_ns().saturating_add(delay_ns(drawn >> 2)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adversary(seed: u64, fails_one_in: u32) -> Mode {
        Mode::Adversary { seed, fails_one_in }
    }

    #[test]
    fn modes_by_name() {
        for (text, expect) in [
            ("trap", Ok(Mode::Trap)),
            ("polling", Ok(Mode::Polling)),
            ("deferred", Ok(Mode::Deferred { seed: SEED_DEFAULT })),
            ("deferred:0", Ok(Mode::Deferred { seed: 0 })),
            (
                "deferred:18446744073709551615",
                Ok(Mode::Deferred { seed: u64::MAX }),
            ),
            ("adversary:7", Ok(adversary(7, 0))),
            ("adversary:7:0", Ok(adversary(7, 0))),
            ("adversary:0:4294967295", Ok(adversary(0, u32::MAX))),
        ] {
            let mode: Result<Mode, ModeError> = text.parse();
            assert_eq!(mode, expect);
            if let Ok(mode) = mode {
                assert_eq!(mode.to_string().parse(), Ok(mode));
            }
        }
        for text in [
            "",
            "deferred:",
            "deferred:-1",
            "trap:1",
            "later",
            "adversary",
            "adversary:",
            "adversary:1:",
            "adversary:1:2:3",
            "adversary:1:4294967296",
        ] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }

    #[test]
    fn delays_are_short_and_seldom_long() {
        let delays: Vec<u64> = (0..10_000)
            .map(|number| delay_ns(mixed(7, number)))
            .collect();
        let long = delays.iter().filter(|ns| **ns > 200_000).count();
        assert!((500..2000).contains(&long), "{long}");
        assert!(delays.iter().all(|ns| *ns < 2_000_000));
        let again: Vec<u64> = (0..10_000)
            .map(|number| delay_ns(mixed(7, number)))
            .collect();
        assert_eq!(delays, again);
    }
}
