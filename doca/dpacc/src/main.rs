//! The command `dpacc`.

use dpacc::{Failure, HELP, Request};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let done = match dpacc::parse(&words) {
        Ok(Request::Build(options)) => dpacc::build(&options),
        Ok(Request::Help) => {
            say(HELP);
            Ok(())
        }
        Ok(Request::Version) => {
            say(&format!("dpacc {}\n", env!("CARGO_PKG_VERSION")));
            Ok(())
        }
        Err(fault) => Err(fault.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told) => ExitCode::FAILURE,
        Err(Failure::Faults(faults)) => {
            for fault in faults {
                eprintln!("{fault}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output. A closed pipe is no fault.
fn say(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
