//! Packets of a message, for the counters of both ports.
//!
//! A message is executed as a whole. Its packets are those that the standard cuts it into: one per path
//! MTU with the headers of its operation, and the answers of a reliable service.

use mlx5_prm::qp::service;

use super::peer::Poster;
use crate::fabric::Locked;
use crate::fabric::counters::PortCounter;
use crate::model::address::{Gid, GidType, Link, is_ipv4, mtu_bytes};

/// Base transport header and invariant CRC.
const BASE: u64 = 12 + 4;
const DATAGRAM: u64 = 8;
const REMOTE_ADDRESS: u64 = 16;
const ATOMIC: u64 = 28;
const ATOMIC_ANSWER: u64 = 8;
const IMMEDIATE: u64 = 4;
const ACKNOWLEDGEMENT: u64 = 4;

/// A message between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `immediate` covers a key to invalidate, too.
    Send {
        immediate: bool,
    },
    Write {
        immediate: bool,
    },
    Read,
    Atomic,
    Datagram {
        immediate: bool,
        multicast: bool,
    },
}

/// Packets in one direction, with the bytes of their headers behind the network's and of their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Packets {
    count: u64,
    bytes: u64,
}

impl Packets {
    /// Data of `bytes` bytes in packets of at most `mtu`, with `more` bytes of further headers in all.
    fn of(bytes: u64, mtu: u64, more: u64) -> Self {
        let count = bytes.div_ceil(mtu.max(1)).max(1);
        Self {
            count,
            // Only the last packet has padding.
            bytes: bytes.next_multiple_of(4) + count * BASE + more,
        }
    }
}

/// The packets of a message from its sender, and those of the answer.
fn packets(kind: Kind, (bytes, mtu): (u64, u64), reliable: bool) -> (Packets, Packets) {
    let immediate = |has: bool| if has { IMMEDIATE } else { 0 };
    let answer = match reliable {
        true => Packets::of(0, mtu, ACKNOWLEDGEMENT),
        false => Packets::default(),
    };
    match kind {
        Kind::Send { immediate: has } => (Packets::of(bytes, mtu, immediate(has)), answer),
        Kind::Write { immediate: has } => {
            let more = REMOTE_ADDRESS + immediate(has);
            (Packets::of(bytes, mtu, more), answer)
        }
        Kind::Read => {
            let data = Packets::of(bytes, mtu, 0);
            // The first and the last packet of the answer acknowledge.
            let more = ACKNOWLEDGEMENT * data.count.min(2);
            let asks = Packets::of(0, mtu, REMOTE_ADDRESS);
            (asks, Packets::of(bytes, mtu, more))
        }
        Kind::Atomic => (
            Packets::of(0, mtu, ATOMIC),
            Packets::of(0, mtu, ACKNOWLEDGEMENT + ATOMIC_ANSWER),
        ),
        Kind::Datagram { immediate: has, .. } => (
            Packets::of(bytes, mtu, DATAGRAM + immediate(has)),
            Packets::default(),
        ),
    }
}

/// Bytes of the network's headers of each packet.
fn network(link: Link, routed: bool, (kind, gid): (GidType, &Gid)) -> u64 {
    const LOCAL_ROUTE: u64 = 8;
    const GLOBAL_ROUTE: u64 = 40;
    const ETHERNET: u64 = 14;
    const IPV4: u64 = 20;
    const UDP: u64 = 8;
    match (link, kind) {
        (Link::Ethernet, GidType::RoceV2) if is_ipv4(gid) => ETHERNET + IPV4 + UDP,
        (Link::Ethernet, GidType::RoceV2) => ETHERNET + GLOBAL_ROUTE + UDP,
        (Link::Ethernet, _) => ETHERNET + GLOBAL_ROUTE,
        _ if routed => LOCAL_ROUTE + GLOBAL_ROUTE,
        _ => LOCAL_ROUTE,
    }
}

/// Counts the packets of an executed message at both ports.
pub(super) fn count(locked: &Locked<'_>, (from, to): (&Poster, &Poster), kind: Kind, bytes: u64) {
    let fabric = locked.fabric();
    let path = &from.qp.path;
    let port = fabric.identity(from.function);
    let port = port.map_or(0, |own| own.active_mtu(from.qp.port()));
    let mtu = match path.path_mtu {
        0 => port,
        mtu => mtu.min(port),
    };
    let reliable = !matches!(from.qp.service, service::UC | service::UD);
    let (there, back) = packets(kind, (bytes, mtu_bytes(mtu).into()), reliable);
    let routed = path.is_global != 0;
    let own = fabric.gid_entry(from.place(), path.sgid_index);
    let gid = own.map(|own| own.gid).unwrap_or_default();
    let head = network(fabric.link_of(from.place()), routed, (path.gid_type, &gid));
    let multicast = matches!(
        kind,
        Kind::Datagram {
            multicast: true,
            ..
        }
    );
    pass(locked, (from, to), there, (head, multicast));
    pass(locked, (to, from), back, (head, false));
}

/// Counts packets in one direction.
fn pass(
    locked: &Locked<'_>,
    (from, to): (&Poster, &Poster),
    packets: Packets,
    (head, multicast): (u64, bool),
) {
    use PortCounter as C;
    if packets.count == 0 {
        return;
    }
    // The counters have units of four octets (Linux `ABI/stable/sysfs-class-infiniband`).
    let words = (packets.bytes + packets.count * head) / 4;
    let (sent, received) = match multicast {
        true => (C::MulticastXmitPackets, C::MulticastRcvPackets),
        false => (C::UnicastXmitPackets, C::UnicastRcvPackets),
    };
    for (end, data, all, kind) in [
        (from, C::PortXmitData, C::PortXmitPackets, sent),
        (to, C::PortRcvData, C::PortRcvPackets, received),
    ] {
        let counters = locked.fabric().counters(end.function);
        let port = end.qp.port();
        counters.add_port(port, data, words);
        counters.add_port(port, all, packets.count);
        counters.add_port(port, kind, packets.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_by_the_path_mtu() {
        let packets_of = |kind, bytes| {
            let (there, back) = packets(kind, (bytes, 1024), true);
            ((there.count, there.bytes), (back.count, back.bytes))
        };
        let send = Kind::Send { immediate: false };
        assert_eq!(packets_of(send, 0), ((1, 16), (1, 20)));
        assert_eq!(packets_of(send, 1024), ((1, 1040), (1, 20)));
        assert_eq!(packets_of(send, 1025), ((2, 1028 + 32), (1, 20)));
        let write = Kind::Write { immediate: true };
        assert_eq!(packets_of(write, 3), ((1, 4 + 16 + 20), (1, 20)));
        // An answer of three packets: the one in the middle does not acknowledge.
        assert_eq!(packets_of(Kind::Read, 3000), ((1, 32), (3, 3000 + 48 + 8)));
        assert_eq!(packets_of(Kind::Atomic, 8), ((1, 44), (1, 28)));
        let datagram = Kind::Datagram {
            immediate: true,
            multicast: false,
        };
        let (there, back) = packets(datagram, (8, 1024), false);
        assert_eq!((there.count, there.bytes, back.count), (1, 8 + 16 + 12, 0));
    }
}
