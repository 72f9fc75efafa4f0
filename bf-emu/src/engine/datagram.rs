//! Datagrams: a message to any queue pair that listens, with its global route header in front.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::list::{Failure, List, transfer};
use super::message::{Message, length_of, lid, next_entry, received};
use super::outcome::{Fault, LOCAL_PROTECTION, Outcome};
use super::peer::{Poster, destination};
use super::scatter::Scattered;
use crate::fabric::Locked;
use crate::fabric::counters::Refusal;
use crate::fabric::numbers::qp_slot;

/// Longest datagram: one packet of the largest MTU.
pub(crate) const DATAGRAM_BYTES_MAX: u64 = 4096;
/// Bytes in front of each received datagram, for its global route.
const GRH_BYTES: usize = 40;

pub(super) fn datagram(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    to: &AddressVector,
) -> Result<Outcome, Fault> {
    let length = length_of(&message.list, DATAGRAM_BYTES_MAX)?;
    let sent = Outcome::of(length);
    let dropped = |locked: &Locked<'_>| {
        locked
            .fabric()
            .counters(poster.function)
            .refuse(Refusal::Dropped);
        Ok(sent)
    };
    let fabric = locked.fabric();
    let place = destination(fabric, to).filter(|to| fabric.connects(poster.place(), *to));
    let Some(place) = place else {
        return dropped(locked);
    };
    let qps = &locked.peek(place.function).qps;
    let Some(qp) = qps.get(qp_slot(to.dqp)) else {
        return dropped(locked);
    };
    let qp = qp.as_peer();
    let peer = Poster {
        function: place.function,
        qpn: to.dqp,
        qp,
        address: None,
        xrc_srq: None,
    };
    // The upper bit of the key asks for the sender's own.
    let [a, b, c, d, ..] = to.key.to_be_bytes();
    let asked = u32::from_be_bytes([a, b, c, d]);
    let qkey = if asked >> 31 == 1 {
        poster.qp.qkey
    } else {
        asked
    };
    let listens = qp.service == service::UD
        && matches!(qp.state, state::RTR | state::RTS | state::SQD | state::SQER)
        && (qp.qkey, qp.port()) == (qkey, place.port);
    if !listens {
        return dropped(locked);
    }
    let Ok(entry) = next_entry(locked, &peer) else {
        return dropped(locked);
    };
    let skip = GRH_BYTES as u64;
    if length + skip > entry.list.length() {
        return dropped(locked);
    }
    if to.grh {
        let grh = global_route(locked, poster, to, length);
        let from = List::of_bytes(poster.side(), &grh);
        if transfer(locked, &from, (&entry.list, 0), skip).is_err() {
            return dropped(locked);
        }
    }
    match transfer(locked, &message.list, (&entry.list, skip), length) {
        Ok(()) => {}
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION),
        Err(_) => return dropped(locked),
    }
    let opcode = match message.imm {
        Some(_) => cqe_opcode::RESP_SEND_IMM,
        None => cqe_opcode::RESP_SEND,
    };
    let cqe = Cqe {
        opcode,
        imm: message.imm.unwrap_or(0),
        byte_count: u32::try_from(length + skip).unwrap_or(u32::MAX),
        solicited: message.solicited,
        src_qpn: poster.qpn,
        slid: lid(locked, poster),
        // Bits 28 and 29 of flags_rqpn: a global route is there.
        rx_flags: if to.grh { 0x10 } else { 0 },
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    Ok(sent)
}

/// The global route header that a receiver sees.
fn global_route(
    locked: &Locked<'_>,
    poster: &Poster,
    to: &AddressVector,
    length: u64,
) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    grh[0] = 0x60;
    // Payload, base and datagram headers, invariant check.
    let payload = u16::try_from(length + 24).unwrap_or(u16::MAX);
    grh[4..6].copy_from_slice(&payload.to_be_bytes());
    grh[6] = 0x1b;
    grh[7] = 0xff;
    if let Some(identity) = locked.fabric().identity(poster.function) {
        grh[8..24].copy_from_slice(&identity.gid(poster.qp.port()));
    }
    grh[24..].copy_from_slice(&to.dgid);
    grh
}
