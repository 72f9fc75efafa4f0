//! `cargo xtask bench overlap`: a rank's own work in an offloaded call, in instructions, and the overlap that it leaves at
//! 32 nodes with 32 ranks each; and the time in which UCC loads the component. Writes `target/bench/overlap.json`.
//!
//! `step-count` single-steps the start and the completion of calls over the emulated device. The times of registrations and
//! of the pool's binds come from the slides' table, and the time of a whole call from the scale model, in which each service
//! process has a core of its own.

use super::pool::State;
use crate::place::Place;
use crate::process::{self, Running};
use crate::setup::tree::{self, UccTree};
use crate::suites::World;
use crate::suites::pair::free_port;
use crate::suites::ucc::job::Site;
use crate::suites::ucc::programs;
use crate::{setup, workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Counted calls.
const ROUNDS: u32 = 8;
/// Bytes to each rank: long enough for reads by the device.
const BLOCK: u32 = 65536;
/// Ranks of the counted job.
const RANKS: u32 = 2;
/// Single-stepping slows the counted calls some thousand times.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit for the start of a service process.
const UP: Duration = Duration::from_secs(60);
/// Processes that load the component.
const RUNS: usize = 41;
/// Machine of the bound: the rows of the model's report.
const NODES: u64 = 32;
const RANKS_PER_NODE: u64 = 32;
/// Assumed instructions per nanosecond of a rank's core: one per cycle at 2.5 GHz.
const INSTRUCTIONS_PER_NS: f64 = 2.5;

/// Owners of instructions, and parts of their objects' paths.
const OWNERS: [&str; 9] = [
    "client=rank_cost",
    "library=libuct_ib_mlx5_xgvmi",
    "emulator=libbfemu",
    "libmlx5=libmlx5",
    "libmlx5=libibverbs",
    "UCX=libuct",
    "UCX=libucp",
    "UCX=libucs",
    "UCX=libucm",
];
/// Objects whose instructions count for their caller.
const THROUGH: [&str; 5] = ["/libc.so", "ld-linux", "[vdso]", "libgcc_s", "libpthread"];
/// The emulator executes in a handler what the adapter and the kernel do on hardware.
const NOT_OF_HARDWARE: &str = "emulator";

/// Sections of a call.
const SECTIONS: [(u64, &str); 2] = [(1, "start of a call"), (2, "completion of a call")];

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench overlap takes no options, not '{option}'");
    }
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    // A report of an earlier run must not count for this run.
    let _ = fs::remove_file(file);
    build()?;
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
        "component_load_ms": load_ms, "component_skipped": skipped,
    });
    fs::write(file, format!("{report:#}\n"))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("{report:#}\n\nwritten: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

fn build() -> Result<()> {
    let builds: [&[&str]; 3] = [
        &[
            "-p",
            "bf-emu",
            "-p",
            "bf-emu-preload",
            "-p",
            "step-count",
            "-p",
            "xgvmi-offload",
        ],
        &["-p", "uct-plugin"],
        &["-p", "xgvmi-offload", "--example", "rank_cost"],
    ];
    for what in builds {
        let mut command = Command::new("cargo");
        command.current_dir(workspace::root());
        command.args(["build", "--release", "--quiet"]).args(what);
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "`{}`: {status}", process::shown(&command));
    }
    Ok(())
}

/// Instructions per call by section and owner, at rank 0 of a job of two ranks on two nodes, in scheme xgvmi.
fn count() -> Result<Vec<Value>> {
    let env = setup::ensure()?;
    let state = State::new();
    fs::create_dir_all(state.path())?;
    let steps = state.path().join("steps.json");
    let device = state.path().join("device");
    let on = |function: &str| {
        let mut command = Command::new(built("bf-emu"));
        command.arg("run").arg("--state").arg(&device);
        command.args(["--nodes", "2", "--as", function, "--"]);
        command.envs(env.for_ucx());
        command.envs([("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")]);
        command.env("LD_PRELOAD", built("libuct_ib_mlx5_xgvmi.so"));
        // A buffer that UCX still knows would cost no registration.
        command.env("UCX_RCACHE_ENABLE", "n");
        command
    };
    let ports = [free_port()?, free_port()?];
    let mut services = Vec::new();
    for (node, port) in ports.iter().enumerate() {
        let mut command = on(&format!("node{node}.dpu"));
        command.arg(built("xgvmi-sp"));
        command.args([
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--silence-limit-s",
            "300",
        ]);
        let service = Running::spawn(&mut command)?;
        let up = process::wait_until(UP, || service.said().contains(" listens on "));
        ensure!(up, "a service does not come up: {}", service.said());
        services.push(service);
    }
    let meet = format!("127.0.0.1:{}", free_port()?);
    let mut ranks = Vec::new();
    for (rank, port) in ports.iter().enumerate() {
        let mut command = on(&format!("node{rank}.host"));
        if rank == 0 {
            command.arg(built("step-count")).arg("--output").arg(&steps);
            command.args(OWNERS.iter().flat_map(|owner| ["--owner", *owner]));
            command.args(THROUGH.iter().flat_map(|through| ["--through", *through]));
            command.arg("--");
        }
        command.arg(built("examples/rank_cost"));
        command.args([
            &rank.to_string(),
            &RANKS.to_string(),
            &meet,
            &format!("n{rank}"),
        ]);
        command.args([
            &format!("127.0.0.1:{port}"),
            "xgvmi",
            &BLOCK.to_string(),
            &ROUNDS.to_string(),
        ]);
        ranks.push(Running::spawn(&mut command)?);
    }
    for rank in ranks {
        let done = rank.wait(LIMIT)?;
        ensure!(done.ok(), "{}: {}", done.verdict(), done.output);
    }
    let text = fs::read_to_string(&steps).context("step-count wrote no report")?;
    parse(&text)
}

/// The rows of a report of `step-count`.
fn parse(text: &str) -> Result<Vec<Value>> {
    let report: Value = serde_json::from_str(text).context("the report of step-count")?;
    let mut sums: BTreeMap<(u64, String), f64> = BTreeMap::new();
    for round in report["rounds"].as_array().context("no rounds")? {
        for section in round["sections"].as_array().context("no sections")? {
            let label = section["label"].as_u64().context("no label")?;
            for (owner, counts) in section["owners"].as_object().context("no owners")? {
                let count = counts["instructions"].as_f64().context("no instructions")?;
                *sums.entry((label, owner.clone())).or_default() += count;
            }
        }
    }
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
    let slides = read("scale-model/src/slides.csv")?;
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

fn built(name: &str) -> PathBuf {
    workspace::target_dir().join("release").join(name)
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
        let rows = parse(&json!({ "rounds": rounds }).to_string()).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["instructions"], 100.0);
        assert_eq!(rows[1]["what"], "completion of a call");
        let only_first = json!({"rounds": [{"sections": [section(1, 1)]}]}).to_string();
        assert!(
            parse(&only_first)
                .unwrap_err()
                .to_string()
                .contains("completion")
        );
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
