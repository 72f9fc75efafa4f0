//! Completions, and the error state of queue pairs.

use mlx5_prm::cqe::{CQE_BYTES, Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::qp::state;
use mlx5_prm::wqe::Ctrl;

use super::event::{self, Event};
use super::receive::{self, low16};
use crate::fabric::objects::{Armed, Cq};
use crate::fabric::{Locked, QPN_BASE};
use crate::memory::Space;
use crate::stats::{Refusal, Work};
use crate::sys;

/// Slot of a queue pair number.
pub(crate) fn qp_slot(qpn: u32) -> u32 {
    qpn.wrapping_sub(QPN_BASE)
}

/// Writes an entry into completion queue `slot`, and tells its owner if that was asked for.
pub(crate) fn complete(locked: &mut Locked<'_>, function: usize, slot: u32, mut cqe: Cqe) {
    let counters = locked.fabric().counters(function);
    let tables = locked.peek(function);
    let Some(cq) = tables.cqs.get(slot).copied() else {
        return;
    };
    let owner = tables.cqs.owner(slot);
    let Some(pid) = owner.and_then(|owner| locked.pid(owner.process)) else {
        return;
    };
    let space = Space::of(pid);
    let Some(consumed) = room(space, &cq) else {
        counters.refuse(Refusal::CqOverrun);
        overrun(locked, function, slot);
        return;
    };
    if !cqe.is_error() {
        cqe.timestamp = sys::now_ns();
    }
    cqe.owner = cq.produced & cq.ring.count != 0;
    // Entries of 128 bytes have their contents in the second half.
    let at = cq
        .ring
        .entry(cq.produced)
        .wrapping_add((1 << cq.ring.log_stride) - CQE_BYTES as u64);
    if space.publish(at, &cqe.to_bytes()).is_err() {
        return;
    }
    counters.completion();
    let wakes = match cq.armed {
        Armed::No => false,
        Armed::Next => true,
        Armed::Solicited => cqe.solicited || cqe.is_error(),
    };
    let sent = wakes && event::completion(locked, function, (cq.channel, cq.user_handle), cq.devx);
    if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
        cq.consumed = consumed;
        cq.produced = cq.produced.wrapping_add(1);
        if wakes {
            cq.armed = Armed::No;
            cq.events_sent = cq.events_sent.wrapping_add(u32::from(sent));
        }
    }
}

/// How far the owner has read, if there is room for another entry.
fn room(space: Space, cq: &Cq) -> Option<u32> {
    let full = |consumed: u32| cq.produced.wrapping_sub(consumed) >= cq.ring.count;
    if cq.ignore_overrun || !full(cq.consumed) {
        return Some(cq.consumed);
    }
    let consumed = widen(cq, space.read_be32(cq.dbrec).ok()?);
    (!full(consumed)).then_some(consumed)
}

/// A consumer counter, widened from its 24 bits: at most so far behind what was produced.
fn widen(cq: &Cq, counter: u32) -> u32 {
    const MASK: u32 = 0xff_ffff;
    cq.produced
        .wrapping_sub(cq.produced.wrapping_sub(counter) & MASK)
}

fn overrun(locked: &mut Locked<'_>, function: usize, slot: u32) {
    let Some(cq) = locked.function(function).cqs.get_mut(slot) else {
        return;
    };
    if std::mem::replace(&mut cq.overrun, true) {
        return;
    }
    let (handle, devx) = ((cq.event_channel, cq.user_handle), cq.devx);
    if event::asynchronous(locked, function, handle, devx, Event::CqError)
        && let Some(cq) = locked.function(function).cqs.get_mut(slot)
    {
        cq.async_events_sent = cq.async_events_sent.wrapping_add(1);
    }
}

/// Arms a completion queue: the owner has read up to the counter in `command`, the arm word of the
/// doorbell or of the doorbell record, and wants to be told of what is beyond it. (The record's
/// other word need not be kept by an owner that ignores overruns: UCX does not.)
pub(crate) fn arm(locked: &mut Locked<'_>, function: usize, slot: u32, command: Option<u32>) {
    let tables = locked.peek(function);
    let Some(cq) = tables.cqs.get(slot).copied() else {
        return;
    };
    let owner = tables.cqs.owner(slot);
    let Some(pid) = owner.and_then(|owner| locked.pid(owner.process)) else {
        return;
    };
    let command = command.or_else(|| Space::of(pid).read_be32(cq.dbrec.wrapping_add(4)).ok());
    let Some(command) = command else { return };
    let armed = if command & SOLICITED_ONLY == 0 {
        Armed::Next
    } else {
        Armed::Solicited
    };
    let consumed = widen(&cq, command);
    // An entry that came before the arming counts, or the owner would sleep on it.
    let late = cq.produced != consumed;
    let sent = late && event::completion(locked, function, (cq.channel, cq.user_handle), cq.devx);
    if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
        cq.consumed = consumed;
        cq.armed = if late { Armed::No } else { armed };
        cq.events_sent = cq.events_sent.wrapping_add(u32::from(sent));
    }
}

