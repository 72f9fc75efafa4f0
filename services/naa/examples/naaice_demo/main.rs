//! `cargo xtask demo naaice`: the cost of a remote call on fresh buffers, by the way in which the accelerator reaches
//! them. `orchestrate` starts services and clients on an emulated cluster and writes the report; `client` is one host.
#![expect(clippy::print_stdout, reason = "a demo says what it does")]

mod client;
mod orchestrate;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match arguments.next().as_deref() {
        Some("client") => client::run(arguments.next().is_some_and(|word| word == "original")),
        Some("orchestrate") => orchestrate::run(arguments.collect()),
        _ => Err(anyhow::anyhow!("run it with `cargo xtask demo naaice`")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
