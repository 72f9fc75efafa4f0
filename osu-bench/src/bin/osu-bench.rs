//! `osu-bench`: the offloaded alltoallv and what is known about it. One subcommand per job; this file only dispatches.
#![expect(
    clippy::print_stdout,
    reason = "the answer is what this program prints"
)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use osu_bench::model::{self, ModelArgs};
use std::process::ExitCode;

/// DPU-offloaded collectives with temporary buffers: measured, and predicted.
#[derive(Debug, Parser)]
#[command(name = "osu-bench", version)]
struct Cli {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    /// Predict an alltoallv on a machine of any size.
    Model(ModelArgs),
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let answer: Result<String> = match Cli::parse().job {
        Job::Model(args) => model::run(&args),
    };
    match answer {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
