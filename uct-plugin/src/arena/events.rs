//! The handlers of UCX's memory events: `mmap`, `munmap`, `mremap` and `madvise` of the program.
//!
//! They run inside these calls, possibly inside `malloc` and `free`. They allocate nothing, call
//! nothing of UCX but its functions that call the kernel, and hold the arena's lock for table
//! operations only.
//!
//! Calls that the arena does not answer go on to the kernel. Where the kernel would then change pages
//! under a slab's registration, the pages are retired first: the device would otherwise keep the old
//! pages of a range that a later registration finds in the slab.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::counts;
use super::memory::zero;
use super::pages::{PAGE, Span};
use super::slabs::Taken;
use super::state::{Arena, IS_OPEN, SERVED_BYTES, now_ms, overlaps, running};
use crate::ucm::{self, Madvise, Mmap, Mremap, Munmap};

/// `MADV_DONTNEED_LOCKED` (asm-generic/mman-common.h).
const MADV_DONTNEED_LOCKED: c_int = 24;
/// `MADV_POPULATE_READ`.
const MADV_POPULATE_READ: c_int = 22;
/// `MADV_POPULATE_WRITE`: fails if the program cannot write to the pages, or before Linux 5.14.
const MADV_POPULATE_WRITE: c_int = 23;
/// `MADV_COLD` and `MADV_PAGEOUT`.
const MADV_COLD: [c_int; 2] = [20, 21];

/// The handler of all events. Each result is in the event.
///
/// # Safety
/// `event` must be UCX's event of that kind.
pub(super) unsafe extern "C" fn handler(kind: c_int, event: *mut c_void, _argument: *mut c_void) {
    let Some(arena) = running() else {
        return;
    };
    let handle = || {
        match kind {
            // SAFETY: by the contract of this function; each event belongs to this call alone.
            ucm::MMAP => arena.on_mmap(unsafe { &mut *event.cast::<Mmap>() }),
            // SAFETY: as above.
            ucm::MUNMAP => arena.on_munmap(unsafe { &mut *event.cast::<Munmap>() }),
            // SAFETY: as above.
            ucm::MREMAP => arena.on_mremap(unsafe { &mut *event.cast::<Mremap>() }),
            // SAFETY: as above.
            ucm::MADVISE => arena.on_madvise(unsafe { &mut *event.cast::<Madvise>() }),
            _ => {}
        }
    };
    // A panic is a bug. Its call goes to the kernel, and no further range is given out.
    if catch_unwind(AssertUnwindSafe(handle)).is_err() {
        IS_OPEN.store(false, Ordering::Relaxed);
    }
}

/// True if a mapping may be a range of the arena.
fn is_served(event: &Mmap) -> bool {
    event.address.is_null()
        && event.flags & !libc::MAP_NORESERVE == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        && event.prot == libc::PROT_READ | libc::PROT_WRITE
        && (SERVED_BYTES.0..=SERVED_BYTES.1).contains(&event.size)
        && IS_OPEN.load(Ordering::Acquire)
}

