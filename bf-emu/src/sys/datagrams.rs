//! Options of sockets for datagrams, and waiting for several descriptors.

use std::os::fd::{AsRawFd, RawFd};

use super::{Errno, Result};

/// Bytes of a socket's receive buffer, if the system permits it. Otherwise it has the system's limit.
const BUFFER_BYTES: i32 = 4 << 20;

/// Forbids the socket to send fragments, so that the kernel writes the identification 0 into IPv4 headers, and gives it a
/// large receive buffer.
///
/// # Errors
/// The kernel's error.
pub fn prepare(socket: &impl AsRawFd, is_ipv4: bool) -> Result<()> {
    let descriptor = socket.as_raw_fd();
    let (level, option) = match is_ipv4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    // Both versions have the same value.
    set(descriptor, (level, option), libc::IP_PMTUDISC_DO)?;
    // Only a privileged process may exceed the system's limit.
    let forced = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
    set(descriptor, forced, BUFFER_BYTES).or_else(|_| {
        set(
            descriptor,
            (libc::SOL_SOCKET, libc::SO_RCVBUF),
            BUFFER_BYTES,
        )
    })
}

fn set(descriptor: RawFd, (level, option): (i32, i32), value: i32) -> Result<()> {
    let bytes = u32::try_from(size_of::<i32>()).unwrap_or(0);
    // SAFETY: the value lives during the call and has the given length.
    let done =
        unsafe { libc::setsockopt(descriptor, level, option, (&raw const value).cast(), bytes) };
    match done {
        0 => Ok(()),
        _ => Err(super::last_error()),
    }
}

/// Waits until one of the descriptors is readable, or for `timeout_ns`; without end for `None`.
///
/// # Errors
/// The kernel's error. A signal is none.
pub fn wait_readable(descriptors: &[RawFd], timeout_ns: Option<u64>) -> Result<()> {
    let wanted = |&fd: &RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polled: Vec<libc::pollfd> = descriptors.iter().map(wanted).collect();
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = libc::nfds_t::try_from(polled.len()).unwrap_or(0);
    // SAFETY: the array has so many elements, and the time is null or outlives the call.
    let done = unsafe { libc::ppoll(polled.as_mut_ptr(), count, time, std::ptr::null()) };
    match done {
        0.. => Ok(()),
        _ => match super::last_error() {
            Errno(libc::EINTR) => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_datagram_ends_the_wait() {
        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        prepare(&a, true).unwrap();
        let six = UdpSocket::bind("[::1]:0");
        if let Ok(six) = six {
            prepare(&six, false).unwrap();
        }
        let descriptors = [a.as_raw_fd(), b.as_raw_fd()];
        wait_readable(&descriptors, Some(0)).unwrap();
        a.send_to(b"x", b.local_addr().unwrap()).unwrap();
        wait_readable(&descriptors, None).unwrap();
        assert_eq!(b.recv(&mut [0; 2]).unwrap(), 1);
    }
}
