//! The way of a datagram into one receiver's memory.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::arrival::{Alone, arrive};
use super::header::{HEADER_BYTES, Header};
use super::list::{Failure, List, transfer};
use super::message::{Message, lid, next_entry, received};
use super::outcome::{Fault, LOCAL_LENGTH, LOCAL_PROTECTION};
use super::partition;
use super::peer::Poster;
use super::scatter::Scattered;
use super::traffic::{self, Kind};
use crate::bits::constant;
use crate::fabric::counters::{PortCounter, Refusal};
use crate::fabric::numbers::qp_slot;
use crate::fabric::{Locked, Place};
use crate::model::address::mtu_bytes;
use crate::model::multicast;

/// Counts a datagram that is dropped.
pub(super) fn dropped(locked: &Locked<'_>, function: usize) {
    let counters = locked.fabric().counters(function);
    counters.refuse(Refusal::Dropped);
}

pub(super) fn is_ethernet(locked: &Locked<'_>, poster: &Poster) -> bool {
    locked.fabric().link_of(poster.place()).is_ethernet()
}

/// Length of a datagram, which is one packet.
pub(super) fn packet_length(
    locked: &Locked<'_>,
    poster: &Poster,
    list: &List,
) -> Result<u16, Fault> {
    let own = locked.fabric().identity(poster.function);
    let mtu = own.map_or(0, |own| mtu_bytes(own.active_mtu(poster.qp.port())));
    let length = u16::try_from(list.length()).map_err(|_| LOCAL_LENGTH)?;
    if length <= mtu {
        Ok(length)
    } else {
        Err(LOCAL_LENGTH)
    }
}

/// Writes a datagram of this length into its receiver's next receive entry. Returns false if the
/// datagram is to be dropped.
pub(super) fn deliver(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (message, length): (&Message, u16),
    to: &AddressVector,
    peer: &Poster,
) -> Result<bool, Fault> {
    let Ok(entry) = next_entry(locked, peer) else {
        return Ok(false);
    };
    let (bytes, skip) = (u64::from(length), HEADER_BYTES as u64);
    if bytes + skip > entry.list.length() {
        return Ok(false);
    }
    let Some(rx_flags) = put_header(locked, poster, (message, length), to, &entry.list) else {
        return Ok(false);
    };
    // Any sender may take the entry.
    let data = (bytes, Alone::Always);
    match arrive(
        locked,
        poster.which(),
        &message.list,
        (&entry.list, skip),
        data,
    ) {
        Ok(()) => {}
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION),
        Err(_) => return Ok(false),
    }
    let opcode = match message.imm {
        Some(_) => cqe_opcode::RESP_SEND_IMM,
        None => cqe_opcode::RESP_SEND,
    };
    let cqe = Cqe {
        opcode,
        imm: message.imm.unwrap_or(0),
        byte_count: u32::from(length) + const { constant(HEADER_BYTES) },
        solicited: message.solicited,
        src_qpn: poster.qpn,
        slid: lid(locked, poster),
        rx_flags,
        ..Cqe::default()
    };
    received(locked, peer, &entry, (cqe, &Scattered::NONE));
    let kind = Kind::Datagram {
        immediate: message.imm.is_some(),
        multicast: to.dqp == multicast::QPN,
    };
    traffic::count(locked, (poster, peer), kind, bytes);
    Ok(true)
}

/// The queue key of a datagram. The upper bit of the given key selects the sender's own key.
pub(super) fn qkey_of(poster: &Poster, to: &AddressVector) -> u32 {
    let [a, b, c, d, ..] = to.key.to_be_bytes();
    let asked = u32::from_be_bytes([a, b, c, d]);
    if asked >> 31 == 1 {
        poster.qp.qkey
    } else {
        asked
    }
}

/// A queue pair at a port, if it accepts datagrams with the poster's key.
pub(super) fn queue_pair(
    locked: &Locked<'_>,
    poster: &Poster,
    to: &AddressVector,
    (place, qpn): (Place, u32),
) -> Option<Poster> {
    let qps = &locked.peek(place.function).qps;
    let qp = qps.get(qp_slot(qpn))?.as_peer();
    let qkey = qkey_of(poster, to);
    let listens = qp.service == service::UD
        && matches!(qp.state, state::RTR | state::RTS | state::SQD | state::SQER)
        && qp.port() == place.port;
    let peer = Poster {
        function: place.function,
        qpn,
        qp,
        address: None,
        xrc_srq: None,
    };
    if !listens || !partition::accepts(locked, poster.end(), peer.end()) {
        return None;
    }
    if peer.qp.qkey != qkey {
        let counters = locked.fabric().counters(place.function);
        counters.count_port(place.port, PortCounter::QkeyViolations);
        return None;
    }
    Some(peer)
}

/// Writes the header of a datagram, if it has one, at the start of the receiver's buffer. Returns
/// the completion's flags, or None if the header cannot be written.
fn put_header(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (message, length): (&Message, u16),
    to: &AddressVector,
    target: &List,
) -> Option<u8> {
    let own = locked.fabric().gid_entry(poster.place(), to.sgid_index);
    let Some(own) = own.filter(|_| to.grh || is_ethernet(locked, poster)) else {
        return Some(0);
    };
    let header = Header::new(own, to, length, message.imm.is_some());
    let from = List::of_bytes(poster.side(), header.bytes());
    let (at, length) = (header.at as u64, header.bytes().len() as u64);
    transfer(locked, &from, (target, at), length).ok()?;
    Some(header.flags)
}
