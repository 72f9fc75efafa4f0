//! `cargo xtask bench service`: measures the cost of the service processes' own code per block without UCX, and writes
//! `target/bench/service.json`.
//!
//! Instructions are the difference of two runs under valgrind, which excludes the start-up. They include the stand-in's
//! own queues. Times are the median of several runs without valgrind.
//!
//! A call costs a fixed amount per message and an amount per block. With few ranks there are few blocks per message, so
//! the cost per block is high. The report's `cost` separates both: a line fitted to all rows. The scale model reads it.

use super::pool::instructions;
use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Total number of ranks, and of service processes on each of two nodes.
const JOBS: [(u32, u32); 10] = [
    (4, 1),
    (4, 4),
    (16, 1),
    (16, 4),
    (64, 1),
    (64, 4),
    (256, 1),
    (256, 4),
    (1024, 1),
    (1024, 4),
];

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
    println!("ranks  services  messages/block  instructions  us/block  bytes/rank");
    let mut rows = Vec::new();
    for (ranks, services) in JOBS {
        let counted = if can_count {
            Some(per_block(ranks, services)?)
        } else {
            None
        };
        let Measured {
            us,
            bytes,
            messages,
        } = time_and_memory(ranks, services)?;
        let shown = counted.map_or("-".to_owned(), |count| format!("{count:.0}"));
        println!(
            "{ranks:>5}  {services:>8}  {messages:>14.3}  {shown:>12}  {us:>8.3}  {bytes:>10.0}"
        );
        rows.push(json!({
            "ranks": ranks,
            "services_per_node": services,
            "block_bytes": BLOCK_BYTES,
            "transport": "stand-in",
            "messages_per_block": messages,
            "instructions_per_block": counted,
            // Of a rank's call in all services together.
            "instructions_per_call": counted.map(|count| count * f64::from(ranks)),
            "us_per_block": { "ours": us, "ucx": null, "device": null },
            "bytes_per_rank": bytes,
            "connect_ms": null,
        }));
    }
    let cost = cost(&rows)?;
    println!("cost: {cost}");
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

/// Measurements of a job: microseconds and messages per block, and peak memory of a service in bytes per rank.
struct Measured {
    us: f64,
    bytes: f64,
    messages: f64,
}

fn time_and_memory(ranks: u32, services: u32) -> Result<Measured> {
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
    Ok(Measured {
        us: times[RUNS / 2],
        bytes: peak / f64::from(ranks),
        messages,
    })
}

/// Cost per block and per message, as the line through all rows with the least relative error.
fn cost(rows: &[Value]) -> Result<Value> {
    let line = |field: &str| -> Option<(f64, f64)> {
        let points: Option<Vec<(f64, f64)>> = rows
            .iter()
            .map(|row| {
                Some((
                    row["messages_per_block"].as_f64()?,
                    row.pointer(field)?.as_f64()?,
                ))
            })
            .collect();
        fitted(&points?)
    };
    let (us_per_block, us_per_message) =
        line("/us_per_block/ours").context("no line through the rows' times")?;
    let counted = line("/instructions_per_block");
    Ok(json!({
        "us_per_block": us_per_block,
        "us_per_message": us_per_message,
        "instructions_per_block": counted.map(|(block, _)| block),
        "instructions_per_message": counted.map(|(_, message)| message),
    }))
}

/// `a` and `b` of the line `y = a + b x` with the least sum of squared relative errors. `None` if the points determine
/// no line.
fn fitted(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points.iter().copied().filter(|(_, y)| *y > 0.0) {
        let weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wxx += weight * x * x;
        wy += weight * y;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    let (a, b) = (
        (wy * wxx - wx * wxy) / determinant,
        (w * wxy - wx * wy) / determinant,
    );
    (a.is_finite() && b.is_finite()).then_some((a, b))
}

fn program(ranks: u32, services: u32, rounds: u32) -> Command {
    let mut command = Command::new(workspace::target_dir().join("release/examples/service_cost"));
    command.args([ranks, services, BLOCK_BYTES, rounds].map(|number| number.to_string()));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_no_line_is_none() {
        let (a, b) = fitted(&[(0.1, 1.2), (0.5, 2.0), (2.0, 5.0)]).expect("a line");
        assert!((a - 1.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(fitted(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(fitted(&[]), None);
    }
}
