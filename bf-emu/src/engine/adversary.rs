//! Adversary mode: what an adapter may do beyond [`super::deferred`] mode, and seldom does.
//!
//! The data of a message arrives in pieces in any order, perhaps twice ([`super::arrival`]). A
//! request without a fence passes the one before it ([`super::overtake`]). Events of completion
//! queues and messages of the connection manager are late. If the mode names a rate, some requests
//! fail although their data has arrived. `docs/EMULATION.md` names the source of each rule.
//!
//! Each decision follows from the seed and the number of the request in its queue. The moment at
//! which the requests are executed, and whether the next one is posted by then, depend on the
//! machine.

#[cfg(test)]
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::model::faults::mixed;
use crate::sys;

static ON: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);
/// One request in so many fails after its data has arrived; 0 for none.
static FAILS_ONE_IN: AtomicU32 = AtomicU32::new(0);

/// A request, by its number in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) function: usize,
    /// Number of the queue.
    pub(super) queue: u32,
    pub(super) index: u32,
}

/// The decisions about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Time between its doorbell and its execution.
    Delay,
    /// The requests behind it are executed later.
    Rest,
    /// Time of its completion.
    Completion,
    /// Whether it waits for an answer.
    Answer,
    /// The pieces of its data.
    Pieces,
    /// The pieces of its data if they arrive again.
    Again,
    /// Time until the kernel has provided a page of a region with on-demand paging.
    PageFault,
    /// Whether the next request passes it.
    Passed,
    /// Whether it fails after its data has arrived.
    Failure,
    /// Time of the event of its completion queue.
    Event,
    /// Time of a message of the connection manager.
    Message,
}

/// Sets the mode of this process, before it posts anything. None switches it off.
pub(super) fn set(mode: Option<(u64, u32)>) {
    let (seed, fails_one_in) = mode.unwrap_or_default();
    SEED.store(seed, Ordering::Relaxed);
    FAILS_ONE_IN.store(fails_one_in, Ordering::Relaxed);
    ON.store(mode.is_some(), Ordering::Relaxed);
}

#[cfg(test)]
thread_local! {
    /// The mode of a test's own thread.
    pub(super) static MODE: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// Seed and rate of failures; None in other modes.
fn mode() -> Option<(u64, u32)> {
    #[cfg(test)]
    if let Some(mode) = MODE.get() {
        return Some(mode);
    }
    ON.load(Ordering::Relaxed).then(|| {
        (
            SEED.load(Ordering::Relaxed),
            FAILS_ONE_IN.load(Ordering::Relaxed),
        )
    })
}

/// True if this process is in adversary mode.
pub(super) fn is_on() -> bool {
    mode().is_some()
}

/// The number that decides about a request; None in other modes.
pub(super) fn draw(which: Which, choice: Choice) -> Option<u64> {
    mode().map(|(seed, _)| drawn(seed, which, choice))
}

fn drawn(seed: u64, which: Which, choice: Choice) -> u64 {
    let queue = mixed(seed, (which.function as u64) << 32 | u64::from(which.queue));
    mixed(queue, u64::from(which.index) << 8 | choice as u64)
}

/// True if a request is reported as failed although its data has arrived.
pub(super) fn fails(which: Which) -> bool {
    mode().is_some_and(|(seed, one_in)| {
        let drawn = drawn(seed, which, Choice::Failure);
        one_in != 0 && drawn.is_multiple_of(one_in.into())
    })
}

/// Time until which the completion of a message with a receiver waits for a message in the other
/// direction; None for no such wait. The answer to a message may arrive before its acknowledgement
/// (InfiniBand Architecture 1.3, 9.7.5.1.2, coalesced acknowledge messages).
pub(super) fn waits_for_answer(which: Which) -> Option<u64> {
    /// The first requests of a queue, in building blocks. They open a session, and their answers are
    /// slow.
    const FIRST: u32 = 8;
    let (one_in, most_ns) = match which.index {
        ..FIRST => (2, 40_000_000),
        _ => (4, 5_000_000),
    };
    draw(which, Choice::Answer)?
        .is_multiple_of(one_in)
        .then(|| sys::now_ns().saturating_add(most_ns).max(1))
}

/// Time at which the event of an entry of a completion queue is sent; None for now.
pub(super) fn tells_later(which: Which) -> Option<u64> {
    /// Longest delay.
    const MOST_NS: u64 = 500_000;
    let drawn = draw(which, Choice::Event)?;
    drawn
        .is_multiple_of(4)
        .then(|| sys::now_ns().saturating_add((drawn >> 8) % MOST_NS).max(1))
}

/// Time by which a message of the connection manager from identifier `id` is late, in nanoseconds.
pub(super) fn message_delay_ns(id: u32, index: u32) -> u64 {
    /// Longest delay. The receiver's thread looks after its messages each 10 ms.
    const MOST_NS: u64 = 5_000_000;
    let which = Which {
        function: usize::MAX >> 32,
        queue: id,
        index,
    };
    draw(which, Choice::Message).map_or(0, |drawn| match drawn % 2 {
        0 => 0,
        _ => (drawn >> 8) % MOST_NS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(index: u32) -> Which {
        Which {
            function: 1,
            queue: 0x40,
            index,
        }
    }

    #[test]
    fn a_decision_depends_on_the_seed_the_request_and_the_choice_only() {
        let first = drawn(7, which(3), Choice::Pieces);
        assert_eq!(first, drawn(7, which(3), Choice::Pieces));
        let others = [
            drawn(8, which(3), Choice::Pieces),
            drawn(7, which(4), Choice::Pieces),
            drawn(7, which(3), Choice::Again),
            drawn(
                7,
                Which {
                    queue: 0x41,
                    ..which(3)
                },
                Choice::Pieces,
            ),
            drawn(
                7,
                Which {
                    function: 2,
                    ..which(3)
                },
                Choice::Pieces,
            ),
        ];
        assert!(others.iter().all(|other| *other != first), "{others:?}");
    }
}
