//! Several memory domains, several threads, and remote keys without an export.

use anyhow::{Result, anyhow, bail, ensure};
use std::os::fd::AsFd as _;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Get, ImportedMemory, RemoteKey, Waiter};

use super::super::memory::{Allocator, Fresh, wrong_bytes};
use super::super::sides::{Devices, export, export_part};
use super::super::stats::Stats;
use super::{BYTES, KIB, MIB, filled, same};

/// A remote key reads the buffer, and nothing else of the slab.
pub(super) fn remote_key(devices: &Devices) -> Result<()> {
    let context = devices.host()?;
    let worker = context.worker(1)?;
    // SAFETY: the address is the worker's own.
    let endpoint = unsafe { worker.connect_for_gets(&worker.address()?, "this worker") }?;
    let mut buffer = Buffer::new(BYTES)?;
    buffer.as_mut_slice().fill(0x5a);
    // The buffer behind it is in the same slab.
    let behind = filled(BYTES, 1)?;
    let memory = ImportedMemory::own(&context, buffer)?;
    let packed = memory.pack_rkey()?;
    // SAFETY: the bytes are those of the key.
    let key = unsafe { RemoteKey::unpack(&endpoint, &packed) }?;
    let mut target = ImportedMemory::own(&context, Buffer::new(BYTES)?)?;
    let stats = Stats::now();
    ensure!(
        stats.arena_registrations >= 2 && stats.arena_left == 0,
        "{stats:?}"
    );
    let file = std::fs::File::open("/dev/null")?;
    let waiter = Waiter::new(Duration::from_secs(1), file.as_fd());
    let limit = Duration::from_secs(60);
    Get::start(&key, memory.address(), &target, target.address(), BYTES)?.wait(&waiter, limit)?;
    let read = target
        .own_bytes()
        .is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0x5a));
    ensure!(read, "the key does not read its buffer");
    let get = Get::start(
        &key,
        behind.address() as u64,
        &target,
        target.address(),
        BYTES,
    )?;
    if get.wait(&waiter, limit).is_ok() {
        bail!("a remote key reads another buffer of the slab");
    }
    Ok(())
}

pub(super) fn domains(devices: &Devices) -> Result<()> {
    let mut sides = devices.open(BYTES)?;
    let second = devices.host()?;
    let mut other = devices.dpu(BYTES)?;
    for round in 0..8 {
        let buffer = filled(BYTES, round)?;
        // One buffer with two handles.
        let (one, one_key) = export(&sides.host, &buffer)?;
        let (two, two_key) = export(&second, &buffer)?;
        let by_one = sides.dpu.import(&one_key)?;
        let by_two = other.import(&two_key)?;
        let read = wrong_bytes(round, sides.dpu.read(&by_one, buffer.address(), BYTES)?);
        ensure!(read == 0, "the first domain's key");
        ensure!(
            wrong_bytes(round, other.read(&by_two, buffer.address(), BYTES)?) == 0,
            "the second domain's key"
        );
        by_one.release()?;
        by_two.release()?;
        drop((one_key, two_key));
        one.unmap()?;
        let again = wrong_bytes(round, &{
            let (mapped, exported) = export(&second, &buffer)?;
            let peer = other.import(&exported)?;
            let bytes = other.read(&peer, buffer.address(), BYTES)?.to_vec();
            peer.release()?;
            drop(exported);
            mapped.unmap()?;
            bytes
        });
        ensure!(
            again == 0,
            "the second domain's key after the first one's release"
        );
        two.unmap()?;
    }
    let before = Stats::now();
    ensure!(
        before.arena_registrations >= 16 && before.arena_left == 0,
        "{before:?}"
    );
    drop(second);
    other.progress();
    let buffer = filled(BYTES, 9)?;
    same(&mut sides, &buffer)?;
    ensure!(Stats::now().arena_left == 0, "{:?}", Stats::now());
    Ok(())
}

/// The device refuses UCX a key while the pool of another context has free ones: those go, and UCX tries again. Each pool may
/// have `XGVMI_EXPORTS` keys.
pub(super) fn room(devices: &Devices) -> Result<()> {
    let exports: usize = std::env::var("XGVMI_EXPORTS")?.parse()?;
    let (idle, busy) = (devices.host()?, devices.host()?);
    let buffers = (0..=exports as u64).map(|salt| filled(BYTES, salt));
    let buffers: Vec<_> = buffers.collect::<Result<_>>()?;
    let hold = |context, count| -> Result<Vec<_>> {
        let buffers = buffers.iter().take(count);
        buffers.map(|buffer| export(context, buffer)).collect()
    };
    for (mapped, exported) in hold(&idle, exports)? {
        drop(exported);
        mapped.unmap()?;
    }
    let held = hold(&busy, exports)?;
    let before = Stats::now();
    ensure!(before.keys() == 2 * exports as u64, "{before:?}");
    let last = &buffers[exports];
    let (mapped, exported) = export(&busy, last)?;
    let after = Stats::now();
    let left = (before.exports_left(), after.exports_left());
    ensure!(
        left == (0, 1) && after.keys() == exports as u64,
        "{after:?}"
    );
    let mut dpu = devices.dpu(BYTES)?;
    let peer = dpu.import(&exported)?;
    let read = dpu.read(&peer, last.address(), BYTES)?;
    ensure!(read == last.bytes(), "the export that UCX made");
    peer.release()?;
    drop((exported, held));
    Ok(mapped.unmap()?)
}

