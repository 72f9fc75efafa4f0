//! `cargo xtask bench library`: measures the library's cost in a process before it serves any request, and writes
//! `target/bench/library.json`.
//!
//! A program runs alternately with and without the library preloaded. The difference of the medians is the library's
//! cost.

use super::{begin, cluster, finish, pool::pair};
use crate::process::{self, shown};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use bench_report::{columns, table};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Runs of each program with and without the library: enough for a median, within one or two seconds.
const RUNS: usize = 101;

/// Number of processes that prove both forms.
const PROOFS: usize = 21;
const PROOF_LIMIT: Duration = Duration::from_secs(30);

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("library", options, file)?;
    let env = setup::ensure()?;
    workspace::build(&["-p uct-plugin"])?;
    let library = workspace::target_dir().join("release/libuct_ib_mlx5_xgvmi.so");
    let bytes = fs::metadata(&library)
        .with_context(|| format!("looking at {}", library.display()))?
        .len();
    let mut without_ucx = Command::new("true");
    without_ucx.env_clear();
    let mut with_ucx = Command::new(env.ucx_tools_dir.join("ucx_info"));
    with_ucx.arg("-v").envs(env.for_ucx());
    let proof = proofs_ns(&env)?;
    let rows = [
        (
            "load, in a program without UCX",
            added_us(&mut without_ucx, &library)? / 1e3,
            "ms",
            "<= 5",
        ),
        (
            "load, in ucx_info",
            added_us(&mut with_ucx, &library)? / 1e3,
            "ms",
            "<= 5",
        ),
        ("file", bytes as f64 / 1024.0, "KiB", "<= 2048"),
        ("proof of the stock form", proof.0 / 1e3, "us", "<= 60"),
        ("proof of the list form", proof.1 / 1e3, "us", "<= 60"),
    ];
    let rows = rows.map(
        |(name, value, unit, wanted)| json!({ "name": name, "value": value, "unit": unit, "wanted": wanted }),
    );
    print!("{}", table::text(columns::LIBRARY, &rows)?);
    finish(
        file,
        &json!({ "schema": 1, "rows": rows }),
        columns::LIBRARY,
    )
}

/// Time of the proofs of both forms of bind over the emulated device without a profile. Each process proves once; the
/// best of several counts.
fn proofs_ns(env: &setup::Env) -> Result<(f64, f64)> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload",
        "-p testbed-programs --bin device_bench",
    ])?;
    let device = cluster(1)?.with(["--profile", "none"]);
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..PROOFS {
        let mut command = pair(&device, "device_bench");
        command.args(["proof", "mlx5_0"]).envs(env.for_verbs());
        let output = process::stdout(&mut command, PROOF_LIMIT)?;
        let time = |name: &str| -> Result<f64> {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            let number = line.with_context(|| format!("no {name}in:\n{output}"))?;
            Ok(number.trim().parse()?)
        };
        best = (
            best.0.min(time("proof_stock ")?),
            best.1.min(time("proof_list ")?),
        );
    }
    Ok(best)
}

/// Time that the library adds to a program's whole run, in microseconds.
fn added_us(command: &mut Command, library: &Path) -> Result<f64> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        command.env_remove("LD_PRELOAD");
        without.push(time_us(command)?);
        command.env("LD_PRELOAD", library);
        with.push(time_us(command)?);
    }
    Ok(median(&mut with) - median(&mut without))
}

fn time_us(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    // Waits without a limit: a wait with a limit polls the child at intervals that are coarser than the measured time.
    // The programs do not block.
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run `{}`", shown(command)))?;
    let time = start.elapsed();
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(time.as_secs_f64() * 1e6)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!(median(&mut []).is_nan());
    }
}
