//! `cost_table`: the duration of each step in the life of a cross-function key, next to the published times.
#![expect(
    clippy::print_stdout,
    reason = "the answer is what this program prints"
)]

use clap::Parser;
use cost_table::CostArgs;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "cost_table", version)]
struct Cli {
    #[command(flatten)]
    args: CostArgs,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    match cost_table::run(&Cli::parse().args) {
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