/// True if a call replaces the mappings at its address.
fn replaces(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Arena {
    fn on_mmap(&self, event: &mut Mmap) {
        if event.result != libc::MAP_FAILED {
            return;
        }
        if is_served(event) {
            if let Some(address) = self.range(event.size) {
                event.result = pointer(address);
            }
        } else if replaces(event.flags) && overlaps(event.address.addr(), event.size) {
            self.retire(event.address.addr(), event.size);
        }
    }

    /// A new range of zeros. `None` if the kernel must map the memory.
    fn range(&self, bytes: usize) -> Option<usize> {
        let count = bytes.div_ceil(PAGE);
        let node = self.place.node();
        // The second time after a new slab, of which another thread may take all.
        for _ in 0..2 {
            let taken = self.table.take()?.slabs.take(count, node);
            match taken {
                Taken::Full => return None,
                Taken::Make(slab) => {
                    let address = self.address(slab, Span::new(0, 1));
                    let is_mapped = self.place.make(&self.ucm, address, node);
                    self.table.take()?.slabs.made(slab, is_mapped, now_ms());
                }
                Taken::Range(range) => {
                    for part in range.dirty() {
                        let address = self.address(range.slab, part);
                        // SAFETY: the pages are this call's own, and the slab has memory.
                        if !unsafe { zero(address, part.count() * PAGE) } {
                            let mut table = self.table.take()?;
                            let new = table.slabs.retire(range.slab, range.span);
                            counts::RETIRED.add(new * PAGE);
                            return None;
                        }
                    }
                    counts::RANGES.add(1);
                    return Some(self.address(range.slab, range.span));
                }
            }
        }
        None
    }

    fn on_munmap(&self, event: &mut Munmap) {
        let (address, bytes) = (event.address.addr(), event.size);
        let is_valid = address.is_multiple_of(PAGE) && bytes > 0;
        if event.result == -1 && is_valid && overlaps(address, bytes) {
            event.result = self.unmap(address, bytes);
        }
    }

    /// Unmaps a range that is partly or wholly in the arena.
    fn unmap(&self, address: usize, bytes: usize) -> c_int {
        let end = address.saturating_add(bytes).next_multiple_of(PAGE);
        let (from, to) = (self.base, self.base + self.bytes);
        let mut result = 0;
        let mut outside = |first: usize, end: usize| {
            if first < end {
                // SAFETY: the program unmaps these bytes, and they are not in the arena.
                result |= unsafe { self.ucm.unmap(first, end - first) };
            }
        };
        outside(address, end.min(from));
        outside(address.max(to), end);
        for (slab, span) in self.parts(address, bytes) {
            // A signal handler of the lock's holder: the range stays with the program.
            let Some(mut table) = self.table.take() else {
                return result;
            };
            let given = table.slabs.give(slab, span, now_ms());
            drop(table);
            if given.has_retired {
                self.unmap_retired(slab, span);
            }
        }
        result
    }

    /// Gives retired pages of the program back to the kernel, as without the arena. Only the
    /// mapping's pages are retired; a slab's memory is not.
    fn unmap_retired(&self, slab: usize, span: Span) {
        let mut from = span.first;
        while from < span.end() {
            let Some(table) = self.table.take() else {
                return;
            };
            let run = table.slabs.retired_run(slab, Span::new(from, span.end()));
            drop(table);
            let Some(run) = run else {
                return;
            };
            // SAFETY: the program unmaps these pages, and the arena never uses them again.
            unsafe { self.ucm.unmap(self.address(slab, run), run.count() * PAGE) };
            from = run.end();
        }
    }

    fn on_mremap(&self, event: &mut Mremap) {
        if event.result != libc::MAP_FAILED {
            return;
        }
        let (address, old) = (event.address.addr(), event.old_size);
        let is_fixed = event.flags & libc::MREMAP_FIXED != 0;
        if is_fixed && overlaps(event.new_address.addr(), event.new_size) {
            self.retire(event.new_address.addr(), event.new_size);
        }
        if old == 0 || !overlaps(address, old) {
            return;
        }
        let is_plain = event.flags & !libc::MREMAP_MAYMOVE == 0;
        let moved = match is_plain && address.is_multiple_of(PAGE) && event.new_size > 0 {
            true => self.resize(address, old, event.new_size, event.flags),
            false => None,
        };
        match moved {
            Some(moved) => event.result = pointer(moved),
            // The kernel refuses to grow a part of a slab in place.
            None if event.flags == 0 && event.new_size > old => {}
            // It moves or unmaps pages.
            None => self.retire(address, old),
        }
    }

    /// Shrinks a range in place, or copies it to a larger one. `None` if the kernel must decide.
    fn resize(&self, address: usize, old: usize, new: usize, flags: c_int) -> Option<usize> {
        let (slab, span) = self.part(address, old)?;
        if !self.table.take()?.slabs.is_live(slab, span) {
            return None;
        }
        let (old_end, new_end) = (
            (address + old).next_multiple_of(PAGE),
            address.checked_add(new)?.checked_next_multiple_of(PAGE)?,
        );
        if new_end <= old_end {
            if new_end < old_end {
                self.unmap(new_end, old_end - new_end);
            }
            return Some(address);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return None;
        }
        // SAFETY: it changes no byte.
        if unsafe { self.ucm.advise(address, old, MADV_POPULATE_WRITE) } != 0 {
            return None;
        }
        let is_served = (SERVED_BYTES.0..=SERVED_BYTES.1).contains(&new);
        let served = is_served && IS_OPEN.load(Ordering::Acquire);
        let target = served.then(|| self.range(new)).flatten().or_else(|| {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
            unsafe { self.ucm.map(0, new, prot, 0) }
        })?;
        let source = std::ptr::with_exposed_provenance::<u8>(address);
        let copy = std::ptr::with_exposed_provenance_mut::<u8>(target);
        // SAFETY: the program has the old range, which is shorter, and nothing has the new one.
        unsafe { copy.copy_from_nonoverlapping(source, old) };
        self.unmap(address, old);
        Some(target)
    }

    fn on_madvise(&self, event: &mut Madvise) {
        let (address, bytes) = (event.address.addr(), event.length);
        let is_valid = address.is_multiple_of(PAGE) && bytes > 0;
        if event.result != -1 || !is_valid || !overlaps(address, bytes) {
            return;
        }
        let is_inside = address >= self.base && address + bytes <= self.base + self.bytes;
        match event.advice {
            // The program gets zeros, and the pages stay those of the registration.
            libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED if is_inside => {
                event.result = self.clear(address, bytes);
            }
            // Hints that need not be taken. Some would divide the slab's mapping for its next users.
            libc::MADV_FREE
            | libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
                if is_inside =>
            {
                event.result = 0;
            }
            advice if MADV_COLD.contains(&advice) && is_inside => event.result = 0,
            // The kernel refuses to remove pages of such memory, and populating changes no page.
            libc::MADV_REMOVE => {}
            MADV_POPULATE_READ | MADV_POPULATE_WRITE => {}
            _ => self.retire(address, bytes),
        }
    }

    /// Zeroes the pages that the program has. The kernel does it for retired pages, and for pages
    /// that the program cannot write to: those are retired.
    fn clear(&self, address: usize, bytes: usize) -> c_int {
        for (slab, span) in self.parts(address, bytes) {
            let mut from = span.first;
            while from < span.end() {
                let rest = Span::new(from, span.end());
                let run = self
                    .table
                    .take()
                    .and_then(|table| table.slabs.live_run(slab, rest));
                let Some(run) = run else {
                    break;
                };
                from = run.end();
                let (at, bytes) = (self.address(slab, run), run.count() * PAGE);
                // SAFETY: it changes no byte.
                if unsafe { self.ucm.advise(at, bytes, MADV_POPULATE_WRITE) } == 0 {
                    // SAFETY: the program has these pages, can write to them, and asks for their
                    // loss.
                    unsafe {
                        std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(0, bytes)
                    };
                } else {
                    self.retire(at, bytes);
                }
            }
            self.drop_retired(slab, span);
        }
        0
    }

    /// The kernel's `MADV_DONTNEED` for the retired pages.
    fn drop_retired(&self, slab: usize, span: Span) {
        let mut from = span.first;
        while from < span.end() {
            let rest = Span::new(from, span.end());
            let run = self
                .table
                .take()
                .and_then(|table| table.slabs.retired_run(slab, rest));
            let Some(run) = run else {
                return;
            };
            let (at, bytes) = (self.address(slab, run), run.count() * PAGE);
            // SAFETY: the program asks for it. No later registration finds the pages in the slab.
            unsafe { self.ucm.advise(at, bytes, libc::MADV_DONTNEED) };
            from = run.end();
        }
    }
}
