//! The command `storage-crash`: `storage-crash XGVMI-BLK DIRECTORY ROUNDS SEED` loses the power of an export's targets.

use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::process::ExitCode;

fn run() -> Result<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [program, dir, rounds, seed] = &words[..] else {
        bail!("give the program xgvmi-blk, a directory, the number of rounds, and a seed");
    };
    let rounds = rounds.parse().context("the number of rounds")?;
    let seed = seed.parse().context("the seed")?;
    storage_suite::lose_power(Path::new(program), Path::new(dir), (rounds, seed))
}

fn main() -> ExitCode {
    match run() {
        Ok(said) => {
            eprintln!("storage-crash: {said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("storage-crash: {error:#}");
            ExitCode::FAILURE
        }
    }
}
