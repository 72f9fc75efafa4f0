//! Cost of cross-GVMI keys in the installed UCX, through its public interface: time and doorbells of exports
//! and releases, the first use of imported keys, and the key of a large buffer.
//!
//! ```text
//! stock_pool LIBUCP HOST_DEVICE DPU_DEVICE -- COUNTERS...
//! ```
//!
//! Both devices are functions of one adapter, opened by this process. COUNTERS is a command that prints the device's
//! counters (see `bench_report::counters`). Prints one line a measurement, `NAME NUMBER`; times are in nanoseconds, each
//! of the best of several runs, as other work on the machine can but add to them. The key of a large buffer is the median
//! of several buffers instead: its one export is too short for a best of few runs.
//!
//! What `ucp_mem_map` and its like take for themselves and for the registration under the key is taken off: an export
//! counts what the first `ucp_memh_pack` takes longer than the second, which finds the key, and a release what
//! `ucp_mem_unmap` takes longer than that of a buffer which was never exported. The large buffer's release is left
//! out: its key goes in a fraction of the noise of its registration, which takes milliseconds.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use anyhow::{Context as _, Result, bail, ensure};
use bench_report::counters::Counters;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use ucx_sys::Ucp;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, ExportedMemh, ImportedMemory, MappedBuffer};

/// Buffers that are exported one after the other and then released.
const BUFFERS: usize = 64;
/// Size of each buffer: the smallest of the published table.
const BYTES: usize = 16 << 10;
/// Bytes of the large buffer.
const LARGE: usize = 4 << 30;
/// Buffers of a warm-up.
const WARM: usize = 8;
/// Number of runs. The result is the best one.
const RUNS: usize = 45;
/// Number of runs for slow measurements, with a new context each.
const LONG_RUNS: usize = 5;
/// Number of large buffers. They are exported one after the other. The first export executes code that no small buffer's
/// export does, and each registration takes so long that a processor meanwhile forgets this code.
const LARGE_BUFFERS: usize = 9;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (places, counters) = match words.iter().position(|word| word == "--") {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (&words[..], &words[words.len()..]),
    };
    let ([library, host, dpu], [_, ..]) = (places, counters) else {
        bail!("usage: stock_pool LIBUCP HOST_DEVICE DPU_DEVICE -- COUNTERS...");
    };
    let ucp = Ucp::load(Some(Path::new(library)))?;
    // Without UCX's registration cache, map registers a buffer and unmap deregisters it.
    let exporter = open(ucp, host, "n")?;
    // The first exports of a process create UCX's queue pair and fill its pool.
    best(2, || one_run(&exporter, BUFFERS, BYTES))?;
    let small = best(RUNS, || one_run(&exporter, BUFFERS, BYTES))?;
    tell("export_release", small.export() + small.release(), BUFFERS)?;
    doorbells(&exporter, counters)?;
    tell("export_4gib", large_key(&exporter)?, 1)?;
    first_touch(ucp, dpu, &exporter)
}

