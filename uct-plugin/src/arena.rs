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
mod memory;
mod pages;
mod register;
mod safety;
mod slab_keys;
mod slabs;
mod state;

use std::sync::atomic::Ordering;

use crate::abi::MdHandle;
use crate::domains::{self, State};
use crate::event_lock::Lock;
use crate::first::Start;
use crate::hot::hot;
use crate::original::Object;
use crate::ucm::{self, Ucm};
use crate::{config, log};
use handles::{HANDLES, Handle, Handles};
use memory::Place;
use pages::SLAB_BYTES;
use safety::Off;
use slab_keys::SlabKeys;
use slabs::{Slab, Slabs};
use state::{ARENA, Arena, FROM, IS_OPEN, Table};

pub(crate) use register::{closing, is_ours, mem_dereg, mem_reg, mkey_pack, relieve};
pub(crate) use safety::table_is_patched;
pub(crate) use state::{exists, overlaps};

/// Starts the arena at the first served memory domain, if the options ask for it. Stops it at one
/// that is not served: its registrations are not seen, and their keys would still work when a range
/// has a new owner.
pub(crate) fn opened(object: &'static Object, md: MdHandle) {
    static START: Start = Start::new();
    let bytes = config::get().arena();
    if bytes == 0 {
        return;
    }
    match domains::state(md) {
        State::Served => {}
        State::NotServed => return stop("UCX has a memory domain that the library does not serve"),
        State::Unknown => return,
    }
    START.once(|| match make(object, bytes) {
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
    if !unsafe { ucm.add(ucm::OF_ARENA, events::handler) }.is_ok() {
        return Err("UCX has no memory events (UCX_MEM_EVENTS)");
    }
    if !ucm.test(ucm::OF_ARENA).is_ok() {
        ucm.remove(ucm::OF_ARENA, events::handler);
        return Err("UCX's memory events do not arrive");
    }
    FROM.store(base, Ordering::Relaxed);
    hot().arena_end.store(base + bytes, Ordering::Release);
    IS_OPEN.store(true, Ordering::Release);
    Ok(())
}
