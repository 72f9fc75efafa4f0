//! The cost of fresh buffers: time, registrations, commands, faults and resident bytes per iteration.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

use super::memory::{Allocator, Fresh, set_malloc, wrong_bytes};
use super::sides::{Devices, Sides, export};
use super::stats::Stats;

/// Iterations before the measured ones: slabs are registered and pools filled.
const WARM_UP: u64 = 24;
/// As many before counted instructions: the library then rarely renews the counters that `xgvmi stat` shows.
const WARM_UP_OF_STEPS: u64 = 160;
/// Commands that create or destroy keys and aliases.
const KEY_COMMANDS: [&str; 5] = [
    "create_mkey",
    "destroy_mkey",
    "allow_other_vhca_access",
    "create_alias",
    "destroy_alias",
];

/// Number of the system call that is a mark, see the crate `step-count`.
const MARK: i64 = 0x5847_564d;

/// Times of one iteration.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// Everything.
    whole: Duration,
    /// Mapping, touching, registration, export and release: all but import and transfer.
    host: Duration,
    /// Registration, export and release alone.
    keys: Duration,
}

/// Measures and prints one line of JSON.
pub(crate) fn run(devices: &Devices, words: &[String], counters: &[String]) -> Result<()> {
    let (size, allocator, rounds, keep) = match words {
        [size, allocator, rounds] => (size, allocator, rounds, false),
        [size, allocator, rounds, keep] if keep == "keep" => (size, allocator, rounds, true),
        _ => bail!("usage: measure SIZE malloc|mmap ROUNDS [keep]"),
    };
    let (size, rounds): (usize, u64) = (size.parse()?, rounds.parse()?);
    let allocator = Allocator::parse(allocator)?;
    if keep {
        // Freed memory stays in the heap, so UCX's own cache finds its registration.
        set_malloc(libc::M_MMAP_MAX, 0)?;
        set_malloc(libc::M_TRIM_THRESHOLD, i32::MAX)?;
    }
    let mut sides = devices.open(size)?;
    if counters.is_empty() {
        return stepped(&mut sides, allocator, size, rounds);
    }
    let mut mismatches = 0;
    for salt in 0..WARM_UP {
        one(&mut sides, allocator, size, salt, &mut mismatches)?;
    }
    let (before, faults, stats) = (count(counters)?, faults()?, Stats::now());
    let mut times = Vec::new();
    for salt in WARM_UP..WARM_UP + rounds {
        times.push(one(&mut sides, allocator, size, salt, &mut mismatches)?);
    }
    let (faults, after) = (self::faults()? - faults, count(counters)?);
    let zeroed = Stats::now().arena_zeroed - stats.arena_zeroed;
    let per_round = |count: u64| count as f64 / rounds as f64;
    let sum = |names: &[&str]| -> Result<f64> {
        let mut sum = 0;
        for name in names {
            sum += commands(&after, name)? - commands(&before, name)?;
        }
        Ok(per_round(sum))
    };
    let p50 = |part: fn(&Times) -> Duration| {
        let mut parts: Vec<_> = times.iter().map(part).collect();
        parts.sort_unstable();
        parts[parts.len() / 2].as_secs_f64() * 1e6
    };
    let row = json!({
        "size": size,
        "us": { "p50": p50(|times| times.whole) },
        "host_us": { "p50": p50(|times| times.host) },
        "keys_us": { "p50": p50(|times| times.keys) },
        "registrations": sum(&["reg_mr"])?,
        "commands": sum(&KEY_COMMANDS)?,
        "page_faults": per_round(faults),
        "bytes_zeroed": per_round(zeroed),
        "resident_bytes": resident()?,
        "mismatches": mismatches,
        "verified_bytes": (WARM_UP + rounds) * size as u64,
        "arena_left": Stats::now().arena_left,
    });
    println!("{row}");
    Ok(())
}

/// One buffer: made, filled, registered, exported, imported, transferred, and released.
fn one(
    sides: &mut Sides,
    allocator: Allocator,
    size: usize,
    salt: u64,
    mismatches: &mut usize,
) -> Result<Times> {
    let start = Instant::now();
    let buffer = Fresh::new(allocator, size)?;
    buffer.fill(salt);
    let filled = Instant::now();
    let (mapped, exported) = export(&sides.host, &buffer)?;
    let exported_at = Instant::now();
    let peer = sides.dpu.import(&exported)?;
    sides.dpu.read(&peer, buffer.address(), size)?;
    peer.release()?;
    let read_at = Instant::now();
    drop(exported);
    mapped.unmap()?;
    drop(buffer);
    let end = Instant::now();
    *mismatches += wrong_bytes(salt, sides.dpu.last(size)?);
    let keys = (exported_at - filled) + (end - read_at);
    Ok(Times {
        whole: end - start,
        host: (filled - start) + keys,
        keys,
    })
}

/// Rounds between marks, for a tool that counts instructions: 1 allocation, 2 registration and export, 3 release. The
/// program writes to the buffer only before the marks of registration, so the tool counts no copies.
fn stepped(sides: &mut Sides, allocator: Allocator, size: usize, rounds: u64) -> Result<()> {
    for salt in 0..WARM_UP_OF_STEPS {
        one(sides, allocator, size, salt, &mut 0)?;
    }
    for salt in 0..rounds {
        mark(1);
        let buffer = Fresh::new(allocator, size)?;
        mark(0);
        buffer.fill(salt);
        mark(2);
        let (mapped, exported) = export(&sides.host, &buffer)?;
        mark(0);
        let peer = sides.dpu.import(&exported)?;
        sides.dpu.read(&peer, buffer.address(), size)?;
        peer.release()?;
        mark(3);
        drop(exported);
        mapped.unmap()?;
        drop(buffer);
        mark(0);
    }
    println!("{rounds} rounds");
    Ok(())
}

fn mark(label: u64) {
    // SAFETY: no kernel has this system call: it fails, and touches nothing.
    unsafe { libc::syscall(MARK, label) };
}

/// The device's counters.
fn count(command: &[String]) -> Result<Value> {
    let (program, options) = command.split_first().context("no command")?;
    let output = Command::new(program)
        .args(options)
        .env_remove("LD_PRELOAD")
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A command's count over all functions.
fn commands(counters: &Value, name: &str) -> Result<u64> {
    let functions = counters["functions"].as_array().context("no functions")?;
    functions
        .iter()
        .map(|function| function["commands"][name].as_u64())
        .sum::<Option<u64>>()
        .with_context(|| format!("the device counts no {name}"))
}

/// Page faults of this process so far.
fn faults() -> Result<u64> {
    // SAFETY: an all-zero value is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the result can be written.
    let asked = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    ensure!(asked == 0, "no resource usage");
    Ok(u64::try_from(usage.ru_minflt)?)
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * 4096)
}
