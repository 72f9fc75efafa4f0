//! `xgvmi-naa`: an accelerator service on a DPU; see `docs/NAAICE.md`.

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use xgvmi_daemon::status;
use xgvmi_naa::{Service, ServiceArgs, Status, run_kernels};

/// Runs kernels on the memory of the DPU's host, and for other hosts over RDMA.
///
/// Its first line on standard output contains the addresses on which it listens.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-naa", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    args: ServiceArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the state of a running service: sessions, calls, bytes, aliases.
    Status(StatusArgs),
    /// Runs kernels in a process of their own; started by the service.
    #[command(hide = true)]
    RunKernels(KernelArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// The service's --status-socket [default: xgvmi-naa-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR].
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// The service's port, for the default socket.
    #[arg(long, default_value_t = 7800)]
    port: u16,
    /// As JSON.
    #[arg(long, conflicts_with = "prom")]
    json: bool,
    /// In the text format of Prometheus.
    #[arg(long)]
    prom: bool,
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
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Status(args)) => show(args),
        Some(Command::RunKernels(args)) => run_kernels(&args.kernels, args.serve),
        None => run(cli.args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: ServiceArgs) -> Result<()> {
    let service = Service::new(args.options()?)?;
    let rdma = service
        .verbs_port()
        .map_or_else(String::new, |port| format!(", RDMA port {port}"));
    let mut stdout = std::io::stdout();
    writeln!(
        stdout,
        "xgvmi-naa {} listens on {}{rdma}",
        env!("CARGO_PKG_VERSION"),
        service.address(),
    )
    .and_then(|()| stdout.flush())
    .context("telling where it listens")?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")?;
    service.run()
}

/// Requests the state of a running service.
fn show(args: &StatusArgs) -> Result<()> {
    let name = format!("xgvmi-naa-{}", args.port);
    let socket = args.socket.clone().or_else(|| status::default_path(&name));
    let socket = socket.context(
        "neither $RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR is set: give --socket FILE, the service's --status-socket",
    )?;
    let text = status::ask(&socket)?;
    let state: Status = serde_json::from_str(&text).context("the service's answer")?;
    let text = match (args.json, args.prom) {
        (true, _) => text + "\n",
        (_, true) => state.prometheus(),
        _ => state.to_string(),
    };
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("writing the status")
}
