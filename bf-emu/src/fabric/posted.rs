//! The queue pairs of a function with new requests for another process: bits that any thread sets and one thread takes.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

#[cfg(not(loom))]
use super::limits::QPS_MAX;

/// Bits of a word.
const WORD_BITS: usize = 64;
#[cfg(loom)]
const QPS_MAX: usize = WORD_BITS * WORD_BITS;
const WORDS: usize = if cfg!(loom) { 2 } else { QPS_MAX / WORD_BITS };
const SUMMARIES: usize = QPS_MAX / WORD_BITS / WORD_BITS;

/// All zeroes is empty.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Posted {
    /// A bit for each word of `slots` that may not be zero.
    summary: [AtomicU64; SUMMARIES],
    /// A bit for each queue pair.
    slots: [AtomicU64; WORDS],
}

/// The bits of a word.
fn bits(word: u64) -> impl Iterator<Item = usize> {
    (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1)
}

impl Posted {
    /// Sets the bit of a queue pair.
    pub(super) fn set(&self, slot: u32) {
        let slot = slot as usize;
        let (word, summary) = (slot / WORD_BITS, slot / WORD_BITS / WORD_BITS);
        let (Some(slots), Some(words)) = (self.slots.get(word), self.summary.get(summary)) else {
            return;
        };
        slots.fetch_or(1 << (slot % WORD_BITS), Ordering::AcqRel);
        words.fetch_or(1 << (word % WORD_BITS), Ordering::AcqRel);
    }

    /// Clears the bits, and calls `each` for those that were set.
    pub(super) fn take(&self, mut each: impl FnMut(u32)) {
        for (index, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for word in bits(summary.swap(0, Ordering::AcqRel)) {
                let word = index * WORD_BITS + word;
                let Some(slots) = self.slots.get(word) else {
                    continue;
                };
                for slot in bits(slots.swap(0, Ordering::AcqRel)) {
                    each(u32::try_from(word * WORD_BITS + slot).unwrap_or(u32::MAX));
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "tests/posted.rs"]
mod models;
