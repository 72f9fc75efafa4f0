//! What the arena promises, one case per promise. Each case compares what the program's processor sees with what the
//! device reads, and looks at the library's counters. A case ends with an error if the promise does not hold.

use anyhow::{Context as _, Result, bail, ensure};
use xgvmi_ucp::MappedRange;

use super::memory::{Allocator, Fresh, map, wrong_bytes};
use super::sides::{Devices, Sides, export, export_part};
use super::stats::Stats;

mod kept;
mod kernel;
mod several;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of most buffers.
const BYTES: usize = 64 * KIB;
/// Buffers after which a freed range must have come back.
const SOON: usize = 512;

pub(crate) fn run(devices: &Devices, case: &str) -> Result<()> {
    match case {
        "reuse" => reuse(devices),
        "small_pages" => {
            ensure!(
                // SAFETY: it has no preconditions.
                unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } == 0,
                "prctl"
            );
            reuse(devices)
        }
        "stale" => stale(devices),
        "resting" => resting(devices),
        "neighbour" => neighbour(devices),
        "edge" => edge(devices),
        "remote_key" => several::remote_key(devices),
        "advice" => kernel::advice(devices),
        "remap" => kernel::remap(devices),
        "fixed" => kernel::fixed(devices),
        "parts" => kernel::parts(devices),
        "protect" => kernel::protect(devices),
        "fork" => kernel::fork(devices),
        "node" => kernel::node(devices),
        "full" => full(devices),
        "refused" => refused(devices),
        "idle" => idle(devices),
        "limit" => limit(devices),
        "domains" => several::domains(devices),
        "threads" => several::threads(devices),
        "many" => several::many(devices),
        "room" => several::room(devices),
        "space" => several::space(devices),
        "off" => off(devices),
        "kept_again" => kept::again(devices),
        "kept_changed" => kept::changed(devices),
        "kept_bounded" => kept::bounded(devices),
        "kept_memory_limit" => kept::memory_limit(devices),
        "kept_limit_of_another" => kept::limit_of_another(devices),
        "kept_several" => kept::several(devices),
        "kept_off" => kept::off(devices),
        "hold" => hold(devices),
        other => bail!("no case '{other}'"),
    }?;
    println!("kept: {case}");
    Ok(())
}

/// A mapping of the program with content.
fn filled(bytes: usize, salt: u64) -> Result<Fresh> {
    let buffer = Fresh::new(Allocator::Mmap, bytes)?;
    ensure!(
        buffer.bytes().iter().all(|byte| *byte == 0),
        "fresh memory is not zero"
    );
    buffer.fill(salt);
    Ok(buffer)
}

/// The device reads the bytes that the processor sees.
fn same(sides: &mut Sides, buffer: &Fresh) -> Result<()> {
    let read = sides.transfer(buffer)?;
    ensure!(
        read == buffer.bytes(),
        "the device reads other bytes at {:#x}",
        buffer.address()
    );
    Ok(())
}

/// A fresh buffer at an address that was given up.
fn again_at(address: usize, bytes: usize, sides: &mut Sides) -> Result<Fresh> {
    let mut others = Vec::new();
    for salt in 0..SOON {
        let buffer = filled(bytes, salt as u64)?;
        if buffer.address() == address {
            return Ok(buffer);
        }
        // UCX releases old registrations when it makes a new one. An export would use the pool's keys up.
        // SAFETY: the buffer outlives its registration.
        let mapped = unsafe { MappedRange::new(&sides.host, buffer.pointer(), bytes) }?;
        mapped.unmap()?;
        others.push(buffer);
    }
    bail!("{address:#x} did not come back in {SOON} buffers")
}

