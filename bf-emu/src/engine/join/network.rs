//! Addresses and counters of packets.

use std::net::{IpAddr, Ipv6Addr};

use crate::fabric::counters::PortCounter;
use crate::fabric::{Fabric, Place};
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
pub(super) const PASSED_OUT: Passed = [
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
