//! The arena of this process: what all its parts share.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use super::counts;
use super::handles::Handles;
use super::memory::Place;
use super::pages::{PAGE, SLAB_BYTES, Span};
use super::slab_keys::SlabKeys;
use super::slabs::{Slab, Slabs};
use crate::event_lock::Lock;
use crate::forked;
use crate::hot::hot;
use crate::ucm::Ucm;

/// The smallest and the largest mapping that becomes a range. glibc maps a page more than a buffer
/// of the largest size.
pub(super) const SERVED_BYTES: (usize, usize) = (16 << 10, (16 << 20) + 2 * PAGE);

/// The arena of this process. It is never freed, because the program keeps its ranges.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) ucm: Ucm,
    pub(super) place: Place,
    /// The first byte of the first slab.
    pub(super) base: usize,
    pub(super) bytes: usize,
    pub(super) table: Lock<Table>,
    pub(super) handles: (usize, usize),
    pub(super) age_ms: u64,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) slabs: Slabs<&'static mut [Slab]>,
    pub(super) keys: &'static mut [SlabKeys],
    pub(super) handles: Handles,
    /// Time of the last search for idle slabs.
    pub(super) upkeep_ms: u64,
    pub(super) is_upkeep_running: bool,
}

pub(super) static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());
/// First address of the arena; zero without one. The address after it is [`HOT`]'s, which is read
/// before anything else.
pub(super) static FROM: AtomicUsize = AtomicUsize::new(0);
/// False once no further range is given out.
pub(super) static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// The arena, in the process that made it.
pub(super) fn running() -> Option<&'static Arena> {
    // SAFETY: the arena is never freed.
    let arena = unsafe { ARENA.load(Ordering::Acquire).as_ref() }?;
    (forked::generation() == 0).then_some(arena)
}

/// True if there is an arena.
#[inline]
pub(crate) fn exists() -> bool {
    hot().arena_end.load(Ordering::Relaxed) != 0
}

/// True if the bytes have a byte of the arena.
#[inline]
pub(crate) fn overlaps(address: usize, length: usize) -> bool {
    address < hot().arena_end.load(Ordering::Relaxed)
        && address.saturating_add(length) > FROM.load(Ordering::Relaxed)
}

impl Arena {
    /// The parts of an address range inside the arena: slab and pages. Partial pages count.
    pub(super) fn parts(
        &self,
        address: usize,
        length: usize,
    ) -> impl Iterator<Item = (usize, Span)> + use<> {
        let base = self.base;
        let from = address.max(base) - base;
        let to = address
            .saturating_add(length)
            .clamp(base, base + self.bytes)
            - base;
        let (from, to) = (from / PAGE, to.div_ceil(PAGE));
        let pages = SLAB_BYTES / PAGE;
        let slabs = if from < to {
            from / pages..to.div_ceil(pages)
        } else {
            0..0
        };
        slabs.map(move |slab| {
            let first = from.saturating_sub(slab * pages);
            let end = (to - slab * pages).min(pages);
            (slab, Span::new(first, end))
        })
    }

    /// The only part of a range that lies in one slab.
    pub(super) fn part(&self, address: usize, length: usize) -> Option<(usize, Span)> {
        let is_inside = address >= self.base
            && length > 0
            && address.checked_add(length)? <= self.base + self.bytes;
        let mut parts = self.parts(address, length);
        let part = parts.next().filter(|_| is_inside)?;
        parts.next().is_none().then_some(part)
    }

    /// Address of a slab's pages.
    pub(super) fn address(&self, slab: usize, span: Span) -> usize {
        self.base + slab * SLAB_BYTES + span.first * PAGE
    }

    /// Retires all pages of the arena in a range.
    pub(super) fn retire(&self, address: usize, length: usize) {
        let Some(mut table) = self.table.take() else {
            // A signal handler of the holder. Nothing can be recorded, so nothing new starts.
            IS_OPEN.store(false, Ordering::Relaxed);
            return;
        };
        for (slab, span) in self.parts(address, length) {
            let new = table.slabs.retire(slab, span);
            counts::RETIRED.add(new * PAGE);
        }
    }
}

/// Milliseconds of a clock that only goes forward.
pub(super) fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the result can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let (seconds, nanos) = (time.tv_sec, time.tv_nsec);
    u64::try_from(seconds * 1000 + nanos / 1_000_000).unwrap_or(0)
}
