//! Memory of an agent with its pattern.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// Pages of this process, mapped from the system and unmapped to it.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    pub(crate) fn map(bytes: usize) -> io::Result<Self> {
        Self::map_at(std::ptr::null_mut(), bytes)
    }

    /// Maps pages at this address, which must be free, or anywhere if it is null.
    pub(crate) fn map_at(address: *mut c_void, bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if !address.is_null() {
            flags |= libc::MAP_FIXED_NOREPLACE;
        }
        // SAFETY: a new anonymous mapping replaces no existing one.
        let start = unsafe { libc::mmap(address, bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, bytes }),
            None => Err(io::Error::other("memory at address zero")),
        }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    pub(crate) fn fill(&mut self, seed: u32) {
        for (at, byte) in self.as_mut().iter_mut().enumerate() {
            *byte = pattern(seed, at);
        }
    }

    /// Overwrites the memory with other bytes than the pattern.
    pub(crate) fn spoil(&mut self, seed: u32) {
        for (at, byte) in self.as_mut().iter_mut().enumerate() {
            *byte = !pattern(seed, at);
        }
    }

    /// Number of bytes that differ from the pattern.
    fn mismatches(&mut self, seed: u32) -> usize {
        let bytes = self.as_mut().iter().enumerate();
        bytes
            .filter(|&(at, &byte)| byte != pattern(seed, at))
            .count()
    }

    /// Requires the pattern in all bytes.
    pub(crate) fn check(&mut self, seed: u32) -> Result<(), String> {
        match self.mismatches(seed) {
            0 => Ok(()),
            wrong => Err(format!("{wrong} of {} bytes are wrong", self.bytes)),
        }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping belongs to this object and has this length; the adapter writes to it
        // only during an operation of the same thread.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object.
        unsafe { libc::munmap(self.address(), self.bytes) };
    }
}

/// Each byte depends on the seed and on the whole offset.
fn pattern(seed: u32, at: usize) -> u8 {
    let mixed = (at as u64 ^ u64::from(seed) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}
