//! `cargo xtask bench service`: measures the cost of the service processes' own code per block without UCX, and writes
//! `target/bench/service.json`.
//!
//! Instructions are the difference of two runs under valgrind, which excludes the start-up. They include the stand-in's
//! own queues. Times are the median of several runs without valgrind.

use super::pool::instructions;
use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Total numbers of ranks, and numbers of service processes on each of two nodes.
const RANKS: [u32; 5] = [4, 16, 64, 256, 1024];
const SERVICES: [u32; 2] = [1, 4];
const BLOCK_BYTES: u32 = 4096;
/// Minimum difference of blocks between the two runs.
const BLOCKS_MIN: u32 = 100_000;
/// Runs for the time.
const RUNS: usize = 5;
/// A million blocks take seconds under valgrind, and a minute on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench service takes no options, not '{option}'");
    }
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    // A report of an earlier run must not count for this run.
    let _ = fs::remove_file(file);
    let can_count = instructions::can_count()?;
    if !can_count {
        println!("instructions not counted: valgrind is not installed (apt-get install valgrind)");
    }
    build()?;
    println!("ranks  services  instructions  us/block  bytes/rank");
    let mut rows = Vec::new();
    let jobs = RANKS.map(|ranks| SERVICES.map(|services| (ranks, services)));
    for (ranks, services) in jobs.into_iter().flatten() {
        let counted = if can_count {
            Some(per_block(ranks, services)?)
        } else {
            None
        };
        let [us, bytes, messages] = time_and_memory(ranks, services)?;
        let shown = counted.map_or("-".to_owned(), |count| format!("{count:.0}"));
        println!("{ranks:>5}  {services:>8}  {shown:>12}  {us:>8.3}  {bytes:>10.0}");
        rows.push(json!({
            "ranks": ranks,
            "services_per_node": services,
            "block_bytes": BLOCK_BYTES,
            "transport": "stand-in",
            "messages_per_block": messages,
            "instructions_per_block": counted,
            "instructions_per_call": counted.map(|count| count * f64::from(ranks)),
            "us_per_block": { "ours": us, "ucx": null, "device": null },
            "bytes_per_rank": bytes,
            "connect_ms": null,
        }));
    }
    let cost = doc_numbers::service::cost(&rows)?;
    let text = format!("{:#}\n", json!({ "schema": 2, "rows": rows, "cost": cost }));
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("report: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the measured program.
pub(crate) fn build() -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "-p", "xgvmi-offload"]);
    command.args(["--example", "service_cost"]);
    let done = process::run(command.current_dir(workspace::root()), BUILD_LIMIT)?;
    if !done.ok() {
        bail!(
            "`{}`: {}\n{}",
            process::shown(&command),
            done.verdict(),
            done.output
        );
    }
    Ok(())
}

/// Instructions per block of a job.
pub(crate) fn per_block(ranks: u32, services: u32) -> Result<f64> {
    let blocks = ranks * ranks;
    let more = BLOCKS_MIN.div_ceil(blocks);
    let count = |rounds: u32| instructions::of(&mut program(ranks, services, rounds), LIMIT);
    let between = count(1 + more)?.saturating_sub(count(1)?);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    Ok(between as f64 / f64::from(more * blocks))
}

/// Microseconds per block, peak memory of a service in bytes per rank, and messages per block.
fn time_and_memory(ranks: u32, services: u32) -> Result<[f64; 3]> {
    let rounds = BLOCKS_MIN.div_ceil(ranks * ranks).max(2);
    let mut times = Vec::new();
    let (mut peak, mut messages) = (0.0, 0.0);
    for _ in 0..RUNS {
        let mut command = program(ranks, services, rounds);
        let text = process::stdout(&mut command, LIMIT)?;
        let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
        let number = |name: &str| {
            let found = outcome[name].as_f64();
            found.with_context(|| format!("service_cost says no {name}"))
        };
        let blocks = number("blocks")?;
        times.push(number("time_ns")? / 1e3 / blocks);
        messages = number("messages")? / blocks;
        peak = number("peak_bytes")?;
    }
    times.sort_by(f64::total_cmp);
    Ok([times[RUNS / 2], peak / f64::from(ranks), messages])
}

fn program(ranks: u32, services: u32, rounds: u32) -> Command {
    let mut command = Command::new(workspace::target_dir().join("release/examples/service_cost"));
    command.args([ranks, services, BLOCK_BYTES, rounds].map(|number| number.to_string()));
    command
}
