//! `cargo xtask bench scale`: bytes, messages, memory and instructions of one call of up to 16,384 light ranks, and writes
//! `target/bench/scale.json`. The messages and the services' code are real; no UCX and no MPI is beneath.

use super::pool::instructions;
use super::{finish, service};
use crate::process;
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, files, table};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Ranks and nodes of the jobs. The growth is that of the jobs with 32 ranks per node, from [`GROWTH_FROM`] ranks on.
const JOBS: [(u32, u32); 5] = [(64, 2), (1024, 8), (1024, 32), (4096, 128), (16_384, 512)];
const RANKS_PER_NODE: u32 = 32;
const GROWTH_FROM: u32 = 1024;

/// Jobs of which the large one takes at most so many times the instructions per block of the small one.
const FLAT: [(u32, u32); 2] = [JOBS[0], JOBS[4]];
/// The large one of `cargo xtask test`, which takes a quarter of the time.
pub(crate) const FLAT_SAMPLE: (u32, u32) = JOBS[3];
pub(crate) const FLAT_MAX: f64 = 1.2;
pub(crate) const DENSE: &str = "alltoall";

/// Ranks and nodes of the jobs with several services per node.
const SEVERAL: [(u32, u32); 4] = [(128, 4), (512, 16), (2048, 64), (2048, 256)];
const SERVICES: u32 = 4;

/// Ranks and nodes of the jobs whose trees have these radixes, and the collectives that use them.
const OF_TREES: [(u32, u32); 2] = [(4096, 128), (16_384, 512)];
const RADIXES: [u32; 5] = [2, 4, 8, 32, 128];
/// Offers of a service without an answer: more than any tree has, and the default.
const SENDS: u32 = 4096;
fn default_sends(radix: u32) -> u32 {
    4.max(2 * radix)
}
const TREES: [&str; 3] = ["broadcast", "gather", "scatter"];

const COLLECTIVES: [&str; 7] = [
    DENSE,
    "halo",
    "broadcast",
    "barrier",
    "allreduce",
    "allreduce-64k",
    LONG,
];
/// An allreduce of 1 MiB, in which a block is what a service reads at once.
const LONG: &str = "allreduce-1m";

/// With more ranks, the services reduce so much in an allreduce of 1 MiB that valgrind would take an hour.
const LONG_COUNTED_MAX: u32 = 4096;

/// The largest job takes a minute under valgrind, and several on a busy machine.
const LIMIT: Duration = Duration::from_secs(1200);

const HELP: &str = "\
Usage: cargo xtask bench scale [-- OPTIONS]

  --ranks N          measure only the jobs of N ranks
  --no-instructions  do not count instructions, which takes most of the time";

/// What a call of a job takes, without the program's data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    /// Bytes of a rank's message to its service.
    pub(crate) to_service: f64,
    /// Bytes of offers and of their answers per rank.
    pub(crate) offers: f64,
    pub(crate) answers: f64,
    /// Messages that a service sends to others and gets from them.
    pub(crate) messages: f64,
    pub(crate) memory_per_rank: f64,
    pub(crate) memory_per_service: f64,
    blocks: f64,
}

impl Counts {
    /// Bytes per rank and call.
    pub(crate) fn bytes(&self) -> f64 {
        self.to_service + self.offers + self.answers
    }
}

