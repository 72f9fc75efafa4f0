//! `cargo xtask bench fresh`: buffers that are made new for each transfer, in six schemes, and writes
//! `target/bench/fresh.json`.
//!
//! One process is the host and its DPU. It makes a buffer, writes to it, registers and exports it, imports it at the DPU,
//! reads it by the device, and releases everything. The schemes: `ksm` (UCX without its key pool), `stock` (UCX's own
//! pool), `xgvmi` (the library), `arena` (the library with an arena), `mallopt` (stock UCX, and a malloc that keeps
//! freed memory mapped, so that UCX's cache finds its registration), and `kept` (the same malloc without UCX's cache, and
//! the library keeps registrations). The runs of all schemes alternate.
//!
//! `--size SIZE` (repeatable) measures other sizes than all, and `--runs NUMBER` other than three runs of each.

use super::{begin, cluster, finish};
use crate::setup::{self, Env};
use crate::{process, workspace};
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, parse_size, table};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// A run takes two seconds; a loaded machine takes longer.
const LIMIT: Duration = Duration::from_secs(180);
/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";
/// Runs of each row. The fastest counts, because other work on the machine only adds time.
const RUNS: usize = 3;
/// Rounds whose instructions are counted, of the smallest size only: each instruction is a step.
const STEPPED: u32 = 8;
const ARENA: &str = "256mb";

const SIZES: [usize; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Measured rounds of a size.
fn rounds(size: usize) -> usize {
    match size {
        0..0x10_0000 => 200,
        0x10_0000..0x40_0000 => 100,
        _ => 16,
    }
}

/// A scheme: name, whether it has the library, its variables, and whether it makes malloc keep memory.
struct Scheme {
    name: &'static str,
    has_library: bool,
    variables: &'static [(&'static str, &'static str)],
    keeps: bool,
}

const SCHEMES: [Scheme; 6] = [
    Scheme {
        name: "ksm",
        has_library: false,
        variables: &[("UCX_IB_XGVMI_UMR_ENABLE", "n")],
        keeps: false,
    },
    Scheme {
        name: "stock",
        has_library: false,
        variables: &[],
        keeps: false,
    },
    Scheme {
        name: "xgvmi",
        has_library: true,
        variables: &[],
        keeps: false,
    },
    Scheme {
        name: "arena",
        has_library: true,
        variables: &[("UCX_XGVMI_ARENA", ARENA)],
        keeps: false,
    },
    Scheme {
        name: "mallopt",
        has_library: false,
        variables: &[],
        keeps: true,
    },
    Scheme {
        name: "kept",
        has_library: true,
        variables: &[("UCX_XGVMI_KEEP", "64"), ("UCX_RCACHE_ENABLE", "n")],
        keeps: true,
    },
];

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("fresh", &[], file)?;
    let (sizes, runs) = parse(options)?;
    let env = setup::ensure()?;
    build()?;
    let (mut rows, mut mismatches, mut verified) = (Vec::new(), 0, 0);
    println!("{}", table::head(columns::FRESH));
    for size in sizes {
        for allocator in ["malloc", "mmap"] {
            for found in measured(&env, (size, allocator), runs)? {
                mismatches += count(&found, "mismatches")?;
                verified += count(&found, "verified_bytes")?;
                println!("{}", table::line(columns::FRESH, &found)?);
                rows.push(found);
            }
        }
    }
    ensure!(
        mismatches == 0,
        "{mismatches} of {verified} bytes are wrong"
    );
    let report = json!({
        "schema": 1,
        "rows": rows,
        "mismatches": mismatches,
        "verified_bytes": verified,
    });
    finish(file, &report, columns::FRESH)
}

/// The sizes, and the runs of each.
fn parse(options: &[String]) -> Result<(Vec<usize>, usize)> {
    let (mut sizes, mut runs) = (Vec::new(), RUNS);
    for option in options.chunks(2) {
        match option {
            [name, value] if name == "--size" => {
                let size = parse_size(value).ok().filter(|size| SIZES.contains(size));
                let allowed = format!("--size {value}: allowed are {SIZES:?}");
                sizes.push(size.context(allowed)?);
            }
            [name, value] if name == "--runs" => {
                let number = value.parse().ok().filter(|runs| (1..=100).contains(runs));
                runs = number.with_context(|| format!("--runs {value}: allowed are 1 to 100"))?;
            }
            _ => bail!(
                "bench fresh takes --size SIZE and --runs NUMBER, not '{}'",
                option[0]
            ),
        }
    }
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    Ok((sizes, runs))
}

fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p uct-plugin -p step-count",
        "-p testbed-programs",
    ])
}

