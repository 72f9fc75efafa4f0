//! Room in the completion queues of a poster's own process.
//!
//! A doorbell executes its requests before the store returns. A program that posts a request for each
//! completion between `ibv_start_poll` and `ibv_end_poll` would find the next completion every time,
//! although an adapter takes longer than the program's loop. libmlx5 publishes the consumer counter at
//! the end of the loop only, so that the queue would overrun. Therefore a request waits while the
//! queue of its completion seems full: the program then finds an empty queue, and publishes its
//! counter. A request of another process does not wait, because that process does not post from the
//! reader's loop.

use super::complete::{consumed_now, space_of_qp};
use super::peer::Poster;
use crate::fabric::Locked;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Cq, Room};
use crate::fabric::table::Owner;
use crate::memory::Space;
use crate::sys;

/// Longest wait while a queue is half full, once for each value of the counter. It gives a reader
/// time to find the queue empty before it is full. A program that reads seldom hardly notices it.
const HALF_FULL_NS: u64 = 20_000;
/// Longest wait while a queue is full. A queue whose reader does not move for so long overruns.
const FULL_NS: u64 = 100_000_000;
/// Smaller queues are only full or not. Many programs fill them with each batch.
const HALVES_FROM: u32 = 16;

/// True if the completion of the poster's next request must wait for room. `space` is the memory of
/// the poster's process.
pub(super) fn sender_waits(locked: &mut Locked<'_>, poster: &Poster, space: Space) -> bool {
    let queue = (poster.function, poster.qp.send_cq);
    let room = Wanted {
        entries: 1,
        halves_from: HALVES_FROM,
    };
    waits(locked, (poster, Some(space)), queue, room)
}

/// The room that a request wants.
#[derive(Clone, Copy)]
struct Wanted {
    /// Its entries in the queue.
    entries: u32,
    /// Queues with fewer entries are only full or not.
    halves_from: u32,
}

/// True if a message must wait for room in the receiver's completion queue, which belongs to the
/// poster's process too.
pub(super) fn receiver_waits(locked: &mut Locked<'_>, poster: &Poster, peer: &Poster) -> bool {
    let queue = (peer.function, peer.qp.recv_cq);
    // The sender's completion may follow in the same queue.
    let same = queue == (poster.function, poster.qp.send_cq);
    let room = Wanted {
        entries: if same { 2 } else { 1 },
        halves_from: u32::MAX,
    };
    waits(locked, (poster, None), queue, room)
}

fn waits(
    locked: &mut Locked<'_>,
    poster: (&Poster, Option<Space>),
    (function, slot): (usize, u32),
    wanted: Wanted,
) -> bool {
    let cqs = &locked.peek(function).cqs;
    let Some(cq) = cqs.get(slot) else {
        return false;
    };
    // Most requests end here: the counter of the last look leaves room. A small queue needs a look
    // more often. The look must cost little, so that programs with small queues do not seem slower.
    if cq.ignore_overrun || cq.overrun || state_of(cq, wanted) == State::Free {
        return false;
    }
    let (poster, space) = poster;
    let process = |owner: Option<Owner>| owner.map(|owner| owner.process);
    let own = &locked.peek(poster.function).qps;
    if process(cqs.owner(slot)) != process(own.owner(qp_slot(poster.qpn))) {
        return false;
    }
    let space = space.or_else(|| space_of_qp(locked, poster.function, poster.qpn));
    let Some(consumed) = space.and_then(|space| consumed_now(space, cq)) else {
        return false;
    };
    let Some(cq) = locked.function(function).cqs.get_mut(slot) else {
        return false;
    };
    cq.consumed = consumed;
    state_of(cq, wanted) != State::Free && look(cq, wanted, sys::now_ns)
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    HalfFull,
    Full,
}

fn state_of(cq: &Cq, wanted: Wanted) -> State {
    let unread = cq.produced.wrapping_sub(cq.consumed);
    if unread.saturating_add(wanted.entries) > cq.ring.count {
        State::Full
    } else if cq.ring.count >= wanted.halves_from && unread >= cq.ring.count / 2 {
        State::HalfFull
    } else {
        State::Free
    }
}

/// Decides about a request by the queue's counter. A wait begins anew when the counter moves.
fn look(cq: &mut Cq, wanted: Wanted, now_ns: impl Fn() -> u64) -> bool {
    let state = state_of(cq, wanted);
    let limit_ns = match state {
        State::Free => return false,
        State::HalfFull => HALF_FULL_NS,
        State::Full => FULL_NS,
    };
    let is_full = state == State::Full;
    let now_ns = now_ns();
    let same =
        cq.room.since_ns != 0 && (cq.room.consumed, cq.room.is_full) == (cq.consumed, is_full);
    if !same {
        cq.room = Room {
            since_ns: now_ns.max(1),
            consumed: cq.consumed,
            is_full,
        };
    }
    now_ns.saturating_sub(cq.room.since_ns) < limit_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::objects::Ring;

    const SENDER: Wanted = Wanted {
        entries: 1,
        halves_from: HALVES_FROM,
    };

    fn queue(count: u32, unread: u32) -> Cq {
        Cq {
            ring: Ring {
                count,
                ..Ring::default()
            },
            // The counters wrap around.
            consumed: u32::MAX - 1,
            produced: (u32::MAX - 1).wrapping_add(unread),
            ..Cq::default()
        }
    }

    #[test]
    fn a_request_waits_for_a_counter_that_moves() {
        const START: u64 = 5_000;
        for (unread, limit_ns) in [(8, HALF_FULL_NS), (15, HALF_FULL_NS), (16, FULL_NS)] {
            let mut cq = queue(16, unread);
            for (after_ns, expect) in [(0, true), (limit_ns - 1, true), (limit_ns, false)] {
                let waits = look(&mut cq, SENDER, || START + after_ns);
                assert_eq!(waits, expect, "{unread} {after_ns}");
            }
            // Once for each value of the counter.
            assert!(!look(&mut cq, SENDER, || START + 2 * limit_ns), "{unread}");
            cq.consumed = cq.consumed.wrapping_add(1);
            cq.produced = cq.produced.wrapping_add(1);
            assert!(look(&mut cq, SENDER, || START + 3 * limit_ns), "{unread}");
            cq.consumed = cq.produced;
            assert!(!look(&mut cq, SENDER, || START + 3 * limit_ns), "{unread}");
        }
    }

    #[test]
    fn a_queue_that_becomes_full_gets_the_longer_time() {
        let mut cq = queue(16, 15);
        assert!(look(&mut cq, SENDER, || 1));
        cq.produced = cq.produced.wrapping_add(1);
        assert!(look(&mut cq, SENDER, || HALF_FULL_NS + 1));
        assert!(look(&mut cq, SENDER, || HALF_FULL_NS + FULL_NS));
        assert!(!look(&mut cq, SENDER, || HALF_FULL_NS + FULL_NS + 1));
    }

    #[test]
    fn free_room_and_small_queues() {
        for (count, unread, expect) in [
            (16, 7, State::Free),
            (8, 7, State::Free),
            (8, 8, State::Full),
            (2, 1, State::Free),
            (2, 2, State::Full),
        ] {
            let cq = queue(count, unread);
            assert_eq!(state_of(&cq, SENDER), expect, "{count}");
        }
        for (entries, expect) in [(1, State::Free), (2, State::Full)] {
            let receiver = Wanted {
                entries,
                halves_from: u32::MAX,
            };
            assert_eq!(state_of(&queue(16, 15), receiver), expect, "{entries}");
        }
    }
}
