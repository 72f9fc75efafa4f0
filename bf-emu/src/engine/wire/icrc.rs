//! The invariant checksum of a RoCE v2 packet (InfiniBand Architecture 1.2.1, annex 17, A17.3.3): CRC-32 over the headers
//! of IP and UDP and all behind them. Fields that a router may change count as ones.

use std::net::{IpAddr, SocketAddr};

/// Bytes of the checksum.
pub const ICRC_BYTES: usize = 4;

/// The addresses of a packet, and the identification in its IPv4 header. A packet is never a fragment.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Source address and UDP port.
    pub from: SocketAddr,
    /// Destination address and UDP port.
    pub to: SocketAddr,
    /// Linux sends 0 from a socket without a fixed destination that forbids fragments.
    pub identification: u16,
}

impl Ends {
    /// The checksum of a packet, in the order of the wire. `packet` begins with the base transport header and ends before
    /// the checksum. None if the addresses are of different versions, or if the packet is too long for the network.
    #[must_use]
    pub fn icrc(&self, packet: &[u8]) -> Option<[u8; ICRC_BYTES]> {
        /// The masked header of InfiniBand's local route, before all others.
        const LOCAL_ROUTE: [u8; 8] = [0xff; 8];
        const UDP_BYTES: usize = 8;
        /// Byte of the base transport header that a router may change: congestion marks.
        const CONGESTION_AT: usize = 4;
        let udp = u16::try_from(UDP_BYTES + packet.len() + ICRC_BYTES).ok()?;
        let mut crc = update(u32::MAX, &LOCAL_ROUTE);
        crc = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = udp.checked_add(20)?.to_be_bytes();
                let identification = self.identification.to_be_bytes();
                // Type of service, time to live and checksum are masked; the flag forbids fragments.
                let crc = update(crc, &[0x45, 0xff, total[0], total[1]]);
                let crc = update(crc, &identification);
                let crc = update(crc, &[0x40, 0, 0xff, 17, 0xff, 0xff]);
                update(update(crc, &from.octets()), &to.octets())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let length = udp.to_be_bytes();
                // Traffic class, flow label and hop limit are masked.
                let crc = update(crc, &[0x6f, 0xff, 0xff, 0xff]);
                let crc = update(crc, &[length[0], length[1], 17, 0xff]);
                update(update(crc, &from.octets()), &to.octets())
            }
            _ => return None,
        };
        crc = update(crc, &self.from.port().to_be_bytes());
        crc = update(crc, &self.to.port().to_be_bytes());
        crc = update(crc, &udp.to_be_bytes());
        // The checksum of UDP.
        crc = update(crc, &[0xff; 2]);
        let (head, rest) = packet.split_at_checked(CONGESTION_AT)?;
        let (_, rest) = rest.split_first()?;
        crc = update(crc, head);
        crc = update(crc, &[0xff]);
        crc = update(crc, rest);
        Some((!crc).to_le_bytes())
    }

    /// The packet of a datagram, without its checksum; None if the checksum is wrong.
    #[must_use]
    pub fn checked<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (packet, icrc) = datagram.split_last_chunk::<ICRC_BYTES>()?;
        (self.icrc(packet)? == *icrc).then_some(packet)
    }
}

