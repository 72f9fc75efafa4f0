//! Datagrams to and from other machines.

use std::net::IpAddr;

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::network::{Outlet, PASSED_IN, address_of, count};
use crate::bits::constant;
use crate::engine::access::Need;
use crate::engine::carried::{Key, poster_of, running, way_of};
use crate::engine::delivery::{dropped, packet_length, qkey_of};
use crate::engine::entry;
use crate::engine::execute::execute;
use crate::engine::fault::Verdict;
use crate::engine::header::{HEADER_BYTES, Header};
use crate::engine::list::List;
use crate::engine::message::{next_entry, received};
use crate::engine::outcome::{Fault, LOCAL_OPERATION, LOCAL_PROTECTION, Outcome};
use crate::engine::overtake::Behind;
use crate::engine::partition;
use crate::engine::peer::Poster;
use crate::engine::scatter::Scattered;
use crate::engine::step;
use crate::engine::wire::PSN_MASK;
use crate::engine::wire::packet::{Body, Head, Packet, Service};
use crate::engine::work::{self, Operation, WORK_BYTES_MAX};
use crate::fabric::counters::{PortCounter, Work};
use crate::fabric::{Locked, Place};
use crate::model::address::{GidEntry, GidType, gid_of};

/// Datagrams of one queue pair that are sent before others have their turn.
const PER_TURN: usize = 64;

/// Addresses of source and destination.
type Way = (IpAddr, IpAddr);

/// Sends the posted datagrams of a queue pair, and executes those that stay on this machine, in order. Returns true if more
/// may be posted.
pub(super) fn leave(
    locked: &mut Locked<'_>,
    key: Key,
    data: &mut Vec<u8>,
    outlet: &mut Outlet<'_>,
) -> bool {
    for _ in 0..PER_TURN {
        let Some(poster) = running(locked, key).filter(|own| own.qp.state == state::RTS) else {
            return false;
        };
        let queue = (poster.function, poster.qpn);
        let mut bytes = [0; WORK_BYTES_MAX];
        let Some(fetched) = entry::fetch(locked, queue, &poster.qp, &mut bytes) else {
            return false;
        };
        let result = match fetched.sound {
            true => match packet(locked, &poster, &bytes, data) {
                Ok(Some((way, head))) => {
                    outlet.send(poster.place(), way, &Packet { head, data });
                    locked.fabric().counters(key.0).work(Work::Send);
                    Ok(Outcome::of(u32::try_from(data.len()).unwrap_or(0)))
                }
                Ok(None) => {
                    let mut behind = Behind::of(&poster, &fetched.ctrl, fetched.space, execute);
                    execute(locked, &poster, &bytes, 0, &mut behind)
                }
                Err(fault) => Err(fault),
            },
            false => Err(LOCAL_OPERATION),
        };
        step::finish(locked, &poster, &fetched.ctrl, (result, Verdict::Go));
    }
    true
}

/// The packet of an entry, with its data in `data`; None if it does not leave this machine.
fn packet(
    locked: &mut Locked<'_>,
    poster: &Poster,
    bytes: &[u8; WORK_BYTES_MAX],
    data: &mut Vec<u8>,
) -> Result<Option<(Way, Head)>, Fault> {
    let Ok(work) = work::parse(bytes, service::UD) else {
        return Ok(None);
    };
    let (Some(to), Operation::Send { imm, .. }) = (work.address, work.operation) else {
        return Ok(None);
    };
    let fabric = locked.fabric();
    let Some((own, _)) = way_of(fabric, poster, &to) else {
        return Ok(None);
    };
    if own.kind != GidType::RoceV2 {
        // The other machine does not hear it.
        return Ok(None);
    }
    let mut list = List::new(poster.side(), Need::LocalRead);
    list.gather(bytes.get(work.data_at..work.end).unwrap_or_default())?;
    let length = packet_length(locked, poster, &list)?;
    list.check(locked, length.into())
        .map_err(|_| LOCAL_PROTECTION)?;
    data.clear();
    data.resize(length.into(), 0);
    list.read_at(locked, 0, data)
        .map_err(|_| LOCAL_PROTECTION)?;
    let identity = fabric.identity(poster.function);
    let pkey = identity.map_or(0, |own| {
        own.pkey(poster.qp.port(), poster.qp.path.pkey_index)
    });
    let head = Head {
        service: Service::Datagram,
        body: Body::Datagram {
            imm,
            qkey: qkey_of(poster, &to),
            source: poster.qpn,
        },
        queue: to.dqp,
        psn: poster.qp.path.sq_psn.wrapping_add(poster.qp.sq_done) & PSN_MASK,
        pkey,
        solicited: work.ctrl.is_solicited(),
        ack: false,
    };
    Ok(Some(((address_of(&own.gid), address_of(&to.dgid)), head)))
}

/// Writes a datagram into the next receive entry of its queue pair. One that cannot be received is dropped. None if it is
/// for nobody.
pub(super) fn arrive(
    locked: &mut Locked<'_>,
    (place, slot): (Place, u32),
    (from, to): Way,
    packet: &Packet<'_>,
) -> Option<()> {
    let Body::Datagram { imm, qkey, source } = packet.head.body else {
        return None;
    };
    let fabric = locked.fabric();
    let poster = running(locked, (place.function, slot))?;
    if poster.qp.service != service::UD || poster.qp.port() != place.port {
        return None;
    }
    let peer = poster_of(place.function, slot, &poster.qp.as_peer());
    count(fabric, place, (from, packet.data.len()), PASSED_IN);
    let counters = fabric.counters(place.function);
    let identity = fabric.identity(place.function)?;
    let pkey = identity.pkey(place.port, peer.qp.path.pkey_index);
    if !partition::are_same(pkey, packet.head.pkey) {
        counters.count_port(place.port, PortCounter::BadPkey);
        return None;
    }
    if peer.qp.qkey != qkey {
        counters.count_port(place.port, PortCounter::QkeyViolations);
        return None;
    }
    let length = u16::try_from(packet.data.len()).ok()?;
    let own = GidEntry {
        gid: gid_of(from),
        kind: GidType::RoceV2,
    };
    /// A socket does not report the time to live of a datagram.
    const HOPS: u8 = 64;
    let vector = AddressVector {
        dgid: gid_of(to),
        hop_limit: HOPS,
        ..AddressVector::default()
    };
    let header = Header::new(own, &vector, length, imm.is_some());
    let taken = next_entry(locked, &peer).ok().filter(|entry| {
        let whole = HEADER_BYTES as u64 + u64::from(length);
        whole <= entry.list.length()
    });
    let written = taken.filter(|entry| {
        let at = header.at as u64;
        let head = entry.list.write_at(locked, at, header.bytes());
        let mut data = || {
            entry
                .list
                .write_at(locked, HEADER_BYTES as u64, packet.data)
        };
        head.and_then(|()| data()).is_ok()
    });
    let Some(entry) = written else {
        dropped(locked, place.function);
        return Some(());
    };
    let cqe = Cqe {
        opcode: match imm {
            Some(_) => cqe_opcode::RESP_SEND_IMM,
            None => cqe_opcode::RESP_SEND,
        },
        imm: imm.unwrap_or(0),
        byte_count: u32::from(length) + const { constant(HEADER_BYTES) },
        solicited: packet.head.solicited,
        src_qpn: source,
        rx_flags: header.flags,
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    Some(())
}
