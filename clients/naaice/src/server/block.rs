//! Memory of an accelerator's regions: zeroed pages of its own, so that no host sees another host's data.

use crate::pages;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;

/// Pages with guard pages around them.
#[derive(Debug)]
pub struct Block {
    /// First guard page.
    map: NonNull<u8>,
    mapped: usize,
    len: usize,
    /// Bytes of a page.
    page: usize,
    /// The file behind shared memory.
    file: Option<OwnedFd>,
}

// SAFETY: the block owns its pages; access to them is the users' matter.
unsafe impl Send for Block {}

impl Block {
    /// Allocates at least `len` zeroed bytes. Shared memory has a file that other processes can map.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(len: usize, shared: bool) -> io::Result<Self> {
        Self::in_pages(len, shared, pages::bytes())
    }

    fn in_pages(len: usize, shared: bool, page: usize) -> io::Result<Self> {
        let too_long = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(too_long)?;
        let file = if shared {
            Some(memory_file(len)?)
        } else {
            None
        };
        Self::map(len, file, page)
    }

    /// Maps shared memory of another process.
    ///
    /// # Errors
    /// If the file is shorter or cannot be mapped.
    pub fn of_file(file: OwnedFd, len: usize) -> io::Result<Self> {
        let size = std::fs::File::from(file.try_clone()?).metadata()?.len();
        if size < len as u64 || len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the memory has {size} bytes instead of {len}"),
            ));
        }
        Self::map(len, Some(file), pages::bytes())
    }

    fn map(len: usize, file: Option<OwnedFd>, page: usize) -> io::Result<Self> {
        let mapped = len + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(map) = NonNull::new(map.cast::<u8>()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let block = Self {
            map,
            mapped,
            len,
            page,
            file,
        };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let at = block.as_ptr().cast();
        let placed = match &block.file {
            None => {
                // SAFETY: the range is inside the mapping of this block.
                let changed = unsafe { libc::mprotect(at, len, rights) };
                changed == 0
            }
            Some(file) => {
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                // SAFETY: as above; the old pages of the range have no users.
                let mapped = unsafe { libc::mmap(at, len, rights, flags, file.as_raw_fd(), 0) };
                mapped == at
            }
        };
        if placed {
            Ok(block)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// First byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr().wrapping_add(self.page)
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file of shared memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Sets `len` bytes at `offset` to zero. Nothing happens outside the block.
    pub fn clear(&mut self, offset: usize, len: usize) {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        // SAFETY: the range is inside the block's readable and writable pages.
        unsafe { self.as_ptr().add(offset).write_bytes(0, len) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.mapped) };
    }
}

fn memory_file(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a constant C string.
    let fd = unsafe { libc::memfd_create(c"naaice-regions".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    std::fs::File::from(file.try_clone()?).set_len(len as u64)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_block_share_its_bytes() {
        let block = Block::new(5000, true).expect("two pages");
        let len = block.len();
        assert_eq!(len, 5000_usize.next_multiple_of(pages::bytes()));
        let file = block
            .file()
            .expect("it is shared")
            .try_clone_to_owned()
            .expect("a descriptor");
        let mut other = Block::of_file(file, len).expect("the same pages");
        // SAFETY: inside the block; nothing else accesses it.
        unsafe { block.as_ptr().add(len - 1).write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.as_ptr().add(len - 1).read_volatile() }, 7);
        other.clear(len - 192, usize::MAX);
        // SAFETY: as above.
        assert_eq!(unsafe { block.as_ptr().add(len - 1).read_volatile() }, 0);
    }

    /// A kernel with pages of 64 KiB maps and protects multiples of them only.
    #[test]
    fn a_block_is_whole_pages_between_guard_pages_of_any_size() {
        const PAGE: usize = 64 << 10;
        for shared in [false, true] {
            let block = Block::in_pages(5000, shared, PAGE).expect("three pages");
            assert_eq!((block.len(), block.mapped), (PAGE, 3 * PAGE));
            assert_eq!(block.as_ptr().addr() - block.map.addr().get(), PAGE);
        }
    }

    #[test]
    fn a_short_file_is_refused() {
        let block = Block::new(1, true).expect("a page");
        let file = block
            .file()
            .expect("it is shared")
            .try_clone_to_owned()
            .expect("a descriptor");
        assert!(Block::of_file(file, block.len() + 1).is_err());
    }
}
