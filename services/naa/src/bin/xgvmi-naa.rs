//! `xgvmi-naa`: an accelerator service on a DPU; see `docs/NAAICE.md`.

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xgvmi_daemon::status::StatusArgs;
use xgvmi_naa::{Service, ServiceOptions, Status, run_kernels};

/// Runs kernels on the memory of the DPU's host, and for other hosts over RDMA.
///
/// Its first line on standard output contains the addresses on which it listens.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-naa", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the state of a running service: sessions, calls, bytes, aliases.
    Status(StatusArgs<7800>),
    /// Runs kernels in a process of their own; started by the service.
    #[command(hide = true)]
    RunKernels(KernelArgs),
}

#[derive(Debug, Args)]
struct KernelArgs {
    /// The shared object.
    #[arg(long)]
    kernels: PathBuf,
    /// Serve the requests of the service; without it the kernels are only loaded.
    #[arg(long)]
    serve: bool,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let cli: Cli = xgvmi_daemon::options::parse();
    let done = match &cli.command {
        Some(Command::Status(args)) => show(args),
        Some(Command::RunKernels(args)) => run_kernels(&args.kernels, args.serve),
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
    let service = Service::new(options)?;
    let rdma = service
        .verbs_port()
        .map_or_else(String::new, |port| format!(", RDMA port {port}"));
    xgvmi_daemon::ready(&format!(
        "xgvmi-naa {} listens on {}{rdma}",
        env!("CARGO_PKG_VERSION"),
        service.address(),
    ))?;
    service.run()
}

/// Requests the state of a running service.
fn show(args: &StatusArgs<7800>) -> Result<()> {
    let text = args.show::<Status>("xgvmi-naa")?;
    Ok(xgvmi_daemon::print(&text)?)
}
