//! Counters of the arena, for the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::numbers::Numbers;

/// One counter.
#[derive(Debug)]
pub(super) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, number: usize) {
        self.0.fetch_sub(number as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Mappings of the program that are ranges of the arena.
pub(super) static RANGES: Count = Count::new();
/// Bytes that were zeroed before the reuse of their range.
pub(super) static ZEROED: Count = Count::new();
/// Bytes of slabs with memory.
pub(super) static BYTES: Count = Count::new();
/// Bytes that are never part of a new range.
pub(super) static RETIRED: Count = Count::new();
/// Registrations answered with a slab's key.
pub(super) static REGISTRATIONS: Count = Count::new();
/// Registrations of memory of the arena that UCX made itself.
pub(super) static LEFT: Count = Count::new();

/// The numbers with those of the arena.
pub(crate) fn add_to(numbers: Numbers) -> Numbers {
    Numbers {
        arena_ranges: RANGES.get(),
        arena_zeroed: ZEROED.get(),
        arena_bytes: BYTES.get(),
        arena_retired: RETIRED.get(),
        arena_registrations: REGISTRATIONS.get(),
        arena_left: LEFT.get(),
        ..numbers
    }
}
