//! Attributes on which both ends of a connection must agree. A difference fails as on hardware.

use mlx5_prm::qp::service;
use mlx5_prm::wqe::{flag, opcode};

use super::entry;
use super::event::Event;
use super::outcome::{BAD_RESPONSE, REMOTE_INVALID, SILENT};
use super::peer::Poster;
use super::refused::Refused;
use super::work::WORK_BYTES_MAX;
use crate::fabric::Locked;
use crate::model::address::mtu_bytes;

/// Direction of a message's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the poster.
    Out,
    /// To the poster.
    Back,
}

/// Checks that the packets of a message have a size that both sides accept. A packet of a longer
/// message must be exactly as long as the path MTU (Linux `rxe_resp.c`, `check_length`), and
/// no longer than the port's.
pub(super) fn check_packets(
    locked: &Locked<'_>,
    (poster, peer): (&Poster, &Poster),
    bytes: u64,
    way: Way,
) -> Result<(), Refused> {
    let connected = matches!(poster.qp.service, service::RC | service::XRC);
    let (ours, theirs) = (poster.qp.path.path_mtu, peer.qp.path.path_mtu);
    if !connected || ours == 0 || theirs == 0 {
        return Ok(());
    }
    let sends = match way {
        Way::Out => poster,
        Way::Back => peer,
    };
    let port = locked.fabric().identity(sends.function);
    let port = port.map_or(ours, |port| port.active_mtu(sends.qp.port()));
    let longest = |mtu: u8| u64::from(mtu_bytes(mtu));
    if sends.qp.path.path_mtu > port && bytes > longest(port) {
        return Err(SILENT.into());
    }
    if ours == theirs || bytes <= longest(ours.min(theirs)) {
        return Ok(());
    }
    match way {
        Way::Out => Err(Refused::by(peer, Event::QpRequestError, REMOTE_INVALID)),
        Way::Back => Err(BAD_RESPONSE.into()),
    }
}

/// Checks that the peer can answer as many reads and atomics as the poster has sent without waiting
/// (InfiniBand Architecture 1.3, 9.4.4). One too many is an invalid request.
pub(super) fn check_reads(
    locked: &Locked<'_>,
    (poster, peer): (&Poster, &Poster),
) -> Result<(), Refused> {
    let (ours, theirs) = (
        poster.qp.path.max_rd_atomic,
        peer.qp.path.max_dest_rd_atomic,
    );
    let connected = matches!(poster.qp.service, service::RC | service::XRC);
    let one_too_many = || usize::from(theirs) < outstanding(locked, poster, ours);
    if !connected || theirs != 0 && (ours <= theirs || !one_too_many()) {
        return Ok(());
    }
    Err(Refused::by(peer, Event::QpRequestError, REMOTE_INVALID))
}

/// Number of posted reads and atomics, from the next entry on, that the queue pair sends without
/// waiting; at most `most`.
fn outstanding(locked: &Locked<'_>, poster: &Poster, most: u8) -> usize {
    let mut at = *poster;
    let mut bytes = [0; WORK_BYTES_MAX];
    let mut found = 0;
    while found < usize::from(most) {
        let Some(ctrl) = entry::sound(locked, &at, &mut bytes) else {
            break;
        };
        let fence = ctrl.flags & flag::FENCE_MASK;
        if found != 0 && fence > flag::FENCE_INITIATOR_SMALL {
            break;
        }
        found += usize::from(matches!(
            ctrl.opcode,
            opcode::RDMA_READ
                | opcode::ATOMIC_CS
                | opcode::ATOMIC_FA
                | opcode::ATOMIC_MASKED_CS
                | opcode::ATOMIC_MASKED_FA
        ));
        at.qp.sq_done = at.qp.sq_done.wrapping_add(u32::from(ctrl.wqebbs().max(1)));
    }
    found
}
