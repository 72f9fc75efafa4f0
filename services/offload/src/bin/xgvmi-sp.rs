//! `xgvmi-sp`: a service process. Run one per DPU core that moves data; see `docs/OFFLOAD.md`.

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use xgvmi_daemon::status;
use xgvmi_daemon::supervise;
use xgvmi_offload::{Service, ServiceArgs, Status};

/// Moves data between the memories of hosts for the ranks of MPI programs. Serves one job after the other.
///
/// Its first line on standard output contains the addresses on which it listens.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-sp", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    args: ServiceArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the state of a running service process: jobs, queues, blocks, refusals, latencies.
    Status(StatusArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// The service's --status-socket [default: xgvmi-sp-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR].
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// The service's port, for the default socket.
    #[arg(long, default_value_t = 7700)]
    port: u16,
    /// As JSON.
    #[arg(long, conflicts_with = "prom")]
    json: bool,
    /// In the text format of Prometheus.
    #[arg(long)]
    prom: bool,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Status(args)) => show(args),
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
    let options = args.options()?;
    if options.workers > 1 {
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut told = Ok(());
        supervise(options.workers, &arguments, options.drain_limit, |lines| {
            told = tell(&lines.join("\n"))
        })?;
        return told;
    }
    let mut service = Service::new(options)?;
    tell(&format!(
        "xgvmi-sp {} listens on {}, UCX {}",
        env!("CARGO_PKG_VERSION"),
        service.address(),
        service.ucx_version()
    ))?;
    Ok(service.run()?)
}

/// Requests the state of a running service.
fn show(args: &StatusArgs) -> Result<()> {
    let name = format!("xgvmi-sp-{}", args.port);
    let socket = args.socket.clone().or_else(|| status::default_path(&name));
    let socket = socket.context(
        "neither $RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR is set: give --socket FILE, the service's --status-socket",
    )?;
    let text = status::ask(&socket)?;
    let state = Status::parse(&text)?;
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

/// Reports readiness on standard output and to systemd.
fn tell(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .context("telling where it listens")?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")
}