/// The device has no space for a registration, then for an alias: free keys go for the first, unused aliases for the second,
/// and UCX's calls succeed.
pub(super) fn space(devices: &Devices) -> Result<()> {
    const KEYS: usize = 8;
    let (host, mut dpu) = (devices.host()?, devices.dpu(BYTES)?);
    let buffers = (0..=KEYS as u64).map(|salt| filled(BYTES, salt));
    let buffers: Vec<_> = buffers.collect::<Result<_>>()?;
    let held = buffers.iter().take(KEYS);
    let held: Vec<_> = held
        .map(|buffer| export(&host, buffer))
        .collect::<Result<_>>()?;
    for (mapped, exported) in held {
        dpu.import(&exported)?.release()?;
        drop(exported);
        mapped.unmap()?;
    }
    let before = Stats::now();
    ensure!(before.keys() == KEYS as u64, "{before:?}");
    let last = &buffers[KEYS];
    let (mapped, exported) = export(&host, last)?;
    let peer = dpu.import(&exported)?;
    let after = Stats::now();
    ensure!(after.keys() < before.keys(), "{after:?}");
    let read = dpu.read(&peer, last.address(), BYTES)?;
    ensure!(read == last.bytes(), "the export after both");
    peer.release()?;
    drop(exported);
    Ok(mapped.unmap()?)
}

/// Threads with a context each hold many exports at once, and the process forks meanwhile. `XGVMI_EXPORTS` is the
/// number of each thread. UCX's own cache is off, so each export has a handle of its own.
pub(super) fn many(devices: &Devices) -> Result<()> {
    const THREADS: usize = 8;
    const EXPORTS: usize = 256;
    let exports = std::env::var("XGVMI_EXPORTS");
    let exports = exports.map_or(Ok(EXPORTS), |number| number.parse())?;
    let (are_made, has_forked) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    thread::scope(|scope| {
        let work = |number: u64| {
            let (are_made, has_forked) = (&are_made, &has_forked);
            move || hold_many(devices, number, exports, [are_made, has_forked])
        };
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|number| scope.spawn(work(number)))
            .collect();
        are_made.wait();
        let forked = super::kernel::fork_once();
        has_forked.wait();
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(_) => bail!("a thread panicked"),
            }
        }
        forked
    })?;
    let stats = Stats::now();
    ensure!(stats.keys_in_use() == 0, "{stats:?}");
    println!(
        "exports {} left to UCX {}",
        stats.exports(),
        stats.exports_left()
    );
    Ok(())
}

fn hold_many(
    devices: &Devices,
    number: u64,
    exports: usize,
    [are_made, has_forked]: [&Barrier; 2],
) -> Result<()> {
    const PAGE: usize = 4 * KIB;
    let buffer = filled(exports * PAGE, number)?;
    let host = devices.host();
    let export_page = |at: usize| {
        let host = host.as_ref().map_err(|error| anyhow!("{error:#}"))?;
        export_part(host, buffer.pointer().wrapping_add(at * PAGE), PAGE)
    };
    let made: Result<Vec<_>> = (0..exports).map(export_page).collect();
    are_made.wait();
    has_forked.wait();
    let mut live: Vec<_> = made?.into_iter().map(Some).collect();
    let mut dpu = devices.dpu(PAGE)?;
    // Each third is released and exported anew, and some are read.
    for at in (0..exports).rev() {
        if at % 3 == 0
            && let Some((mapped, exported)) = live[at].take()
        {
            drop(exported);
            mapped.unmap()?;
            live[at] = Some(export_page(at)?);
        }
        if at % 16 == 0
            && let Some((_, exported)) = &live[at]
        {
            let peer = dpu.import(exported)?;
            let page = at * PAGE..(at + 1) * PAGE;
            let read = dpu.read(&peer, buffer.address() + page.start, PAGE)?;
            ensure!(
                read == &buffer.bytes()[page],
                "page {at} of thread {number}"
            );
            peer.release()?;
        }
    }
    for (mapped, exported) in live.into_iter().flatten() {
        drop(exported);
        mapped.unmap()?;
    }
    Ok(())
}

/// Eight threads make buffers; four of them register and export theirs.
pub(super) fn threads(devices: &Devices) -> Result<()> {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 150;
    let mut sides = devices.open(MIB)?;
    let worked = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || one_thread(devices, number, ROUNDS)))
            .collect();
        for round in 0..ROUNDS {
            let buffer = filled(MIB, round)?;
            same(&mut sides, &buffer)?;
        }
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(())
    });
    worked?;
    let stats = Stats::now();
    ensure!(stats.arena_registrations >= ROUNDS, "{stats:?}");
    Ok(())
}

fn one_thread(devices: &Devices, number: u64, rounds: u64) -> Result<()> {
    let host = number
        .is_multiple_of(2)
        .then(|| devices.host())
        .transpose()?;
    let mut held: Vec<(u64, Fresh)> = Vec::new();
    for round in 0..rounds {
        let salt = number << 32 | round;
        let size = (16 * KIB) << (round % 5);
        let allocator = [Allocator::Malloc, Allocator::Mmap][usize::from(round % 3 == 0)];
        let buffer = Fresh::new(allocator, size)?;
        let is_zero =
            allocator == Allocator::Malloc || buffer.bytes().iter().all(|byte| *byte == 0);
        ensure!(is_zero, "memory of thread {number} is not zero");
        buffer.fill(salt);
        if let Some(host) = &host {
            let (mapped, exported) = export(host, &buffer)?;
            drop(exported);
            mapped.unmap()?;
        }
        held.push((salt, buffer));
        if held.len() > 6 {
            let (salt, buffer) = held.swap_remove(usize::try_from(round % 6)?);
            ensure!(
                wrong_bytes(salt, buffer.bytes()) == 0,
                "another thread wrote to a buffer"
            );
        }
    }
    Ok(())
}
