//! Memory of the program from malloc or mmap.

use anyhow::{Result, bail, ensure};
use std::ffi::c_int;
use std::ptr::NonNull;

/// Source of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocator {
    Malloc,
    Mmap,
}

impl Allocator {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "malloc" => Ok(Self::Malloc),
            "mmap" => Ok(Self::Mmap),
            other => bail!("no allocator '{other}'"),
        }
    }
}

/// A buffer of the program, released when dropped.
#[derive(Debug)]
pub(crate) struct Fresh {
    start: NonNull<u8>,
    length: usize,
    allocator: Allocator,
}

impl Fresh {
    pub(crate) fn new(allocator: Allocator, length: usize) -> Result<Self> {
        let start = match allocator {
            // SAFETY: it has no preconditions.
            Allocator::Malloc => unsafe { libc::malloc(length) },
            Allocator::Mmap => map(length),
        };
        let start = NonNull::new(start.cast::<u8>());
        let Some(start) = start.filter(|start| start.as_ptr() != libc::MAP_FAILED.cast()) else {
            bail!("no memory of {length} bytes");
        };
        Ok(Self {
            start,
            length,
            allocator,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.start.addr().get()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Writes to every byte.
    pub(crate) fn fill(&self, salt: u64) {
        for (at, word) in (0_u64..).zip(0..self.length / 8) {
            // SAFETY: the word is inside the buffer, which this program has alone. The device reads it later.
            unsafe { self.start.cast::<u64>().add(word).write(pattern(salt, at)) };
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer has this length; malloc's bytes are read after they were written, and mmap's are zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Gives the memory up without releasing it: a case does that in its own way.
    pub(crate) fn forget(self) -> usize {
        let address = self.address();
        std::mem::forget(self);
        address
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        match self.allocator {
            // SAFETY: it came from malloc and is freed once.
            Allocator::Malloc => unsafe { libc::free(self.start.as_ptr().cast()) },
            Allocator::Mmap => {
                // SAFETY: it came from mmap and is unmapped once.
                unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
            }
        }
    }
}

/// A private anonymous mapping.
pub(crate) fn map(length: usize) -> *mut libc::c_void {
    // SAFETY: an anonymous mapping at an address of the system's choice has no preconditions.
    unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    }
}

/// The word of a buffer's content.
fn pattern(salt: u64, at: u64) -> u64 {
    (salt ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at
}

/// The number of bytes in which a buffer differs from its content, up to its last whole word.
pub(crate) fn wrong_bytes(salt: u64, bytes: &[u8]) -> usize {
    let words = bytes.chunks_exact(8);
    (0_u64..)
        .zip(words)
        .map(|(at, word)| {
            let expect = pattern(salt, at).to_ne_bytes();
            word.iter()
                .zip(expect)
                .filter(|(found, expect)| **found != *expect)
                .count()
        })
        .sum()
}

/// Sets a parameter of glibc's allocator.
pub(crate) fn set_malloc(parameter: c_int, value: c_int) -> Result<()> {
    ensure!(
        // SAFETY: it has no preconditions.
        unsafe { libc::mallopt(parameter, value) } == 1,
        "mallopt refuses {parameter}"
    );
    Ok(())
}