/// Measures, writes `file`, and prints the rows and their growth.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let mut only = None;
    let mut counts_instructions = true;
    let mut words = options.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "-h" | "--help" => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            "--no-instructions" => counts_instructions = false,
            "--ranks" => {
                let number = words.next().unwrap_or_default();
                only = Some(number.parse::<u32>().context("a number of ranks")?);
            }
            other => bail!("'{other}' is not understood; try: cargo xtask bench scale -- --help"),
        }
    }
    let jobs = JOBS
        .iter()
        .filter(|(ranks, _)| only.is_none_or(|only| only == *ranks));
    let jobs: Vec<_> = jobs.copied().collect();
    let has_several = || SEVERAL.iter().any(|(ranks, _)| only == Some(*ranks));
    ensure!(
        !jobs.is_empty() || has_several(),
        "no job of these ranks; the jobs are {JOBS:?} (ranks, nodes), and {SEVERAL:?} with several services per node"
    );
    files::prepare(file)?;
    service::build()?;
    counts_instructions = counts_instructions && instructions::can_count()?;
    println!("{}", table::head(columns::SCALE));
    let mut rows = Vec::new();
    for (ranks, nodes) in jobs {
        let connect_ms = connect_ms(ranks, nodes)?;
        for collective in COLLECTIVES {
            let counts = counts(ranks, nodes, collective)?;
            let is_counted = collective != LONG || ranks <= LONG_COUNTED_MAX;
            let per_block = if counts_instructions && is_counted {
                Some(per_block(ranks, nodes, collective, counts.blocks)?)
            } else {
                None
            };
            let row = json!({
                "ranks": ranks,
                "nodes": nodes,
                "collective": collective,
                "bytes_per_rank": counts.bytes(),
                "bytes_to_service": counts.to_service,
                "bytes_of_offers": counts.offers,
                "messages_per_sp": counts.messages,
                "instructions_per_block": per_block,
                "memory_per_rank": counts.memory_per_rank,
                "memory_per_sp": counts.memory_per_service,
                "connect_ms": connect_ms,
            });
            println!("{}", table::line(columns::SCALE, &row)?);
            rows.push(row);
        }
    }
    let growth = growth(&rows);
    for of in &growth {
        println!("{of}");
    }
    let several = several(only)?;
    let trees = trees(only)?;
    let flat = flat(&rows);
    let written = finish(
        file,
        &json!({ "rows": rows, "growth": growth, "several": several, "trees": trees, "flat": flat }),
        columns::SCALE,
    )?;
    match flat {
        Some(ratio) if ratio > FLAT_MAX => {
            println!(
                "an {DENSE} of {FLAT:?} ranks and nodes: {ratio:.2} times the instructions per block, and not {FLAT_MAX}"
            );
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(written),
    }
}

/// Instructions per block of a dense call of the large job, divided by those of the small one.
fn flat(rows: &[Value]) -> Option<f64> {
    let [small, large] = FLAT.map(|(ranks, nodes)| {
        let is_wanted = |row: &&Value| {
            row["ranks"] == ranks && row["nodes"] == nodes && row["collective"] == DENSE
        };
        rows.iter().find(is_wanted)?["instructions_per_block"].as_f64()
    });
    Some(large? / small?)
}

/// The same, measured now with a smaller job.
pub(crate) fn measured_flat() -> Result<f64> {
    let [small, large] = [FLAT[0], FLAT_SAMPLE].map(|(ranks, nodes)| {
        let blocks = counts(ranks, nodes, DENSE)?.blocks;
        per_block(ranks, nodes, DENSE, blocks)
    });
    Ok(large? / small?)
}

