//! `cargo xtask bench service`: measures the cost of the service processes' own code per block without UCX, and with
//! UCX on the emulated device, and the rates of its reductions, and writes `target/bench/service.json`.
//!
//! Without UCX, instructions are the difference of two runs under valgrind, which excludes the start-up. They include the stand-in's
//! own queues. Times are the median of several runs without valgrind. [`ucx`] has the rows with UCX.

mod reduction;
mod ucx;

use super::finish;
use super::pool::instructions;
use crate::{process, workspace};
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, files, table};
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

/// The report of a former run, for the rows that are not measured.
const COMMITTED: &str = "docs/results/service.json";

const HELP: &str = "\
Usage: cargo xtask bench service [-- OPTIONS]

  --transport ucx|stand-in|none
                             measure only these rows, and without ucx also the reductions
  --rows RxS,...             measure only the rows of R ranks in all and S service processes per node, such as 16x1,64x4
  --count blocks|steps       with UCX, count whole blocks of instructions (default), or single instructions, which takes some
                             ten times as long; each store to a BlueFlame register then traps, so UCX's own count is higher

All other rows are those of the last report, or else of the committed one. A row that could not be measured is in the report
with the reason.";

/// The options of this benchmark.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    transport: Option<String>,
    /// Ranks and services per node; all rows if empty.
    rows: Vec<(u32, u32)>,
    method: ucx::Method,
}

impl Options {
    /// `None` for a help request.
    fn parse(words: &[String]) -> Result<Option<Self>> {
        let mut options = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if ["-h", "--help"].contains(&word) {
                return Ok(None);
            }
            let value = words.next().unwrap_or_default();
            match (word, value) {
                ("--transport", "ucx" | "stand-in" | "none") => {
                    options.transport = Some(value.to_owned())
                }
                ("--count", "blocks") => options.method = ucx::Method::Blocks,
                ("--count", "steps") => options.method = ucx::Method::Steps,
                ("--rows", list) => {
                    for name in list.split(',') {
                        options.rows.push(named(name)?);
                    }
                }
                _ => bail!(
                    "'{word} {value}' is not understood; try: cargo xtask bench service -- --help"
                ),
            }
        }
        options.check()?;
        Ok(Some(options))
    }

    fn check(&self) -> Result<()> {
        for row in &self.rows {
            ensure!(
                ["ucx", "stand-in"]
                    .iter()
                    .any(|transport| self.of(transport).contains(row)),
                "no row {}x{} of this transport; ranks are {RANKS:?} ({:?} with UCX), services {SERVICES:?}",
                row.0,
                row.1,
                ucx::RANKS
            );
        }
        Ok(())
    }

    /// The rows of a transport that are measured.
    fn of(&self, transport: &str) -> Vec<(u32, u32)> {
        if self
            .transport
            .as_deref()
            .is_some_and(|only| only != transport)
        {
            return Vec::new();
        }
        let ranks: &[u32] = match transport {
            "ucx" => &ucx::RANKS,
            _ => &RANKS,
        };
        let all = ranks
            .iter()
            .flat_map(|ranks| SERVICES.map(|of| (*ranks, of)));
        all.filter(|row| self.rows.is_empty() || self.rows.contains(row))
            .collect()
    }
}