/// Bit of the arm word: only solicited completions and errors count (`mlx5.h`,
/// MLX5_CQ_DB_REQ_NOT_SOL).
const SOLICITED_ONLY: u32 = 1 << 24;

/// Completes a send entry in error and brings its queue pair into the error state.
pub(crate) fn fail(
    locked: &mut Locked<'_>,
    function: usize,
    qpn: u32,
    ctrl: &Ctrl,
    (syndrome, refusal): (u8, Refusal),
) {
    locked.fabric().counters(function).refuse(refusal);
    send_error(locked, function, qpn, ctrl, syndrome);
    enter_error(locked, function, qpn, None);
}

fn send_error(locked: &mut Locked<'_>, function: usize, qpn: u32, ctrl: &Ctrl, syndrome: u8) {
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)).copied() else {
        return;
    };
    let cqe = Cqe {
        opcode: cqe_opcode::REQ_ERR,
        user_index: qp.user_index,
        wqe_opcode: ctrl.opcode,
        qpn,
        wqe_counter: ctrl.index,
        syndrome,
        ..Cqe::default()
    };
    complete(locked, function, qp.send_cq, cqe);
}

/// Brings a queue pair into the error state: everything that is posted is flushed.
pub(crate) fn enter_error(
    locked: &mut Locked<'_>,
    function: usize,
    qpn: u32,
    event: Option<Event>,
) {
    let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) else {
        return;
    };
    if matches!(qp.state, state::RST | state::ERR) {
        return;
    }
    qp.state = state::ERR;
    qp.pending = false;
    flush(locked, function, qpn);
    if let Some(event) = event {
        tell(locked, function, qpn, event);
    }
    let shared = locked
        .peek(function)
        .qps
        .get(qp_slot(qpn))
        .is_some_and(|qp| qp.srq != 0);
    if shared {
        tell(locked, function, qpn, Event::LastWqe);
    }
}

fn tell(locked: &mut Locked<'_>, function: usize, qpn: u32, event: Event) {
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)).copied() else {
        return;
    };
    let handle = (qp.event_channel, qp.user_handle);
    if event::asynchronous(locked, function, handle, qp.devx, event)
        && let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn))
    {
        qp.events_sent = qp.events_sent.wrapping_add(1);
    }
}

/// Completes everything that is posted on a queue pair in error with a flush error.
pub(crate) fn flush(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    flush_sends(locked, function, qpn);
    flush_receives(locked, function, qpn);
}

fn flush_sends(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    let Some(space) = space_of_qp(locked, function, qpn) else {
        return;
    };
    let Some(qp) = locked.peek(function).qps.get(slot).copied() else {
        return;
    };
    if qp.sq.count == 0 {
        return;
    }
    let Ok(record) = space.read_be32(qp.dbrec.wrapping_add(4)) else {
        return;
    };
    let mut done = qp.sq_done;
    let mut left = low16(record).wrapping_sub(low16(done));
    // A doorbell record that claims more than the ring holds is not believed.
    while left != 0 && u32::from(left) <= qp.sq.count {
        let mut bytes = [0; Ctrl::BYTES];
        if space.read(qp.sq.entry(done), &mut bytes).is_err() {
            break;
        }
        let ctrl = Ctrl::parse(&bytes);
        let blocks = ctrl.wqebbs().min(left);
        done = done.wrapping_add(u32::from(blocks));
        left -= blocks;
        if let Some(qp) = locked.function(function).qps.get_mut(slot) {
            qp.sq_done = done;
        }
        locked.fabric().counters(function).work(Work::Flushed);
        send_error(locked, function, qpn, &ctrl, syndrome::WR_FLUSH_ERR);
    }
}

fn flush_receives(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    let Some(space) = space_of_qp(locked, function, qpn) else {
        return;
    };
    let Some(qp) = locked.peek(function).qps.get(slot).copied() else {
        return;
    };
    if qp.srq != 0 {
        return;
    }
    let Ok(left) = receive::posted(space, &qp) else {
        return;
    };
    if u32::from(left) > qp.rq.count {
        return;
    }
    for _ in 0..left {
        let Some(qp) = locked.function(function).qps.get_mut(slot) else {
            return;
        };
        let counter = low16(qp.rq_done);
        qp.rq_done = qp.rq_done.wrapping_add(1);
        let (cq, user_index) = (qp.recv_cq, qp.user_index);
        locked.fabric().counters(function).work(Work::Flushed);
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_ERR,
            user_index,
            qpn,
            wqe_counter: counter,
            syndrome: syndrome::WR_FLUSH_ERR,
            ..Cqe::default()
        };
        complete(locked, function, cq, cqe);
    }
}

/// The memory of a queue pair's owner.
pub(crate) fn space_of_qp(locked: &Locked<'_>, function: usize, qpn: u32) -> Option<Space> {
    let owner = locked.peek(function).qps.owner(qp_slot(qpn))?;
    locked.pid(owner.process).map(Space::of)
}