/// A context with one device.
fn open(ucp: &'static Ucp, device: &str, cache: &str) -> Result<Context> {
    for (name, value) in [
        ("UCX_NET_DEVICES", format!("{device}:1")),
        ("UCX_RCACHE_ENABLE", cache.to_owned()),
        ("UCX_TLS", "rc_x,self".to_owned()),
    ] {
        // SAFETY: this process has no thread but this one and UCX's own, which serves events and does not read the
        // environment; UCX reads it in the calls made here.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(Context::new(ucp, "stock_pool")?)
}

fn map(context: &Context, count: usize, bytes: usize) -> Result<Vec<MappedBuffer>> {
    (0..count)
        .map(|_| Ok(MappedBuffer::new(context, Buffer::untouched(bytes)?)?))
        .collect()
}

/// Exports each buffer and returns the total time.
fn export(buffers: &[MappedBuffer]) -> Result<(Vec<ExportedMemh>, Duration)> {
    let start = Instant::now();
    let exported: Result<Vec<_>, _> = buffers.iter().map(MappedBuffer::export).collect();
    Ok((exported?, start.elapsed()))
}

/// Releases the packed handles and each buffer's registration, and returns the time of the latter.
fn release(packed: Vec<ExportedMemh>, buffers: Vec<MappedBuffer>) -> Result<Duration> {
    drop(packed);
    let start = Instant::now();
    let unmapped: Result<Vec<_>, _> = buffers.into_iter().map(MappedBuffer::unmap).collect();
    let time = start.elapsed();
    drop(unmapped?);
    Ok(time)
}

/// Times of the parts of one run.
struct Times {
    first_export: Duration,
    second_export: Duration,
    exported_release: Duration,
    plain_release: Duration,
}

impl Times {
    /// Time of the keys alone, in nanoseconds. Noise can make it negative.
    fn export(&self) -> i128 {
        nanos(self.first_export) - nanos(self.second_export)
    }

    /// As for [`Times::export`].
    fn release(&self) -> i128 {
        nanos(self.exported_release) - nanos(self.plain_release)
    }

    fn min(&self, other: &Self) -> Self {
        Self {
            first_export: self.first_export.min(other.first_export),
            second_export: self.second_export.min(other.second_export),
            exported_release: self.exported_release.min(other.exported_release),
            plain_release: self.plain_release.min(other.plain_release),
        }
    }
}

/// Exports and releases a few small buffers, so that the export path is warm, as in a program that exports
/// continuously. The registration of a large buffer evicts everything else from the caches.
fn warm_up(context: &Context) -> Result<()> {
    let buffers = map(context, WARM, BYTES)?;
    let (packed, _) = export(&buffers)?;
    release(packed, buffers).map(drop)
}

/// Exports and releases `count` fresh buffers, and maps and unmaps the same number without an export.
fn one_run(context: &Context, count: usize, bytes: usize) -> Result<Times> {
    let buffers = map(context, count, bytes)?;
    warm_up(context)?;
    let (mut packed, first_export) = export(&buffers)?;
    let (more, second_export) = export(&buffers)?;
    packed.extend(more);
    Ok(Times {
        first_export,
        second_export,
        exported_release: release(packed, buffers)?,
        plain_release: release(Vec::new(), map(context, count, bytes)?)?,
    })
}

/// Time of the key of a large buffer: the median of several, in nanoseconds.
fn large_key(context: &Context) -> Result<i128> {
    let buffers = map(context, LARGE_BUFFERS, LARGE)?;
    warm_up(context)?;
    let (mut packed, mut times) = (Vec::new(), Vec::new());
    for buffer in &buffers {
        let (more, first) = export(std::slice::from_ref(buffer))?;
        packed.extend(more);
        let (more, second) = export(std::slice::from_ref(buffer))?;
        packed.extend(more);
        times.push(nanos(first) - nanos(second));
    }
    release(packed, buffers)?;
    times.sort_unstable();
    Ok(times[LARGE_BUFFERS / 2])
}

/// The best of each part.
fn best(runs: usize, mut run: impl FnMut() -> Result<Times>) -> Result<Times> {
    let mut best = run()?;
    for _ in 1..runs {
        best = best.min(&run()?);
    }
    Ok(best)
}

fn nanos(time: Duration) -> i128 {
    // A Duration of nanoseconds has 94 bits.
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

/// Prints the time of each part.
fn tell(name: &str, time_ns: i128, parts: usize) -> Result<()> {
    ensure!(
        time_ns > 0,
        "{name}: {time_ns} ns; the machine is too busy to tell it from nothing"
    );
    println!("{name} {}", time_ns / i128::try_from(parts)?);
    Ok(())
}

/// Doorbells of one run of exports and releases.
fn doorbells(context: &Context, counters: &[String]) -> Result<()> {
    let buffers = map(context, BUFFERS, BYTES)?;
    let before = count(counters)?;
    let (packed, _) = export(&buffers)?;
    release(packed, buffers)?;
    let counted = count(counters)?.since(&before)?.per_iteration(1);
    println!("doorbells_{BUFFERS} {}", counted.doorbells);
    Ok(())
}

fn count(command: &[String]) -> Result<Counters> {
    let output = Command::new(&command[0])
        .args(&command[1..])
        .env_remove("LD_PRELOAD")
        .output()
        .with_context(|| format!("cannot run {}", command[0]))?;
    ensure!(
        output.status.success(),
        "{}: {}\n{}",
        command.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(Counters::parse(&output.stdout)?)
}

/// Time until an importer has seen all keys once. Each run has a new context without imports.
fn first_touch(ucp: &'static Ucp, device: &str, exporter: &Context) -> Result<()> {
    let buffers = map(exporter, BUFFERS, BYTES)?;
    let (packed, _) = export(&buffers)?;
    let mut best = Duration::MAX;
    for _ in 0..LONG_RUNS {
        let importer = open(ucp, device, "y")?;
        let start = Instant::now();
        let imported: Result<Vec<_>, _> = packed
            .iter()
            // SAFETY: packed by this process's UCX, and unchanged.
            .map(|memh| unsafe { ImportedMemory::new(&importer, memh) })
            .collect();
        best = best.min(start.elapsed());
        drop(imported?);
    }
    release(packed, buffers)?;
    tell("first_touch", nanos(best), BUFFERS)
}
