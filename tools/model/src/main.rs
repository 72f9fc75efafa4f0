//! `xgvmi-model`: predicts an offloaded alltoallv. This file only dispatches.
#![expect(
    clippy::print_stdout,
    reason = "the answer is what this program prints"
)]

use clap::Parser;
use scale_model::{ModelArgs, run};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "xgvmi-model", version)]
struct Cli {
    #[command(flatten)]
    args: ModelArgs,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    match run(&Cli::parse().args) {
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
