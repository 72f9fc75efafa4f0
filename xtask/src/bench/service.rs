//! `cargo xtask bench service`: measures the cost of the service processes' own code per block without UCX, and with
//! UCX on the emulated device, and writes `target/bench/service.json`.
//!
//! Without UCX, instructions are the difference of two runs under valgrind, which excludes the start-up. They include the stand-in's
//! own queues. Times are the median of several runs without valgrind. [`ucx`] has the rows with UCX.

mod ucx;

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

/// The report of a former run, for the rows that are not measured.
const COMMITTED: &str = "docs/results/service.json";

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let only = match options.as_slice() {
        [] => None,
        ["--transport", only @ ("ucx" | "stand-in")] => Some(*only),
        other => bail!(
            "bench service takes --transport ucx|stand-in, not '{}'",
            other.join(" ")
        ),
    };
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    let mut rows = Vec::new();
    if only != Some("ucx") {
        rows.extend(stand_in()?);
    }
    if only != Some("stand-in") {
        rows.extend(ucx::rows()?);
    }
    if let Some(only) = only {
        rows.extend(former(file, only)?);
        rows.sort_by_key(|row| row["transport"] == "ucx");
    }
    // A report of an earlier run must not count for a run that fails.
    let _ = fs::remove_file(file);
    let cost = doc_numbers::service::cost(&rows)?;
    let text = format!("{:#}\n", json!({ "schema": 2, "rows": rows, "cost": cost }));
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("report: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// The rows of the other transport: of the last run, or else the committed ones.
fn former(file: &Path, only: &str) -> Result<Vec<Value>> {
    let committed = workspace::root().join(COMMITTED);
    let text = fs::read_to_string(file).or_else(|_| fs::read_to_string(&committed));
    let text = text.with_context(|| format!("no {} and no {COMMITTED}", file.display()))?;
    let mut report: Value = serde_json::from_str(&text).context("the report of a former run")?;
    let rows = report["rows"]
        .as_array_mut()
        .context("a report without rows")?;
    rows.retain(|row| row["transport"] != only);
    Ok(std::mem::take(rows))
}

/// The rows without UCX.
fn stand_in() -> Result<Vec<Value>> {
    let can_count = instructions::can_count()?;
    if !can_count {
        println!("instructions not counted: valgrind is not installed (apt-get install valgrind)");
    }
    build()?;
    println!("ranks  services  instructions  us/block  bytes/rank  connect");
    let mut rows = Vec::new();
    let jobs = RANKS.map(|ranks| SERVICES.map(|services| (ranks, services)));
    for (ranks, services) in jobs.into_iter().flatten() {
        let counted = if can_count {
            Some(per_block(ranks, services)?)
        } else {
            None
        };
        let [us, bytes, messages] = time_and_memory(ranks, services)?;
        let connect_ms = connect_ms(ranks, services)?;
        let shown = counted.map_or("-".to_owned(), |count| format!("{count:.0}"));
        println!(
            "{ranks:>5}  {services:>8}  {shown:>12}  {us:>8.3}  {bytes:>10.0}  {connect_ms:>7.1}"
        );
        rows.push(json!({
            "ranks": ranks,
            "services_per_node": services,
            "block_bytes": BLOCK_BYTES,
            "transport": "stand-in",
            "messages_per_block": messages,
            "instructions_per_block": counted,
            "instructions_per_call": counted.map(|count| count * f64::from(ranks)),
            "instructions_of": { "ucx": null, "driver": null, "device": null, "other": null },
            "us_per_block": {
                "ours": us, "ucx": null, "driver": null, "device": null, "kernel": null, "other": null, "all": null,
            },
            "bytes_per_rank": bytes,
            "connect_ms": connect_ms,
        }));
    }
    Ok(rows)
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

/// Milliseconds until all ranks of a job are connected: the median of several jobs.
fn connect_ms(ranks: u32, services: u32) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let mut command = measured();
        command.arg("connect");
        command.args([ranks, services].map(|number| number.to_string()));
        let text = process::stdout(&mut command, LIMIT)?;
        let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
        let time = outcome["time_ns"].as_f64();
        times.push(time.context("service_cost says no time_ns")? / 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn program(ranks: u32, services: u32, rounds: u32) -> Command {
    let mut command = measured();
    command.args([ranks, services, BLOCK_BYTES, rounds].map(|number| number.to_string()));
    command
}

fn measured() -> Command {
    Command::new(workspace::target_dir().join("release/examples/service_cost"))
}
