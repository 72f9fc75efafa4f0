//! The list of network interfaces with those of the ports, and without them.

use std::ffi::{CStr, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::checks::{call, expect, ok};

/// Name, address and mask of each IP interface.
type List = Vec<(String, IpAddr, IpAddr)>;

/// The list, which is freed.
fn list() -> Result<List, String> {
    let mut first = ptr::null_mut();
    // SAFETY: the pointer is of this frame.
    let made = unsafe { libc::getifaddrs(&raw mut first) };
    ok("getifaddrs", call(made))?;
    let mut list = List::new();
    let mut next = first;
    // SAFETY: NULL or an entry of the list, which is not freed yet.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let Some(address) = ip(entry.ifa_addr) else {
            continue;
        };
        let mask = ip(entry.ifa_netmask).ok_or("an address without a mask")?;
        // SAFETY: a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        list.push((name.to_string_lossy().into_owned(), address, mask));
    }
    // SAFETY: the list is not used again.
    unsafe { libc::freeifaddrs(first) };
    Ok(list)
}

/// The IP address behind a pointer into the list.
fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: NULL or an address, as long as its family's structure.
    let family = unsafe { address.as_ref() }?.sa_family;
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: as above.
            let four = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(six.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn is_of_a_port((name, ..): &(String, IpAddr, IpAddr)) -> bool {
    name.starts_with("bf")
}

/// The ports of both functions stand behind the machine's own interfaces, in each list.
pub(crate) fn ports_are_listed() -> Result<(), String> {
    let ip = |text: &str| text.parse::<IpAddr>().map_err(|error| error.to_string());
    let port = |name: &str, address: &str, mask: &str| -> Result<_, String> {
        Ok((name.to_owned(), ip(address)?, ip(mask)?))
    };
    let expected = [
        port("bf0p1", "127.66.1.1", "255.255.0.0")?,
        port("bf0p1", "fd00:bf::1:1", "ffff:ffff:ffff:ffff::")?,
        port("bf1p1", "127.66.1.3", "255.255.0.0")?,
        port("bf1p1", "fd00:bf::1:3", "ffff:ffff:ffff:ffff::")?,
    ];
    for _ in 0..100 {
        let list = list()?;
        let own = list.iter().position(is_of_a_port);
        let (machine, ports) = list.split_at(own.ok_or("no port is listed")?);
        expect("ports", ports, &expected[..])?;
        let has_loopback = machine.iter().any(|(name, ..)| name == "lo");
        expect("the loopback interface", has_loopback, true)?;
    }
    // SAFETY: a program may free no list.
    unsafe { libc::freeifaddrs(ptr::null_mut()) };
    Ok(())
}

/// A program without a device sees the machine's interfaces only.
pub(crate) fn no_port_is_listed() -> Result<(), String> {
    expect("a port", list()?.iter().any(is_of_a_port), false)
}
