//! The command `storage-crash`: `storage-crash XGVMI-BLK DIRECTORY ROUNDS SEED` loses the power of an export's targets; with a
//! block device as fifth word their disk is a dm-log-writes device with its log there.

use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::process::ExitCode;

fn run() -> Result<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (words, log) = words.split_at(words.len().min(4));
    let ([program, dir, rounds, seed], [] | [_]) = (words, log) else {
        bail!(
            "give the program xgvmi-blk, a directory, the number of rounds, a seed, and maybe a block device for a log"
        );
    };
    let rounds = rounds.parse().context("the number of rounds")?;
    let seed = seed.parse().context("the seed")?;
    let (program, dir) = (Path::new(program), Path::new(dir));
    match log.first() {
        Some(log) => storage_suite::record(program, (dir, Path::new(log)), (rounds, seed)),
        None => storage_suite::lose_power(program, dir, (rounds, seed)),
    }
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
