//! The arena: fresh private memory of a program comes from slabs that are registered once, so a
//! temporary buffer needs no registration of its own. Off unless `UCX_XGVMI_ARENA` gives its size.
//!
//! UCX's memory events feed it. The handlers ([`events`]) answer `mmap` and `munmap` of the program
//! and of its allocator with ranges of a slab; they allocate nothing, call nothing of UCX but its
//! functions that call the kernel, and hold the arena's [`lock`] for a table operation only. A
//! registration inside a slab ([`register`]) gets a memory handle with the slab's local key. Its
//! export binds a key of the pool to exactly its bytes, and UCX's other keys come from a registration
//! of exactly its bytes, so no peer can reach the rest of the slab.
//!
//! A range that the program unmaps rests until its last handle is released and the handle's key is
//! invalidated. It is zeroed when it is given out again. Every case that the arena does not know
//! retires the pages: the kernel handles them as without the arena, and they are not given out again.

pub(crate) mod counts;

mod bits;
mod events;
mod handles;
mod lock;
mod memory;
mod register;
mod safety;
mod slab_keys;
mod slabs;
mod ucm;

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::abi::MdHandle;
use crate::domains::{self, State};
use crate::original::Object;
use crate::{config, forked, log};
use handles::{HANDLES, Handle, Handles};
use lock::Lock;
use memory::Place;
use slab_keys::SlabKeys;
use slabs::{PAGE, SLAB_BYTES, Slab, Slabs, Span};
use ucm::Ucm;

pub(crate) use register::{closing, is_ours, mem_dereg, mem_reg, mkey_pack};

/// The smallest and the largest mapping that becomes a range. glibc maps a page more than a buffer
/// of the largest size.
const SERVED_BYTES: (usize, usize) = (16 << 10, (16 << 20) + 2 * PAGE);

/// The arena of this process. It is never freed, because the program keeps its ranges.
#[derive(Debug)]
struct Arena {
    ucm: Ucm,
    place: Place,
    /// The first byte of the first slab.
    base: usize,
    bytes: usize,
    table: Lock<Table>,
    handles: (usize, usize),
    age_ms: u64,
}

/// Everything behind the lock.
#[derive(Debug)]
struct Table {
    slabs: Slabs<&'static mut [Slab]>,
    keys: &'static mut [SlabKeys],
    handles: Handles,
    /// Time of the last search for idle slabs.
    upkeep_ms: u64,
    is_upkeep_running: bool,
}

static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());
/// First and last address of the arena; both zero without one. Read before anything else.
static FROM: AtomicUsize = AtomicUsize::new(0);
static TO: AtomicUsize = AtomicUsize::new(0);
/// False once no further range is given out.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// The arena, in the process that made it.
fn running() -> Option<&'static Arena> {
    // SAFETY: the arena is never freed.
    let arena = unsafe { ARENA.load(Ordering::Acquire).as_ref() }?;
    (forked::generation() == 0).then_some(arena)
}

/// True if the bytes have a byte of the arena.
#[inline]
pub(crate) fn overlaps(address: usize, length: usize) -> bool {
    address < TO.load(Ordering::Relaxed)
        && address.saturating_add(length) > FROM.load(Ordering::Relaxed)
}

/// Set if this library's functions were written into UCX's operations table.
static IS_PATCHED: AtomicBool = AtomicBool::new(false);

/// Remembers that this library's functions were written into UCX's operations table. Another table
/// of the same module, that of its GGA transport, then holds UCX's own functions.
pub(crate) fn table_is_patched() {
    IS_PATCHED.store(true, Ordering::Relaxed);
}

/// A reason for no arena.
type Off = &'static str;

/// Starts the arena at the first served memory domain, if the options ask for it. Stops it at one
/// that is not served: its registrations are not seen, and their keys would still work when a range
/// has a new owner.
pub(crate) fn opened(object: &'static Object, md: MdHandle) {
    static ONCE: Once = Once::new();
    let bytes = config::get().arena();
    if bytes == 0 {
        return;
    }
    match domains::state(md) {
        State::Served => {}
        State::NotServed => return stop("UCX has a memory domain that the library does not serve"),
        State::Unknown => return,
    }
    ONCE.call_once(|| match make(object, bytes) {
        Ok(()) => log::info!("arena of {} MiB", bytes >> 20),
        Err(why) => log::warning!("UCX_XGVMI_ARENA is off: {why}"),
    });
}

