//! The command `bf-emu`. It creates and removes emulated fabrics, starts programs on them, and
//! reports their activity.

mod cli;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<cli::Cli>() {
        return code;
    }
    match cli::Cli::parse().act() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr leaves no way to report the error.
            let _ = writeln!(std::io::stderr(), "bf-emu: {error:#}");
            ExitCode::FAILURE
        }
    }
}