/// A row by its name.
fn named(name: &str) -> Result<(u32, u32)> {
    let numbers = name
        .split_once('x')
        .and_then(|(ranks, services)| Some((ranks.parse().ok()?, services.parse().ok()?)));
    numbers.with_context(|| format!("'{name}' is no row; a row is RANKSxSERVICES, such as 16x1"))
}

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let Some(options) = Options::parse(options)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let mut rows = Vec::new();
    let (stand_ins, of_ucx) = (options.of("stand-in"), options.of("ucx"));
    if !stand_ins.is_empty() {
        rows.extend(stand_in(&stand_ins)?);
    }
    if !of_ucx.is_empty() {
        rows.extend(ucx::rows(&of_ucx, options.method)?);
    }
    let (reduction, copy) = if options.transport.as_deref() == Some("ucx") {
        let former = former(file)?;
        (
            former["reduction"].clone(),
            former["copy_gb_per_s"].as_f64(),
        )
    } else {
        build()?;
        let (rows, copy) = reduction::measure(instructions::can_count()?)?;
        (rows, Some(copy))
    };
    let rows = with_former(rows, || rows_of(former(file)?))?;
    // A report of an earlier run must not count for a run that fails.
    files::prepare(file)?;
    let cost = doc_numbers::service::cost(&rows)?;
    let report = json!({
        "schema": 2,
        "rows": rows,
        "cost": cost,
        "reduction": reduction,
        "copy_gb_per_s": copy,
    });
    finish(file, &report, columns::SERVICE)
}

/// Names of a row: its transport, ranks and services.
fn key(row: &Value) -> (bool, Option<u64>, Option<u64>) {
    (
        row["transport"] == "ucx",
        row["ranks"].as_u64(),
        row["services_per_node"].as_u64(),
    )
}

/// All rows in order: the measured ones, and the others of a former run, if there are others.
fn with_former(
    mut rows: Vec<Value>,
    former: impl FnOnce() -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    if rows.len() < SERVICES.len() * (RANKS.len() + ucx::RANKS.len()) {
        let measured: Vec<_> = rows.iter().map(key).collect();
        let others = former()?;
        rows.extend(
            others
                .into_iter()
                .filter(|row| !measured.contains(&key(row))),
        );
    }
    rows.sort_by_key(key);
    Ok(rows)
}

/// The report of the last run, or else the committed one.
fn former(file: &Path) -> Result<Value> {
    let committed = workspace::root().join(COMMITTED);
    let text = fs::read_to_string(file).or_else(|_| fs::read_to_string(&committed));
    let text = text.with_context(|| format!("no {} and no {COMMITTED}", file.display()))?;
    serde_json::from_str(&text).context("the report of a former run")
}

fn rows_of(mut report: Value) -> Result<Vec<Value>> {
    let rows = report["rows"]
        .as_array_mut()
        .context("a report without rows")?;
    Ok(std::mem::take(rows))
}

/// What is printed of a row without UCX.
const SHOWN: [&str; 6] = [
    "ranks",
    "services_per_node",
    "instructions_per_block",
    "us_per_block.ours",
    "bytes_per_rank",
    "connect_ms",
];

/// The rows without UCX.
fn stand_in(jobs: &[(u32, u32)]) -> Result<Vec<Value>> {
    let can_count = instructions::can_count()?;
    if !can_count {
        println!("instructions not counted: valgrind is not installed (apt-get install valgrind)");
    }
    build()?;
    let columns = table::part(columns::SERVICE, &SHOWN)?;
    println!("{}", table::head(&columns));
    let mut rows = Vec::new();
    for (ranks, services) in jobs.iter().copied() {
        let counted = if can_count {
            Some(per_block(ranks, services)?)
        } else {
            None
        };
        let [us, bytes, messages] = time_and_memory(ranks, services)?;
        let connect_ms = connect_ms(ranks, services)?;
        let row = json!({
            "ranks": ranks,
            "services_per_node": services,
            "block_bytes": BLOCK_BYTES,
            "transport": "stand-in",
            "messages_per_block": messages,
            "items_per_block": items(ranks, services),
            "instructions_per_block": counted,
            "instructions_per_call": counted.map(|count| count * f64::from(ranks)),
            "instructions_of": { "ucx": null, "driver": null, "device": null, "other": null },
            "us_per_block": {
                "ours": us, "ucx": null, "driver": null, "device": null, "kernel": null, "other": null, "all": null,
            },
            "bytes_per_rank": bytes,
            "connect_ms": connect_ms,
        });
        println!("{}", table::line(&columns, &row)?);
        rows.push(row);
    }
    Ok(rows)
}

