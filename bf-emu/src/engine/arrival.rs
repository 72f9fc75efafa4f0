//! The arrival of a message's data in memory: in order and once, or, in adversary mode, in pieces in
//! any order and perhaps twice.
//!
//! A reader may rely on data only after the completion that reports it, and a writer may change its
//! source only after the completion of its request. Until then an adapter may read the source again
//! and write the target again, because it repeats what it believes lost. A region with on-demand
//! paging may lack a page at any time: the message waits for it, and is often repeated.

use super::adversary::{self, Choice, Which};
use super::entry;
use super::list::{Failure, List, move_range, transfer, transfer_at_once};
use super::peer::Poster;
use crate::fabric::Locked;
use crate::fabric::counters::PortCounter;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::Qp;
use crate::model::faults::mixed;
use crate::sys;

/// Most pieces of a message.
const PIECES_MAX: usize = 16;
/// A piece begins at a multiple of this many bytes. An aligned word arrives as a whole.
const WORD: u64 = 8;
/// Longest pause between two pieces while other requests may run.
const PAUSE_NS: u64 = 30_000;
/// Longest pause before the repetition.
const REPEAT_NS: u64 = 150_000;
/// Longest time until the kernel has provided a page.
const FAULT_NS: u64 = 1_000_000;
/// Longest pause while no other request may run.
const SHORT_NS: u64 = 20_000;

/// Moves the data of a request. `alone` keeps the lock, because another message could otherwise take
/// the same receive entry.
pub(super) fn arrive(
    locked: &mut Locked<'_>,
    which: Which,
    from: &List,
    (to, skip): (&List, u64),
    (total, alone): (u64, Alone),
) -> Result<(), Failure> {
    let Some(drawn) = adversary::draw(which, Choice::Pieces) else {
        return match alone {
            Alone::Always => transfer_at_once(locked, from, (to, skip), total),
            Alone::ForAnEntry | Alone::Never => transfer(locked, from, (to, skip), total),
        };
    };
    from.check(locked, total).map_err(|_| Failure::Source)?;
    // Cannot overflow: a list covers less than 2^38 bytes.
    to.check(locked, skip + total)
        .map_err(|_| Failure::Target)?;
    let fault = adversary::draw(which, Choice::PageFault)
        .filter(|fault| fault.is_multiple_of(2))
        .filter(|_| from.may_fault(locked, total) || to.may_fault(locked, skip + total));
    if let Some(fault) = fault {
        pause(locked, alone, (fault >> 8) % FAULT_NS);
        if !entry::is_running(locked, which) {
            return Err(Failure::Source);
        }
    }
    in_pieces(locked, which, from, (to, skip), (total, alone), drawn)?;
    let again = adversary::draw(which, Choice::Again).unwrap_or(1);
    let one_in = if fault.is_some() { 2 } else { 4 };
    if !again.is_multiple_of(one_in) || total == 0 {
        return Ok(());
    }
    pause(locked, alone, (again >> 8) % REPEAT_NS);
    if !entry::is_running(locked, which) {
        return Err(Failure::Source);
    }
    count_again(locked, which);
    match in_pieces(locked, which, from, (to, skip), (total, alone), again) {
        // The receiver discards what its key no longer permits. It has the data.
        Err(Failure::Target) => Ok(()),
        done => done,
    }
}

/// Counts the repeated data at the other side of the connection.
fn count_again(locked: &Locked<'_>, which: Which) {
    let qp = locked.peek(which.function).qps.get(qp_slot(which.queue));
    if let Some(peer) = qp.and_then(Qp::remote) {
        let counters = locked.fabric().counters(peer.function);
        counters.count_port(peer.port, PortCounter::DuplicateRequest);
    }
}

/// Whether other requests may run while the data of one arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alone {
    /// They may.
    Never,
    /// The message has taken no receive entry yet that no other queue pair can take. In adversary
    /// mode its pauses are short.
    ForAnEntry,
    /// They may not: the receive entry is the next one of several queue pairs.
    Always,
}

