//! `cargo xtask bench links`: the demo's transfer over InfiniBand and over Ethernet ports, with verified bytes.
//!
//! All runs are in one orchestrator, which alternates between them in short batches. Other work of the machine then
//! affects both links alike. `doc_numbers` compares the rows.

use super::{LIMIT, Options, orchestrate, prepare};
use crate::process;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Measures and writes `file`. The orchestrator prints the rows.
pub(crate) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench links takes no options, not '{option}'");
    }
    // A report of an earlier run must not count for this run.
    let _ = fs::remove_file(file);
    // A key per buffer costs the same commands on both links, so scheme ksm is left out.
    let demo = Options::parse(vec!["--schemes=stock,xgvmi".to_owned()])?;
    let demo = demo.context("no request for help")?;
    let (env, libraries, built) = prepare(&demo)?;
    let output = file.with_extension("demo");
    let mut command = orchestrate(&demo, (&env, &libraries), &built);
    command.args(["--links", "infiniband,ethernet"]);
    command.arg("--output").arg(&output);
    if process::to_end(&mut command, LIMIT)? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    let report = output.join("report.json");
    fs::copy(&report, file).with_context(|| format!("no {}", report.display()))?;
    println!("\nwritten: {}", file.display());
    Ok(ExitCode::SUCCESS)
}
