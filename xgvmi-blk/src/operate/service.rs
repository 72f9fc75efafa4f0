//! `xgvmi-blk service`: serves a volume on a DPU to initiators on its host.

use super::common::tell;
use super::daemon::Daemon;
use super::opener::Opener;
use super::options::OpenArgs;
use super::status::{ServiceProcessStatus, Status};
use crate::client::SECRET_CONTEXT;
use crate::service::{Service, ServiceOptions};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use xgvmi_daemon::Secret;

/// Options of `xgvmi-blk service`.
#[derive(Debug, Clone, Args)]
pub struct ServiceArgs {
    /// Files, or tcp:HOST:PORT, in any order. Two are enough.
    #[arg(required = true, num_args = 1..=3, value_name = "TARGET")]
    pub targets: Vec<String>,
    /// How the targets are opened.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Where initiators connect; port 0 chooses one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7720")]
    pub listen: SocketAddr,
    /// File with the secret of initiators, 16 to 4,096 bytes, which other users cannot read. Required unless --listen is
    /// a loopback address.
    #[arg(long, value_name = "FILE")]
    pub initiator_secret_file: Option<PathBuf>,
    /// The RDMA device [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Requests that are carried out at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Longest transfer of one request in MiB. Each worker has a buffer of this size.
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub transfer_mib: u32,
    /// Move data by RDMA READ and WRITE instead of the adapter's DMA engine.
    #[arg(long)]
    pub rdma: bool,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-service-PORT.sock in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR; without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

/// Serves initiators until SIGTERM or SIGINT.
///
/// # Errors
/// The volume cannot be opened, the adapter cannot be used, the socket fails.
pub fn service(args: ServiceArgs) -> Result<()> {
    let listen = args.listen;
    let secret = args.initiator_secret_file.as_deref();
    let secret = secret.map(|path| Secret::read(path, SECRET_CONTEXT));
    let secrets: Vec<Secret> = secret.transpose()?.into_iter().collect();
    if secrets.is_empty() && !listen.ip().is_loopback() {
        bail!(
            "{listen}: beyond loopback a service needs a secret: give --initiator-secret-file FILE"
        );
    }
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address")?;
    // Before any other thread: they inherit the blocked signals.
    let name = format!("service-{}", address.port());
    let daemon = Daemon::new(&name, args.status_socket.as_deref())?;
    let opener = Opener::new(&args.targets, &args.open)?;
    let volume = Arc::new(opener.open_volume()?);
    let options = ServiceOptions {
        device: args.device,
        workers: args.workers.into(),
        transfer_max: args.transfer_mib << 20,
        rdma: args.rdma,
        secrets,
    };
    let service = Arc::new(Service::new(Arc::clone(&volume), &options).context("the adapter")?);
    tell(&format!(
        "xgvmi-blk {} serves volume {} at {address} by {}",
        env!("CARGO_PKG_VERSION"),
        volume.id(),
        service.transfer(),
    ))?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")?;
    opener.keep(&volume)?;
    let serving = Arc::clone(&service);
    let ended = daemon
        .run(
            move || serving.serve(&listener),
            |daemon| {
                Status::Service(ServiceProcessStatus {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    pid: std::process::id(),
                    uptime_s: daemon.uptime_s(),
                    address: address.to_string(),
                    transfer: service.transfer().to_owned(),
                    requests: service.status(),
                    volume: volume.status(),
                })
            },
            || eprintln!("xgvmi-blk: SIGHUP: a service has nothing to read again"),
        )
        .with_context(|| listen.to_string())?;
    // Initiators repeat what has no answer.
    let drained = if ended.drains() {
        volume.flush()
    } else {
        Ok(())
    };
    ended.leave();
    Ok(drained?)
}
