//! Calls of the kernel on memory of the arena.

use anyhow::{Context as _, Result, bail, ensure};

use super::super::memory::{Allocator, Fresh, wrong_bytes};
use super::super::sides::{Devices, export, export_part};
use super::super::stats::Stats;
use super::{BYTES, KIB, MIB, again_at, can_map, filled, map_at, same};

fn pointer(address: usize) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

fn advise(address: usize, bytes: usize, advice: i32) -> i32 {
    // SAFETY: the callers own the range and expect its loss.
    unsafe { libc::madvise(pointer(address), bytes, advice) }
}

pub(super) fn advice(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    let buffer = filled(MIB, 1)?;
    let (mapped, exported) = export(&sides.host, &buffer)?;
    let middle = buffer.address() + 256 * KIB;
    for advice in [
        libc::MADV_NORMAL,
        libc::MADV_WILLNEED,
        libc::MADV_HUGEPAGE,
        20,
    ] {
        ensure!(advise(middle, BYTES, advice) == 0, "advice {advice} fails");
        ensure!(
            wrong_bytes(1, buffer.bytes()) == 0,
            "advice {advice} changes bytes"
        );
    }
    ensure!(
        advise(middle, BYTES, libc::MADV_REMOVE) != 0,
        "the kernel refuses it"
    );
    ensure!(advise(middle, BYTES, libc::MADV_FREE) == 0, "MADV_FREE");
    ensure!(
        advise(middle, BYTES, libc::MADV_DONTNEED) == 0,
        "MADV_DONTNEED"
    );
    let lost = &buffer.bytes()[256 * KIB..256 * KIB + BYTES];
    ensure!(
        lost.iter().all(|byte| *byte == 0),
        "MADV_DONTNEED leaves bytes"
    );
    let kept = [
        &buffer.bytes()[..256 * KIB],
        &buffer.bytes()[256 * KIB + BYTES..],
    ];
    ensure!(
        kept.iter().all(|part| part.iter().any(|byte| *byte != 0)),
        "other bytes are lost"
    );
    drop(exported);
    mapped.unmap()?;
    same(&mut sides, &buffer)?;
    ensure!(Stats::now().arena_retired == 0, "{:?}", Stats::now());
    // Advice that changes the mapping: the kernel gets it, and UCX registers the buffer.
    let before = Stats::now();
    ensure!(
        advise(middle, BYTES, libc::MADV_DONTDUMP) == 0,
        "MADV_DONTDUMP"
    );
    same(&mut sides, &buffer)?;
    ensure!(
        advise(middle, BYTES, libc::MADV_DONTNEED) == 0,
        "MADV_DONTNEED after it"
    );
    same(&mut sides, &buffer)?;
    let after = Stats::now();
    ensure!(after.arena_retired > before.arena_retired, "{after:?}");
    ensure!(after.arena_left > before.arena_left, "{after:?}");
    // A buffer whose pages the program cannot write to loses them as well.
    let closed = filled(BYTES, 2)?;
    ensure!(
        // SAFETY: the buffer is this function's own.
        unsafe { libc::mprotect(closed.pointer().cast(), BYTES, libc::PROT_READ) } == 0,
        "mprotect"
    );
    ensure!(
        advise(closed.address(), BYTES, libc::MADV_DONTNEED) == 0,
        "MADV_DONTNEED, read-only"
    );
    ensure!(
        closed.bytes().iter().all(|byte| *byte == 0),
        "MADV_DONTNEED leaves bytes"
    );
    Ok(())
}

