//! Socket addresses in calls of the connection manager: IPv4, IPv6 and InfiniBand (`AF_IB`).

use super::address::Gid;

/// Family of InfiniBand addresses (`linux/socket.h`).
pub const AF_IB: u16 = 27;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Bytes of the longest address, `struct sockaddr_ib` (`rdma/ib.h`).
pub const BYTES_MAX: usize = 48;

/// Mask of the port space in a service identifier (`rdma/ib.h`, `RDMA_IB_IP_PS_MASK`).
pub const PORT_SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;

/// Family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
    /// A GID and a service identifier.
    Ib,
}

impl Family {
    /// Bytes of an address.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Inet => 16,
            Self::Inet6 => 28,
            Self::Ib => BYTES_MAX,
        }
    }

    /// Offset of the port, or of the service identifier's last two bytes.
    fn port_at(self) -> usize {
        match self {
            Self::Inet | Self::Inet6 => 2,
            Self::Ib => SERVICE_AT + 6,
        }
    }
}

/// Offset of the GID in `struct sockaddr_ib`, and of the address in `struct sockaddr_in6`.
const GID_AT: usize = 8;
/// Offset of the service identifier in `struct sockaddr_ib`.
const SERVICE_AT: usize = 24;
/// Offset of the mask of the service identifier.
const SERVICE_MASK_AT: usize = 32;

/// An address as the kernel stores it. All zeroes are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SocketAddress {
    bytes: [u8; BYTES_MAX],
}

impl Default for SocketAddress {
    fn default() -> Self {
        Self {
            bytes: [0; BYTES_MAX],
        }
    }
}

impl SocketAddress {
    /// The address in a caller's structure; None for an unknown family or if bytes are missing.
    #[must_use]
    pub fn parse(given: &[u8]) -> Option<Self> {
        let (family, _) = given.split_first_chunk()?;
        let family = family_of(u16::from_ne_bytes(*family))?;
        let given = given.get(..family.bytes())?;
        let mut address = Self::default();
        address.bytes.get_mut(..given.len())?.copy_from_slice(given);
        Some(address)
    }

    /// An IP address from its GID, IPv4 if it is mapped, and a port.
    #[must_use]
    pub fn of_ip(gid: &Gid, port: u16) -> Self {
        let mut address = Self::default();
        if let Some(four) = mapped(gid) {
            address.put(0, &AF_INET.to_ne_bytes());
            address.put(4, &four);
        } else {
            address.put(0, &AF_INET6.to_ne_bytes());
            address.put(GID_AT, gid);
        }
        address.put(2, &port.to_be_bytes());
        address
    }

    /// An InfiniBand address with the default partition key.
    #[must_use]
    pub fn of_gid(gid: &Gid, service: u64) -> Self {
        let mut address = Self::default();
        address.put(0, &AF_IB.to_ne_bytes());
        address.put(2, &[0xff, 0xff]);
        address.put(GID_AT, gid);
        address.put_service(service);
        address
    }

    /// The loopback address of a family.
    #[must_use]
    pub fn loopback(family: Family) -> Self {
        let mut gid = [0; 16];
        gid[15] = 1;
        match family {
            Family::Inet => {
                gid[10..13].copy_from_slice(&[0xff, 0xff, 127]);
                Self::of_ip(&gid, 0)
            }
            Family::Inet6 => Self::of_ip(&gid, 0),
            Family::Ib => Self::of_gid(&gid, 0),
        }
    }

    /// The unspecified IPv4 address, to which the kernel binds a listener without an address.
    #[must_use]
    pub fn any() -> Self {
        let mut address = Self::default();
        address.put(0, &AF_INET.to_ne_bytes());
        address
    }

    /// The unspecified address of another address's family.
    #[must_use]
    pub fn unspecified(other: &Self) -> Self {
        let mut address = Self::default();
        address.put(0, &other.array::<2>(0));
        if other.family() == Some(Family::Ib) {
            // The port space is that of the service that the other address names.
            address.put_service(other.service().0 & PORT_SPACE_MASK);
        }
        address
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        if let Some(target) = self.bytes.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        for (to, from) in array.iter_mut().zip(self.bytes.iter().skip(at)) {
            *to = *from;
        }
        array
    }

