//! Memory that a peer on another machine may read, in slots.

use crate::adapter::Adapter;
use crate::error::Result;
use crate::memory::Registered;
use mlx5dv_sys::IBV_ACCESS_REMOTE_READ;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Slots of one size. The peer may read all of them at any time; it finds bytes that are complete only in those that it is
/// told of.
#[derive(Debug)]
pub struct Shown {
    memory: Arc<Memory>,
    free: Arc<Mutex<Vec<usize>>>,
    slot_bytes: usize,
}

/// The memory. The registration ends first.
#[derive(Debug)]
struct Memory {
    registered: Option<Registered>,
    start: NonNull<[u8]>,
}

// SAFETY: memory of this process; each slot has one owner.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        self.registered = None;
        // SAFETY: from a box, and no slot or registration refers to it any more.
        drop(unsafe { Box::from_raw(self.start.as_ptr()) });
    }
}

impl Shown {
    /// Registers `count` slots of `slot_bytes` bytes each.
    ///
    /// # Errors
    /// The kernel refuses, for instance because of the limit of locked memory.
    pub fn new(adapter: &Arc<Adapter>, (count, slot_bytes): (usize, usize)) -> Result<Self> {
        let bytes = Box::into_raw(vec![0u8; count * slot_bytes].into_boxed_slice());
        let mut memory = Memory {
            registered: None,
            start: NonNull::new(bytes).expect("a box has an address"),
        };
        let (start, len) = (bytes.cast(), count * slot_bytes);
        // SAFETY: the memory lives as long as `memory`, whose drop ends the registration first.
        let registered =
            unsafe { Registered::with_access(adapter, start, len, IBV_ACCESS_REMOTE_READ) }?;
        memory.registered = Some(registered);
        Ok(Self {
            memory: Arc::new(memory),
            free: Arc::new(Mutex::new((0..count).rev().collect())),
            slot_bytes,
        })
    }

    /// The key for the peer.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.memory.registered.as_ref().map_or(0, Registered::rkey)
    }

    /// Address of the first slot.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.start.cast::<u8>().as_ptr() as u64
    }

    /// A free slot, the one with the lowest number at first. It is empty.
    #[must_use]
    pub fn take(&self) -> Option<Slot> {
        let number = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(Slot {
            memory: Arc::clone(&self.memory),
            free: Arc::clone(&self.free),
            at: number * self.slot_bytes,
            capacity: self.slot_bytes,
            number,
            len: 0,
        })
    }
}

/// A slot. Its drop frees it.
#[derive(Debug)]
pub struct Slot {
    memory: Arc<Memory>,
    free: Arc<Mutex<Vec<usize>>>,
    /// First byte in the memory.
    at: usize,
    capacity: usize,
    number: usize,
    len: usize,
}

impl Slot {
    /// Forgets its bytes.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds bytes behind those that are there. False, without effect, if they do not fit.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.capacity - self.len {
            return false;
        }
        let start = self.memory.start.cast::<u8>().as_ptr();
        // SAFETY: inside this slot, which has one owner. The adapter may read it meanwhile, for a peer that was not told to:
        // it gets old or new bytes.
        unsafe {
            let to = start.add(self.at + self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.len += bytes.len();
        true
    }

    /// Bytes that are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.start.cast::<u8>().as_ptr() as u64 + self.at as u64
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.number);
    }
}
