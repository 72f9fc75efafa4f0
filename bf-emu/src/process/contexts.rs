//! The open contexts of a process, by the file of each.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sys::FileId;

/// Largest number of open contexts of one process.
pub const CONTEXTS_MAX: usize = 4096;

/// Number of no context: the slot is free.
const FREE: u32 = 0;
/// Number of no context: another thread fills the slot.
const CLAIMED: u32 = u32::MAX;

/// An open context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Number on the device.
    pub number: u32,
    /// Index of its function.
    pub function: usize,
    /// Its slot in this process.
    pub(super) slot: usize,
}

/// The attributes of a new context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// Number on the device.
    pub(super) number: u32,
    pub(super) function: usize,
    /// Index of the function in the process's view.
    pub(super) view_index: usize,
    /// The process that opened it.
    pub(super) owner_pid: i32,
}

/// A context of this process, unless `number` is [`FREE`] or [`CLAIMED`].
#[derive(Debug, Default)]
struct Slot {
    number: AtomicU32,
    function: AtomicUsize,
    view_index: AtomicUsize,
    owner_pid: AtomicU32,
    next_page: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

/// The contexts of a process. Lookups take no lock.
#[derive(Debug)]
pub(super) struct Contexts {
    slots: Box<[Slot]>,
    /// Slots from this one on were never used.
    high: AtomicUsize,
}

impl Contexts {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..CONTEXTS_MAX).map(|_| Slot::default()).collect(),
            high: AtomicUsize::new(0),
        }
    }

    /// Records a context; None if there are [`CONTEXTS_MAX`].
    pub(super) fn add(&self, file: FileId, opened: Opened) -> Option<Context> {
        let claim = |slot: &Slot| {
            slot.number.load(Ordering::Relaxed) == FREE
                && slot
                    .number
                    .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        };
        let index = self.slots.iter().position(claim)?;
        let slot = &self.slots[index];
        slot.function.store(opened.function, Ordering::Relaxed);
        slot.view_index.store(opened.view_index, Ordering::Relaxed);
        let owner_pid = opened.owner_pid.unsigned_abs();
        slot.owner_pid.store(owner_pid, Ordering::Relaxed);
        slot.next_page.store(1, Ordering::Relaxed);
        slot.device.store(file.device, Ordering::Relaxed);
        slot.inode.store(file.inode, Ordering::Relaxed);
        slot.number.store(opened.number, Ordering::Release);
        self.high.fetch_max(index + 1, Ordering::AcqRel);
        Some(Context {
            number: opened.number,
            function: opened.function,
            slot: index,
        })
    }

    /// The context behind a file, if it is known.
    pub(super) fn find(&self, file: FileId) -> Option<Context> {
        let used = &self.slots[..self.high.load(Ordering::Acquire)];
        used.iter().enumerate().find_map(|(index, slot)| {
            let number = slot.number.load(Ordering::Acquire);
            let same = number != FREE
                && number != CLAIMED
                && slot.inode.load(Ordering::Relaxed) == file.inode
                && slot.device.load(Ordering::Relaxed) == file.device;
            same.then(|| Context {
                number,
                function: slot.function.load(Ordering::Relaxed),
                slot: index,
            })
        })
    }

    /// Index of a context's function in the view.
    pub(super) fn view_index(&self, context: Context) -> usize {
        self.slots[context.slot].view_index.load(Ordering::Relaxed)
    }

    /// True if this process itself opened the context. False if it inherited or received the file.
    pub(super) fn is_of(&self, context: Context, pid: i32) -> bool {
        let owner = self.slots[context.slot].owner_pid.load(Ordering::Relaxed);
        owner == pid.unsigned_abs()
    }

    /// The next page of a context's file that is not allocated.
    pub(super) fn next_page(&self, context: Context) -> u32 {
        self.slots[context.slot]
            .next_page
            .fetch_add(1, Ordering::Relaxed)
    }

    /// Removes a context.
    pub(super) fn remove(&self, context: Context) {
        self.slots[context.slot]
            .number
            .store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    fn opened(number: u32) -> Opened {
        Opened {
            number,
            function: 3,
            view_index: 1,
            owner_pid: 7,
        }
    }

    #[test]
    fn a_slot_is_used_again() {
        let contexts = Contexts::new();
        let all: Vec<_> = (1..)
            .take(CONTEXTS_MAX)
            .map(|number| contexts.add(file(number.into()), opened(number)).unwrap())
            .collect();
        assert_eq!(contexts.add(file(0), opened(9999)), None);
        assert_eq!(contexts.find(file(17)), Some(all[16]));
        assert_eq!(contexts.next_page(all[16]), 1);
        assert_eq!(contexts.next_page(all[16]), 2);
        contexts.remove(all[16]);
        assert_eq!(contexts.find(file(17)), None);
        let again = contexts.add(file(0), opened(9999)).unwrap();
        assert_eq!((again.slot, contexts.next_page(again)), (16, 1));
        assert!(contexts.is_of(again, 7) && !contexts.is_of(again, 8));
    }
}
