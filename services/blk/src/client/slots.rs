//! Memory that is registered once, in slots: small transfers are copied there.

use super::host::{Held, Host};
use super::spec::Scheme;
use crate::error::{BlkError, Result};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// The slots. The fields end in their order: the key before the memory.
#[derive(Debug)]
pub(super) struct Slots {
    /// `None` while it is replaced.
    held: Mutex<Option<Held>>,
    scheme: Scheme,
    memory: Pages,
    bytes: usize,
    free: Mutex<Vec<usize>>,
}

impl Slots {
    /// Slots whose key is as in `scheme`.
    pub(super) fn new(
        host: &'static Host,
        scheme: Scheme,
        (count, bytes): (usize, usize),
    ) -> Result<Self> {
        let memory = Pages::new(count * bytes)?;
        // SAFETY: the pages live in the same value, whose fields end in order.
        let held = unsafe { host.hold(scheme, memory.start.as_ptr(), memory.len) }?;
        Ok(Self {
            held: Mutex::new(Some(held)),
            scheme,
            memory,
            bytes,
            free: Mutex::new((0..count).rev().collect()),
        })
    }

    /// Bytes of a slot.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key of all slots.
    pub(super) fn mkey(&self) -> Option<u32> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|held| held.mkey().raw())
    }

    /// Replaces the key: a service that was given up cannot write to a slot any more.
    pub(super) fn renew(&self, host: &'static Host) -> Result<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = None;
        let (start, len) = (self.memory.start.as_ptr(), self.memory.len);
        // SAFETY: as in `new`.
        *held = Some(unsafe { host.hold(self.scheme, start, len) }?);
        Ok(())
    }

    /// A free slot. There are as many as transfers under way.
    pub(super) fn take(&self) -> Option<usize> {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }

    pub(super) fn put(&self, slot: usize) {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(slot);
    }

    /// First byte of a slot.
    pub(super) fn at(&self, slot: usize) -> *mut u8 {
        self.memory.start.as_ptr().wrapping_add(slot * self.bytes)
    }
}

/// Anonymous pages.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory of this process; the slots say who accesses which part.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize) -> Result<Self> {
        // SAFETY: an anonymous mapping at an address of the system's choice has no preconditions.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(BlkError::io(
                "memory of small transfers",
                std::io::Error::last_os_error(),
            ));
        }
        let start = NonNull::new(start.cast()).expect("mmap never maps page 0 by itself");
        Ok(Self { start, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
