//! Addresses of a port: link layer, MAC address, and the GIDs that follow from them.
//!
//! An InfiniBand port has one GID, the default subnet prefix and the port's GUID. An Ethernet port
//! has two entries for the link-local address of its MAC, and two for each IP address: RoCE v1
//! before RoCE v2 (drivers/infiniband/core/cache.c, `ib_cache_gid_set_default_gid` and
//! `ib_cache_gid_add`).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Subnet prefix of a port's default GID. It is also the link-local prefix of IPv6.
pub const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;
/// Entries of an InfiniBand port's GID table.
pub const GID_TABLE_LEN_INFINIBAND: u16 = 8;
/// Entries of an Ethernet port's GID table.
pub const GID_TABLE_LEN_ETHERNET: u16 = 16;
/// Largest number of partition keys that a port can be given. The rest of its table is empty.
pub const PKEYS_MAX: usize = 8;
/// Entries of an InfiniBand port's table of partition keys.
pub const PKEY_TABLE_LEN_INFINIBAND: u16 = 128;
/// Entries of an Ethernet port's table of partition keys (`mlx5_query_port_roce`).
pub const PKEY_TABLE_LEN_ETHERNET: u16 = 1;
/// Largest number of IP addresses of a port. With the link-local address they fill its GID table.
pub const ADDRESSES_MAX: usize = GID_TABLE_LEN_ETHERNET as usize / 2 - 1;

/// A GID in network byte order.
pub type Gid = [u8; 16];

/// The link of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Link {
    /// InfiniBand: ports have LIDs, and a global route is optional.
    #[default]
    Infiniband,
    /// InfiniBand on a port that several functions share: each message must have a global route
    /// (`IBV_QPF_GRH_REQUIRED`).
    InfinibandGrh,
    /// Ethernet: RoCE v1 and v2. Ports have no LIDs, and each message has a global route.
    Ethernet,
}

impl Link {
    /// All links.
    pub const ALL: [Self; 3] = [Self::Infiniband, Self::InfinibandGrh, Self::Ethernet];

