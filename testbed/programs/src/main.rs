//! `xgvmi-testbed`: programs that demos, benchmarks and tests run on an emulated cluster.
#![expect(clippy::print_stdout, reason = "a demo says what it does")]

mod demo;
mod naaice_demo;
mod storage_demo;

use clap::Parser;
use std::process::ExitCode;

/// Programs on an emulated cluster; `cargo xtask` runs them.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-testbed")]
enum Program {
    /// Serve a volume through a DPU, and measure it.
    StorageDemo(storage_demo::Demo),
    /// One initiator of a volume: batches come from standard input.
    StorageClient(storage_demo::Client),
    /// Plot fio's requests in a report of `cargo xtask bench storage`.
    StoragePlot(storage_demo::Plot),
    /// Call accelerators on fresh buffers, and measure the calls.
    NaaiceDemo(naaice_demo::Demo),
    /// One caller: batches come from standard input.
    NaaiceClient(naaice_demo::Client),
}

fn main() -> ExitCode {
    let done = match Program::parse() {
        Program::StorageDemo(args) => args.run(),
        Program::StorageClient(args) => args.run(),
        Program::StoragePlot(args) => args.run(),
        Program::NaaiceDemo(args) => args.run(),
        Program::NaaiceClient(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
