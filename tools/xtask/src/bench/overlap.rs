//! `cargo xtask bench overlap`: a rank's own work in an offloaded call, in instructions, and the overlap that it leaves at
//! 32 nodes with 32 ranks each; and the time in which UCC loads the component. Writes `target/bench/overlap.json`.
//!
//! `step-count` counts the start and the completion of calls over the emulated device. The times of registrations and
//! of the pool's binds come from the slides' table, and the time of a whole call from the scale model, in which each service
//! process has a core of its own.

use super::offload::{self, Job, Process, Sums};
use super::{begin, finish};
use crate::place::Place;
use crate::process;
use crate::setup::tree::{self, UccTree};
use crate::suites::World;
use crate::suites::ucc::job::Site;
use crate::suites::ucc::programs;
use crate::{setup, workspace};
use anyhow::{Context, Result, ensure};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Counted calls.
const ROUNDS: u32 = 8;
/// Bytes to each rank: long enough for reads by the device.
const BLOCK: u32 = 65536;
/// Ranks of the counted job.
const RANKS: u32 = 2;
/// Time limit of a process that loads the component.
const UP: Duration = Duration::from_secs(60);
/// Processes that load the component.
const RUNS: usize = 41;
/// Machine of the bound: the rows of the model's report.
const NODES: u64 = 32;
const RANKS_PER_NODE: u64 = 32;
/// Assumed instructions per nanosecond of a rank's core: one per cycle at 2.5 GHz.
const INSTRUCTIONS_PER_NS: f64 = 2.5;

/// The emulator executes in a handler what the adapter and the kernel do on hardware.
const NOT_OF_HARDWARE: &str = "emulator";

/// Sections of a call.
const SECTIONS: [(u64, &str); 2] = [(1, "start of a call"), (2, "completion of a call")];

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("overlap", options, file)?;
    offload::build()?;
    let rows = count()?;
    let own: f64 = rows
        .iter()
        .filter(|row| row["owner"] != NOT_OF_HARDWARE)
        .filter_map(|row| row["instructions"].as_f64())
        .sum();
    let bounds = bounds(own)?;
    let (load_ms, skipped) = match load_ms() {
        Ok(load_ms) => (Some(load_ms), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let report = json!({
        "block_bytes": BLOCK, "calls": ROUNDS, "rows": rows, "own_instructions": own, "bounds": bounds,
        "component_load_ms": load_ms, "component_skipped": &skipped,
    });
    print!("{}", table::text(columns::OVERLAP, &rows)?);
    println!();
    print!("{}", table::text(columns::OVERLAP_BOUNDS, &bounds)?);
    match load_ms {
        Some(load_ms) => println!("\nloading the component takes {load_ms:.2} ms"),
        None => println!("\nloading the component: {}", skipped.unwrap_or_default()),
    }
    finish(file, &report, columns::OVERLAP)
}

/// Instructions per call by section and owner, at rank 0 of a job of two ranks on two nodes, in scheme xgvmi.
fn count() -> Result<Vec<Value>> {
    let job = Job {
        services: 1,
        programs: None,
        scheme: offload::XGVMI,
        ranks: RANKS,
        block: BLOCK,
        calls: ROUNDS,
    };
    rows(&job.count(&setup::ensure()?, Process::Rank)?)
}

/// The rows of all sections.
fn rows(sums: &Sums) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for (label, what) in SECTIONS {
        let of_section = sums
            .iter()
            .filter(|((of, _), count)| *of == label && **count > 0.0);
        let before = rows.len();
        rows.extend(of_section.map(|((_, owner), count)| {
            let per_call = (count / f64::from(ROUNDS)).round();
            json!({ "what": what, "owner": owner, "instructions": per_call })
        }));
        ensure!(rows.len() > before, "no section '{what}' was counted");
    }
    Ok(rows)
}

