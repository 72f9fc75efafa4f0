//! Programs of tests/programs in the interpreter and under qemu-riscv64: results and speed.
//!
//! ```text
//! rv64_judge run FILE       runs a program
//! rv64_judge count FILE     runs a program and writes the number of its instructions
//! rv64_judge names          writes the names of all comparisons
//! rv64_judge compare DIR NAME...  builds and runs programs in DIR; a line per comparison
//! rv64_judge speed DIR FILE builds and runs programs in DIR, and writes a report
//! ```
#![allow(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]

mod programs;
mod speed;
mod user;

use anyhow::{Result, bail};
use std::path::Path;
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["run", file] => user::run(file, false),
        ["count", file] => user::run(file, true),
        ["names"] => {
            programs::names().for_each(|name| println!("{name}"));
            Ok(ExitCode::SUCCESS)
        }
        ["compare", dir, ref names @ ..] => programs::compare(Path::new(dir), names),
        ["speed", dir, file] => speed::run(Path::new(dir), Path::new(file)),
        _ => {
            bail!("usage: rv64_judge run|count FILE, names, compare DIR NAME..., or speed DIR FILE")
        }
    }
}
