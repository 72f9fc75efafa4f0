//! Registrations that stay after UCX has released them. The caller turns UCX's own cache of registrations off.

use anyhow::{Result, bail, ensure};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::thread;

use super::super::memory::{Allocator, Fresh, wrong_bytes};
use super::super::sides::{Devices, Sides, export, export_part};
use super::super::stats::Stats;
use super::{BYTES, KIB, MIB, filled, map_at, same};

fn pointer(address: usize) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Other content, which the device must read.
fn refilled(sides: &mut Sides, buffer: &Fresh, salt: u64) -> Result<()> {
    buffer.fill(salt);
    same(sides, buffer)
}

/// The registration of the buffer is kept, and the next transfer finds it.
fn kept_once(sides: &mut Sides, buffer: &Fresh) -> Result<()> {
    let before = Stats::now();
    for salt in 0..3 {
        refilled(sides, buffer, salt)?;
    }
    let after = Stats::now();
    ensure!(after.kept_hits >= before.kept_hits + 2, "{after:?}");
    ensure!(after.kept_now > 0, "{after:?}");
    Ok(())
}

/// The transfer finds no kept registration of the buffer.
fn not_kept(sides: &mut Sides, buffer: &Fresh, what: &str) -> Result<()> {
    let before = Stats::now();
    same(sides, buffer)?;
    let after = Stats::now();
    // The DPU's own registrations do not change.
    ensure!(
        after.kept_hits == before.kept_hits,
        "a registration outlives {what}: {after:?}"
    );
    Ok(())
}

/// The same buffer again and again, from each source of memory; a stale peer reads nothing.
pub(super) fn again(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    for (allocator, size) in [
        (Allocator::Mmap, BYTES),
        (Allocator::Malloc, 20_000),
        (Allocator::Malloc, MIB),
    ] {
        kept_once(&mut sides, &Fresh::new(allocator, size)?)?;
    }
    let buffer = filled(BYTES, 7)?;
    kept_once(&mut sides, &buffer)?;
    let mut old_dpu = devices.dpu(BYTES)?;
    let (mapped, exported) = export(&sides.host, &buffer)?;
    let peer = old_dpu.import(&exported)?;
    old_dpu.read(&peer, buffer.address(), BYTES)?;
    drop(exported);
    mapped.unmap()?;
    refilled(&mut sides, &buffer, 8)?;
    if old_dpu.read(&peer, buffer.address(), BYTES).is_ok() {
        bail!("a stale peer reads a buffer whose registration stayed");
    }
    // A part of the buffer, or more than it, is another registration.
    let before = Stats::now().kept_hits;
    let (mapped, exported) = export_part(&sides.host, buffer.pointer(), BYTES / 2)?;
    drop(exported);
    mapped.unmap()?;
    ensure!(Stats::now().kept_hits == before, "a part of the buffer");
    Ok(())
}

