//! The mappings of this process, which decide whether the kernel can pin a range for the device.
//!
//! A registration pins every page. The kernel refuses a range with a hole or an inaccessible page, and a
//! mapping without write permission if the device may write (`ib_umem_get`, whose `FOLL_WRITE` depends on
//! the access flags since Linux 6.2). The pages are not touched here: a range of untouched memory stays
//! without memory.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::RawFd;

use super::{Errno, check as result, close, open, read};

/// A range of addresses with equal permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    reads: bool,
    writes: bool,
}

/// Checks that each page of a range can be pinned. `writes` tells whether the device may write there.
///
/// # Errors
/// EFAULT, as from the kernel.
pub fn check(start: u64, length: u64, writes: bool) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let end = start.checked_add(length).ok_or(Errno(libc::EFAULT))?;
    let file = open(c"/proc/self/maps", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let asked = covered((start, end), writes, |at| ask(file, at));
    let answer = match asked {
        // A kernel before 6.11 has no such question.
        Err(Errno(libc::ENOTTY | libc::EINVAL)) => {
            let mut lines = BufReader::with_capacity(1 << 14, Whole(file)).lines();
            covered((start, end), writes, |at| next_of(&mut lines, at))
        }
        answer => answer,
    };
    close(file);
    answer
}

/// Makes the kernel provide each page of a range, as an access would: to read, or to write.
///
/// # Errors
/// EFAULT: a page cannot be provided. EPERM: it cannot be written.
pub fn populate(start: u64, length: u64, writes: bool) -> Result<(), Errno> {
    const PAGE: u64 = 4096;
    if length == 0 {
        return Ok(());
    }
    let first = start & !(PAGE - 1);
    let end = start.saturating_add(length).div_ceil(PAGE);
    let bytes = end.saturating_mul(PAGE) - first;
    let advice = i64::from(match writes {
        true => libc::MADV_POPULATE_WRITE,
        false => libc::MADV_POPULATE_READ,
    });
    // SAFETY: the call changes no contents.
    let done = unsafe { libc::syscall(libc::SYS_madvise, first, bytes, advice) };
    match result(done) {
        Ok(_) => Ok(()),
        // Memory without permission to write, or a kernel before 5.14, which provides pages at the access.
        Err(Errno(libc::EINVAL)) if check(start, length, writes).is_ok() => Ok(()),
        Err(Errno(libc::EINVAL)) if check(start, length, false).is_ok() => Err(Errno(libc::EPERM)),
        Err(_) => Err(Errno(libc::EFAULT)),
    }
}

/// Checks a range by a function that returns the mapping of an address.
fn covered(
    (start, end): (u64, u64),
    writes: bool,
    mut mapping_of: impl FnMut(u64) -> Result<Option<Mapping>, Errno>,
) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let permits = |mapping: &Mapping| mapping.reads && (mapping.writes || !writes);
        let mapping = mapping_of(at)?.filter(permits);
        at = mapping.ok_or(Errno(libc::EFAULT))?.end;
    }
    Ok(())
}

