//! `cargo xtask bench judge`: compares the reports with the promises that a benchmark checks, and writes
//! `target/bench/judge.json`.
//!
//! Only this command judges times and their ratios. Tests do not, because times are noisy.

use crate::workspace;
use anyhow::{Context, Result, bail};
use doc_numbers::judge;
use doc_numbers::promises::{self, Promises};
use doc_numbers::reports::Reports;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Judges the reports below the target directory, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench judge takes no options, not '{option}'");
    }
    let promises = workspace::root().join(promises::FILE);
    let promises =
        fs::read_to_string(&promises).with_context(|| format!("reading {}", promises.display()))?;
    let mut reports = Reports::measured(&workspace::target_dir())?;
    reports.promises = Promises::parse(&promises)?;
    let rows = judge::rows(&reports)?;
    let (mut broken, mut unknown) = (0, 0);
    for row in &rows {
        let verdict = match row["kept"].as_bool() {
            Some(true) => "kept",
            Some(false) => {
                broken += 1;
                "BROKEN"
            }
            None => {
                unknown += 1;
                "unknown"
            }
        };
        let text = |key: &str| row[key].as_str().unwrap_or("-");
        println!(
            "{verdict:<8} {}: {}, wanted {}",
            text("promise"),
            text("found"),
            text("wanted")
        );
    }
    if let Some(place) = file.parent() {
        fs::create_dir_all(place).with_context(|| format!("making {}", place.display()))?;
    }
    let kept = rows.len() - broken - unknown;
    fs::write(file, format!("{:#}\n", json!({ "rows": rows })))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!(
        "\n{kept} kept, {broken} broken, {unknown} without a report\nwritten: {}",
        file.display()
    );
    Ok(if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
