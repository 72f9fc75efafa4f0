//! Detects a forked child at the cost of one load.
//!
//! The adapter's objects belong to the process that created them. A child shares their memory and
//! the kernel's file, so its requests and destructions would affect the parent.

use std::io;
use std::ptr::{self, NonNull};

/// A page that the kernel clears in a child.
#[derive(Debug)]
pub(super) struct ForkGuard {
    page: NonNull<u8>,
    /// Length of a page.
    len: u32,
    parent: u32,
}

// SAFETY: the page is written before the guard exists, and only read afterwards.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard of the calling process.
    ///
    /// # Errors
    /// If the kernel does not map a page or is older than 4.14.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: queries a constant of the system.
        let len = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let page = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let guard = Self {
            page: NonNull::new(page.cast()).ok_or_else(|| io::Error::from_raw_os_error(0))?,
            len: u32::try_from(len).unwrap_or(4096),
            parent: std::process::id(),
        };
        // SAFETY: the page is ours.
        if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page is ours, writable and not shared yet.
        unsafe { guard.page.write_volatile(1) };
        Ok(guard)
    }

    /// The parent's id, if the calling process is a forked child of the guard's creator.
    #[inline]
    pub(super) fn parent(&self) -> Option<u32> {
        // SAFETY: the page is mapped as long as the guard lives. Volatile, because the kernel
        // changes it outside the language's memory model.
        let here = unsafe { self.page.read_volatile() };
        (here == 0).then_some(self.parent)
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and not shared.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let guard = ForkGuard::new().expect("a page");
        assert_eq!(guard.parent(), None);
        // SAFETY: the child calls nothing but `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(guard.parent().is_none());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "the child took itself for the parent");
        assert_eq!(guard.parent(), None);
    }
}
