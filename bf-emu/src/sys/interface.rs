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
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes numbers only.
    let socket = unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, kind, 0) };
    let Ok(socket) = RawFd::try_from(socket) else {
        return 0;
    };
    if socket < 0 {
        return 0;
    }
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

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

#[cfg(test)]
mod tests {
    use super::*;

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
