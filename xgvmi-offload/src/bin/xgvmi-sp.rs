//! `xgvmi-sp`: a service process. One per core of a DPU that is to move data; see `docs/OFFLOAD.md`.

use anyhow::{Context as _, Result};
use clap::Parser;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::process::ExitCode;
use xgvmi_offload::{Service, ServiceArgs, supervise};

/// Moves data between the memories of hosts for the ranks of MPI programs, which it serves job after job.
///
/// Its first line on standard output tells where it listens.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-sp", version)]
struct Cli {
    #[command(flatten)]
    args: ServiceArgs,
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    match run(Cli::parse().args) {
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
        supervise(options.workers, &arguments, |lines| {
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

/// Says that all is up, on standard output and to systemd.
fn tell(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .context("telling where it listens")?;
    notify_systemd().context("telling systemd")
}

/// For a unit of `Type=notify`: the service is up.
fn notify_systemd() -> Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(b"READY=1", &address)?;
        }
        None => {
            socket.send_to(b"READY=1", path)?;
        }
    }
    Ok(())
}
