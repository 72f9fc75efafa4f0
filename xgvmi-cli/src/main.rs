//! `xgvmi`: shows how the library is set, what it does in running processes, and whether this
//! machine has what it needs. This file reads the command line and dispatches.
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]

mod board;
mod capability;
mod doctor;
mod info;
mod options;
mod stat;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks after libuct_ib_mlx5_xgvmi, the library that serves UCX's cross-GVMI memory keys.
///
/// Ends with 0 when all is well, with 1 when something is not, with 2 when it was called wrongly.
#[derive(Debug, Parser)]
#[command(name = "xgvmi", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the version, the UCX that is found, the doors into it, and the options
    Info(info::Arguments),
    /// Show the numbers of the processes that use the library
    Stat(stat::Arguments),
    /// Look whether this machine can use the library, and say what to do where it cannot
    Doctor(doctor::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Arguments>() {
        return code;
    }
    // Whoever reads only the first lines shall not make this one panic.
    // SAFETY: the default action of a signal is always there, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let is_well = match Arguments::parse().command {
        Command::Info(arguments) => info::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
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