    /// Its name on the command line and in a topology file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::InfinibandGrh => "infiniband-grh",
            Self::Ethernet => "ethernet",
        }
    }

    /// The link with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|link| link.name() == name)
    }

    /// True for a RoCE port.
    #[must_use]
    pub fn is_ethernet(self) -> bool {
        self == Self::Ethernet
    }

    /// True if each message needs a global route.
    #[must_use]
    pub fn needs_grh(self) -> bool {
        self != Self::Infiniband
    }

    /// Entries of the GID table.
    #[must_use]
    pub fn gid_table_len(self) -> u16 {
        match self {
            Self::Ethernet => GID_TABLE_LEN_ETHERNET,
            _ => GID_TABLE_LEN_INFINIBAND,
        }
    }

    /// Entries of the table of partition keys.
    #[must_use]
    pub fn pkey_table_len(self) -> u16 {
        match self {
            Self::Ethernet => PKEY_TABLE_LEN_ETHERNET,
            _ => PKEY_TABLE_LEN_INFINIBAND,
        }
    }

    /// Capability mask of the port: on InfiniBand extended speeds, connection manager and client
    /// reregistration (bits 14, 16 and 25 of Linux `ib_verbs.h`, `enum ib_port_capability_mask_bits`);
    /// on Ethernet connection manager and GIDs of IP addresses (bit 26).
    #[must_use]
    pub fn capabilities(self) -> u32 {
        match self {
            Self::Ethernet => 0x0401_0000,
            _ => 0x0201_4000,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Transport of messages with a source GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum GidType {
    /// InfiniBand.
    #[default]
    Infiniband,
    /// Ethernet frames with a global route header.
    RoceV1,
    /// UDP over IPv4 or IPv6.
    RoceV2,
}

impl GidType {
    /// Its number in `struct ib_uverbs_gid_entry` (`enum ib_uverbs_gid_type`).
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Its name in sysfs.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Infiniband | Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its type.
    pub kind: GidType,
}

/// Address of an Ethernet port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The default MAC of a port: its GUID without the two middle bytes, with the port's number,
    /// from 0, in the fourth byte.
    #[must_use]
    pub fn of_guid(guid: u64, port: u8) -> Self {
        let [a, b, c, _, _, d, e, f] = guid.to_be_bytes();
        Self([a & !1, b, c, d ^ port, e, f])
    }

    /// Parses six pairs of hexadecimal digits with colons between them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2)?;
            let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = digits.then(|| u8::from_str_radix(part, 16).ok())??;
        }
        parts.next().is_none().then_some(Self(mac))
    }

    /// True for the address of a single port: not multicast, and not all zeroes.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// The link-local GID: fe80::/64 and the EUI-64 of the MAC (RFC 4291, appendix A).
    #[must_use]
    pub fn link_local(self) -> Gid {
        let [a, b, c, d, e, f] = self.0;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&GID_PREFIX.to_be_bytes());
        gid[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        gid
    }

    /// The MAC in a link-local GID, by the kernel's rule for RoCE v1 (`rdma_get_ll_mac`).
    #[must_use]
    pub fn of_link_local(gid: &Gid) -> Self {
        let [a, b, c, _, _, d, e, f] = [
            gid[8], gid[9], gid[10], gid[11], gid[12], gid[13], gid[14], gid[15],
        ];
        Self([a ^ 2, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// The GID of an InfiniBand port.
#[must_use]
pub fn infiniband_gid(guid: u64) -> Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&GID_PREFIX.to_be_bytes());
    gid[8..].copy_from_slice(&guid.to_be_bytes());
    gid
}

/// The GID of an IP address: IPv6 unchanged, IPv4 mapped.
#[must_use]
pub fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// True for a GID with a mapped IPv4 address.
#[must_use]
pub fn is_ipv4(gid: &Gid) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// True for a link-local GID.
#[must_use]
pub fn is_link_local(gid: &Gid) -> bool {
    gid[..8] == GID_PREFIX.to_be_bytes()
}

/// A GID in the form of sysfs: eight groups of four hexadecimal digits.
#[must_use]
pub fn gid_text(gid: &Gid) -> String {
    let groups = gid.as_chunks::<2>().0.iter();
    let groups = groups.map(|[high, low]| format!("{high:02x}{low:02x}"));
    groups.collect::<Vec<_>>().join(":")
}

/// The entry at `index` of the GID table of an Ethernet port.
#[must_use]
pub fn roce_entry(mac: Mac, addresses: &[Gid], index: usize) -> Option<GidEntry> {
    let gid = match (index / 2).checked_sub(1) {
        None => mac.link_local(),
        Some(address) => *addresses.get(address)?,
    };
    let kind = match index % 2 {
        0 => GidType::RoceV1,
        _ => GidType::RoceV2,
    };
    Some(GidEntry { gid, kind })
}

/// `enum ib_mtu` of the largest payload of an Ethernet port (`iboe_get_mtu`): the network device's
/// MTU without the longest headers.
#[must_use]
pub fn roce_mtu(device_mtu: u16) -> u8 {
    /// Global route, UDP, base transport, extended, atomic headers and checksum.
    const HEADERS: u16 = 40 + 8 + 12 + 4 + 28 + 4;
    match device_mtu.saturating_sub(HEADERS) {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        256.. => 1,
        _ => 0,
    }
}

/// Bytes of an `enum ib_mtu`.
#[must_use]
pub fn mtu_bytes(code: u8) -> u16 {
    128 << code.min(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs() {
        let mac = Mac::of_guid(0x02bf_0000_0000_0201, 0);
        assert_eq!(mac.to_string(), "02:bf:00:00:02:01");
        assert_eq!(Mac::parse("02:bf:00:00:02:01"), Some(mac));
        assert_ne!(Mac::of_guid(0x02bf_0000_0000_0201, 1), mac);
        for text in [
            "",
            "02:bf:00:00:02",
            "02:bf:00:00:02:01:05",
            "2:bf:0:0:2:1",
            "02:bf:00:00:02:+1",
        ] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        assert_eq!(
            gid_text(&mac.link_local()),
            "fe80:0000:0000:0000:00bf:00ff:fe00:0201"
        );
        assert_eq!(Mac::of_link_local(&mac.link_local()), mac);
        assert!(mac.is_unicast() && !Mac([1, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!Mac::default().is_unicast());
    }

    /// The link-local address is first, then each IP address; v1 precedes v2.
    #[test]
    fn gids() {
        let mac = Mac([2, 0xbf, 0, 0, 1, 1]);
        let four = gid_of("127.66.1.1".parse().unwrap());
        let six = gid_of("fd00:bf::1".parse().unwrap());
        let addresses = [four, six];
        let entries: Vec<_> = (0..8).map(|i| roce_entry(mac, &addresses, i)).collect();
        let expect = |gid, kind| Some(GidEntry { gid, kind });
        assert_eq!(
            entries,
            [
                expect(mac.link_local(), GidType::RoceV1),
                expect(mac.link_local(), GidType::RoceV2),
                expect(four, GidType::RoceV1),
                expect(four, GidType::RoceV2),
                expect(six, GidType::RoceV1),
                expect(six, GidType::RoceV2),
                None,
                None,
            ]
        );
        assert_eq!(gid_text(&four), "0000:0000:0000:0000:0000:ffff:7f42:0101");
        assert!(is_ipv4(&four) && !is_ipv4(&six) && !is_ipv4(&mac.link_local()));
        assert!(is_link_local(&mac.link_local()) && !is_link_local(&six));
        assert_eq!(2 * (ADDRESSES_MAX + 1), usize::from(GID_TABLE_LEN_ETHERNET));
    }

    /// Results of `iboe_get_mtu` for common MTUs.
    #[test]
    fn mtus() {
        for (device, code) in [
            (1500, 3),
            (9000, 5),
            (4200, 5),
            (4191, 4),
            (2144, 4),
            (512, 1),
            (100, 0),
        ] {
            assert_eq!(roce_mtu(device), code, "{device}");
        }
        assert_eq!((mtu_bytes(1), mtu_bytes(5)), (256, 4096));
    }

    #[test]
    fn links_have_names() {
        for link in Link::ALL {
            assert_eq!(Link::named(link.name()), Some(link));
            let value = toml::Value::try_from(link).unwrap();
            assert_eq!(value.as_str(), Some(link.name()));
        }
        assert_eq!(Link::named("ib"), None);
    }
}