fn reuse(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(16 * MIB)?;
    let mut mapped = 0;
    for size in [16 * KIB, 20_000, 128 * KIB, MIB, 16 * MIB] {
        for allocator in [Allocator::Malloc, Allocator::Mmap] {
            for round in 0..6 {
                let buffer = Fresh::new(allocator, size)?;
                let is_zero = || buffer.bytes().iter().all(|byte| *byte == 0);
                ensure!(
                    allocator == Allocator::Malloc || is_zero(),
                    "memory is not zero"
                );
                buffer.fill(round);
                let read = sides.transfer(&buffer)?;
                ensure!(
                    wrong_bytes(round, &read) == 0,
                    "wrong bytes, {size}, {allocator:?}"
                );
                mapped += u64::from(allocator == Allocator::Mmap);
            }
        }
    }
    // SAFETY: it has no preconditions.
    let zeros = unsafe { libc::calloc(BYTES, 1) }.cast::<u8>();
    // SAFETY: calloc gave this number of bytes.
    let zeros = unsafe { std::slice::from_raw_parts(zeros, BYTES) };
    ensure!(
        zeros.iter().all(|byte| *byte == 0),
        "calloc gives other bytes than zero"
    );
    let stats = Stats::now();
    // glibc maps no buffer that its heap has space for; UCX's own cache keeps its registration.
    ensure!(
        stats.arena_registrations >= mapped && stats.arena_left == 0,
        "{stats:?}"
    );
    ensure!(
        stats.exports() >= mapped && stats.arena_zeroed > 0,
        "{stats:?}"
    );
    ensure!(
        stats.arena_retired == 0 && stats.keys_in_use() <= 4,
        "{stats:?}"
    );
    Ok(())
}

fn stale(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let mut old_dpu = devices.dpu(BYTES)?;
    let old = filled(BYTES, 1)?;
    let (mapped, exported) = export(&sides.host, &old)?;
    let peer = old_dpu.import(&exported)?;
    ensure!(
        old_dpu.read(&peer, old.address(), BYTES)? == old.bytes(),
        "the first read"
    );
    let address = old.address();
    drop(old);
    mapped.unmap()?;
    let new = again_at(address, BYTES, &mut sides)?;
    let (_mapped, _exported) = export(&sides.host, &new)?;
    let registered = Stats::now();
    ensure!(registered.arena_left == 0, "{registered:?}");
    if let Ok(read) = old_dpu.read(&peer, address, BYTES) {
        bail!("a stale peer reads {} bytes of a new buffer", read.len());
    }
    // The new buffer is not affected.
    same(&mut sides, &new)
}

fn resting(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let old = filled(BYTES, 1)?;
    let (mapped, exported) = export(&sides.host, &old)?;
    let address = old.address();
    drop(old);
    let mut held = Vec::new();
    for salt in 0..SOON / 4 {
        let buffer = filled(BYTES, salt as u64)?;
        let is_apart = buffer.address().abs_diff(address) >= BYTES;
        ensure!(is_apart, "a range with a handle has a new owner");
        same(&mut sides, &buffer)?;
        held.push(buffer);
    }
    drop(held);
    drop(exported);
    mapped.unmap()?;
    again_at(address, BYTES, &mut sides)?;
    Ok(())
}

fn neighbour(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(2 * BYTES)?;
    let both: Vec<_> = (0..8)
        .map(|salt| filled(BYTES, salt))
        .collect::<Result<_>>()?;
    let pair = |one: &&Fresh| {
        both.iter()
            .any(|other| other.address() == one.address() + BYTES)
    };
    let one = both.iter().find(pair).context("no two neighbours")?;
    let (_mapped, exported) = export(&sides.host, one)?;
    let peer = sides.dpu.import(&exported)?;
    let own = sides.dpu.read(&peer, one.address(), BYTES)? == one.bytes();
    ensure!(own, "the exported buffer");
    if sides
        .dpu
        .read(&peer, one.address() + BYTES - 4096, 8192)
        .is_ok()
    {
        bail!("a peer reads beyond the exported buffer");
    }
    let stats = Stats::now();
    ensure!(
        stats.arena_registrations > 0 && stats.arena_left == 0,
        "{stats:?}"
    );
    Ok(())
}

