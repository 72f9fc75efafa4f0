//! The speed of the interpreter beside that of qemu-riscv64.

use crate::programs::{GCC, compile, emulator, here, output};
use anyhow::{Context as _, Result};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Programs, and how often each repeats its work: a few seconds here.
const PROGRAMS: [(&str, &str); 2] = [("sieve", "-DROUNDS=80"), ("structures", "-DROUNDS=8000")];

/// Runs of each engine, in turns. The fastest counts.
const RUNS: usize = 3;

/// Ticks of a second in /proc on all Linux systems.
const TICKS: f64 = 100.0;

/// Measures, prints the rows and writes them to `report`. `ratio` is the time relative to that of qemu-riscv64.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn run(dir: &Path, report: &Path) -> Result<ExitCode> {
    let mut rows = Vec::new();
    println!(
        "{:<12} {:<14} {:>14} {:>9} {:>9} {:>7}",
        "program", "engine", "instructions", "cpu s", "MIPS", "ratio"
    );
    for (program, rounds) in PROGRAMS {
        let built = compile(dir, program, &GCC, &[rounds])?;
        let (_, count) = output(&mut here(&built, "count")?)?;
        let instructions: u64 = String::from_utf8(count)?.trim().parse()?;
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            ours = ours.min(seconds(&mut here(&built, "run")?)?);
            theirs = theirs.min(seconds(&mut emulator(&built))?);
        }
        for (engine, seconds) in [("rv64", ours), ("qemu-riscv64", theirs)] {
            let (mips, ratio) = (instructions as f64 / seconds / 1e6, seconds / theirs);
            println!(
                "{program:<12} {engine:<14} {instructions:>14} {seconds:>9.2} {mips:>9.1} {ratio:>7.1}"
            );
            rows.push(json!({
                "program": program, "engine": engine, "instructions": instructions, "cpu_s": seconds, "mips": mips, "ratio": ratio,
            }));
        }
    }
    let text = format!("{:#}\n", json!({ "rows": rows }));
    fs::write(report, text).with_context(|| report.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Processor time of a run. It depends less than the time of a clock on what else the machine does.
fn seconds(command: &mut Command) -> Result<f64> {
    let before = children()?;
    output(command)?;
    Ok(children()? - before)
}

/// User time of all ended children: the 16th field of proc(5)'s `stat`.
fn children() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    // Names may contain spaces; the third field follows the last bracket.
    let fields = text
        .rsplit_once(')')
        .context("no name in /proc/self/stat")?
        .1;
    let ticks: u32 = fields
        .split_whitespace()
        .nth(13)
        .context("a short /proc/self/stat")?
        .parse()?;
    Ok(f64::from(ticks) / TICKS)
}
