//! The process that carries requests to other machines: whether it lives, and which queue pairs have requests for it.
//!
//! A signal handler hands a queue pair over: it sets a bit and wakes the process. A bit is set or not, so nothing grows.

use std::sync::atomic::{AtomicU32, Ordering};

use super::lock::{Holder, SharedMutex};
use super::posted::Posted;
use crate::model::topology::FUNCTIONS_MAX;
use crate::sys::{self, Errno};

/// The state of the carrying process. All zeroes, after [`Carrier::init`], means that there is none.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Carrier {
    /// The process holds it as long as it runs.
    life: SharedMutex,
    /// Number of processes that have carried.
    epoch: AtomicU32,
    /// The process sleeps on it.
    pub(super) word: AtomicU32,
    /// 1 if the connection manager has something for the process.
    told: AtomicU32,
    posted: [Posted; FUNCTIONS_MAX],
}

impl Carrier {
    /// Initialises the mutex.
    ///
    /// # Errors
    /// The C library's error.
    ///
    /// # Safety
    /// No other thread may know it yet.
    pub(super) unsafe fn init(&self) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.life.init() }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.life.holder() == Holder::Alive
    }

    /// Makes the calling thread the carrier. Returns its number, from 1; None if another thread is the carrier.
    pub(super) fn begin(&self) -> Option<u32> {
        let again = || {
            self.life.mark_if_dead();
            self.life.try_lock()
        };
        self.life.try_lock().or_else(again)?;
        Some(self.epoch.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The calling thread is no longer the carrier.
    ///
    /// # Safety
    /// It must be so by [`Carrier::begin`].
    pub(super) unsafe fn end(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.life.unlock() };
    }

    /// Sets the bit of a queue pair, and wakes the process.
    pub(super) fn hand_over(&self, function: usize, slot: u32) {
        let Some(posted) = self.posted.get(function) else {
            return;
        };
        posted.set(slot);
        self.wake();
    }

    fn wake(&self) {
        self.word.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.word);
    }

    /// Says that the connection manager has something for the process, and wakes it.
    pub(super) fn tell(&self) {
        self.told.store(1, Ordering::Release);
        self.wake();
    }

    /// True if the connection manager has something since the last call.
    pub(super) fn is_told(&self) -> bool {
        self.told.swap(0, Ordering::AcqRel) != 0
    }

    /// Clears the bits of a function's queue pairs, and calls `each` for those that were set.
    pub(super) fn handed_over(&self, function: usize, each: impl FnMut(u32)) {
        if let Some(posted) = self.posted.get(function) {
            posted.take(each);
        }
    }
}
