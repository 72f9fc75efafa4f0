//! `cargo xtask bench cost`: the slides' cost table, measured on the emulated device, as `target/bench/cost.json`.
//!
//! Two runs: one on a device that takes no time, which shows what programs and emulator need themselves, and one with
//! the slides' times. A row is as expected when it is within 10 % of both together; which are not is printed.

use super::{build, build_preload, pool::State};
use crate::process::{Running, shown};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The slowest step takes 0.1 s, twenty times; a machine that does other work, more.
const LIMIT: Duration = Duration::from_secs(180);
/// How far a row may be off.
const TOLERANCE: f64 = 0.1;

/// Measures, writes `file` and its csv, txt and svg beside it, and prints the table.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let env = setup::ensure()?;
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    build("bf-emu", "bf-emu")?;
    build_preload()?;
    let program = build("osu-bench", "cost_table")?;
    let own = file.with_extension("own.json");
    let outputs = ["json", "csv", "txt", "svg"].map(|suffix| file.with_extension(suffix));
    for old in outputs.iter().chain([&own]) {
        // Another run's must not pass for this one's.
        let _ = fs::remove_file(old);
    }
    let measure = |profile: &str, extra: &mut dyn FnMut(&mut Command)| -> Result<String> {
        let state = State::new();
        let mut command = Command::new(workspace::target_dir().join("release/bf-emu"));
        command.arg("run").arg("--state").arg(state.path());
        command.args(["--profile", profile, "--nodes", "1"]);
        command.args(["--as", "node0.host,node0.dpu", "--"]);
        command
            .arg(&program)
            .args(["--host", "mlx5_0", "--dpu", "mlx5_1"]);
        command.args(options);
        extra(&mut command);
        command.envs(env.for_verbs());
        let done = Running::spawn(&mut command)?.wait(LIMIT)?;
        if !done.ok() {
            bail!("`{}`: {}\n{}", shown(&command), done.verdict(), done.output);
        }
        Ok(done.output)
    };
    measure("none", &mut |command| {
        command.arg("--output").arg(&own);
    })?;
    let text = measure("bluefield3", &mut |command| {
        command.arg("--own").arg(&own);
        for output in &outputs {
            command.arg("--output").arg(output);
        }
    })?;
    print!("{text}");
    let report = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    println!("\n{}", verdict(&report)?);
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// How many rows are as expected, and which are not.
fn verdict(report: &str) -> Result<String> {
    let report: Value = serde_json::from_str(report).context("the report")?;
    let rows = report["rows"]
        .as_array()
        .context("the report has no rows")?;
    let mut off = Vec::new();
    let mut compared = 0;
    for row in rows {
        let Some(ratio) = row["ratio"].as_f64() else {
            continue;
        };
        compared += 1;
        if (ratio - 1.0).abs() > TOLERANCE {
            off.push(format!(
                "\n  {} {} at {} bytes: {ratio:.2}",
                row["approach"].as_str().unwrap_or_default(),
                row["step"].as_str().unwrap_or_default(),
                row["size"],
            ));
        }
    }
    Ok(format!(
        "{} of {compared} rows within {:.0} % of the slides and the emulator's own time{}{}",
        compared - off.len(),
        TOLERANCE * 100.0,
        if off.is_empty() { "" } else { "; not:" },
        off.concat()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_off_are_named() {
        let row = |ratio: &str| {
            format!(r#"{{"approach":"umr","step":"s","size":16384,"ratio":{ratio}}}"#)
        };
        let check = |ratios: &[&str], expect: &str| {
            let rows: Vec<String> = ratios.iter().map(|ratio| row(ratio)).collect();
            let report = format!(r#"{{"rows":[{}]}}"#, rows.join(","));
            let text = verdict(&report).unwrap();
            assert!(text.starts_with(expect), "{text}");
        };
        check(&["1.0", "1.09", "0.91"], "3 of 3 rows");
        check(&["1.0", "1.2", "0.8", "null"], "1 of 3 rows");
        assert!(
            verdict(&format!(r#"{{"rows":[{}]}}"#, row("1.25")))
                .unwrap()
                .contains("umr s at 16384 bytes: 1.25")
        );
        assert!(verdict("{}").is_err());
    }
}
