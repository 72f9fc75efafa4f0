//! Notices of queue pairs that are not errors: their connection is established, their send queue is drained.

use mlx5_prm::qp::{service, state};

use super::event::Event;
use super::owed::{self, Object};
use crate::fabric::Locked;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::Qp;

/// Notifies the owner of a queue pair that a message has arrived before the queue pair can send, once.
pub(super) fn established(locked: &mut Locked<'_>, (function, qp): (usize, &Qp), qpn: u32) {
    let connected = matches!(qp.service, service::RC | service::UC);
    if !connected || qp.state != state::RTR || qp.is_established {
        return;
    }
    let slot = qp_slot(qpn);
    let queue = Object::QueuePair(slot);
    owed::owe(locked, function, queue, Event::CommEst.bit());
    if let Some(qp) = locked.function(function).qps.get_mut(slot) {
        qp.is_established = true;
    }
    owed::pay(locked, function, queue);
}

/// Notifies the owner of a drained send queue, if it has asked for that.
pub(super) fn drained(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    let asked = locked
        .peek(function)
        .qps
        .get(slot)
        .is_some_and(|qp| qp.tells_drained);
    if !asked {
        return;
    }
    let queue = Object::QueuePair(slot);
    owed::owe(locked, function, queue, Event::SqDrained.bit());
    if let Some(qp) = locked.function(function).qps.get_mut(slot) {
        qp.tells_drained = false;
    }
    owed::pay(locked, function, queue);
}