/// The largest possible overlap at each size of the model's grid: a rank's own time over the time of the whole call.
fn bounds(instructions: f64) -> Result<Vec<Value>> {
    let root = workspace::root();
    let read = |path: &str| {
        let file = root.join(path);
        fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))
    };
    let model: Value = serde_json::from_str(&read("docs/results/model.json")?)?;
    let slides = read("shared/report/src/slides.csv")?;
    let rows = model["rows"].as_array().context("the model has no rows")?;
    let wanted = rows
        .iter()
        .filter(|row| row["nodes"] == NODES && row["scheme"] == "xgvmi");
    let mut bounds = Vec::new();
    for row in wanted {
        let size = row["size"].as_u64().context("a row without a size")?;
        let call_us = row["us"].as_f64().context("a row without a time")?;
        let keys_us = 2.0 * pooled_us(&slides, size * NODES * RANKS_PER_NODE)?;
        let code_us = instructions / INSTRUCTIONS_PER_NS / 1e3;
        bounds.push(json!({
            "size": size, "call_us": call_us, "registration_us": keys_us, "instructions_us": code_us,
            "overlap_most_percent": 100.0 * (1.0 - (keys_us + code_us) / call_us),
        }));
    }
    ensure!(!bounds.is_empty(), "the model has no rows of {NODES} nodes");
    Ok(bounds)
}

/// Registration, bind, invalidation and deregistration of a buffer with a pooled key, by the slides' table with linear
/// interpolation.
fn pooled_us(slides: &str, bytes: u64) -> Result<f64> {
    const SIZES: [f64; 4] = [16384.0, 1048576.0, 67108864.0, 1073741824.0];
    let mut ns = 0.0;
    let mut steps = 0;
    for line in slides
        .lines()
        .filter(|line| line.starts_with("umr_pool_hit,host_"))
    {
        let values: Vec<f64> = line
            .split(',')
            .skip(2)
            .filter_map(|word| word.parse().ok())
            .collect();
        ensure!(
            values.len() == SIZES.len(),
            "a line of the slides' table: {line}"
        );
        ns += interpolated(&SIZES, &values, bytes as f64);
        steps += 1;
    }
    ensure!(
        steps == 4,
        "the slides' table has {steps} steps of a pooled key, not 4"
    );
    Ok(ns / 1e3)
}

fn interpolated(sizes: &[f64], values: &[f64], at: f64) -> f64 {
    let last = sizes.len() - 2;
    let index = (0..last)
        .find(|index| at <= sizes[index + 1])
        .unwrap_or(last);
    let share = (at - sizes[index]) / (sizes[index + 1] - sizes[index]);
    values[index] + share.max(0.0) * (values[index + 1] - values[index])
}

/// Time in which a process with UCC loads the component: the median over processes.
fn load_ms() -> Result<f64> {
    let world = World::new(Vec::new())?;
    let tree = tree::ucc()?;
    let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
    let site = Site::new(&world, tree, place)?;
    let program = programs::compile(&site, "ucc_direct")?;
    let component = site.stage.join("ucc/libucc_tl_xgvmi.so");
    let path = UccTree::library_path(&site.stage);
    let variables = [("LD_LIBRARY_PATH".to_owned(), path)];
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let mut command = site.place.inside(&variables, &program);
        let said = process::stdout(command.arg("load").arg(&component), UP)?;
        let us: f64 = said.trim().parse().with_context(|| said.clone())?;
        times.push(us / 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_summed_per_call() {
        let section = |label: u64, count: u64| json!({"label": label, "owners": {"UCX": {"instructions": count}, "client": {"instructions": 0}}});
        let rounds: Vec<Value> = (0..ROUNDS)
            .flat_map(|_| {
                [
                    json!({"sections": [section(1, 100)]}),
                    json!({"sections": [section(2, 30)]}),
                ]
            })
            .collect();
        let counted = |rounds| {
            let report = json!({ "rounds": rounds }).to_string();
            rows(&offload::sums(&report).unwrap())
        };
        let rows = counted(rounds).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["instructions"], 100.0);
        assert_eq!(rows[1]["what"], "completion of a call");
        let only_first = counted(vec![json!({"sections": [section(1, 1)]})]);
        let error = only_first.unwrap_err().to_string();
        assert!(error.contains("completion"), "{error}");
    }

    #[test]
    fn a_cost_between_two_sizes_is_interpolated() {
        let sizes = [0.0, 10.0, 20.0];
        let values = [1.0, 2.0, 4.0];
        assert!((interpolated(&sizes, &values, 5.0) - 1.5).abs() < 1e-9);
        assert!((interpolated(&sizes, &values, 15.0) - 3.0).abs() < 1e-9);
        assert!((interpolated(&sizes, &values, 30.0) - 6.0).abs() < 1e-9);
        assert!(pooled_us("a,b,1,2,3,4", 1).is_err());
    }
}
