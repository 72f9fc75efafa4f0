//! Multicast groups: their GIDs, LIDs and MACs, and the groups of IP addresses.

use std::ops::RangeInclusive;

use super::address::{Gid, GidType, Mac, is_ipv4};
use super::sockaddr::{Family, SocketAddress};

/// Destination queue pair of every multicast message (Linux `ib_verbs.h`, `IB_MULTICAST_QPN`).
pub const QPN: u32 = 0xff_ffff;

/// The multicast LIDs.
pub const LIDS: RangeInclusive<u16> = 0xc000..=0xfffe;

/// LID of the group of IP broadcasts, which every subnet with IP over InfiniBand has. Other groups
/// get the LIDs above it.
pub const LID_BROADCAST: u16 = 0xc000;

/// Queue key of the group of IP broadcasts, and of the port space of IP over InfiniBand (OpenSM's
/// default).
pub const QKEY_IPOIB: u32 = 0x0b1b;

/// Scope of the groups of IP addresses on InfiniBand: that of the group of IP broadcasts
/// (`include/net/ip.h`, `ip_ib_mc_map`).
const LINK_LOCAL: u8 = 0x12;

/// True for the GID of a group: an IPv6 multicast address, or a mapped IPv4 one
/// (`rdma/ib_addr.h`, `rdma_is_multicast_addr`).
#[must_use]
pub fn is_group(gid: &Gid) -> bool {
    gid[0] == 0xff || is_ipv4(gid) && gid[12] >> 4 == 0xe
}

/// MAC of a group on Ethernet (core/verbs.c, `ib_resolve_eth_dmac`).
#[must_use]
pub fn mac(gid: &Gid) -> Mac {
    let [.., a, b, c, d] = *gid;
    match is_ipv4(gid) {
        true => Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
        false => Mac([0x33, 0x33, a, b, c, d]),
    }
}

/// GID of the group of an address on InfiniBand (core/cma.c, `cma_set_mgid`). In the port space of
/// UDP it differs from the group of IP over InfiniBand. None for the unspecified address, for which
/// the subnet administrator chooses a group.
#[must_use]
pub fn infiniband_gid(address: &SocketAddress, is_udp: bool) -> Option<Gid> {
    /// First bytes of a GID that the subnet administrator has chosen. The second byte has the scope.
    const CHOSEN: [u8; 4] = [0xff, 0x10, 0xa0, 0x1b];
    if address.is_zero() || address.is_loopback() {
        return None;
    }
    let given = address.gid();
    let [a, b, c, d, ..] = given;
    if address.family() == Some(Family::Ib) || [a, b & 0xf0, c, d] == CHOSEN {
        return Some(given);
    }
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xff, LINK_LOCAL]);
    // The default partition key.
    gid[4..6].copy_from_slice(&[0xff, 0xff]);
    if address.family() == Some(Family::Inet) {
        gid[2..4].copy_from_slice(&[0x40, 0x1b]);
        gid[12..].copy_from_slice(&given[12..]);
        gid[12] &= 0x0f;
    } else {
        gid[2..4].copy_from_slice(&[0x60, 0x1b]);
        gid[6..].copy_from_slice(&given[6..]);
    }
    if is_udp {
        gid[3] = 0x01;
    }
    Some(gid)
}

/// GID of a group that the subnet administrator chooses.
#[must_use]
pub fn chosen_gid(number: u32) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, LINK_LOCAL, 0xa0, 0x1b]);
    gid[4..6].copy_from_slice(&[0xfe, 0x80]);
    gid[12..].copy_from_slice(&number.to_be_bytes());
    gid
}

/// GID of the group of an address on Ethernet, for messages of this version of RoCE (core/cma.c,
/// `cma_iboe_set_mgid`).
#[must_use]
pub fn roce_gid(address: &SocketAddress, kind: GidType) -> Gid {
    let mut gid = address.gid();
    if address.is_zero() || address.is_loopback() {
        return [0; 16];
    }
    if address.family() == Some(Family::Inet) && kind != GidType::RoceV2 {
        gid[..2].copy_from_slice(&[0xff, 0x0e]);
    }
    gid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::address::gid_of;
    use std::net::{IpAddr, Ipv6Addr};

    fn ip(text: &str) -> SocketAddress {
        let address: IpAddr = text.parse().unwrap();
        SocketAddress::of_ip(&gid_of(address), 0)
    }

    fn gid(text: &str) -> Gid {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn groups_of_addresses_on_infiniband() {
        for (address, is_udp, expect) in [
            // RFC 4391, section 4, with the link-local scope and the default partition key.
            ("239.1.2.3", false, "ff12:401b:ffff::f01:203"),
            ("239.1.2.3", true, "ff12:4001:ffff::f01:203"),
            ("224.0.0.1", false, "ff12:401b:ffff::1"),
            ("ff0e::1:2", false, "ff12:601b:ffff::1:2"),
            ("ff0e:1:2:3:4:5:6:7", true, "ff12:6001:ffff:3:4:5:6:7"),
            ("ff1e:a01b::7", true, "ff1e:a01b::7"),
        ] {
            let found = infiniband_gid(&ip(address), is_udp);
            assert_eq!(found, Some(gid(expect)), "{address}");
            assert!(found.is_some_and(|gid| is_group(&gid)), "{address}");
        }
        let own = SocketAddress::of_gid(&gid("ff12:1::9"), 0);
        assert_eq!(infiniband_gid(&own, true), Some(gid("ff12:1::9")));
        for address in ["0.0.0.0", "::", "127.0.0.1"] {
            assert_eq!(infiniband_gid(&ip(address), true), None, "{address}");
        }
        assert!(is_group(&chosen_gid(1)) && chosen_gid(1) != chosen_gid(2));
    }

    #[test]
    fn groups_of_addresses_on_ethernet() {
        for (address, kind, expect, mac_expect) in [
            (
                "239.129.2.3",
                GidType::RoceV2,
                "::ffff:239.129.2.3",
                [1, 0, 0x5e, 1, 2, 3],
            ),
            (
                "239.1.2.3",
                GidType::RoceV1,
                "ff0e::ffff:239.1.2.3",
                [0x33, 0x33, 239, 1, 2, 3],
            ),
            (
                "ff0e::1:2",
                GidType::RoceV1,
                "ff0e::1:2",
                [0x33, 0x33, 0, 1, 0, 2],
            ),
        ] {
            let found = roce_gid(&ip(address), kind);
            assert_eq!(found, gid(expect), "{address}");
            assert_eq!(mac(&found), Mac(mac_expect), "{address}");
            assert!(is_group(&found), "{address}");
        }
        for single in ["::ffff:10.0.0.1", "fe80::1", "::"] {
            assert!(!is_group(&gid(single)), "{single}");
        }
    }
}
