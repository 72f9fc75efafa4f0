//! The name of a mutex's holder that the kernel does not mark at its end, and the mark that others set instead.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64};

/// Bit of a futex word that the kernel sets when the holder ends (`linux/futex.h`).
pub(super) const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
/// The bits of a futex word that hold the thread number (same header).
pub(super) const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

/// The holder, if the kernel does not mark the mutex at its end: the thread in the upper half, and in the lower half the end
/// of its start time, because the kernel gives its number to a later one. 0 for none.
///
/// One word, so that no reader takes the thread of one holder with the start of another. A thread that has ended stays ended:
/// what a reader finds of a word does not become wrong while the word changes and changes back.
#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Name(pub(super) AtomicU64);

impl Name {
    pub(super) fn write(&self, name: u64) {
        self.0.store(name, Ordering::Release);
    }

    pub(super) fn remove(&self) {
        self.0.store(0, Ordering::Release);
    }

    pub(super) fn is_written(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// True if `thread` is the one of this name and has ended.
    pub(super) fn is_dead(&self, thread: u32, has_ended: impl Fn(u64) -> bool) -> bool {
        let name = self.0.load(Ordering::Acquire);
        name >> 32 == u64::from(thread) && name != 0 && has_ended(name)
    }

    /// Marks the mutex of a holder that has ended, as the kernel does for one with a robust list (`linux/futex.h`): the
    /// waiters' bit stays. True if this call marked it. `has_ended` is asked for a name, `is_gone` for a thread's number.
    ///
    /// Not covered: between the answer and the mark the mutex gets another holder, to whom the kernel gives the same number.
    /// Numbers run through their whole range before one comes again.
    pub(super) fn mark_if_dead(
        &self,
        futex: &AtomicU32,
        has_ended: impl Fn(u64) -> bool,
        is_gone: impl Fn(u32) -> bool,
    ) -> bool {
        let word = futex.load(Ordering::Acquire);
        let thread = word & FUTEX_TID_MASK;
        if thread == 0 || word & FUTEX_OWNER_DIED != 0 {
            return false;
        }
        // A thread without a name has just taken the mutex, or was about to release it. One that the kernel marks is marked
        // before it ends.
        if !self.is_dead(thread, has_ended) && !is_gone(thread) {
            return false;
        }
        let marked = word & !FUTEX_TID_MASK | FUTEX_OWNER_DIED;
        // Another waiter may have marked it first.
        let exchanged = futex.compare_exchange(word, marked, Ordering::AcqRel, Ordering::Relaxed);
        exchanged.is_ok()
    }
}

pub(super) const fn joined(thread: u32, started: u64) -> u64 {
    (thread as u64) << 32 | started & u32::MAX as u64
}

#[cfg(all(test, loom))]
#[path = "holder/models.rs"]
mod models;