/// One registration over two slabs, which UCX makes itself.
fn edge(devices: &Devices) -> Result<()> {
    const HALF: usize = 16 * MIB;
    let mut sides = devices.open(HALF)?;
    // Two fill a slab, so three neighbours are in two slabs.
    let mut buffers = (0..8)
        .map(|salt| filled(HALF, salt))
        .collect::<Result<Vec<_>>>()?;
    buffers.sort_unstable_by_key(Fresh::address);
    let three = buffers.windows(3).find(|three| {
        let apart = |pair: &[Fresh]| pair[1].address() - pair[0].address();
        three.windows(2).all(|pair| apart(pair) == HALF)
    });
    let [first, second, _] = three.context("no neighbours")? else {
        bail!("a window of three");
    };
    let before = Stats::now();
    let (mapped, exported) = export_part(&sides.host, first.pointer(), 3 * HALF)?;
    let peer = sides.dpu.import(&exported)?;
    for at in [HALF / 2, HALF + HALF / 2] {
        let read = sides.dpu.read(&peer, first.address() + at, HALF)?;
        // SAFETY: the three buffers are neighbours, and nothing writes to them.
        let bytes = unsafe { std::slice::from_raw_parts(first.pointer().add(at), HALF) };
        ensure!(read == bytes, "the device reads other bytes over the edge");
    }
    let after = Stats::now();
    ensure!(after.arena_left == before.arena_left + 1, "{after:?}");
    ensure!(
        after.arena_retired - before.arena_retired == 3 * HALF as u64,
        "{after:?}"
    );
    peer.release()?;
    drop(exported);
    mapped.unmap()?;
    let again = second.address();
    drop(buffers);
    // The registered pages were unmapped really and do not come back.
    for salt in 0..8 {
        let buffer = filled(HALF, salt)?;
        let is_apart = buffer.address().abs_diff(again) >= HALF;
        ensure!(
            is_apart || Stats::now().arena_ranges == after.arena_ranges,
            "a retired range"
        );
        same(&mut sides, &buffer)?;
    }
    Ok(())
}

/// The caller gives an arena of one slab.
fn full(devices: &Devices) -> Result<()> {
    const LARGE: usize = 6 * MIB;
    const COUNT: u64 = 8;
    let mut sides = devices.open(LARGE)?;
    for _ in 0..3 {
        // UCX releases old registrations when it makes a new one.
        same(&mut sides, &filled(BYTES, 0)?)?;
        let before = Stats::now();
        let mut buffers = Vec::with_capacity(8);
        for salt in 0..COUNT {
            buffers.push(filled(LARGE, salt)?);
        }
        let served = Stats::now().arena_ranges - before.arena_ranges;
        for (salt, buffer) in (0..).zip(&buffers) {
            same(&mut sides, buffer)?;
            ensure!(wrong_bytes(salt, buffer.bytes()) == 0, "a buffer changed");
        }
        let after = Stats::now();
        ensure!(
            (1..=5).contains(&served),
            "{served} of {COUNT} buffers fit into 32 MiB"
        );
        ensure!(
            after.arena_left == 0 && after.arena_bytes <= 32 * MIB as u64,
            "{after:?}"
        );
    }
    Ok(())
}

/// The caller makes the device refuse to register a slab.
fn refused(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    const COUNT: u64 = 64;
    for salt in 0..COUNT {
        let buffer = filled(BYTES, salt)?;
        same(&mut sides, &buffer)?;
    }
    let stats = Stats::now();
    ensure!(stats.arena_left > 0, "{stats:?}");
    ensure!(stats.exports() >= COUNT, "{stats:?}");
    Ok(())
}