/// The rows of all schemes for one size and allocator.
fn measured(env: &Env, (size, allocator): (usize, &str), runs: usize) -> Result<Vec<Value>> {
    let chosen = || {
        SCHEMES
            .iter()
            .filter(|scheme| !scheme.keeps || allocator == "malloc")
    };
    let mut best: Vec<Option<Value>> = chosen().map(|_| None).collect();
    for _ in 0..runs {
        for (best, scheme) in best.iter_mut().zip(chosen()) {
            let found = once(env, scheme, size, allocator)
                .with_context(|| format!("{}, {size} bytes of {allocator}", scheme.name))?;
            let time = |row: &Value| row["us"]["p50"].as_f64().unwrap_or(f64::INFINITY);
            if best.as_ref().is_none_or(|best| time(&found) < time(best)) {
                *best = Some(found);
            }
        }
    }
    let mut rows = Vec::new();
    for (found, scheme) in best.into_iter().zip(chosen()) {
        let mut row = found.context("no run")?;
        row["scheme"] = json!(scheme.name);
        row["allocator"] = json!(allocator);
        row["instructions"] = match size == SIZES[0] {
            true => json!(instructions(env, scheme, size, allocator)?),
            false => Value::Null,
        };
        rows.push(row);
    }
    Ok(rows)
}

/// One run.
fn once(env: &Env, scheme: &Scheme, size: usize, allocator: &str) -> Result<Value> {
    let device = cluster(1)?.with(["--profile", PROFILE]);
    let program = workspace::built("fresh");
    let mut command = device.command("node0.host,node0.dpu", program);
    let rounds = rounds(size).to_string();
    prepare(
        &mut command,
        env,
        scheme,
        &[&size.to_string(), allocator, &rounds],
    );
    let counters = device.emulator("stats");
    command.arg("--").arg(counters.get_program());
    command.args(counters.get_args()).arg("--json");
    let output = process::stdout(&mut command, LIMIT)?;
    let line = output.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("no result")?)?)
}

/// Adds a run's arguments and variables.
fn prepare(command: &mut Command, env: &Env, scheme: &Scheme, words: &[&str]) {
    process::without_ucx_settings(command);
    command.arg(env.ucx_lib_dir.join("libucp.so.0"));
    command.args(["mlx5_0", "mlx5_1", "measure"]).args(words);
    if scheme.keeps {
        command.arg("keep");
    }
    command.envs(env.for_ucx());
    // libibverbs cannot see that the emulated machine's kernel copies pinned pages for a forked child.
    command.env("UCX_IB_FORK_INIT", "n");
    command.envs(scheme.variables.iter().copied());
    if scheme.has_library {
        command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
    }
}

/// Instructions of the library, UCX and libmlx5 per iteration, without import and transfer.
fn instructions(env: &Env, scheme: &Scheme, size: usize, allocator: &str) -> Result<f64> {
    let device = cluster(1)?.with(["--profile", "none"]);
    let mut command = super::hotpath::stepped(&device, "fresh");
    prepare(
        &mut command,
        env,
        scheme,
        &[&size.to_string(), allocator, &STEPPED.to_string()],
    );
    process::stdout(&mut command, LIMIT)?;
    sum_of_owners(&serde_json::from_str(&super::hotpath::steps(&device)?)?)
}

/// Sum of the owners' instructions per iteration. Allocation, registration with export, and release are separate rounds of
/// the tool.
fn sum_of_owners(report: &Value) -> Result<f64> {
    let rounds = report["rounds"].as_array().context("no rounds")?;
    ensure!(!rounds.is_empty(), "no round was counted");
    let mut sum = 0.0;
    for round in rounds {
        for section in round["sections"].as_array().context("no sections")? {
            let owners = section["owners"].as_object().context("no owners")?;
            for owner in ["library", "UCX", "libmlx5"] {
                let counted = owners.get(owner).map(|counts| &counts["instructions"]);
                sum += counted.and_then(Value::as_f64).unwrap_or_default();
            }
        }
    }
    Ok(sum / f64::from(STEPPED))
}

fn count(row: &Value, name: &str) -> Result<u64> {
    row[name]
        .as_u64()
        .with_context(|| format!("no {name} in {row}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_all_sections_are_summed() {
        let section = |library: u32| {
            json!({"label": 1, "owners": {
                "library": {"instructions": library}, "UCX": {"instructions": 10}, "emulator": {"instructions": 999},
            }})
        };
        let report = json!({"rounds": [
            {"sections": [section(1), section(2)]}, {"sections": [section(3), section(4)]},
        ]});
        let expect = 50.0 / f64::from(STEPPED);
        assert!((sum_of_owners(&report).unwrap() - expect).abs() < 1e-9);
        assert!(sum_of_owners(&json!({"rounds": []})).is_err());
    }
}
