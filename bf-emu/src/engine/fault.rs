//! Injected faults of work requests, and delayed completions.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::mkey::{KLM_BYTES, Klm};
use mlx5_prm::umr::{self, UmrContext, mask};
use mlx5_prm::wqe::{Ctrl, opcode};

use super::adversary::{self, Which};
use super::complete::complete;
use super::deferred;
use super::wake;
use super::work::{self, Operation, WORK_BYTES_MAX};
use crate::fabric::Locked;
use crate::fabric::counters::Refusal;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Held, Qp};
use crate::fabric::rules;
use crate::model::faults::{Action, Event, LONGER_BYTES, Request, Wrong};
use crate::sys;

/// The decision of the fault rules about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is executed and completes.
    Go,
    /// It is executed and completes at this time, or never if the time is [`u64::MAX`].
    Hold(u64),
    /// The same, or at the next message to the queue pair.
    HoldForAnswer(u64),
    /// It completes with this syndrome and is not executed.
    Fail(u8),
    /// Its queue pair enters the error state.
    QpError,
    /// It completes normally but is executed as another request, see [`distort`].
    Wrong(Wrong),
}

/// Changes the bytes of a request into those of the wrong request.
pub(crate) fn distort(bytes: &mut [u8; WORK_BYTES_MAX], wrong: Wrong) {
    /// Offset of the opcode in an entry.
    const OPCODE: usize = 3;
    if wrong == Wrong::Ignored {
        bytes[OPCODE] = opcode::NOP;
        return;
    }
    let (head, list) = bytes.split_at_mut(LIST_AT);
    let (entries, _) = list.as_chunks_mut::<KLM_BYTES>();
    let change = |entry: &mut [u8; KLM_BYTES], change: fn(&mut Klm)| {
        let mut klm = Klm::parse(entry);
        change(&mut klm);
        *entry = klm.to_bytes();
    };
    match wrong {
        Wrong::Ignored => {}
        Wrong::Shifted => {
            if let Some(first) = entries.first_mut() {
                change(first, |klm| klm.address = klm.address.wrapping_add(1));
            }
        }
        Wrong::Longer => {
            if let Some(context) = head.last_chunk_mut() {
                let mut longer = UmrContext::parse(context);
                longer.len = longer.len.saturating_add(LONGER_BYTES.into());
                *context = longer.to_bytes();
            }
            let used = |entry: &&mut [u8; KLM_BYTES]| Klm::parse(entry).byte_count != 0;
            if let Some(last) = entries.iter_mut().take_while(used).last() {
                change(last, |klm| {
                    klm.byte_count = klm.byte_count.saturating_add(LONGER_BYTES);
                });
            }
        }
    }
}

/// Offset of the inline list of a UMR.
const LIST_AT: usize = Ctrl::BYTES + umr::CTRL_BYTES + umr::CONTEXT_BYTES;

/// Applies the rules and the mode to the next request of a queue pair. The bytes are those of its
/// ring.
pub(crate) fn verdict(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    qp: &Qp,
    bytes: &[u8],
) -> Verdict {
    let fault = struck(locked, (function, qpn), qp, bytes);
    let which = Which {
        function,
        queue: qpn,
        index: qp.sq_done,
    };
    if fault != Verdict::Go {
        return fault;
    }
    // The thread that executes deferred work writes the completion.
    if asks(bytes)
        && deferred::is_on()
        && let Some(until_ns) = adversary::waits_for_answer(which)
    {
        return Verdict::HoldForAnswer(until_ns);
    }
    deferred::shows_later(which).map_or(fault, Verdict::Hold)
}

/// True for a message that takes a receive entry, and may have an answer.
fn asks(bytes: &[u8]) -> bool {
    const OPCODE: usize = 3;
    matches!(
        bytes.get(OPCODE),
        Some(&(opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL | opcode::RDMA_WRITE_IMM))
    )
}

