//! Network devices of this machine.

use std::os::fd::RawFd;

/// `struct ifreq` with an index in its union (linux/if.h).
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    index: i32,
    rest: [u8; 20],
}

/// Index of the network device with this name, which ends with a NUL; 0 if it does not exist.
#[must_use]
pub fn index_of(name: &[u8; libc::IFNAMSIZ]) -> u32 {
    if name[0] == 0 || name[libc::IFNAMSIZ - 1] != 0 {
        return 0;
    }
    let Some(socket) = datagram_socket(libc::AF_INET) else {
        return 0;
    };
    let mut request = Request {
        name: *name,
        index: 0,
        rest: [0; 20],
    };
    let at = &raw mut request;
    // SAFETY: the socket is open. The request is as long as the kernel's structure and outlives the
    // call.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, socket, libc::SIOCGIFINDEX, at) };
    super::close(socket);
    match result {
        0 => request.index.cast_unsigned(),
        _ => 0,
    }
}

/// True if this machine has an IP address, in the bytes of a `sockaddr_in` or `sockaddr_in6`: a
/// socket of datagrams can be bound to it.
#[must_use]
pub fn has_address(address: &[u8]) -> bool {
    // No port, so that the bind cannot clash with another one.
    let mut address = address.to_vec();
    let Some([low, high, port @ ..]) = address.first_chunk_mut::<4>() else {
        return false;
    };
    let family = i32::from(u16::from_ne_bytes([*low, *high]));
    *port = [0; 2];
    let Some(socket) = datagram_socket(family) else {
        return false;
    };
    // SAFETY: the address has the given number of bytes and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bind, socket, address.as_ptr(), address.len()) };
    super::close(socket);
    result == 0
}

fn datagram_socket(family: i32) -> Option<RawFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes numbers only.
    let socket = unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) };
    RawFd::try_from(socket).ok().filter(|socket| *socket >= 0)
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_its_own_addresses_only() {
        let own = |address: std::net::Ipv4Addr| {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
            bytes[2..4].copy_from_slice(&1u16.to_be_bytes());
            bytes[4..8].copy_from_slice(&address.octets());
            has_address(&bytes)
        };
        assert!(own([127, 0, 0, 1].into()));
        // An address for documentation (RFC 5737).
        assert!(!own([203, 0, 113, 9].into()));
        assert!(!has_address(&[]) && !has_address(&[2, 0, 0]));
    }

    #[test]
    fn names_have_indices() {
        let index = |name: &str| {
            let mut bytes = [0; libc::IFNAMSIZ];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            index_of(&bytes)
        };
        // The loopback device is the first device of every network namespace.
        assert_eq!(index("lo"), 1);
        assert_eq!((index("no-such-device"), index("")), (0, 0));
        assert_eq!(index_of(&[b'x'; libc::IFNAMSIZ]), 0);
    }
}
