//! The 40 bytes before a received datagram: the global route header, or the IP header of RoCE v2.

use mlx5_prm::wqe::AddressVector;

use crate::model::address::{GidEntry, GidType, is_ipv4};

/// Bytes in front of each received datagram.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes of an IPv4 header without options. It is at the end of the header area.
const IPV4_BYTES: usize = 20;
/// Base and datagram transport headers, and the checksum behind the data.
const TRANSPORT_BYTES: u16 = 12 + 8 + 4;
/// Bytes of immediate data.
const IMMEDIATE_BYTES: u16 = 4;
/// Bytes of a UDP header.
const UDP_BYTES: u16 = 8;
/// Next header after a global route header (Linux `ib_hdrs.h`, `IB_GRH_NEXT_HDR`).
const NEXT_TRANSPORT: u8 = 0x1b;
/// Next header after an IP header of RoCE v2.
const NEXT_UDP: u8 = 17;

/// The header that a receiver finds before a datagram.
pub(super) struct Header {
    bytes: [u8; HEADER_BYTES],
    /// Offset of the header in the header area. The adapter does not change the bytes before it.
    /// UCX relies on this to distinguish IPv4 from IPv6 (`uct_ud_verbs_iface_post_recv_always`).
    pub(super) at: usize,
    /// The upper byte of `flags_rqpn` in the completion. Bit 4 says that there is a header. The low
    /// bits are its kind on RoCE (`MLX5_CQE_ROCE_L3_HEADER_TYPE_*`, and bit 3 for UDP).
    pub(super) flags: u8,
}

impl Header {
    /// The header of a datagram of `length` bytes, whose source is `own`.
    pub(super) fn new(own: GidEntry, to: &AddressVector, length: u16, immediate: bool) -> Self {
        const PRESENT: u8 = 0x10;
        const UDP: u8 = 8;
        const IPV6: u8 = 1;
        const IPV4: u8 = 2;
        // Data is padded to a multiple of 4 bytes.
        let padded = length.next_multiple_of(4);
        let extra = if immediate { IMMEDIATE_BYTES } else { 0 };
        let length = padded.saturating_add(TRANSPORT_BYTES + extra);
        let (bytes, at, flags) = match own.kind {
            GidType::Infiniband | GidType::RoceV1 => {
                (global(own, to, length, NEXT_TRANSPORT), 0, PRESENT)
            }
            GidType::RoceV2 if is_ipv4(&own.gid) => {
                let header = ipv4(own, to, length.saturating_add(UDP_BYTES));
                let at = HEADER_BYTES - IPV4_BYTES;
                (header, at, PRESENT | UDP | IPV4)
            }
            GidType::RoceV2 => {
                let length = length.saturating_add(UDP_BYTES);
                (global(own, to, length, NEXT_UDP), 0, PRESENT | UDP | IPV6)
            }
        };
        Self { bytes, at, flags }
    }

    /// The header itself.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

/// A global route header, which is an IPv6 header.
fn global(own: GidEntry, to: &AddressVector, length: u16, next: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let version = 6 << 28 | u32::from(to.tclass) << 20 | to.flow_label;
    header[..4].copy_from_slice(&version.to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6] = next;
    header[7] = to.hop_limit;
    header[8..24].copy_from_slice(&own.gid);
    header[24..].copy_from_slice(&to.dgid);
    header
}

/// An IPv4 header at the end of the header area.
fn ipv4(own: GidEntry, to: &AddressVector, length: u16) -> [u8; HEADER_BYTES] {
    /// Version 4, five words.
    const VERSION: u8 = 0x45;
    const DONT_FRAGMENT: u8 = 0x40;
    let mut ip = [0; IPV4_BYTES];
    ip[0] = VERSION;
    ip[1] = to.tclass;
    let length = length.saturating_add(20);
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[6] = DONT_FRAGMENT;
    ip[8] = to.hop_limit;
    ip[9] = NEXT_UDP;
    ip[12..16].copy_from_slice(&own.gid[12..]);
    ip[16..].copy_from_slice(&to.dgid[12..]);
    let checksum = checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut header = [0; HEADER_BYTES];
    header[HEADER_BYTES - IPV4_BYTES..].copy_from_slice(&ip);
    header
}

/// The checksum of an IPv4 header whose own field is zero (RFC 1071).
fn checksum(header: &[u8; IPV4_BYTES]) -> u16 {
    let words = header.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    // The carry of ten words is less than four bits. Two folds remove it.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (folded + (folded >> 16)).to_be_bytes();
    !u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::address::{Gid, gid_of};

    fn own(kind: GidType, address: &str) -> GidEntry {
        let gid = gid_of(address.parse().unwrap());
        GidEntry { gid, kind }
    }

    fn to(address: &str) -> AddressVector {
        let dgid: Gid = gid_of(address.parse().unwrap());
        let mut bytes = [0; AddressVector::BYTES];
        (bytes[26], bytes[27]) = (106, 64);
        bytes[29..32].copy_from_slice(&[0, 0x12, 0x34]);
        bytes[32..].copy_from_slice(&dgid);
        AddressVector::parse(&bytes)
    }

    #[test]
    fn a_global_route_is_an_ipv6_header() {
        for (kind, next, length, flags) in [
            (GidType::Infiniband, 0x1b, 24 + 8, 0x10),
            (GidType::RoceV1, 0x1b, 24 + 8, 0x10),
            (GidType::RoceV2, 17, 24 + 8 + 8, 0x19),
        ] {
            let header = Header::new(own(kind, "fd00::1"), &to("fd00::2"), 7, false);
            let bytes = header.bytes();
            assert_eq!((header.at, bytes.len()), (0, HEADER_BYTES), "{kind:?}");
            assert_eq!(bytes[..4], [0x66, 0xa0, 0x12, 0x34], "{kind:?}");
            assert_eq!(bytes[4..8], [0, length, next, 64], "{kind:?}");
            assert_eq!(
                (bytes[8], bytes[23], bytes[24], bytes[39]),
                (0xfd, 1, 0xfd, 2)
            );
            assert_eq!(header.flags, flags, "{kind:?}");
        }
    }

    /// RoCE v2 over IPv4: twenty bytes, at the end, with a checksum that adds up.
    #[test]
    fn an_ipv4_header_is_at_the_end() {
        let own = own(GidType::RoceV2, "192.0.2.1");
        let header = Header::new(own, &to("192.0.2.2"), 8, true);
        let ip = header.bytes();
        assert_eq!((header.at, ip.len()), (20, 20));
        assert_eq!(
            ip[..10],
            [0x45, 106, 0, 20 + 8 + 24 + 4 + 8, 0, 0, 0x40, 0, 64, 17]
        );
        assert_eq!(ip[12..], [192, 0, 2, 1, 192, 0, 2, 2]);
        let words = ip.as_chunks::<2>().0.iter();
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(header.flags, 0x1a);
        // The example header of RFC 1071.
        let example = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(checksum(&example), 0xb861);
    }
}
