//! `osu_report`: merges the JSON files of several runs into one table, file and plot.
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

use anyhow::{Context as _, Result};
use bench_report::columns::ALLTOALLV;
use bench_report::files;
use clap::Parser;
use osu_mpi::merge::merge;
use osu_mpi::results::{Record, replace};
use std::path::PathBuf;
use std::process::ExitCode;

/// Merges the reports that osu_alltoallv and osu_ialltoallv write with --json: several schemes, and the median of several
/// runs of each
#[derive(Debug, Parser)]
#[command(name = "osu_report", version)]
struct Cli {
    /// Write the merged report
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of it
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// The reports
    #[arg(value_name = "RUN.json", required = true)]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
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

fn run(cli: &Cli) -> Result<String> {
    let Cli { json, plot, files } = cli;
    let records = files
        .iter()
        .map(|file| {
            let bytes = std::fs::read(file).context("cannot read it")?;
            serde_json::from_slice(&bytes).context("not the result of a run")
        })
        .zip(files)
        .map(|(record, file)| record.with_context(|| file.display().to_string()))
        .collect::<Result<Vec<Record>>>()?;
    let merged = merge(&records)?;
    if let Some(path) = json {
        replace(path, &files::json(&merged, ALLTOALLV)?)?;
    }
    if let Some(path) = plot {
        replace(path, &merged.plot()?)?;
    }
    merged.table()
}
