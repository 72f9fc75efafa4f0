//! The development commands, `cargo xtask`: set-up, demo, tests, suites, benchmarks, packages. Each command has its own
//! file; this file only dispatches.
//!
//! ```text
//! $ cargo xtask demo          # one transfer in four schemes
//! $ cargo xtask test          # all checks
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]

mod bench;
mod bindgen;
mod demo;
mod dist;
mod doctor;
mod fuzz;
mod install;
mod patch;
mod results;
mod stage;
mod test;
mod tidy;

use anyhow::{Result, bail};
use dev_setup as setup;
use results::commits::noting;
use std::process::ExitCode;
use stock_suites::{self as suites, matrix};
use testbed::{link, place, process, progress, workspace};

const USAGE: &str = "\
Usage: cargo xtask COMMAND [OPTIONS]

  demo     set up, build, and run the cross-GVMI workflow on two emulated nodes
  test     run all checks: format, lints, unit tests, stock programs, the demo in quick form
  bench    run a benchmark and write its report
  results  run all benchmarks and generate the numbers in the documents from their reports
  suites   run third-party test programs on the emulated device
  setup    download what the other commands need (they call it themselves)
  matrix   test the library in each stock UCX at each entry point, on the emulated device
  patch    apply the UCX patches to a copy of a UCX tree, and test a UCX built from it
  fuzz     fuzz the parsers of user input and files
  install  install the library and its commands below a prefix
  dist     build Debian packages of the library and of the emulator
  doctor   print missing requirements of this machine and their fixes
  tidy     check the project rules of tests/rules (part of test)
  bindgen  write or check the committed FFI bindings (maintainers)

`cargo xtask COMMAND --help` describes a command.";

fn main() -> ExitCode {
    process::end_children_on_signal();
    let mut words = std::env::args();
    let done = match words.next() {
        Some(own) if test::documents::is_rustdoc(&own) => {
            test::documents::rustdoc(&words.collect::<Vec<String>>())
        }
        _ => dispatch(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_else(|| "--help".to_owned());
    let rest: Vec<String> = arguments.collect();
    match command.as_str() {
        "bench" => noting(|| bench::run(rest)),
        "bindgen" => bindgen::run(rest),
        "demo" => noting(|| demo::run(rest)),
        "dist" => dist::run(rest),
        "doctor" => doctor::run(rest),
        "fuzz" => noting(|| fuzz::run(rest)),
        "install" => install::run(rest),
        "matrix" => noting(|| matrix::run(rest)),
        "results" => results::run(rest),
        "patch" => patch::run(rest),
        "setup" => setup::run(rest),
        "suites" => noting(|| suites::run(rest)),
        "test" => test::run(rest),
        "tidy" => tidy::run(rest),
        "-h" | "--help" | "help" => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("no command '{other}'; try: cargo xtask --help"),
    }
}
