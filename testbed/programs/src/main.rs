//! `xgvmi-testbed`: programs that demos, benchmarks and tests run on an emulated cluster.
#![expect(clippy::print_stdout, reason = "a demo says what it does")]

mod demo;
mod dpa_demo;
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
    /// Run kernels on the DPAs of two nodes, and measure them.
    DpaDemo(dpa_demo::Demo),
    /// Launch kernels: batches come from standard input.
    DpaLaunches(dpa_demo::Launches),
    /// One side of a ping-pong of two DPAs.
    DpaPong(dpa_demo::Pong),
    /// The process on the DPU of a node: its kernel moves the blocks of all-to-alls.
    DpaAgent(dpa_demo::Agent),
    /// One rank of all-to-alls: batches come from standard input.
    DpaRank(dpa_demo::Rank),
    /// Print the device's counters, and note the processor time of processes.
    DpaCounters(dpa_demo::Counters),
}

fn main() -> ExitCode {
    let done = match Program::parse() {
        Program::StorageDemo(args) => args.run(),
        Program::StorageClient(args) => args.run(),
        Program::StoragePlot(args) => args.run(),
        Program::NaaiceDemo(args) => args.run(),
        Program::NaaiceClient(args) => args.run(),
        Program::DpaDemo(args) => args.run(),
        Program::DpaLaunches(args) => args.run(),
        Program::DpaPong(args) => args.run(),
        Program::DpaAgent(args) => args.run(),
        Program::DpaRank(args) => args.run(),
        Program::DpaCounters(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