pub(super) fn remap(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    let old = filled(BYTES, 3)?;
    same(&mut sides, &old)?;
    let address = old.forget();
    // SAFETY: the range is this function's own.
    let grown = unsafe { libc::mremap(pointer(address), BYTES, 4 * BYTES, libc::MREMAP_MAYMOVE) };
    ensure!(grown != libc::MAP_FAILED, "mremap fails");
    let bytes = unsafe_bytes(grown.cast(), 4 * BYTES);
    ensure!(wrong_bytes(3, &bytes[..BYTES]) == 0, "mremap loses bytes");
    ensure!(
        bytes[BYTES..].iter().all(|byte| *byte == 0),
        "mremap adds other bytes than zero"
    );
    compare(&mut sides, grown.cast(), 4 * BYTES)?;
    // SAFETY: as above.
    let shrunk = unsafe { libc::mremap(grown, 4 * BYTES, BYTES / 2, 0) };
    ensure!(shrunk == grown, "mremap moves a range that shrinks");
    ensure!(
        wrong_bytes(3, unsafe_bytes(shrunk.cast(), BYTES / 2)) == 0,
        "mremap loses bytes"
    );
    // SAFETY: as above.
    let refused = unsafe { libc::mremap(shrunk, BYTES / 2, 64 * MIB, 0) };
    ensure!(refused == libc::MAP_FAILED, "a range grew in place");
    ensure!(
        wrong_bytes(3, unsafe_bytes(shrunk.cast(), BYTES / 2)) == 0,
        "mremap loses bytes"
    );
    // To an address of the program's choice: the kernel moves the pages, and UCX registers them.
    let target = filled(BYTES, 4)?.forget();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both ranges are this function's own.
    let moved = unsafe { libc::mremap(shrunk, BYTES / 2, BYTES / 2, flags, pointer(target)) };
    ensure!(moved == pointer(target), "mremap to a fixed address");
    ensure!(
        wrong_bytes(3, unsafe_bytes(moved.cast(), BYTES / 2)) == 0,
        "mremap loses bytes"
    );
    let before = Stats::now().arena_left;
    compare(&mut sides, moved.cast(), BYTES / 2)?;
    ensure!(
        Stats::now().arena_left > before,
        "moved pages have the slab's key"
    );
    // glibc's own use of it.
    for round in 0..4 {
        let buffer = Fresh::new(Allocator::Malloc, BYTES)?;
        buffer.fill(round);
        // SAFETY: the buffer came from malloc and is given up.
        let larger = unsafe { libc::realloc(pointer(buffer.forget()), MIB) };
        ensure!(
            wrong_bytes(round, unsafe_bytes(larger.cast(), BYTES)) == 0,
            "realloc loses bytes"
        );
        compare(&mut sides, larger.cast(), MIB)?;
        // SAFETY: it came from realloc.
        unsafe { libc::free(larger) };
    }
    Ok(())
}

/// The device reads the bytes that the processor sees.
fn compare(sides: &mut super::Sides, start: *mut u8, length: usize) -> Result<()> {
    let (mapped, exported) = export_part(&sides.host, start, length)?;
    let peer = sides.dpu.import(&exported)?;
    let read = sides.dpu.read(&peer, start.addr(), length)?;
    ensure!(
        read == unsafe_bytes(start, length),
        "the device reads other bytes"
    );
    peer.release()?;
    drop(exported);
    Ok(mapped.unmap()?)
}

fn unsafe_bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    // SAFETY: the callers own a mapping of this length, and use the bytes before they change it.
    unsafe { std::slice::from_raw_parts(start, length) }
}

pub(super) fn fixed(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(4 * BYTES)?;
    let buffer = filled(4 * BYTES, 5)?;
    same(&mut sides, &buffer)?;
    let before = Stats::now();
    let middle = buffer.address() + BYTES;
    ensure!(
        map_at(middle, BYTES, libc::MAP_FIXED_NOREPLACE) == libc::MAP_FAILED,
        "it is mapped"
    );
    ensure!(
        Stats::now().arena_retired == before.arena_retired,
        "a refused mapping retires pages"
    );
    ensure!(
        map_at(middle, BYTES, libc::MAP_FIXED) == pointer(middle),
        "MAP_FIXED"
    );
    let new = &buffer.bytes()[BYTES..2 * BYTES];
    ensure!(new.iter().all(|byte| *byte == 0), "the mapping is not new");
    same(&mut sides, &buffer)?;
    let after = Stats::now();
    // The device would read the old pages under the slab's key.
    ensure!(after.arena_left == before.arena_left + 1, "{after:?}");
    ensure!(after.arena_retired > before.arena_retired, "{after:?}");
    drop(buffer);
    for salt in 0..32 {
        let other = filled(4 * BYTES, salt)?;
        let overlaps = other.address() < middle + BYTES && middle < other.address() + 4 * BYTES;
        ensure!(!overlaps, "a retired range has a new owner");
        same(&mut sides, &other)?;
    }
    Ok(())
}

pub(super) fn parts(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(4 * BYTES)?;
    let buffer = filled(4 * BYTES, 6)?;
    same(&mut sides, &buffer)?;
    let middle = buffer.address() + BYTES;
    ensure!(
        // SAFETY: the range is this function's own.
        unsafe { libc::munmap(pointer(middle), BYTES) } == 0,
        "munmap of a part"
    );
    let other = again_at(middle, BYTES, &mut sides)?;
    let parts = [(0, 1), (2, 4)];
    for (from, to) in parts {
        let range = from * BYTES..to * BYTES;
        let length = range.len();
        let start = buffer.pointer().wrapping_add(range.start);
        compare(&mut sides, start, length)?;
    }
    // The rest in one call, with the part of another owner in between left out.
    let end = middle + BYTES;
    ensure!(
        // SAFETY: as above.
        unsafe { libc::munmap(pointer(end), 2 * BYTES) } == 0,
        "munmap of the end"
    );
    ensure!(
        // SAFETY: as above.
        unsafe { libc::munmap(buffer.pointer().cast(), BYTES) } == 0,
        "munmap of the start"
    );
    buffer.forget();
    same(&mut sides, &other)?;
    drop(other);
    // Nothing of the program is in this range any more; the kernel accepts that.
    ensure!(
        // SAFETY: as above.
        unsafe { libc::munmap(pointer(middle), BYTES) } == 0,
        "munmap without a mapping"
    );
    ensure!(Stats::now().arena_left == 0, "{:?}", Stats::now());
    Ok(())
}

