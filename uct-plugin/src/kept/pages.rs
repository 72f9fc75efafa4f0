//! Which memory the kernel changes only by calls that UCX's events report: private pages. Those of files change
//! also when the file is truncated, and memory of a device ends without an event.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

pub(super) use crate::system_pages::PAGE;

/// The page is in memory (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
/// The page is that of a file, or shared.
const SHARED: u64 = 1 << 61;
/// Bytes of an entry.
const ENTRY: usize = size_of::<u64>();
/// Entries per read.
const AT_ONCE: usize = 512;

/// True if all pages of registered memory are private. False if the kernel does not tell.
pub(super) fn are_private(address: usize, length: usize) -> bool {
    let Ok(map) = File::open("/proc/self/pagemap") else {
        return false;
    };
    let end = address.saturating_add(length).div_ceil(PAGE);
    let mut page = address / PAGE;
    let mut entries = [0_u8; AT_ONCE * ENTRY];
    while page < end {
        let count = AT_ONCE.min(end - page);
        let bytes = &mut entries[..count * ENTRY];
        if map.read_exact_at(bytes, (page * ENTRY) as u64).is_err() {
            return false;
        }
        let is_private =
            |entry: &[u8; ENTRY]| u64::from_ne_bytes(*entry) & (PRESENT | SHARED) == PRESENT;
        if !bytes.as_chunks().0.iter().all(is_private) {
            return false;
        }
        page += count;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[track_caller]
    fn check(flags: i32, is_written: bool, expect: bool) {
        const BYTES: usize = (AT_ONCE + 3) * PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let start = unsafe { libc::mmap(null_mut(), BYTES, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        if is_written {
            // SAFETY: the mapping is this function's own.
            unsafe { start.write_bytes(1, BYTES) };
        }
        assert_eq!(are_private(start.addr() + 5, BYTES - 9), expect);
        // SAFETY: as above.
        unsafe { libc::munmap(start, BYTES) };
        assert!(!are_private(start.addr(), BYTES), "not mapped");
    }

    #[test]
    fn shared_and_absent_pages_are_not_private() {
        check(libc::MAP_PRIVATE, true, true);
        check(libc::MAP_PRIVATE, false, false);
        check(libc::MAP_SHARED, true, false);
    }
}