/// Reports the executed request of a queue pair to which a message has come, if it waits for one.
pub(super) fn answered(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let qps = &mut locked.function(function).qps;
    let Some(qp) = qps
        .get_mut(qp_slot(qpn))
        .filter(|qp| qp.held.ends_by_message)
    else {
        return;
    };
    qp.held.ends_by_message = false;
    qp.held.until_ns = 1;
    if let Some(owner) = qps.owner(qp_slot(qpn)) {
        wake::wake_of(locked.fabric(), owner.process);
    }
}

fn struck(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    qp: &Qp,
    bytes: &[u8],
) -> Verdict {
    // The rules were applied to a waiting request at its first try.
    // A rule that has just become active applies from the next request on: rules need all locks.
    if !locked.fabric().has_faults() || qp.give_up_at_ns != 0 || !locked.is_whole() {
        return Verdict::Go;
    }
    let Some(request) = request(bytes, qp.service) else {
        return Verdict::Go;
    };
    let owner = locked.peek(function).qps.owner(qp_slot(qpn));
    let process = owner.map_or(0, |owner| owner.process);
    let rules = &mut locked.common().faults;
    let Some(action) = rules::decide(rules, function, process, Event::Request(request)) else {
        return Verdict::Go;
    };
    locked.fabric().counters(function).refuse(Refusal::Injected);
    match action {
        Action::Late { ns } => Verdict::Hold(sys::now_ns().saturating_add(ns).max(1)),
        Action::Never => Verdict::Hold(u64::MAX),
        Action::Syndrome(syndrome) => Verdict::Fail(syndrome),
        Action::QpError => Verdict::QpError,
        Action::Wrong(wrong) => Verdict::Wrong(wrong),
        Action::Vanish => {
            sys::vanish();
            Verdict::Go
        }
        // The parser accepts these actions for commands only.
        Action::Status { .. } | Action::Errno(_) => Verdict::Go,
    }
}

fn request(bytes: &[u8], service: u8) -> Option<Request> {
    Some(match work::parse(bytes, service).ok()?.operation {
        Operation::Nop => Request::Nop,
        Operation::Send { .. } => Request::Send,
        Operation::Write { .. } => Request::RdmaWrite,
        Operation::Read { .. } => Request::RdmaRead,
        Operation::Atomic { .. } => Request::Atomic,
        Operation::Memcpy { .. } => Request::DmaMemcpy,
        Operation::Umr { ctrl, context, .. } => {
            if ctrl.mkey_mask & mask::FREE != 0 && context.free {
                Request::UmrInvalidate
            } else {
                Request::UmrBind
            }
        }
    })
}

/// Delays the completion of an executed request.
pub(crate) fn hold(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    ctrl: &Ctrl,
    bytes: u32,
    (until_ns, ends_by_message): (u64, bool),
) {
    if let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) {
        qp.held = Held {
            until_ns,
            byte_count: bytes,
            index: ctrl.index,
            opcode: ctrl.opcode,
            signaled: ctrl.is_signaled(),
            ends_by_message,
        };
    }
}

/// True if the queue pair must wait for a delayed completion. Writes the completion if its time has
/// come.
pub(crate) fn waits(locked: &mut Locked<'_>, function: usize, qpn: u32) -> bool {
    let slot = qp_slot(qpn);
    let Some(qp) = locked.peek(function).qps.get(slot) else {
        return false;
    };
    let (held, send_cq, user_index) = (qp.held, qp.send_cq, qp.user_index);
    if held.until_ns == 0 {
        return false;
    }
    if held.until_ns > sys::now_ns() {
        return true;
    }
    if let Some(qp) = locked.function(function).qps.get_mut(slot) {
        qp.held = Held::default();
        qp.pending = false;
    }
    if held.signaled {
        let cqe = Cqe {
            opcode: cqe_opcode::REQ,
            user_index,
            wqe_opcode: held.opcode,
            qpn,
            wqe_counter: held.index,
            byte_count: held.byte_count,
            ..Cqe::default()
        };
        complete(locked, function, send_cq, cqe);
    }
    false
}
