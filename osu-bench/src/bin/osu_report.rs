//! `osu_report`: merges the JSON files of several runs into one table, file and plot.
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::{Long, Short, Value};
use osu_mpi::merge::merge;
use osu_mpi::results::{Record, replace};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Usage: osu_report [--json FILE] [--plot FILE.svg] RUN.json...

Merges the reports that osu_alltoallv and osu_ialltoallv write with --json: several schemes, and the median of several
runs of each.";

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("osu_report: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String> {
    let (mut json, mut plot, mut files) = (None, None, Vec::new());
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("json") => json = Some(PathBuf::from(parser.value()?)),
            Long("plot") => plot = Some(PathBuf::from(parser.value()?)),
            Short('h') | Long("help") => return Ok(format!("{HELP}\n")),
            Value(file) => files.push(PathBuf::from(file)),
            other => bail!("{}; try: osu_report --help", other.unexpected()),
        }
    }
    let records = files
        .iter()
        .map(|file| {
            let bytes = std::fs::read(file).context("cannot read it")?;
            serde_json::from_slice(&bytes).context("not the result of a run")
        })
        .zip(&files)
        .map(|(record, file)| record.with_context(|| file.display().to_string()))
        .collect::<Result<Vec<Record>>>()?;
    let merged = merge(&records)?;
    if let Some(path) = json {
        replace(&path, &(serde_json::to_string_pretty(&merged)? + "\n"))?;
    }
    if let Some(path) = plot {
        replace(&path, &merged.plot()?)?;
    }
    Ok(merged.table())
}
