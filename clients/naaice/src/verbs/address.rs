//! Addresses in the form of the C library.

use crate::error::{ArgumentError, NaaError, Result};
use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// Resolves a host name or address. `wanted` selects the family of an address that both sides share.
pub(crate) fn resolve(host: &str, port: u16, wanted: Option<&SocketAddr>) -> Result<SocketAddr> {
    let bad = || NaaError::Arguments(ArgumentError::Address(host.to_owned()));
    let found = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => (host, port).to_socket_addrs().map_err(|_| bad())?.collect(),
    };
    let same = |address: &&SocketAddr| wanted.is_none_or(|w| w.is_ipv4() == address.is_ipv4());
    // A name has often both families, and an RDMA device often an IPv4 address only.
    let mut fitting: Vec<_> = found.iter().filter(same).collect();
    fitting.sort_by_key(|address| address.is_ipv6());
    fitting.first().map(|address| **address).ok_or_else(bad)
}

/// The address as the C library takes it.
pub(super) fn storage(address: &SocketAddr) -> sockaddr_storage {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let to = (&raw mut storage).cast::<sockaddr_in>();
            let value = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for each family.
            unsafe { to.write(value) };
        }
        SocketAddr::V6(v6) => {
            let to = (&raw mut storage).cast::<sockaddr_in6>();
            let value = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.write(value) };
        }
    }
    storage
}

fn family(number: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).expect("a small constant")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_resolved() {
        let four = resolve("127.0.0.1", 7, None).expect("an address");
        assert_eq!(four.to_string(), "127.0.0.1:7");
        assert_eq!(
            resolve("::1", 7, None).expect("an address").to_string(),
            "[::1]:7"
        );
        assert!(
            resolve("localhost", 7, Some(&four))
                .expect("a name")
                .is_ipv4()
        );
        assert!(resolve("no such host", 7, None).is_err());
    }
}
