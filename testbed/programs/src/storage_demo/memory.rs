//! Memory that is mapped for one transfer: no registration of an earlier one fits.

use anyhow::{Result, ensure};
use std::ptr::NonNull;

/// Anonymous pages.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    length: usize,
}

impl Pages {
    pub(crate) fn new(length: usize) -> Result<Self> {
        // SAFETY: an anonymous mapping at an address of the system's choice has no preconditions.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        ensure!(
            start != libc::MAP_FAILED,
            "mmap of {length} bytes: {}",
            std::io::Error::last_os_error()
        );
        let start = NonNull::new(start.cast()).expect("mmap never maps page 0 by itself");
        Ok(Self { start, length })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped with this length, zero or written, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