/// Connections and messages of a service, the one with most, on nodes with several: with lanes and without.
fn several(only: Option<u32>) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let jobs = SEVERAL
        .iter()
        .filter(|(ranks, _)| only.is_none_or(|only| only == *ranks));
    for (ranks, nodes) in jobs {
        for collective in COLLECTIVES.into_iter().filter(|of| *of != LONG) {
            let mut command = service::measured();
            let job = [ranks, nodes].map(ToString::to_string);
            command.arg("several").args(job).arg(collective);
            let text = process::stdout(command.arg(SERVICES.to_string()), LIMIT)?;
            let found: [Value; 2] = serde_json::from_str(&text).context("service_cost's answer")?;
            let row = json!({
                "ranks": ranks,
                "nodes": nodes,
                "services_per_node": SERVICES,
                "collective": collective,
                "without_lanes": found[0],
                "with_lanes": found[1],
            });
            println!("{row}");
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Messages and levels of the services' trees by radix, one service per node.
fn trees(only: Option<u32>) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let jobs = OF_TREES
        .iter()
        .filter(|(ranks, _)| only.is_none_or(|only| only == *ranks));
    for (ranks, nodes) in jobs {
        for (collective, radix) in TREES
            .iter()
            .flat_map(|of| RADIXES.map(|radix| (*of, radix)))
        {
            let [few, many] = [default_sends(radix), SENDS]
                .map(|sends| tree(*ranks, *nodes, collective, [radix, sends]));
            let (few, found) = (few?, many?);
            let row = json!({
                "ranks": ranks,
                "nodes": nodes,
                "collective": collective,
                "radix": radix,
                "messages_per_sp": found["messages"],
                "messages": found["all_messages"],
                "bytes_of_offers": found["offers"],
                "depth": found["depth"],
                "depth_of_default_sends": few["depth"],
            });
            println!("{row}");
            rows.push(row);
        }
    }
    Ok(rows)
}

fn tree(ranks: u32, nodes: u32, collective: &str, limits: [u32; 2]) -> Result<Value> {
    let mut command = service::measured();
    let job = [ranks, nodes].map(|number| number.to_string());
    command.arg("tree").args(job).arg(collective);
    let limits = limits.map(|number| number.to_string());
    let text = process::stdout(command.args(limits), LIMIT)?;
    serde_json::from_str(&text).context("service_cost's answer")
}

/// Measures a call.
pub(crate) fn counts(ranks: u32, nodes: u32, collective: &str) -> Result<Counts> {
    let text = process::stdout(&mut program(ranks, nodes, collective, 1), LIMIT)?;
    let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
    let number = |name: &str| {
        let found = outcome[name].as_f64();
        found.with_context(|| format!("service_cost says no {name}"))
    };
    Ok(Counts {
        to_service: number("to_service")?,
        offers: number("offers_per_rank")?,
        answers: number("answers_per_rank")?,
        messages: number("messages")?,
        memory_per_rank: number("memory_per_rank")?,
        memory_per_service: number("memory_per_service")?,
        blocks: number("blocks")?,
    })
}

/// Instructions of the services and the light ranks per block, or per rank of a barrier. The difference of two runs excludes the
/// start-up, and of a large alltoall the offers of the services that are not measured.
fn per_block(ranks: u32, nodes: u32, collective: &str, blocks: f64) -> Result<f64> {
    let count = |rounds| instructions::of(&mut program(ranks, nodes, collective, rounds), LIMIT);
    let between = count(2)?.saturating_sub(count(1)?);
    let blocks = if blocks > 0.0 { blocks } else { ranks.into() };
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    Ok(between as f64 / blocks)
}

/// Milliseconds until all ranks of one node are connected. The nodes of a cluster connect at the same time.
fn connect_ms(ranks: u32, nodes: u32) -> Result<f64> {
    let mut command = service::measured();
    let job = [ranks, nodes].map(|number| number.to_string());
    command.arg("connect-one").args(job);
    let text = process::stdout(&mut command, LIMIT)?;
    let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
    let time = outcome["time_ns"].as_f64();
    Ok(time.context("service_cost says no time_ns")? / 1e6)
}

/// The exponent of the ranks with which each number of a collective grows, by least squares of logarithms.
fn growth(rows: &[Value]) -> Vec<Value> {
    let mut fits = Vec::new();
    for collective in COLLECTIVES {
        let mut fit = json!({ "collective": collective });
        for name in columns::OF_SCALE {
            let points = rows.iter().filter_map(|row| {
                let (ranks, nodes) = (row["ranks"].as_f64()?, row["nodes"].as_f64()?);
                let is_large = ranks >= f64::from(GROWTH_FROM);
                let of_growth = is_large && ranks == nodes * f64::from(RANKS_PER_NODE);
                let wanted = of_growth && row["collective"] == collective;
                let number = row[name]
                    .as_f64()
                    .filter(|number| wanted && *number > 0.0)?;
                Some((ranks.ln(), number.ln()))
            });
            fit[name] = json!(slope(&points.collect::<Vec<_>>()));
        }
        fits.push(fit);
    }
    fits
}

/// The slope of a line through points; `None` for fewer than two.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 2 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few points")]
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let squares: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    Some((both / squares * 1000.0).round() / 1000.0)
}

fn program(ranks: u32, nodes: u32, collective: &str, rounds: u32) -> Command {
    let mut command = service::measured();
    command
        .arg("scale")
        .args([ranks, nodes].map(|number| number.to_string()));
    command.arg(collective).arg(rounds.to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_exponent_of_the_ranks() {
        let row = |ranks: u32, nodes: u32, bytes: f64| json!({ "ranks": ranks, "nodes": nodes, "collective": "halo", "bytes_per_rank": bytes, "messages_per_sp": 7 });
        let rows = [
            row(1024, 8, 1e9),
            row(1024, 32, 10.0),
            row(4096, 128, 40.0),
            row(16_384, 512, 160.0),
        ];
        let growth = growth(&rows);
        assert_eq!(growth[1]["bytes_per_rank"], 1.0);
        assert_eq!(growth[1]["messages_per_sp"], 0.0);
        assert_eq!(growth[0]["bytes_per_rank"], Value::Null);
    }

    #[test]
    fn flatness_is_that_of_the_dense_call() {
        let row = |job: (u32, u32), collective, count: f64| json!({ "ranks": job.0, "nodes": job.1, "collective": collective, "instructions_per_block": count });
        let rows = [
            row(FLAT[0], "halo", 1.0),
            row(FLAT[0], DENSE, 400.0),
            row((1024, 32), DENSE, 9.0),
            row(FLAT[1], DENSE, 500.0),
        ];
        assert_eq!(flat(&rows), Some(1.25));
        assert_eq!(flat(&rows[..3]), None);
    }
}
