//! The peer of a request: of a connection, or of a dynamic connection while the request executes.

use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::access::Side;
use super::adversary::Which;
use super::migration;
use super::notice;
use super::outcome::{Fault, NO_ANSWER, REMOTE_INVALID, SILENT};
use super::partition;
use crate::fabric::counters::PortCounter;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Qp, SERVICE_DCT, SERVICE_XRC_TARGET};
use crate::fabric::route::Route;
use crate::fabric::{Fabric, Locked, NUMBER_BASE, Place};
use crate::model::address::Mac;

/// A queue pair and its location.
#[derive(Clone, Copy)]
pub(super) struct Poster {
    pub(super) function: usize,
    pub(super) qpn: u32,
    pub(super) qp: Qp,
    /// Destination of its request, if the request names one.
    pub(super) address: Option<AddressVector>,
    /// XRC initiators: number of the shared receive queue that the request names.
    pub(super) xrc_srq: Option<u32>,
}

impl Poster {
    /// Its function and the copy of its state.
    pub(super) fn end(&self) -> (usize, &Qp) {
        (self.function, &self.qp)
    }

    /// The port of the queue pair, for both directions.
    pub(super) fn place(&self) -> Place {
        Place {
            function: self.function,
            port: self.qp.port(),
        }
    }

    /// The request that this copy of its queue pair stands at.
    pub(super) fn which(&self) -> Which {
        Which {
            function: self.function,
            queue: self.qpn,
            index: self.qp.sq_done,
        }
    }

    pub(super) fn side(&self) -> Side {
        Side {
            function: self.function,
            pd: self.qp.pd,
            qpn: self.qpn,
        }
    }
}

/// The peer of a request: its function, its number and a copy of it.
pub(super) fn peer(locked: &mut Locked<'_>, poster: &Poster) -> Result<Poster, Fault> {
    match poster.address {
        Some(to) if poster.qp.service == service::DCI => {
            let target = target(locked, poster, &to)?;
            // The queue pair records its last peer, as hardware does while a DCI is connected.
            if let Some(qp) = locked
                .function(poster.function)
                .qps
                .get_mut(qp_slot(poster.qpn))
            {
                let before = (qp.remote(), qp.remote_qpn);
                qp.remote_qpn = target.qpn;
                qp.set_remote(Some(target.place()));
                if before != (Some(target.place()), target.qpn) {
                    let counters = locked.fabric().counters(target.function);
                    counters.count_port(target.qp.port(), PortCounter::RxDctConnect);
                }
            }
            Ok(target)
        }
        _ => {
            let peer = connected(locked, poster)?;
            notice::established(locked, peer.end(), peer.qpn);
            match poster.xrc_srq {
                Some(srq) if poster.qp.service == service::XRC => with_srq(locked, peer, srq),
                _ => Ok(peer),
            }
        }
    }
}

/// Combines an XRC target with the shared queue that a request names. The queue provides the
/// protection domain, the completion queue and the receive entries.
pub(super) fn with_srq(locked: &Locked<'_>, target: Poster, number: u32) -> Result<Poster, Fault> {
    let slot = number.checked_sub(NUMBER_BASE).ok_or(REMOTE_INVALID)?;
    let srqs = &locked.peek(target.function).srqs;
    let srq = srqs.get(slot).ok_or(REMOTE_INVALID)?;
    if srq.xrc_domain == 0 || srq.xrc_domain != target.qp.xrc_domain {
        return Err(REMOTE_INVALID);
    }
    Ok(Poster {
        qp: Qp {
            pd: srq.pd,
            srq: slot + 1,
            recv_cq: srq.cq,
            user_index: srq.user_index,
            ..target.qp
        },
        ..target
    })
}