impl Alone {
    /// For a message into the next receive entry of this queue pair. An entry of a shared queue is
    /// the next one for all its queue pairs until it is taken.
    pub(super) fn of_entry(peer: &Poster) -> Self {
        match peer.qp.srq {
            0 => Self::ForAnEntry,
            _ => Self::Always,
        }
    }
}

fn pause(locked: &mut Locked<'_>, alone: Alone, ns: u64) {
    #[cfg(test)]
    tests::look();
    if alone == Alone::Never {
        locked.pause_until(sys::now_ns().saturating_add(ns));
    } else {
        sys::wait_until(sys::now_ns().saturating_add(ns % SHORT_NS));
    }
}

fn in_pieces(
    locked: &mut Locked<'_>,
    which: Which,
    from: &List,
    (to, skip): (&List, u64),
    (total, alone): (u64, Alone),
    drawn: u64,
) -> Result<(), Failure> {
    let (pieces, order) = pieces_of(total, drawn);
    let bytes = total.div_ceil(pieces as u64).next_multiple_of(WORD);
    for (turn, piece) in order.iter().take(pieces).enumerate() {
        let start = (u64::from(*piece) * bytes).min(total);
        let end = (start + bytes).min(total);
        if turn != 0 {
            let now = mixed(drawn, turn as u64);
            match now % 4 {
                0 => pause(locked, alone, (now >> 8) % PAUSE_NS),
                _ => pause(locked, alone, 0),
            }
            if !entry::is_running(locked, which) {
                return Err(Failure::Source);
            }
        }
        move_range(
            locked,
            from,
            (to, skip),
            (start, end),
            alone != Alone::Always,
        )?;
    }
    Ok(())
}

/// The number of pieces and their order.
fn pieces_of(total: u64, drawn: u64) -> (usize, [u8; PIECES_MAX]) {
    let most = total.div_ceil(WORD).clamp(1, PIECES_MAX as u64);
    // Two to four pieces mostly: the order of a few is different enough, and each costs a call.
    let wanted = match drawn % 8 {
        0 => 1,
        1 => PIECES_MAX as u64,
        few => few.div_ceil(2) + 1,
    };
    let pieces = wanted.min(most);
    let mut order = [0; PIECES_MAX];
    for (place, piece) in (0..).zip(order.iter_mut()) {
        *piece = place;
    }
    for last in (1..usize::try_from(pieces).unwrap_or(1)).rev() {
        let other = mixed(drawn, !(last as u64)) % (last as u64 + 1);
        order.swap(last, usize::try_from(other).unwrap_or(last));
    }
    (usize::try_from(pieces).unwrap_or(1), order)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;

    type Look = Box<dyn FnMut()>;

    thread_local! {
        /// The look of another thread at each pause, for tests.
        static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
    }

    pub(super) fn look() {
        LOOK.with_borrow_mut(|look| look.as_mut().map(|look| look()));
    }

    /// Calls a function at each pause of this thread.
    pub(in crate::engine) fn look_with(look: Option<Look>) {
        LOOK.set(look);
    }

    #[test]
    fn each_piece_comes_once_and_in_many_orders() {
        let mut orders = std::collections::BTreeSet::new();
        for drawn in 0..1000 {
            let (pieces, order) = pieces_of(4096, mixed(3, drawn));
            let mut seen = order[..pieces].to_vec();
            orders.insert(seen.clone());
            seen.sort_unstable();
            let all: Vec<u8> = (0..).take(pieces).collect();
            assert_eq!(seen, all);
        }
        assert!(orders.len() > 100, "{}", orders.len());
        // The last piece comes first in some, and some come in order.
        assert!(orders.contains(&vec![1, 0]), "{orders:?}");
        assert!(orders.contains(&vec![0, 1]), "{orders:?}");
    }

    #[test]
    fn a_word_is_one_piece() {
        for drawn in 0..100 {
            assert_eq!(pieces_of(8, mixed(5, drawn)).0, 1);
            assert_eq!(pieces_of(0, mixed(5, drawn)).0, 1);
            assert!(pieces_of(9, mixed(5, drawn)).0 <= 2);
        }
    }
}
