//! The receiving side of a message: the next entry of a receive queue, shared or not.

use mlx5_prm::qp::state;

use super::access::{Need, Side};
use super::event::Event;
use super::list::List;
use super::owed::{self, Object};
use crate::bits::low16;
use crate::fabric::Locked;
use crate::fabric::journal::{Take, TakenFrom};
use crate::fabric::objects::{Qp, Srq};
use crate::memory::{MemoryError, Space};

/// Largest receive entry in bytes: 32 octowords, as the device advertises.
pub(crate) const RECEIVE_BYTES_MAX: usize = 512;
/// Bytes of the segment that links the entries of a shared queue.
const LINK_BYTES: usize = 16;

/// A receive entry that was read but not taken.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Target of the message.
    pub list: List,
    /// Counter that its completion reports.
    pub counter: u16,
    next: Option<u32>,
}

/// Reason why no entry was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoEntry {
    /// No entry is posted.
    NotReady,
    /// The queue cannot be read.
    Broken(MemoryError),
}

impl From<MemoryError> for NoEntry {
    fn from(error: MemoryError) -> Self {
        Self::Broken(error)
    }
}

/// Reads the next receive entry for queue pair `qpn`. The shared queue is that of `qp`.
pub(crate) fn next(
    locked: &Locked<'_>,
    function: usize,
    (qpn, qp): (u32, &Qp),
) -> Result<Entry, NoEntry> {
    let gone = NoEntry::Broken(MemoryError::Gone);
    let tables = locked.peek(function);
    match qp.srq.checked_sub(1) {
        None => {
            let slot = qpn.wrapping_sub(crate::fabric::QPN_BASE);
            let owner = tables.qps.owner(slot).ok_or(gone)?;
            let space = Space::of(locked.pid(owner.process).ok_or(gone)?);
            from_ring(space, function, qpn, qp)
        }
        Some(srq) => {
            let owner = tables.srqs.owner(srq).ok_or(gone)?;
            let space = Space::of(locked.pid(owner.process).ok_or(gone)?);
            let srq = tables.srqs.get(srq).ok_or(gone)?;
            from_shared(
                space,
                Side {
                    function,
                    pd: srq.pd,
                    qpn,
                },
                srq,
            )
        }
    }
}

fn from_ring(space: Space, function: usize, qpn: u32, qp: &Qp) -> Result<Entry, NoEntry> {
    if qp.rq.count == 0 || qp.state == state::RST {
        return Err(NoEntry::NotReady);
    }
    let mut bytes = [0; RECEIVE_BYTES_MAX];
    let length = entry_bytes(qp.rq.log_stride);
    let entry = (qp.rq.entry(qp.rq_done), &mut bytes[..length]);
    read_posted(space, (qp.dbrec, qp.rq_done), entry)?;
    let mut list = List::new(
        Side {
            function,
            pd: qp.pd,
            qpn,
        },
        Need::LocalWrite,
    );
    // A malformed entry covers no bytes, so any message is too long for it.
    let _ = list.scatter(&bytes[..length]);
    Ok(Entry {
        list,
        counter: low16(qp.rq_done),
        next: None,
    })
}

fn from_shared(space: Space, side: Side, srq: &Srq) -> Result<Entry, NoEntry> {
    let damaged = NoEntry::Broken(MemoryError::Fault);
    if srq.failed {
        return Err(damaged);
    }
    let index = if srq.cyclic { srq.taken } else { srq.head };
    let mut bytes = [0; RECEIVE_BYTES_MAX];
    let length = entry_bytes(srq.ring.log_stride);
    let entry = (srq.ring.entry(index), &mut bytes[..length]);
    read_posted(space, (srq.dbrec, srq.taken), entry)?;
    if !srq.cyclic && index >= srq.ring.count {
        return Err(damaged);
    }
    let next = u32::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let mut list = List::new(side, Need::LocalWrite);
    let _ = list.scatter(&bytes[LINK_BYTES..length]);
    let counter = low16(index & srq.ring.count.wrapping_sub(1));
    Ok(Entry {
        list,
        counter,
        next: Some(next),
    })
}

/// Reads the next entry of a queue, if its doorbell record reports one. One call reads both, the
/// record first. An entry that is not posted yet is ignored.
fn read_posted(
    space: Space,
    (dbrec, taken): (u64, u32),
    (address, bytes): (u64, &mut [u8]),
) -> Result<(), NoEntry> {
    let (record, read) = space.read_behind_be32(dbrec, address, bytes);
    if low16(record?) == low16(taken) {
        return Err(NoEntry::NotReady);
    }
    Ok(read?)
}

