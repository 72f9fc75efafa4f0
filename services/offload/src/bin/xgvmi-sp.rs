//! `xgvmi-sp`: a service process. Run one per DPU core that moves data; see `docs/OFFLOAD.md`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;
use xgvmi_daemon::status::StatusArgs;
use xgvmi_daemon::{ready, supervise};
use xgvmi_offload::{Service, ServiceOptions, Status};

/// Moves data between the memories of hosts for the ranks of MPI programs. Serves one job after the other.
///
/// Its first line on standard output contains the addresses on which it listens.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-sp", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the state of a running service process: jobs, queues, blocks, refusals, latencies.
    Status(StatusArgs<7700>),
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let cli: Cli = xgvmi_daemon::options::parse();
    let done = match &cli.command {
        Some(Command::Status(args)) => show(args),
        None => run(cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: ServiceOptions) -> Result<()> {
    let options = options.complete()?;
    if options.workers > 1 {
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut told = Ok(());
        supervise(options.workers, &arguments, options.drain_limit, |lines| {
            told = ready(&lines.join("\n"))
        })?;
        return Ok(told?);
    }
    let mut service = Service::new(options)?;
    ready(&format!(
        "xgvmi-sp {} listens on {}, UCX {}",
        env!("CARGO_PKG_VERSION"),
        service.address(),
        service.ucx_version()
    ))?;
    Ok(service.run()?)
}

/// Requests the state of a running service.
fn show(args: &StatusArgs<7700>) -> Result<()> {
    let text = args.show::<Status>("xgvmi-sp")?;
    Ok(xgvmi_daemon::print(&text)?)
}
