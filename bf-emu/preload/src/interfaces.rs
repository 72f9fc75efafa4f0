//! The list of network interfaces, with one for each port of the process's functions. A program that
//! looks for RDMA devices binds identifiers of the connection manager to the addresses in this list
//! (libfabric, for one). With a kernel the port's own network device is in it.

use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};

use bf_emu::model::sockaddr::{BYTES_MAX, SocketAddress};
use bf_emu::view::interfaces::Interface;
use libc::{ifaddrs, sockaddr};

use crate::call::{enabled, guarded, view_interfaces};
use crate::next::{next, next_or};

/// Flags of a port's interface (linux/if.h).
const FLAGS: c_int = libc::IFF_UP | libc::IFF_BROADCAST | libc::IFF_RUNNING | libc::IFF_MULTICAST;

/// An own entry of a list. The C library's entries have another layout: the name of none of them
/// follows directly after the entry, which tells own entries from them.
#[repr(C)]
struct Entry {
    entry: ifaddrs,
    name: [u8; libc::IFNAMSIZ],
    address: Room,
    mask: Room,
    /// Entries of the allocation that begins with this entry; 0 in the others.
    count: usize,
}

/// Room for any address, aligned like each of them.
#[repr(C, align(8))]
struct Room([u8; BYTES_MAX]);

impl Room {
    fn of(address: &SocketAddress) -> Self {
        let mut room = [0; BYTES_MAX];
        for (to, from) in room.iter_mut().zip(address.as_slice()) {
            *to = *from;
        }
        Self(room)
    }
}

/// Appends own entries to a list of the C library.
///
/// # Safety
/// `list` points to a list of getifaddrs(3) that nobody else uses.
unsafe fn append(list: *mut *mut ifaddrs, interfaces: &[Interface]) {
    let mut end = list;
    let mut known: Vec<SocketAddress> = Vec::new();
    // SAFETY: the entries of a list are valid, and the last one's successor is NULL.
    unsafe {
        while let Some(entry) = (*end).as_mut() {
            known.extend(address_of(entry.ifa_addr));
            end = &raw mut entry.ifa_next;
        }
    }
    // A port with an address of a real interface is behind that interface.
    let new = interfaces
        .iter()
        .filter(|new| !known.contains(&new.address));
    let mut entries: Box<[Entry]> = new.map(entry_of).collect();
    let count = entries.len();
    let Some(first) = entries.first_mut() else {
        return;
    };
    first.count = count;
    let first = Box::into_raw(entries).cast::<Entry>();
    let mut next: *mut ifaddrs = ptr::null_mut();
    for index in (0..count).rev() {
        // SAFETY: the index is within the allocation, which nobody else knows yet.
        unsafe {
            let own = first.add(index);
            (*own).entry.ifa_name = (&raw mut (*own).name).cast();
            (*own).entry.ifa_addr = (&raw mut (*own).address).cast();
            (*own).entry.ifa_netmask = (&raw mut (*own).mask).cast();
            (*own).entry.ifa_next = next;
            next = own.cast();
        }
    }
    // SAFETY: the end of the list, which the caller alone uses.
    unsafe { *end = next };
}

/// An entry without its pointers, which need its final address.
fn entry_of(interface: &Interface) -> Entry {
    Entry {
        entry: ifaddrs {
            ifa_next: ptr::null_mut(),
            ifa_name: ptr::null_mut(),
            ifa_flags: FLAGS.cast_unsigned(),
            ifa_addr: ptr::null_mut(),
            ifa_netmask: ptr::null_mut(),
            ifa_ifu: ptr::null_mut(),
            ifa_data: ptr::null_mut(),
        },
        name: interface.name,
        address: Room::of(&interface.address),
        mask: Room::of(&interface.mask),
        count: 0,
    }
}

/// The IP address of an entry, if it has one.
///
/// # Safety
/// `address` is NULL or an address as long as its family's.
unsafe fn address_of(address: *const sockaddr) -> Option<SocketAddress> {
    // SAFETY: NULL, or at least the family is readable.
    let bytes = match c_int::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: the family's own structure has this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast(), bytes) };
    SocketAddress::parse(bytes)
}

/// Cuts the own entries off a list, and returns the first one.
///
/// # Safety
/// As for [`append`].
unsafe fn cut(list: *mut *mut ifaddrs) -> Option<NonNull<Entry>> {
    let mut end = list;
    // SAFETY: the entries of a list are valid, and the last one's successor is NULL.
    unsafe {
        while let Some(entry) = (*end).as_mut() {
            if is_own(entry) {
                let first = NonNull::from(entry).cast();
                *end = ptr::null_mut();
                return Some(first);
            }
            end = &raw mut entry.ifa_next;
        }
    }
    None
}

fn is_own(entry: &ifaddrs) -> bool {
    let name = ptr::from_ref(entry).wrapping_add(1).cast::<c_char>();
    ptr::addr_eq(entry.ifa_name, name)
}

const _: () = assert!(std::mem::offset_of!(Entry, name) == size_of::<ifaddrs>());

/// # Safety
/// The preconditions of getifaddrs(3): `list` points to a pointer that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    let next = next_or!(-1, fn getifaddrs(*mut *mut ifaddrs) -> c_int);
    // SAFETY: the caller's own argument.
    let result = unsafe { next(list) };
    if result == 0 && enabled() {
        guarded((), || {
            if let Some(interfaces) = view_interfaces() {
                // SAFETY: the C library has just made the list.
                unsafe { append(list, interfaces) };
            }
        });
    }
    result
}

/// # Safety
/// The preconditions of freeifaddrs(3): `list` is the result of getifaddrs(3) and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    let mut list = list;
    // SAFETY: the caller gives the list away.
    if let Some(first) = unsafe { cut(&raw mut list) } {
        // SAFETY: `append` made the allocation, and its first entry has the number of all.
        unsafe {
            let count = first.as_ref().count;
            let entries = ptr::slice_from_raw_parts_mut(first.as_ptr(), count);
            drop(Box::from_raw(entries));
        }
    }
    if let Some(next) = next!(fn freeifaddrs(*mut ifaddrs) -> ()) {
        // SAFETY: the caller's own list.
        unsafe { next(list) };
    }
}
