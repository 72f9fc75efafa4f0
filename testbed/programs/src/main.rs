//! `xgvmi-testbed`: programs that demos, benchmarks and tests run on an emulated cluster.
#![expect(clippy::print_stdout, reason = "a demo says what it does")]

mod naaice_demo;
mod storage_demo;

use anyhow::{Result, bail};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let program = words.next().unwrap_or_default();
    match run(&program, words.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &str, words: Vec<String>) -> Result<()> {
    match program {
        "storage" => storage_demo::run(&words),
        "naaice" => naaice_demo::run(words),
        _ => bail!("run it with `cargo xtask demo storage` or `cargo xtask demo naaice`"),
    }
}