    /// Its family; None for no address.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        family_of(u16::from_ne_bytes(self.array(0)))
    }

    /// Its bytes, as many as its family has.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let length = self.family().map_or(0, Family::bytes);
        self.bytes.get(..length).unwrap_or(&[])
    }

    /// The address without port, in the form of a GID. An IPv4 address is mapped.
    #[must_use]
    pub fn gid(&self) -> Gid {
        match self.family() {
            Some(Family::Inet) => {
                let mut gid = [0; 16];
                gid[10..12].copy_from_slice(&[0xff, 0xff]);
                gid[12..].copy_from_slice(&self.array::<4>(4));
                gid
            }
            Some(Family::Inet6 | Family::Ib) => self.array(GID_AT),
            None => [0; 16],
        }
    }

    /// True for the unspecified address.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self.family() {
            Some(Family::Inet) => self.array::<4>(4) == [0; 4],
            _ => self.gid() == [0; 16],
        }
    }

    /// True for a loopback address (`cma_loopback_addr`).
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let mut one = [0; 16];
        one[15] = 1;
        match self.family() {
            Some(Family::Inet) => self.bytes.get(4) == Some(&127),
            _ => self.gid() == one,
        }
    }

    /// True for a multicast address.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        match self.family() {
            Some(Family::Inet) => self.bytes[4] >> 4 == 0xe,
            Some(Family::Inet6 | Family::Ib) => self.gid()[0] == 0xff,
            None => false,
        }
    }

    /// The port: for an InfiniBand address the last two bytes of the service identifier.
    #[must_use]
    pub fn port(&self) -> u16 {
        let at = self.family().map_or(0, Family::port_at);
        u16::from_be_bytes(self.array(at))
    }

    /// Sets the port.
    pub fn put_port(&mut self, port: u16) {
        if let Some(family) = self.family() {
            self.put(family.port_at(), &port.to_be_bytes());
        }
    }

    /// The service identifier and its mask, of an InfiniBand address.
    #[must_use]
    pub fn service(&self) -> (u64, u64) {
        let word = |at| u64::from_be_bytes(self.array(at));
        (word(SERVICE_AT), word(SERVICE_MASK_AT))
    }

    /// Sets the service identifier of an InfiniBand address. Its mask selects the port space.
    pub fn put_service(&mut self, service: u64) {
        let (_, mask) = self.service();
        self.put(SERVICE_AT, &service.to_be_bytes());
        self.put(SERVICE_MASK_AT, &(mask | PORT_SPACE_MASK).to_be_bytes());
    }
}

fn family_of(number: u16) -> Option<Family> {
    match number {
        AF_INET => Some(Family::Inet),
        AF_INET6 => Some(Family::Inet6),
        AF_IB => Some(Family::Ib),
        _ => None,
    }
}

/// The IPv4 address in a mapped GID.
fn mapped(gid: &Gid) -> Option<[u8; 4]> {
    let (prefix, four) = gid.split_last_chunk()?;
    (prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]).then_some(*four)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn ip(text: &str, port: u16) -> SocketAddress {
        let address: IpAddr = text.parse().unwrap();
        SocketAddress::of_ip(&crate::model::address::gid_of(address), port)
    }

    #[test]
    fn families() {
        for (text, family, bytes, zero, loopback) in [
            ("127.66.1.1", Family::Inet, 16, false, true),
            ("10.0.0.1", Family::Inet, 16, false, false),
            ("0.0.0.0", Family::Inet, 16, true, false),
            ("fd00:bf::1:1", Family::Inet6, 28, false, false),
            ("::1", Family::Inet6, 28, false, true),
            ("::", Family::Inet6, 28, true, false),
        ] {
            let address = ip(text, 7471);
            assert_eq!(address.family(), Some(family), "{text}");
            assert_eq!(address.as_slice().len(), bytes, "{text}");
            assert_eq!(address.port(), 7471, "{text}");
            assert_eq!(
                (address.is_zero(), address.is_loopback()),
                (zero, loopback),
                "{text}"
            );
            assert!(!address.is_multicast(), "{text}");
            assert_eq!(SocketAddress::parse(address.as_slice()), Some(address));
            assert_eq!(SocketAddress::parse(&address.as_slice()[..bytes - 1]), None);
        }
        for text in ["224.0.0.1", "239.1.2.3", "ff0e::1"] {
            assert!(ip(text, 0).is_multicast(), "{text}");
        }
        assert_eq!(SocketAddress::parse(&[1, 0, 0, 0]), None);
        assert_eq!(SocketAddress::parse(&[]), None);
        assert_eq!(SocketAddress::default().family(), None);
        assert!(SocketAddress::any().is_zero());
        for family in [Family::Inet, Family::Inet6, Family::Ib] {
            assert!(SocketAddress::loopback(family).is_loopback(), "{family:?}");
        }
    }

    #[test]
    fn the_port_of_a_service() {
        let mut address = SocketAddress::of_gid(&[7; 16], 0x0106_0000);
        assert_eq!((address.port(), address.gid()), (0, [7; 16]));
        address.put_port(0x1234);
        assert_eq!(address.service(), (0x0106_1234, PORT_SPACE_MASK));
    }
}