pub(super) fn protect(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let buffer = filled(BYTES, 7)?;
    same(&mut sides, &buffer)?;
    // SAFETY: the range is this function's own, and nothing reads it before it has a new owner.
    let closed = unsafe { libc::mprotect(buffer.pointer().cast(), BYTES, libc::PROT_NONE) };
    ensure!(closed == 0, "mprotect");
    let address = buffer.address();
    drop(buffer);
    let again = again_at(address, BYTES, &mut sides)?;
    same(&mut sides, &again)
}

pub(super) fn fork(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let buffer = filled(BYTES, 8)?;
    let (mapped, exported) = export(&sides.host, &buffer)?;
    let peer = sides.dpu.import(&exported)?;
    for round in 0..4 {
        // SAFETY: the child calls malloc, free and munmap, which fork protects, and ends at once.
        match unsafe { libc::fork() } {
            -1 => bail!("fork"),
            0 => {
                let is_right = in_child(buffer);
                // SAFETY: it runs no destructor of the parent's objects.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            child => {
                let mut status = -1;
                // SAFETY: the child is this process's own.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                ensure!(status == 0, "the child ends with {status}, round {round}");
            }
        }
        ensure!(
            wrong_bytes(8, buffer.bytes()) == 0,
            "the child changes its parent's buffer"
        );
        let read = sides.dpu.read(&peer, buffer.address(), BYTES)?;
        ensure!(
            wrong_bytes(8, read) == 0,
            "the device reads other bytes after a fork"
        );
        let other = filled(BYTES, round)?;
        same(&mut sides, &other)?;
    }
    drop(exported);
    peer.release()?;
    mapped.unmap()?;
    ensure!(Stats::now().arena_left == 0, "{:?}", Stats::now());
    Ok(())
}

/// A child that allocates and ends.
pub(super) fn fork_once() -> Result<()> {
    // SAFETY: as in `fork`.
    match unsafe { libc::fork() } {
        -1 => bail!("fork"),
        0 => {
            let own = Fresh::new(Allocator::Malloc, BYTES);
            // SAFETY: as in `fork`.
            unsafe { libc::_exit(i32::from(own.is_err())) };
        }
        child => {
            let mut status = -1;
            // SAFETY: the child is this process's own.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            ensure!(status == 0, "the child ends with {status}");
            Ok(())
        }
    }
}

/// The child has its parent's buffer, and memory of its own.
fn in_child(buffer: Fresh) -> bool {
    let mut is_right = wrong_bytes(8, buffer.bytes()) == 0;
    for salt in 0..16 {
        let Ok(own) = Fresh::new(Allocator::Malloc, BYTES) else {
            return false;
        };
        own.fill(salt);
        is_right &= wrong_bytes(salt, own.bytes()) == 0;
    }
    buffer.fill(99);
    is_right &= wrong_bytes(99, buffer.bytes()) == 0;
    drop(buffer);
    is_right && can_map(BYTES)
}

/// Pages are on the node of the thread that asks for them.
pub(super) fn node(devices: &Devices) -> Result<()> {
    const BY_ADDRESS: i32 = 1 << 1;
    const NODE: i32 = 1 << 0;
    let mut sides = devices.open(BYTES)?;
    let (mut processor, mut here) = (0_u32, 0_u32);
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the results can be written.
    unsafe { libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut here, none) };
    for salt in 0..8 {
        let buffer = filled(BYTES, salt)?;
        same(&mut sides, &buffer)?;
        let mut found = -1_i32;
        // SAFETY: the kernel writes one number.
        let asked = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut found,
                none,
                0,
                buffer.address(),
                BY_ADDRESS | NODE,
            )
        };
        // A kernel without NUMA, or a container that forbids the question, has no node to compare.
        ensure!(
            asked != 0 || u32::try_from(found) == Ok(here),
            "node {found} instead of {here}"
        );
    }
    let stats = Stats::now();
    ensure!(stats.arena_registrations >= 8, "{stats:?}");
    usize::try_from(stats.arena_ranges).context("a count")?;
    Ok(())
}
