//! Page-aligned anonymous memory that is mapped fresh and unmapped for good: the temporary buffer of a collective.
//!
//! malloc would keep and reuse the pages, and UCX's registration cache would then hit where an application with
//! temporary buffers misses.

use std::io;
use std::ptr::NonNull;

/// A mapping of its own, gone (`munmap`) when dropped.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

impl Buffer {
    /// Maps `length` bytes and touches every page, so that no page fault is left for later.
    ///
    /// # Errors
    /// The system's, for instance when `length` is 0 or more than there is.
    pub fn new(length: usize) -> io::Result<Self> {
        let mut buffer = Self::untouched(length)?;
        // The smallest page anywhere is 4 KiB; a larger one is merely touched more often.
        for byte in buffer.as_mut_slice().iter_mut().step_by(4096) {
            *byte = UNTOUCHED;
        }
        Ok(buffer)
    }

    /// Maps `length` bytes and leaves the pages for whoever touches them first: for keys to memory that nobody reads,
    /// which may be longer than there is memory.
    ///
    /// # Errors
    /// The system's, for instance when `length` is 0.
    pub fn untouched(length: usize) -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the system's choice asks nothing of the caller.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(
                error.kind(),
                format!("mmap of {length} bytes: {error}"),
            ));
        }
        let start = NonNull::new(start.cast())
            .ok_or_else(|| io::Error::other(format!("mmap of {length} bytes: null")))?;
        Ok(Self { start, length })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: an empty mapping cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// First address, as a pointer.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes, lives as long as `self`, and is all zero or written. Devices that
        // write to it do so only while a MappedBuffer owns it, when nobody else can call this.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice(), and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// What a page that nobody has filled begins with.
const UNTOUCHED: u8 = 0xa5;

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by new() with this length and is unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_page_aligned_touched_and_writable() {
        let mut buffer = Buffer::new(3 * 4096 + 1).expect("16 KiB are there");
        assert_eq!(buffer.address() % 4096, 0);
        assert_eq!(buffer.len(), 3 * 4096 + 1);
        assert_eq!(buffer.as_slice()[2 * 4096], UNTOUCHED);
        buffer.as_mut_slice()[3 * 4096] = 7;
        assert_eq!(buffer.as_slice()[3 * 4096], 7);
    }

    #[test]
    fn an_impossible_length_is_named() {
        for length in [0, usize::MAX] {
            let message = Buffer::new(length).map(|_| ()).unwrap_err().to_string();
            assert!(
                message.contains(&format!("mmap of {length} bytes")),
                "{message}"
            );
        }
    }
}