/// `struct procmap_query` (linux/fs.h, since 6.11).
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device: [u32; 2],
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `PROCMAP_QUERY`, `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
/// `PROCMAP_QUERY_VMA_READABLE` and `_WRITABLE`.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Asks the kernel for the mapping of an address.
fn ask(maps: RawFd, address: u64) -> Result<Option<Mapping>, Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_addr: address,
        ..Query::default()
    };
    // SAFETY: the structure is the kernel's and outlives the call. Its addresses of buffers are null.
    let asked = unsafe { libc::syscall(libc::SYS_ioctl, maps, PROCMAP_QUERY, &raw mut query) };
    match result(asked) {
        Ok(_) => Ok(Some(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            reads: query.vma_flags & READABLE != 0,
            writes: query.vma_flags & WRITABLE != 0,
        })),
        Err(Errno(libc::ENOENT)) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The mapping of an address by the lines of `/proc/self/maps`, which are in order. The addresses of
/// consecutive calls must rise.
fn next_of<E>(
    lines: &mut impl Iterator<Item = Result<String, E>>,
    address: u64,
) -> Result<Option<Mapping>, Errno> {
    for line in lines {
        let line = line.map_err(|_| Errno(libc::EFAULT))?;
        let mapping = parse(&line).ok_or(Errno(libc::EFAULT))?;
        if mapping.end > address {
            return Ok((mapping.start <= address).then_some(mapping));
        }
    }
    Ok(None)
}

fn parse(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let permits = rest.as_bytes();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        reads: *permits.first()? == b'r',
        writes: *permits.get(1)? == b'w',
    })
}

/// A file that its owner closes.
struct Whole(RawFd);

impl Read for Whole {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        read(self.0, bytes).map_err(|Errno(errno)| std::io::Error::from_raw_os_error(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Mappings of one page each, with these permissions.
    fn mapped(permits: &[Option<i32>]) -> u64 {
        let length = permits.len() * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let none = libc::PROT_NONE;
        // SAFETY: a new mapping, of which the calls below change parts.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, none, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        for (index, permits) in permits.iter().enumerate() {
            let page = start.wrapping_byte_add(index * PAGE);
            // SAFETY: a page of the mapping, which nobody uses.
            let changed = unsafe {
                match permits {
                    Some(permits) => libc::mprotect(page, PAGE, *permits),
                    None => libc::munmap(page, PAGE),
                }
            };
            assert_eq!(changed, 0);
        }
        start.addr() as u64
    }

    #[test]
    fn each_page_is_provided() {
        let rw = Some(libc::PROT_READ | libc::PROT_WRITE);
        let read = Some(libc::PROT_READ);
        for (pages, reads, writes) in [
            (&[rw, rw, rw][..], Ok(()), Ok(())),
            (&[rw, read, rw], Ok(()), Err(libc::EPERM)),
            (&[rw, None, rw], Err(libc::EFAULT), Err(libc::EFAULT)),
            (
                &[rw, rw, Some(libc::PROT_NONE)],
                Err(libc::EFAULT),
                Err(libc::EFAULT),
            ),
        ] {
            let start = mapped(pages);
            let length = (pages.len() * PAGE) as u64;
            for (asked, expect) in [(false, reads), (true, writes)] {
                let done = populate(start + 1, length - 1, asked);
                assert_eq!(done, expect.map_err(Errno), "{pages:?} {asked}");
            }
            // Nothing of the page behind the first one is wanted.
            assert_eq!(populate(start, PAGE as u64, true), Ok(()));
            assert_eq!(populate(start + length, 0, true), Ok(()));
        }
        assert_eq!(populate(u64::MAX - 1, 1, true), Err(Errno(libc::EFAULT)));
    }

    #[test]
    fn each_page_is_checked() {
        let rw = Some(libc::PROT_READ | libc::PROT_WRITE);
        let read = Some(libc::PROT_READ);
        let none = Some(libc::PROT_NONE);
        for (pages, reads, writes) in [
            (&[rw, rw, rw][..], true, true),
            (&[rw, read, rw], true, false),
            (&[read, rw, read], true, false),
            (&[rw, None, rw], false, false),
            (&[rw, none, rw], false, false),
            (&[rw, rw, none], false, false),
        ] {
            let start = mapped(pages);
            let length = (pages.len() * PAGE) as u64;
            for (asked, expect) in [(false, reads), (true, writes)] {
                let range = (start + 1, start + length - 1);
                let file = std::fs::File::open("/proc/self/maps").unwrap();
                let mut lines = BufReader::new(file).lines();
                let by_lines = covered(range, asked, |at| next_of(&mut lines, at));
                assert_eq!(by_lines.is_ok(), expect, "{pages:?} {asked}");
                let checked = check(range.0, range.1 - range.0, asked);
                assert_eq!(checked, by_lines, "{pages:?} {asked}");
            }
            // The first page alone is mapped.
            assert_eq!(check(start, PAGE as u64, false), Ok(()));
        }
    }
}
