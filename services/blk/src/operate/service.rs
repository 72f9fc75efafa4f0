//! `xgvmi-blk service`: serves a volume on a DPU to initiators on its host.

use super::common::{initiator_secret, tell};
use super::daemon::{Daemon, wait_until};
use super::opener::Opener;
use super::options::ServiceArgs;
use super::status::{ServiceProcessStatus, Status};
use crate::say::say;
use crate::service::{Service, ServiceOptions};
use anyhow::{Context as _, Result};
use std::sync::Arc;
use xgvmi_daemon::Secret;

/// Serves initiators until SIGTERM or SIGINT.
///
/// # Errors
/// The options contradict each other, the volume cannot be opened, the adapter cannot be used, the socket fails.
pub fn service(args: ServiceArgs) -> Result<()> {
    let args = args.complete()?;
    let listen = args.listen();
    let limit = args.drain_limit()?;
    let secrets = read_secrets(&args)?;
    let listener =
        xgvmi_daemon::listen(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address")?;
    // Before any other thread: they inherit the blocked signals.
    let name = format!("service-{}", address.port());
    let daemon = Daemon::new(&name, args.status_socket.as_deref())?;
    let opener = Opener::new(&args.targets, &args.open)?;
    let volume = Arc::new(opener.open_volume()?);
    let options = ServiceOptions {
        device: args.device.clone(),
        workers: args.workers()?,
        transfer_max: args.transfer_max()?,
        rdma: args.rdma.unwrap_or(false),
        stock_keys: args.stock_keys.unwrap_or(false),
        wait: args.open.longest_wait()?,
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
            Some(Arc::clone(&volume)),
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
            || match read_secrets(&args) {
                Ok(secrets) => service.set_secrets(secrets),
                Err(error) => say(format_args!("the secret stays as it was: {error:#}")),
            },
        )
        .with_context(|| listen.to_string())?;
    let mut drained = Ok(());
    if ended.drains() {
        service.drain();
        if !wait_until(limit, || service.under_way() == 0) {
            // Their initiators repeat them at the next service.
            say(format_args!(
                "{} requests have no answer after {} s",
                service.under_way(),
                limit.as_secs()
            ));
        }
        // Fails at once for a volume that another process has opened.
        drained = volume.flush();
    }
    ended.leave();
    Ok(drained?)
}

fn read_secrets(args: &ServiceArgs) -> Result<Vec<Secret>> {
    let paths = args.initiator_secret_file.iter();
    paths.map(|path| initiator_secret(path)).collect()
}
