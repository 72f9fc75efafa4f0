//! The way of packets out of this machine, their addresses and their counters.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::engine::wire::icrc::Ends;
use crate::engine::wire::packet::Packet;
use crate::engine::wire::requester::Counts;
use crate::fabric::counters::{Counters, PortCounter};
use crate::fabric::{Fabric, Place, PortState};
use crate::model::address::Gid;

/// The address in a GID.
pub(super) fn address_of(gid: &Gid) -> IpAddr {
    let address = Ipv6Addr::from(*gid);
    address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(address), IpAddr::V4)
}

/// A packet's direction: its counters.
pub(super) type Passed = [PortCounter; 3];
const PASSED_OUT: Passed = [
    PortCounter::PortXmitPackets,
    PortCounter::UnicastXmitPackets,
    PortCounter::PortXmitData,
];
pub(super) const PASSED_IN: Passed = [
    PortCounter::PortRcvPackets,
    PortCounter::UnicastRcvPackets,
    PortCounter::PortRcvData,
];

/// Counts a packet with `bytes` bytes of data at its port, in units of four bytes.
pub(super) fn count(
    fabric: &Fabric,
    place: Place,
    (address, bytes): (IpAddr, usize),
    [packets, unicast, data]: Passed,
) {
    /// Headers of Ethernet, UDP and transport, and the checksum.
    const HEADERS: u64 = 14 + 8 + 12 + 4;
    let network = if address.is_ipv4() { 20 } else { 40 };
    let counters = fabric.counters(place.function);
    counters.add_port(place.port, packets, 1);
    counters.add_port(place.port, unicast, 1);
    counters.add_port(place.port, data, (HEADERS + network + bytes as u64) / 4);
}

/// Counts what a requester has seen at its port.
pub(super) fn count_of(counters: &Counters, port: u8, seen: Counts) {
    for (counter, count) in [
        (PortCounter::LocalAckTimeoutErr, seen.timeouts),
        (PortCounter::PacketSeqErr, seen.sequence_naks),
        (PortCounter::ImpliedNakSeqErr, seen.implied_naks),
        (PortCounter::RnrNakRetryErr, seen.not_ready),
    ] {
        counters.add_port(port, counter, count);
    }
}

/// True if a port carries packets.
pub(super) fn is_up(fabric: &Fabric, place: Place) -> bool {
    fabric.port_state(place) == PortState::Active
}

/// Sends a packet: its source address, its destination and its bytes.
pub(super) type SendTo<'a> = dyn FnMut(IpAddr, SocketAddr, &[u8]) + 'a;

/// The way of packets out of this machine.
pub(super) struct Outlet<'a> {
    fabric: &'a Fabric,
    /// UDP port of both sides.
    port: u16,
    bytes: &'a mut Vec<u8>,
    send: &'a mut SendTo<'a>,
}

impl<'a> Outlet<'a> {
    /// With a buffer for packets.
    pub(super) fn new(
        fabric: &'a Fabric,
        (port, bytes): (u16, &'a mut Vec<u8>),
        send: &'a mut SendTo<'a>,
    ) -> Self {
        Self {
            fabric,
            port,
            bytes,
            send,
        }
    }

    /// Sends a packet with its checksum. A port without a link loses it.
    pub(super) fn send(&mut self, place: Place, (from, to): (IpAddr, IpAddr), packet: &Packet<'_>) {
        if !is_up(self.fabric, place) {
            return;
        }
        let counted = (from, packet.data.len());
        count(self.fabric, place, counted, PASSED_OUT);
        self.bytes.clear();
        packet.encode(self.bytes);
        let ends = Ends {
            from: SocketAddr::new(from, self.port),
            to: SocketAddr::new(to, self.port),
            identification: 0,
        };
        if let Some(icrc) = ends.icrc(self.bytes) {
            self.bytes.extend(icrc);
            (self.send)(from, ends.to, self.bytes);
        }
    }
}
