//! The command `xgvmi`: options of the library, its counters in running processes, check of this machine, probe of its
//! device. This file parses the command line and dispatches.
//!
//! ```text
//! $ xgvmi doctor      # requirements that this machine does not meet
//! $ xgvmi stat        # counters of the processes that use the library
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]

mod accelerators;
mod access;
mod binding;
mod capability;
mod counter_file;
mod doctor;
mod info;
mod options;
mod probe;
mod stat;
mod ucc;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Inspects libuct_ib_mlx5_xgvmi, the library that serves UCX's cross-GVMI memory keys.
///
/// The exit code is 0 on success, 1 if a problem was found, and 2 for a usage error.
#[derive(Debug, Parser)]
#[command(name = "xgvmi", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the version, the installed UCX, its entry points for the library, and the options
    Info(info::Arguments),
    /// Print the counters of the processes that use the library
    Stat(stat::Arguments),
    /// Check whether this machine can use the library, and print a fix for each problem
    Doctor(doctor::Arguments),
    /// Try everything that the library needs of a device, and write one report to send
    Probe(probe::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Arguments>() {
        return code;
    }
    // A reader that closes the pipe early must not cause a panic.
    // SAFETY: SIGPIPE always has a
    // default action, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let is_well = match Arguments::parse().command {
        Command::Info(arguments) => info::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
    };
    match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