/// Tables for eight bytes at a time: entry `n` is the effect of a byte that `n` bytes follow.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    /// The polynomial of Ethernet, lowest bit first.
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "less than 256")]
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for [a, b, c, d, rest @ ..] in words {
        let [a, b, c, d] = (crc ^ u32::from_le_bytes([*a, *b, *c, *d])).to_le_bytes();
        let [e, f, g, h] = *rest;
        let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
        crc = t7[usize::from(a)]
            ^ t6[usize::from(b)]
            ^ t5[usize::from(c)]
            ^ t4[usize::from(d)]
            ^ t3[usize::from(e)]
            ^ t2[usize::from(f)]
            ^ t1[usize::from(g)]
            ^ t0[usize::from(h)];
    }
    for byte in rest {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        crc = crc >> 8 ^ TABLES[0][usize::from(low)];
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: &str, to: &str, identification: u16) -> Ends {
        Ends {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            identification,
        }
    }

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
        let pairs = digits.as_chunks::<2>().0.iter();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        pairs.map(|pair| byte(pair).unwrap()).collect()
    }

    /// Packets with their checksums as published in the tests of Scapy's RoCE layer (`test/contrib/roce.uts`). The second
    /// one was captured behind a ConnectX-4 Lx.
    #[test]
    fn published_packets_have_their_published_checksums() {
        let send = "2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000";
        let own = ends("192.168.0.7:49152", "192.168.0.7:4791", 1144);
        assert_eq!(own.icrc(&bytes(send)), Some([0x78, 0xf3, 0x53, 0xf3]));
        let congestion = "8100ffff 40000118 00000000 00000000 00000000 00000000 00000000";
        let card = ends("10.0.17.1:0", "10.0.18.1:4791", 0x718c);
        assert_eq!(card.icrc(&bytes(congestion)), Some([0x82, 0xfd, 0, 0x2a]));
    }

    /// Packets whose checksums Scapy 2.8.0 has computed, from its own reading of the standard.
    #[test]
    fn checksums_are_those_of_another_implementation() {
        let packet = bytes("0440ffff 00000048 80fffff0 7477656c 76652062 79746573");
        for (from, to, icrc) in [
            (
                "127.66.1.1:4791",
                "127.66.2.1:4791",
                [0x08, 0x74, 0xcb, 0x29],
            ),
            (
                "[fd00:bf::1:1]:4791",
                "[fd00:bf::2:1]:4791",
                [0x01, 0x4e, 0xd1, 0x76],
            ),
        ] {
            assert_eq!(ends(from, to, 0).icrc(&packet), Some(icrc), "{from}");
        }
    }

    #[test]
    fn a_changed_bit_changes_the_checksum_and_a_congestion_mark_does_not() {
        for (from, to) in [
            ("127.66.1.1:4791", "127.66.2.1:4791"),
            ("[fd00:bf::1:1]:4791", "[fd00:bf::2:1]:4791"),
        ] {
            let ends = ends(from, to, 0);
            let packet: Vec<u8> = (0..40).collect();
            let icrc = ends.icrc(&packet).unwrap();
            for bit in 0..packet.len() * 8 {
                let mut changed = packet.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let same = ends.icrc(&changed) == Some(icrc);
                assert_eq!(same, bit / 8 == 4, "bit {bit}");
            }
            let datagram = [&packet[..], &icrc].concat();
            assert_eq!(ends.checked(&datagram), Some(&packet[..]));
            assert_eq!(ends.checked(&datagram[..3]), None);
            let back = Ends {
                from: ends.to,
                to: ends.from,
                ..ends
            };
            assert_eq!(back.checked(&datagram), None);
        }
        let mixed = ends("127.0.0.1:1", "[::1]:1", 0);
        assert_eq!(mixed.icrc(&[0; 12]), None);
    }

    /// CRC-32 bit by bit, and the check value of its definition.
    #[test]
    fn eight_bytes_at_a_time_equal_one_bit_at_a_time() {
        let slow = |bytes: &[u8]| {
            bytes.iter().fold(u32::MAX, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
                    1 => crc >> 1 ^ 0xedb8_8320,
                    _ => crc >> 1,
                })
            })
        };
        assert_eq!(!update(u32::MAX, b"123456789"), 0xcbf4_3926);
        let bytes: Vec<u8> = (0..=255).rev().collect();
        for length in 0..64 {
            assert_eq!(
                update(u32::MAX, &bytes[..length]),
                slow(&bytes[..length]),
                "{length}"
            );
        }
    }
}