fn entry_bytes(log_stride: u32) -> usize {
    1usize
        .checked_shl(log_stride)
        .unwrap_or(0)
        .clamp(LINK_BYTES, RECEIVE_BYTES_MAX)
}

/// Number of posted entries of a queue pair's own receive queue.
pub(crate) fn posted(space: Space, qp: &Qp) -> Result<u16, MemoryError> {
    if qp.rq.count == 0 || qp.state == state::RST {
        return Ok(0);
    }
    Ok(low16(space.read_be32(qp.dbrec)?).wrapping_sub(low16(qp.rq_done)))
}

/// Number of posted entries of a shared queue.
pub(crate) fn posted_shared(space: Space, srq: &Srq) -> Result<u16, MemoryError> {
    Ok(low16(space.read_be32(srq.dbrec)?).wrapping_sub(low16(srq.taken)))
}

/// The queue's counter after the entry of [`next`] is taken.
pub(crate) fn taking(
    locked: &Locked<'_>,
    function: usize,
    (qpn, qp): (u32, &Qp),
    entry: &Entry,
) -> Take {
    let tables = locked.peek(function);
    let slot = qpn.wrapping_sub(crate::fabric::QPN_BASE);
    let mut take = Take {
        from: TakenFrom::Receive,
        function,
        slot,
        counter: qp.rq_done.wrapping_add(1),
        head: 0,
    };
    if let Some(slot) = qp.srq.checked_sub(1) {
        let Some(srq) = tables.srqs.get(slot) else {
            return Take::default();
        };
        take.from = TakenFrom::Shared;
        take.slot = slot;
        take.counter = srq.taken.wrapping_add(1);
        take.head = entry.next.unwrap_or(0);
    }
    take
}

/// Sets the counter of a queue whose entry is taken.
pub(crate) fn count(locked: &mut Locked<'_>, take: &Take) {
    if take.from == TakenFrom::Nothing {
        return;
    }
    let tables = locked.function(take.function);
    match take.from {
        TakenFrom::Nothing => {}
        TakenFrom::Send => {
            if let Some(qp) = tables.qps.get_mut(take.slot) {
                qp.sq_done = take.counter;
            }
        }
        TakenFrom::Receive => {
            if let Some(qp) = tables.qps.get_mut(take.slot) {
                qp.rq_done = take.counter;
            }
        }
        TakenFrom::Shared => {
            if let Some(srq) = tables.srqs.get_mut(take.slot) {
                srq.taken = take.counter;
                srq.head = take.head;
            }
        }
    }
}

/// Ends a shared queue whose list leads out of its ring or cannot be read, and notifies its owner (Linux `mlx5/srq.c`,
/// `MLX5_EVENT_TYPE_SRQ_CATAS_ERROR`).
pub(super) fn fail_shared(locked: &mut Locked<'_>, function: usize, slot: u32) {
    let failed = |srq: &Srq| srq.failed;
    if locked.peek(function).srqs.get(slot).is_none_or(failed) {
        return;
    }
    let queue = Object::SharedQueue(slot);
    owed::owe(locked, function, queue, Event::SrqError.bit());
    if let Some(srq) = locked.function(function).srqs.get_mut(slot) {
        srq.failed = true;
    }
    owed::pay(locked, function, queue);
}

/// Checks the limit of a shared queue whose entry was taken.
pub(crate) fn taken(locked: &mut Locked<'_>, take: &Take) {
    let function = take.function;
    let limited = |srq: &Srq| srq.limit != 0;
    if take.from == TakenFrom::Shared
        && locked
            .peek(function)
            .srqs
            .get(take.slot)
            .is_some_and(limited)
    {
        check_limit(locked, function, take.slot);
    }
}

/// Notifies the owner of a shared queue that fewer entries than the limit remain, once for each
/// setting of the limit.
pub(super) fn check_limit(locked: &mut Locked<'_>, function: usize, slot: u32) {
    let tables = locked.peek(function);
    let Some(srq) = tables.srqs.get(slot).copied() else {
        return;
    };
    let owner = tables.srqs.owner(slot);
    let Some(pid) = owner.and_then(|owner| locked.pid(owner.process)) else {
        return;
    };
    let Ok(left) = posted_shared(Space::of(pid), &srq) else {
        return;
    };
    if u32::from(left) >= srq.limit {
        return;
    }
    let queue = Object::SharedQueue(slot);
    owed::owe(locked, function, queue, Event::SrqLimit.bit());
    if let Some(srq) = locked.function(function).srqs.get_mut(slot) {
        srq.limit = 0;
    }
    owed::pay(locked, function, queue);
}