/// Stops giving out ranges; those of the program stay.
fn stop(why: Off) {
    if IS_OPEN.swap(false, Ordering::Relaxed) {
        log::warning!("UCX_XGVMI_ARENA gives out no further memory: {why}");
    }
}

fn make(object: &'static Object, bytes: usize) -> Result<(), Off> {
    let count = bytes / SLAB_BYTES;
    if count == 0 {
        return Err("its size is less than one slab of 32 MiB");
    }
    safety::check(object)?;
    let ucm = Ucm::find(|name| object.symbol(name)).ok_or("this UCX has no memory events")?;
    let place = Place::find();
    let bytes = count * SLAB_BYTES;
    let base = place
        .reserve(&ucm, bytes)
        .ok_or("no address space for it")?;
    let slabs = memory::zeroed::<Slab>(&ucm, count).ok_or("no memory for its table")?;
    let keys = memory::zeroed::<SlabKeys>(&ucm, count).ok_or("no memory for its table")?;
    let handles = memory::zeroed::<Handle>(&ucm, HANDLES).ok_or("no memory for its handles")?;
    // SAFETY: a zeroed `Slab` is an absent one. The mapping has `count` of them, nothing else uses
    // it, and it is never removed.
    let slabs = unsafe { std::slice::from_raw_parts_mut(slabs.as_ptr(), count) };
    // SAFETY: a zeroed `SlabKeys` has no key. As above.
    let keys = unsafe { std::slice::from_raw_parts_mut(keys.as_ptr(), count) };
    let first = handles.addr().get();
    let table = Table {
        slabs: Slabs::new(slabs),
        keys,
        // SAFETY: the mapping is zeroed, has space for all handles, and is never removed.
        handles: unsafe { Handles::new(handles) },
        upkeep_ms: 0,
        is_upkeep_running: false,
    };
    let arena = Box::leak(Box::new(Arena {
        ucm,
        place,
        base,
        bytes,
        table: Lock::new(table),
        handles: (first, first + HANDLES * size_of::<Handle>()),
        age_ms: u64::try_from(config::get().arena_age().as_millis()).unwrap_or(u64::MAX),
    }));
    ARENA.store(std::ptr::from_mut(arena), Ordering::Release);
    // SAFETY: the handler accepts every event.
    if !unsafe { ucm.add(events::handler) }.is_ok() {
        return Err("UCX has no memory events (UCX_MEM_EVENTS)");
    }
    if !ucm.test().is_ok() {
        ucm.remove(events::handler);
        return Err("UCX's memory events do not arrive");
    }
    FROM.store(base, Ordering::Relaxed);
    TO.store(base + bytes, Ordering::Release);
    IS_OPEN.store(true, Ordering::Release);
    Ok(())
}

impl Arena {
    /// The parts of an address range inside the arena: slab and pages. Partial pages count.
    fn parts(&self, address: usize, length: usize) -> impl Iterator<Item = (usize, Span)> + use<> {
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
    fn part(&self, address: usize, length: usize) -> Option<(usize, Span)> {
        let is_inside = address >= self.base
            && length > 0
            && address.checked_add(length)? <= self.base + self.bytes;
        let mut parts = self.parts(address, length);
        let part = parts.next().filter(|_| is_inside)?;
        parts.next().is_none().then_some(part)
    }

    /// Address of a slab's pages.
    fn address(&self, slab: usize, span: Span) -> usize {
        self.base + slab * SLAB_BYTES + span.first * PAGE
    }

    /// Retires all pages of the arena in a range.
    fn retire(&self, address: usize, length: usize) {
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
fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the result can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let (seconds, nanos) = (time.tv_sec, time.tv_nsec);
    u64::try_from(seconds * 1000 + nanos / 1_000_000).unwrap_or(0)
}