/// Items of a block: the blocks of a rank for one service process.
fn items(ranks: u32, services: u32) -> f64 {
    let of_node = ranks / ucx::NODES;
    let used = (of_node / ucx::RANKS_PER_SERVICE).clamp(1, services);
    f64::from(ucx::NODES * used) / f64::from(ranks)
}

/// Builds the measured program.
pub(crate) fn build() -> Result<()> {
    workspace::build(&["-p xgvmi-offload --features stand-in --example service_cost"])
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

/// Peak memory of the services in a job of two alltoallvs, in bytes per rank.
pub(crate) fn bytes_per_rank(ranks: u32, services: u32) -> Result<f64> {
    let text = process::stdout(&mut program(ranks, services, 2), LIMIT)?;
    let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
    let peak = outcome["peak_bytes"].as_f64();
    Ok(peak.context("service_cost says no peak_bytes")? / f64::from(ranks))
}

/// Allocations of the services in 16 alltoallvs after the first four.
pub(crate) fn later_allocations(ranks: u32, services: u32) -> Result<f64> {
    let count = |rounds: u32| {
        let text = process::stdout(&mut program(ranks, services, rounds), LIMIT)?;
        let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
        let count = outcome["allocations"].as_f64();
        count.context("service_cost says no allocations")
    };
    Ok(count(20)? - count(4)?)
}

/// Instructions per further rank of a job that connects, of the services and the ranks, between two numbers of ranks.
pub(crate) fn per_connect(few: u32, many: u32, services: u32) -> Result<f64> {
    let count = |ranks: u32| instructions::of(&mut connecting(ranks, services), LIMIT);
    let between = count(many)?.saturating_sub(count(few)?);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    Ok(between as f64 / f64::from(many - few))
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
        let text = process::stdout(&mut connecting(ranks, services), LIMIT)?;
        let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
        let time = outcome["time_ns"].as_f64();
        times.push(time.context("service_cost says no time_ns")? / 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn connecting(ranks: u32, services: u32) -> Command {
    let mut command = measured();
    command.arg("connect");
    command.args([ranks, services].map(|number| number.to_string()));
    command
}

fn program(ranks: u32, services: u32, rounds: u32) -> Command {
    let mut command = measured();
    command.args([ranks, services, BLOCK_BYTES, rounds].map(|number| number.to_string()));
    command
}

/// The measured program.
pub(super) fn measured() -> Command {
    Command::new(workspace::target_dir().join("release/examples/service_cost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn rows_are_chosen() {
        let rows = |text: &str| {
            let options = Options::parse(&words(text)).unwrap().unwrap();
            [options.of("stand-in").len(), options.of("ucx").len()]
        };
        assert_eq!(rows(""), [10, 6]);
        assert_eq!(rows("--transport ucx"), [0, 6]);
        assert_eq!(rows("--rows 16x1,64x4"), [2, 2]);
        assert_eq!(rows("--rows 1024x4 --count steps"), [1, 0]);
        assert_eq!(Options::parse(&words("--help")).unwrap(), None);
    }

    #[test]
    fn unknown_rows_and_options_are_refused() {
        for (text, expect) in [
            ("--rows 16", "is no row"),
            ("--rows 17x1", "no row 17x1"),
            ("--transport ucx --rows 256x1", "no row 256x1"),
            ("--transport tcp", "'--transport tcp'"),
            ("--fast", "'--fast '"),
        ] {
            let error = Options::parse(&words(text)).unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn rows_that_are_not_measured_remain() {
        let row = |transport: &str, ranks: u32, mark: &str| json!({"transport": transport, "ranks": ranks, "services_per_node": 1, "mark": mark});
        let former = vec![
            row("stand-in", 4, "old"),
            row("ucx", 4, "old"),
            row("ucx", 16, "old"),
        ];
        let rows = with_former(vec![row("ucx", 4, "new")], || Ok(former)).unwrap();
        let marks: Vec<_> = rows
            .iter()
            .map(|row| row["mark"].as_str().unwrap())
            .collect();
        assert_eq!(marks, ["old", "new", "old"]);
    }
}
