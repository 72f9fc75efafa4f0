//! `xgvmi-offload-check`: one rank of a job that exercises the service processes without MPI and verifies every byte.

use anyhow::{Context as _, Result};
use clap::Parser;
use std::io::Write as _;
use std::process::ExitCode;
use xgvmi_offload::check::{self, CheckArgs};

/// Runs alltoallvs of random counts through the service processes, and verifies every byte.
///
/// One process is one rank; start as many as --size says. They meet at --meet.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-offload-check", version)]
struct Cli {
    #[command(flatten)]
    args: CheckArgs,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let args = Cli::parse().args;
    let rank = args.rank;
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank {rank}: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &CheckArgs) -> Result<()> {
    let mut stdout = std::io::stdout();
    check::run(args, |line| {
        // If the reader has closed the pipe, nothing needs the line.
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    })
    .context("check of the offload")
}
