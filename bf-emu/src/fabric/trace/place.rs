//! A record of the trace, which its writer marks with its number, and a reader compares before and after.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

/// Words of a record.
pub(super) const WORDS: usize = if cfg!(loom) { 1 } else { 6 };

/// All zeroes is empty.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Place {
    /// Number of the record from 1; 0 during the write.
    mark: AtomicU64,
    time_ns: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Place {
    /// Writes the record with this number.
    pub(super) fn write(&self, number: u64, time_ns: u64, words: [u64; WORDS]) {
        self.mark.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.time_ns.store(time_ns, Ordering::Relaxed);
        for (to, from) in self.words.iter().zip(words) {
            to.store(from, Ordering::Relaxed);
        }
        self.mark.store(number, Ordering::Release);
    }

    /// Time and words of the record with this number; None if it is overwritten or incomplete.
    pub(super) fn read(&self, number: u64) -> Option<(u64, [u64; WORDS])> {
        if number == 0 || self.mark.load(Ordering::Acquire) != number {
            return None;
        }
        let time_ns = self.time_ns.load(Ordering::Relaxed);
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(&self.words) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        (self.mark.load(Ordering::Relaxed) == number).then_some((time_ns, words))
    }
}

#[cfg(all(test, loom))]
#[path = "place/models.rs"]
mod models;
