//! The IP addresses in the private data of requests (annex A11; core/cma.c, `struct cma_hdr`).

use crate::fabric::rdma_cm::{CmId, IP_HEADER};
use crate::model::address::Gid;
use crate::model::sockaddr::{Family, SocketAddress};

const HEADER: usize = IP_HEADER as usize;
const SOURCE_AT: usize = 4;
const TARGET_AT: usize = 20;
/// First bytes of the GID of an IPv4 address. In the header they are zeroes.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Both addresses of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) source: SocketAddress,
    pub(super) target: SocketAddress,
}

/// The private data of a message: the addresses of the identifier, except GIDs, and the program's data.
pub(super) fn packed<const N: usize>(id: &CmId, private: &[u8]) -> [u8; N] {
    let mut data = [0; N];
    let mut put = |at: usize, value: &[u8]| {
        for (to, from) in data.iter_mut().skip(at).zip(value) {
            *to = *from;
        }
    };
    let version = match id.source.family() {
        Some(Family::Inet) => 4,
        Some(Family::Inet6) => 6,
        Some(Family::Ib) | None => {
            put(0, private);
            return data;
        }
    };
    put(1, &[version << 4]);
    put(2, &id.source.port().to_be_bytes());
    for (at, address) in [(SOURCE_AT, id.source), (TARGET_AT, id.target)] {
        let gid = address.gid();
        match version {
            4 => put(
                at + MAPPED.len(),
                gid.get(MAPPED.len()..).unwrap_or_default(),
            ),
            _ => put(at, &gid),
        }
    }
    put(HEADER, private);
    data
}

/// The addresses of a request to a service, and the program's data. `gids` are the addresses of a request between GIDs: it
/// has none in its data. None if they are malformed.
pub(super) fn unpacked<'a>(
    data: &'a [u8],
    service: u64,
    (sgid, dgid): (&Gid, &Gid),
) -> Option<(Addresses, &'a [u8])> {
    let [version, family, port @ ..] = *data.first_chunk::<4>()?;
    let [.., high, low] = service.to_be_bytes();
    let target_port = u16::from_be_bytes([high, low]);
    let four = match (version, family >> 4) {
        (0, 4) => true,
        (0, 6) => false,
        (0, 0) => {
            let addresses = Addresses {
                source: SocketAddress::of_gid(sgid, 0),
                target: SocketAddress::of_gid(dgid, service),
            };
            return Some((addresses, data));
        }
        _ => return None,
    };
    let address = |at: usize, port: u16| {
        let mut gid: Gid = data.get(at..)?.first_chunk().copied()?;
        if four {
            gid.first_chunk_mut().map(|first| *first = MAPPED)?;
        }
        Some(SocketAddress::of_ip(&gid, port))
    };
    let addresses = Addresses {
        source: address(SOURCE_AT, u16::from_be_bytes(port))?,
        target: address(TARGET_AT, target_port)?,
    };
    Some((addresses, data.get(HEADER..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::address::gid_of;

    fn id(source: &str, target: &str) -> CmId {
        let address = |text: &str, port| SocketAddress::of_ip(&gid_of(text.parse().unwrap()), port);
        CmId {
            source: address(source, 0x1234),
            target: address(target, 7471),
            ..CmId::default()
        }
    }

    const NO_GIDS: (&Gid, &Gid) = (&[1; 16], &[2; 16]);

    #[test]
    fn addresses_have_the_layout_of_the_annex() {
        let four = id("10.0.0.1", "10.0.0.2");
        let data: [u8; 92] = packed(&four, &[7, 8]);
        assert_eq!(data[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(
            data[4..20],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]
        );
        assert_eq!(
            data[20..36],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]
        );
        assert_eq!(data[36..39], [7, 8, 0]);
        let six = id("fd00::1", "fd00::2");
        let packed_six: [u8; 92] = packed(&six, &[9]);
        assert_eq!(packed_six[..4], [0, 0x60, 0x12, 0x34]);
        for (id, data, first) in [(four, data, 7), (six, packed_six, 9)] {
            let (addresses, private) = unpacked(&data, 0x0106_1d2f, NO_GIDS).unwrap();
            assert_eq!((addresses.source, addresses.target), (id.source, id.target));
            assert_eq!((private.len(), private[0]), (56, first));
        }
    }

    #[test]
    fn gids_have_no_addresses_in_the_data() {
        let ib = CmId {
            source: SocketAddress::of_gid(&[1; 16], 0),
            ..CmId::default()
        };
        let data: [u8; 92] = packed(&ib, &[0, 1]);
        assert_eq!(data[..3], [0, 1, 0]);
        let (addresses, private) = unpacked(&data, 0x013f_0005, NO_GIDS).unwrap();
        assert_eq!(
            addresses.target,
            SocketAddress::of_gid(&[2; 16], 0x013f_0005)
        );
        assert_eq!(private.len(), 92);
    }

    #[test]
    fn other_headers_are_refused() {
        for start in [[1, 0x40], [0, 0x50], [0, 0xf0]] {
            let mut data = [0; 92];
            data[..2].copy_from_slice(&start);
            assert_eq!(unpacked(&data, 1, NO_GIDS), None, "{start:?}");
        }
    }
}
