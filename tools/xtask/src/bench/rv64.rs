//! `cargo xtask bench rv64`: the speed of the processor of DPA programs beside that of qemu-riscv64, in
//! `target/bench/rv64.json`.

use crate::process;
use crate::suites::rv64::{GCC, Tools};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Programs, and how often each repeats its work: two seconds here.
const PROGRAMS: [(&str, &str); 2] = [("sieve", "-DROUNDS=40"), ("structures", "-DROUNDS=4000")];

/// Runs of each engine, in turns. The fastest counts.
const RUNS: usize = 3;
const LIMIT: Duration = Duration::from_secs(600);

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench rv64 takes no options, not '{option}'");
    }
    let tools = Tools::ensure()?;
    let mut rows = Vec::new();
    println!(
        "{:<12} {:<14} {:>14} {:>9} {:>9} {:>7}",
        "program", "engine", "instructions", "cpu s", "MIPS", "ratio"
    );
    for (program, rounds) in PROGRAMS {
        let built = tools.compile(program, &GCC, &[rounds])?;
        let instructions = count(tools.interpreter(&built).arg("--count"))?;
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            ours = ours.min(seconds(&mut tools.interpreter(&built))?);
            theirs = theirs.min(seconds(&mut tools.emulator(&built))?);
        }
        for (engine, seconds) in [("rv64", ours), ("qemu-riscv64", theirs)] {
            let row = row(program, engine, instructions, seconds, theirs);
            println!(
                "{program:<12} {engine:<14} {instructions:>14} {seconds:>9.3} {:>9.1} {:>7.1}",
                row["mips"].as_f64().unwrap_or_default(),
                row["ratio"].as_f64().unwrap_or_default()
            );
            rows.push(row);
        }
    }
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| place.display().to_string())?;
    fs::write(file, format!("{:#}\n", json!({ "rows": rows })))
        .with_context(|| file.display().to_string())?;
    println!("\nwritten: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// `ratio` is the time relative to that of qemu-riscv64.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn row(program: &str, engine: &str, instructions: u64, seconds: f64, theirs: f64) -> Value {
    json!({
        "program": program,
        "engine": engine,
        "instructions": instructions,
        "cpu_s": seconds,
        "mips": instructions as f64 / seconds / 1e6,
        "ratio": seconds / theirs,
    })
}

/// The instructions that a run with `--count` reports.
fn count(command: &mut Command) -> Result<u64> {
    let done = command.output().with_context(|| process::shown(command))?;
    let text = String::from_utf8_lossy(&done.stderr);
    let number = text.split(' ').next().and_then(|word| word.parse().ok());
    number.with_context(|| format!("{}: {text}", process::shown(command)))
}

/// Processor time of a run. It does not depend on what else the machine does as much as the time of a clock does.
fn seconds(command: &mut Command) -> Result<f64> {
    let before = children()?;
    let done = process::run(command, LIMIT)?;
    ensure!(
        !done.timed_out,
        "{}: {}",
        process::shown(command),
        done.verdict()
    );
    Ok(children()? - before)
}

/// User time of all ended children.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds and microseconds are small"
)]
fn children() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` is large enough for the result, which the call fills in.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    ensure!(rc == 0, "getrusage: {}", std::io::Error::last_os_error());
    // SAFETY: the call returned 0, so it has filled in the structure.
    let time = unsafe { usage.assume_init() }.ru_utime;
    Ok(time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
}