/// Each change of a mapping ends the registration: the device reads the new pages.
pub(super) fn changed(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    // Unmapped, and mapped again at the same address.
    let buffer = filled(BYTES, 1)?;
    kept_once(&mut sides, &buffer)?;
    ensure!(
        // SAFETY: the range is this function's own.
        unsafe { libc::munmap(buffer.pointer().cast(), BYTES) } == 0,
        "munmap"
    );
    let address = buffer.address();
    ensure!(
        map_at(address, BYTES, libc::MAP_FIXED_NOREPLACE) == pointer(address),
        "mmap"
    );
    buffer.fill(2);
    not_kept(&mut sides, &buffer, "munmap")?;
    // A part is replaced.
    kept_once(&mut sides, &buffer)?;
    let middle = address + 4 * KIB;
    ensure!(
        map_at(middle, 4 * KIB, libc::MAP_FIXED) == pointer(middle),
        "MAP_FIXED"
    );
    buffer.fill(3);
    not_kept(&mut sides, &buffer, "MAP_FIXED")?;
    // Pages are given up.
    kept_once(&mut sides, &buffer)?;
    // SAFETY: as above.
    let advised = unsafe { libc::madvise(buffer.pointer().cast(), 4 * KIB, libc::MADV_DONTNEED) };
    ensure!(advised == 0, "MADV_DONTNEED");
    buffer.fill(4);
    not_kept(&mut sides, &buffer, "MADV_DONTNEED")?;
    // Moved away, and other pages moved here.
    kept_once(&mut sides, &buffer)?;
    let other = filled(BYTES, 5)?.forget();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both ranges are this function's own.
    let moved = unsafe { libc::mremap(pointer(other), BYTES, BYTES, flags, pointer(address)) };
    ensure!(moved == pointer(address), "mremap");
    ensure!(wrong_bytes(5, buffer.bytes()) == 0, "mremap loses bytes");
    not_kept(&mut sides, &buffer, "mremap")?;
    // While UCX uses the registration.
    let (mapped, exported) = export(&sides.host, &buffer)?;
    ensure!(
        map_at(address, BYTES, libc::MAP_FIXED) == pointer(address),
        "MAP_FIXED"
    );
    drop(exported);
    mapped.unmap()?;
    buffer.fill(6);
    not_kept(&mut sides, &buffer, "a change before the release")?;
    // The kernel may copy pages when the parent writes.
    kept_once(&mut sides, &buffer)?;
    // SAFETY: the child ends at once.
    match unsafe { libc::fork() } {
        -1 => bail!("fork"),
        // SAFETY: it runs no destructor of the parent's objects.
        0 => unsafe { libc::_exit(0) },
        child => {
            buffer.fill(7);
            not_kept(&mut sides, &buffer, "a fork")?;
            // SAFETY: the child is this process's own.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    // Memory of a file, whose truncation gives it other pages without an event.
    shared_file(&mut sides)?;
    // Advice that changes no page.
    kept_once(&mut sides, &buffer)?;
    // SAFETY: the range is this function's own.
    let advised = unsafe { libc::madvise(buffer.pointer().cast(), BYTES, libc::MADV_WILLNEED) };
    ensure!(advised == 0, "MADV_WILLNEED");
    kept_once(&mut sides, &buffer)
}

fn shared_file(sides: &mut Sides) -> Result<()> {
    // SAFETY: the name ends in a zero byte.
    let file = unsafe { libc::memfd_create(c"kept".as_ptr(), libc::MFD_CLOEXEC) };
    ensure!(file >= 0, "memfd_create");
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(BYTES as u64)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_raw_fd();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            protection,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    ensure!(start != libc::MAP_FAILED, "mmap of a file");
    let before = Stats::now().kept_hits;
    for round in 0..3_u8 {
        // SAFETY: the mapping is this function's own.
        unsafe { start.cast::<u8>().write_bytes(round + 1, BYTES) };
        let (mapped, exported) = export_part(&sides.host, start.cast(), BYTES)?;
        let peer = sides.dpu.import(&exported)?;
        let read = sides.dpu.read(&peer, start.addr(), BYTES)?;
        let is_same = read.iter().all(|byte| *byte == round + 1);
        ensure!(is_same, "the device reads pages that the file has lost");
        peer.release()?;
        drop(exported);
        mapped.unmap()?;
        file.set_len(0)?;
        file.set_len(BYTES as u64)?;
    }
    ensure!(
        Stats::now().kept_hits == before,
        "a registration of a file stays"
    );
    ensure!(
        // SAFETY: as above.
        unsafe { libc::munmap(start, BYTES) } == 0,
        "munmap of a file"
    );
    Ok(())
}

/// The caller permits four registrations and 256 KiB.
pub(super) fn bounded(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    let small: Vec<_> = (0..16)
        .map(|salt| filled(16 * KIB, salt))
        .collect::<Result<_>>()?;
    let large = filled(MIB, 16)?;
    let medium: Vec<_> = (0..4)
        .map(|salt| filled(128 * KIB, salt))
        .collect::<Result<_>>()?;
    for buffer in small.iter().chain([&large]).chain(&medium).chain(&small) {
        same(&mut sides, buffer)?;
        let stats = Stats::now();
        let is_bounded = stats.kept_now <= 4 && stats.kept_bytes <= 256 * KIB as u64;
        ensure!(is_bounded, "{stats:?}");
    }
    // The last ones stay.
    let before = Stats::now();
    for buffer in &small[14..] {
        same(&mut sides, buffer)?;
    }
    let after = Stats::now();
    ensure!(after.kept_hits == before.kept_hits + 2, "{after:?}");
    ensure!(after.kept_now > 0, "{after:?}");
    Ok(())
}

/// The caller makes the device refuse a registration once: the kept ones make room for it.
pub(super) fn memory_limit(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(MIB)?;
    let buffers: Vec<_> = (0..32)
        .map(|salt| filled(BYTES, salt))
        .collect::<Result<_>>()?;
    let mut dropped = false;
    for buffer in &buffers {
        let before = Stats::now().kept_now;
        same(&mut sides, buffer)?;
        dropped |= Stats::now().kept_now < before;
    }
    ensure!(dropped, "no registration made room: {:?}", Stats::now());
    ensure!(Stats::now().exports() >= 32, "{:?}", Stats::now());
    Ok(())
}

/// As [`memory_limit`], but another context of the process registers: the first one's registrations make room.
pub(super) fn limit_of_another(devices: &Devices) -> Result<()> {
    const FIRST: u64 = 8;
    let mut sides = devices.open(MIB)?;
    let other = devices.host()?;
    let buffers: Vec<_> = (0..FIRST)
        .map(|salt| filled(BYTES, salt))
        .collect::<Result<_>>()?;
    for buffer in &buffers {
        same(&mut sides, buffer)?;
    }
    ensure!(Stats::now().kept_now >= FIRST, "{:?}", Stats::now());
    let mut least = u64::MAX;
    for salt in 0..32 {
        let buffer = filled(BYTES, salt)?;
        let start = pointer(buffer.address()).cast();
        let (mapped, exported) = export_part(&other, start, buffer.length())?;
        drop(exported);
        least = least.min(Stats::now().kept_now);
        mapped.unmap()?;
    }
    ensure!(
        least < FIRST,
        "{least} registrations stay: {:?}",
        Stats::now()
    );
    buffers
        .iter()
        .try_for_each(|buffer| same(&mut sides, buffer))
}

/// Threads with contexts of their own register the same buffers, and unmap others meanwhile.
pub(super) fn several(devices: &Devices) -> Result<()> {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 60;
    let mut sides = devices.open(MIB)?;
    let shared = filled(BYTES, 1)?;
    let (start, length) = (shared.address(), shared.length());
    thread::scope(|scope| {
        let work = |number: u64| {
            move || -> Result<()> {
                let host = devices.host()?;
                for round in 0..ROUNDS {
                    let own = filled(BYTES, number << 32 | round)?;
                    let both = [(own.address(), own.length()); 2];
                    for (start, length) in both.into_iter().chain([(start, length)]) {
                        let start = pointer(start).cast();
                        let (mapped, exported) = export_part(&host, start, length)?;
                        drop(exported);
                        mapped.unmap()?;
                    }
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(work(number)))
            .collect();
        for round in 0..ROUNDS {
            same(&mut sides, &filled(BYTES, round)?)?;
        }
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(())
    })?;
    let stats = Stats::now();
    ensure!(stats.kept_hits >= THREADS * ROUNDS, "{stats:?}");
    same(&mut sides, &shared)
}

/// The caller makes it impossible.
pub(super) fn off(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let buffer = filled(BYTES, 1)?;
    for salt in 0..4 {
        refilled(&mut sides, &buffer, salt)?;
    }
    let stats = Stats::now();
    ensure!(stats.kept_hits == 0 && stats.kept_now == 0, "{stats:?}");
    ensure!(stats.exports() >= 4, "{stats:?}");
    Ok(())
}