fn connected(locked: &mut Locked<'_>, poster: &Poster) -> Result<Poster, Fault> {
    let place = poster.qp.remote().ok_or(NO_ANSWER)?;
    migration::follow(locked, ((poster.function, poster.qpn), &poster.qp), place)?;
    let peer = lookup(locked, (poster.place(), place), poster.qp.remote_qpn)?;
    let back = (peer.qp.remote(), peer.qp.remote_qpn);
    let partner = match poster.qp.service {
        service::XRC => SERVICE_XRC_TARGET,
        same => same,
    };
    // A queue pair accepts packets of its own version of RoCE only.
    let speaks = peer.qp.path.gid_type == poster.qp.path.gid_type;
    let is_up = !matches!(peer.qp.state, state::RST | state::INIT);
    if peer.qp.service != partner || is_up && !speaks {
        return Err(NO_ANSWER);
    }
    let hears = || {
        same_numbers(&poster.qp, &peer.qp) && partition::accepts(locked, poster.end(), peer.end())
    };
    if is_up && !hears() {
        return Err(SILENT);
    }
    match peer.qp.state {
        state::RTR | state::RTS | state::SQD | state::SQER => {
            if back == (Some(poster.place()), poster.qpn) {
                migration::arm(
                    locked,
                    ((poster.function, poster.qpn), &poster.qp),
                    ((peer.function, peer.qpn), &peer.qp),
                );
                Ok(peer)
            } else {
                Err(NO_ANSWER)
            }
        }
        // It is not connected yet and may answer a later try.
        state::RST | state::INIT => Err(SILENT),
        _ => Err(NO_ANSWER),
    }
}

/// True if the first packet has the number that the peer expects. Otherwise the peer never accepts a
/// packet (Linux `rxe_resp.c`, `check_psn`). An unreliable connection accepts any first packet.
fn same_numbers(poster: &Qp, peer: &Qp) -> bool {
    const MASK: u32 = 0xff_ffff;
    poster.service == service::UC || (poster.path.sq_psn ^ peer.path.rq_psn) & MASK == 0
}

/// The DCT that an address vector names. A wrong key gets no answer.
fn target(locked: &Locked<'_>, from: &Poster, to: &AddressVector) -> Result<Poster, Fault> {
    let place = destination(locked.fabric(), from.place(), to).ok_or(NO_ANSWER)?;
    let peer = lookup(locked, (from.place(), place), to.dqp)?;
    if peer.qp.service != SERVICE_DCT || peer.qp.dc_key != to.key {
        return Err(NO_ANSWER);
    }
    match peer.qp.state {
        state::RTR if !partition::accepts(locked, from.end(), peer.end()) => Err(SILENT),
        state::RTR => Ok(peer),
        state::RST | state::INIT => Err(SILENT),
        _ => Err(NO_ANSWER),
    }
}

/// The queue pair of this number behind a port, for a sender at another port. A queue pair on the
/// other port of the function does not receive the message.
fn lookup(locked: &Locked<'_>, (from, place): (Place, Place), qpn: u32) -> Result<Poster, Fault> {
    if !locked.fabric().connects(from, place) {
        return Err(SILENT);
    }
    let tables = locked.peek(place.function);
    let qp = tables.qps.get(qp_slot(qpn)).ok_or(NO_ANSWER)?.as_peer();
    let owner = tables.qps.owner(qp_slot(qpn)).ok_or(NO_ANSWER)?;
    locked.pid(owner.process).ok_or(NO_ANSWER)?;
    if qp.port() != place.port {
        return Err(NO_ANSWER);
    }
    Ok(Poster {
        function: place.function,
        qpn,
        qp,
        address: None,
        xrc_srq: None,
    })
}

/// The destination port of an address vector, for a request that leaves `from`.
pub(super) fn destination(fabric: &Fabric, from: Place, to: &AddressVector) -> Option<Place> {
    let route = Route {
        lid: to.dlid,
        grh: to.grh,
        dgid: to.dgid,
        sgid_index: to.sgid_index,
        mac: Mac(to.rmac),
    };
    fabric.destination(from, &route)
}

/// True if the peer grants this right to the other side.
pub(super) fn permits(peer: &Poster, right: u8) -> bool {
    peer.qp.access & right != 0
}