/// The caller sets the time of idle slabs to zero.
/// The caller makes the device refuse a registration once. Idle slabs of another context make room for it.
fn limit(devices: &Devices) -> Result<()> {
    const LARGE: usize = 12 * MIB;
    let mut sides = devices.open(LARGE)?;
    let other = devices.host()?;
    // UCX's own memory stays in the first slab.
    same(&mut sides, &filled(BYTES, 0)?)?;
    let first = Stats::now().arena_bytes;
    let buffers: Vec<_> = (0..6)
        .map(|salt| filled(LARGE, salt))
        .collect::<Result<_>>()?;
    for buffer in &buffers {
        same(&mut sides, buffer)?;
    }
    drop(buffers);
    ensure!(Stats::now().arena_bytes > first, "no further slab");
    // Too large for the arena.
    let large = filled(20 * MIB, 7)?;
    for _ in 0..32 {
        // SAFETY: the buffer outlives its registration.
        let mapped = unsafe { MappedRange::new(&other, large.pointer(), large.length()) }?;
        mapped.unmap()?;
    }
    let stats = Stats::now();
    ensure!(stats.arena_bytes == first, "no slab made room: {stats:?}");
    same(&mut sides, &filled(LARGE, 8)?)
}

fn idle(devices: &Devices) -> Result<()> {
    const LARGE: usize = 12 * MIB;
    // Constants cannot be registered for writes.
    let other = vec![7_u8; 8192];
    let mut sides = devices.open(LARGE)?;
    // UCX's own memory stays in the first slab.
    same(&mut sides, &filled(BYTES, 0)?)?;
    let first = Stats::now().arena_bytes;
    ensure!(first > 0, "no slab");
    for _ in 0..3 {
        let mut buffers = Vec::with_capacity(6);
        for salt in 0..6 {
            buffers.push(filled(LARGE, salt)?);
        }
        for buffer in &buffers {
            same(&mut sides, buffer)?;
        }
        ensure!(Stats::now().arena_bytes > first, "no further slab");
        drop(buffers);
        let is_gone = (0..SOON).any(|at| {
            // Another registration makes UCX release the old ones.
            let start = other.as_ptr().wrapping_add(at);
            let done = export_part(&sides.host, start, 64).and_then(|(mapped, exported)| {
                drop(exported);
                Ok(mapped.unmap()?)
            });
            done.is_ok() && Stats::now().arena_bytes == first
        });
        ensure!(is_gone, "an idle slab stays: {:?}", Stats::now());
    }
    Ok(())
}

/// The caller makes the arena impossible.
fn off(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    for salt in 0..4 {
        let buffer = filled(BYTES, salt)?;
        same(&mut sides, &buffer)?;
    }
    let stats = Stats::now();
    ensure!(
        stats.arena_ranges == 0 && stats.arena_bytes == 0,
        "{stats:?}"
    );
    ensure!(stats.exports() >= 4, "{stats:?}");
    Ok(())
}

/// Holds exported buffers until it is killed.
fn hold(devices: &Devices) -> Result<()> {
    let host = devices.host()?;
    let buffers: Vec<_> = (0..32)
        .map(|salt| filled(BYTES, salt))
        .collect::<Result<_>>()?;
    let held: Vec<_> = buffers
        .iter()
        .map(|buffer| export(&host, buffer))
        .collect::<Result<_>>()?;
    let stats = Stats::now();
    ensure!(
        stats.arena_registrations >= 32 && stats.keys_in_use() >= 32,
        "{stats:?}"
    );
    println!("holding {}", held.len());
    loop {
        std::thread::park();
    }
}

/// A mapping at an address of the program's choice.
fn map_at(address: usize, bytes: usize, flags: i32) -> *mut libc::c_void {
    // SAFETY: the callers own the range.
    unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(address),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    }
}

/// True if a plain mapping of this size is possible.
fn can_map(bytes: usize) -> bool {
    let mapped = map(bytes);
    // SAFETY: the mapping is this function's own; of a failed one nothing is unmapped.
    mapped != libc::MAP_FAILED && unsafe { libc::munmap(mapped, bytes) } == 0
}
