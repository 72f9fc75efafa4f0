//! Migration of connections to their alternate paths.
//!
//! Both ends load a path and ask for `IBV_MIG_REARM`; their next message arms them. A requester that gets no answer on its path
//! continues on the alternate one, and its next message makes the responder follow. The rules are those of the InfiniBand
//! Architecture 1.3, 17.2.8, as in Linux `hfi1/ruc.c`, `hfi1_ruc_check_hdr`, and `rdmavt/qp.c`, `rvt_modify_qp`.

use mlx5_prm::qp::service;

use super::event::Event;
use super::outcome::{Fault, Reason, SILENT};
use super::owed::{self, Object};
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Migration, Qp};
use crate::fabric::{Locked, Place};

/// A queue pair and a copy of it.
pub(super) type End<'a> = ((usize, u32), &'a Qp);

/// Arms both ends of a connection whose message has arrived, if they have asked for that.
pub(super) fn arm(locked: &mut Locked<'_>, (from, poster): End<'_>, (to, peer): End<'_>) {
    if poster.migration == Migration::Migrated {
        return;
    }
    let mut set = |(function, qpn): (usize, u32)| {
        if let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) {
            qp.migration = Migration::Armed;
        }
    };
    if peer.migration == Migration::Rearm {
        set(to);
    }
    let answers = matches!(poster.service, service::RC | service::XRC);
    if answers && poster.migration == Migration::Rearm && peer.migration != Migration::Migrated {
        set(from);
    }
}

/// Makes the peer follow a queue pair that has migrated. The message reaches `place`.
///
/// # Errors
/// The message comes on another path than the peer's alternate one: the peer drops it, and its owner is notified once.
pub(super) fn follow(
    locked: &mut Locked<'_>,
    ((function, qpn), poster): End<'_>,
    place: Place,
) -> Result<(), Fault> {
    if poster.migration != Migration::Migrated {
        return Ok(());
    }
    let slot = qp_slot(poster.remote_qpn);
    let Some(peer) = locked.peek(place.function).qps.get(slot) else {
        return Ok(());
    };
    let from = Place {
        function,
        port: poster.port(),
    };
    let is_peer = peer.remote_qpn == qpn && peer.remote_function == function + 1;
    if peer.migration != Migration::Armed || !is_peer || !locked.fabric().connects(from, place) {
        return Ok(());
    }
    let path = peer.path.on(&peer.alternate);
    let leads_back =
        place.port == path.port.max(1) && locked.fabric().port_of_path(place, &path) == Some(from);
    if leads_back {
        migrate(locked, place.function, poster.remote_qpn);
        return Ok(());
    }
    if !peer.refused_path {
        let queue = Object::QueuePair(slot);
        owed::owe(locked, place.function, queue, Event::PathRefused.bit());
        if let Some(peer) = locked.function(place.function).qps.get_mut(slot) {
            peer.refused_path = true;
        }
        owed::pay(locked, place.function, queue);
    }
    Err(SILENT)
}

/// Migrates an armed queue pair whose peer does not answer, in place of an error. False if the request fails.
pub(super) fn instead(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    reason: Reason,
) -> bool {
    let silent = matches!(reason, Reason::Silent | Reason::Gone);
    let qp = locked.function(function).qps.get_mut(qp_slot(qpn));
    let Some(qp) = qp.filter(|qp| silent && qp.migration == Migration::Armed) else {
        return false;
    };
    // Its retries begin anew.
    qp.give_up_at_ns = 0;
    migrate(locked, function, qpn);
    true
}

/// Moves an armed queue pair to its alternate path, and notifies its owner.
pub(crate) fn migrate(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let queue = Object::QueuePair(qp_slot(qpn));
    owed::owe(locked, function, queue, Event::PathMigrated.bit());
    finish(locked, function, qpn);
}

/// Completes a migration that its owner is to be notified of, and sends what the queue pair owes.
pub(super) fn finish(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    let begun =
        |qp: &&Qp| qp.owed & Event::PathMigrated.bit() != 0 && qp.migration == Migration::Armed;
    if let Some(qp) = locked.peek(function).qps.get(slot).filter(begun) {
        let path = qp.path.on(&qp.alternate);
        let here = Place {
            function,
            port: path.port.max(1),
        };
        let remote = locked.fabric().port_of_path(here, &path);
        if let Some(qp) = locked.function(function).qps.get_mut(slot) {
            qp.path = path;
            qp.set_remote(remote);
            qp.migration = Migration::Migrated;
        }
    }
    owed::pay(locked, function, Object::QueuePair(slot));
}
