//! Page-aligned anonymous memory, mapped for one use and then unmapped: the temporary buffer of a
//! collective.
//!
//! malloc would keep and reuse the pages. UCX's registration cache would then hit, while it misses
//! for an application with temporary buffers.

use std::io;
use std::ptr::NonNull;

/// A mapping. Dropping it unmaps it (`munmap`).
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

impl Buffer {
    /// Maps `length` bytes and touches every page, so that later accesses cause no page fault.
    ///
    /// # Errors
    /// The system's error, for example if `length` is 0 or exceeds the available memory.
    pub fn new(length: usize) -> io::Result<Self> {
        let mut buffer = Self::untouched(length)?;
        // The smallest page size is 4 KiB. A larger page is touched several times.
        for byte in buffer.as_mut_slice().iter_mut().step_by(4096) {
            *byte = UNTOUCHED;
        }
        Ok(buffer)
    }

    /// Maps `length` bytes without touching the pages. Use it for keys of memory that nobody reads.
    /// It may exceed the physical memory.
    ///
    /// # Errors
    /// The system's error, for example if `length` is 0.
    pub fn untouched(length: usize) -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the system's choice has no preconditions.
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

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: an empty mapping does not exist.
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
        // SAFETY: the mapping is `length` bytes long, lives as long as `self`, and is zero or
        // written. Devices write to it only while a MappedBuffer or an operation on an ImportedMemory
        // owns it, and then this function is unreachable.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice(), and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// First bytes of an unfilled page.
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
