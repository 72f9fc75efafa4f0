//! `cargo xtask bench judge`: compares the reports with the promises that a benchmark checks, and writes
//! `target/bench/judge.json`.
//!
//! Only this command judges times and their ratios. Tests do not, because times are noisy.

use super::{begin, finish};
use crate::workspace;
use anyhow::{Context, Result};
use bench_report::{columns, table};
use doc_numbers::judge;
use doc_numbers::promises::{self, Promises};
use doc_numbers::reports::Reports;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// What is printed for a kept promise, a broken one, and one without a report.
const VERDICTS: [&str; 3] = ["kept", "BROKEN", "unknown"];

/// Judges the reports below the target directory, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("judge", options, file)?;
    let promises = workspace::root().join(promises::FILE);
    let promises =
        fs::read_to_string(&promises).with_context(|| format!("reading {}", promises.display()))?;
    let mut reports = Reports::measured(&workspace::target_dir())?;
    reports.promises = Promises::parse(&promises)?;
    let rows = judge::rows(&reports)?;
    let shown = rows.iter().map(|row| judge::with_verdict(row, VERDICTS));
    let shown: Vec<Value> = shown.collect();
    let names = ["verdict", "promise", "found", "wanted"];
    let columns = table::part(columns::JUDGE, &names)?;
    print!("{}", table::text(&columns, &shown)?);
    let counted = VERDICTS.map(|verdict| {
        let same = shown.iter().filter(|row| row["verdict"] == verdict);
        same.count()
    });
    let [kept, broken, unknown] = counted;
    println!("\n{kept} kept, {broken} broken, {unknown} without a report");
    finish(file, &json!({ "rows": rows }), columns::JUDGE)?;
    Ok(if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
