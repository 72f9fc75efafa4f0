//! Datagrams: a message to any queue pair that listens, with its header in front.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::header::{HEADER_BYTES, Header};
use super::list::{Failure, List, transfer};
use super::message::{Message, length_of, lid, next_entry, received};
use super::outcome::{Fault, LOCAL_OPERATION, LOCAL_PROTECTION, Outcome};
use super::peer::{Poster, destination};
use super::scatter::Scattered;
use crate::fabric::Locked;
use crate::fabric::counters::Refusal;
use crate::fabric::numbers::qp_slot;
use crate::model::address::mtu_bytes;

pub(super) fn datagram(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    to: &AddressVector,
) -> Result<Outcome, Fault> {
    let own = locked.fabric().identity(poster.function);
    // One packet.
    let mtu = own.map_or(0, |own| mtu_bytes(own.active_mtu(poster.qp.port())));
    let length = length_of(&message.list, mtu)?;
    let sent = Outcome::of(length);
    let dropped = |locked: &Locked<'_>| {
        locked
            .fabric()
            .counters(poster.function)
            .refuse(Refusal::Dropped);
        Ok(sent)
    };
    let fabric = locked.fabric();
    let from = poster.place();
    let link = fabric.link_of(from);
    if link.is_ethernet() && !to.extended {
        // Without a global route there is no address.
        return Err(LOCAL_OPERATION);
    }
    let place = destination(fabric, from, to).filter(|to| fabric.connects(from, *to));
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
    let skip = HEADER_BYTES as u64;
    if length + skip > entry.list.length() {
        return dropped(locked);
    }
    let own = locked.fabric().gid_entry(from, to.sgid_index);
    let mut rx_flags = 0;
    if let Some(own) = own.filter(|_| to.grh || link.is_ethernet()) {
        let header = Header::new(own, to, length, message.imm.is_some());
        rx_flags = header.flags;
        let from = List::of_bytes(poster.side(), header.bytes());
        let (at, length) = (header.at as u64, header.bytes().len() as u64);
        if transfer(locked, &from, (&entry.list, at), length).is_err() {
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
        rx_flags,
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    Ok(sent)
}
