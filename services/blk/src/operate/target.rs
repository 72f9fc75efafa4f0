//! `xgvmi-blk target`: serves a target file to the process that owns its volume.

use super::common::{secret, tell};
use super::daemon::Daemon;
use super::options::TargetArgs;
use super::status::{Status, TargetProcessStatus};
use crate::remote::TargetServer;
use crate::say::say;
use crate::store::Store;
use anyhow::{Context as _, Result};
use std::sync::Arc;
use xgvmi_daemon::Secret;

/// Serves a target until SIGTERM or SIGINT.
///
/// # Errors
/// The options contradict each other, the file is no target, the socket fails.
pub fn target(args: TargetArgs) -> Result<()> {
    let args = args.complete()?;
    let secrets = read_secrets(&args)?;
    let file = args.file.clone().unwrap_or_default();
    let store = Store::open_file(&file, args.capacity.map(u64::from))?;
    let listen = args.listen();
    let listener =
        xgvmi_daemon::listen(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address")?;
    let daemon = Daemon::new(
        &format!("target-{}", address.port()),
        args.status_socket.as_deref(),
    )?;
    let server = Arc::new(TargetServer::new(store, secrets));
    let identity = server.identity();
    tell(&format!(
        "xgvmi-blk {} serves {} of volume {} at tcp:{address}",
        env!("CARGO_PKG_VERSION"),
        identity.role,
        identity.volume,
    ))?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")?;
    let serving = Arc::clone(&server);
    let ended = daemon
        .run(
            move || serving.run(&listener),
            None,
            |daemon| {
                let (identity, usage, load) = (server.identity(), server.usage(), server.load());
                Status::Target(TargetProcessStatus {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    pid: std::process::id(),
                    uptime_s: daemon.uptime_s(),
                    address: format!("tcp:{address}"),
                    file: file.display().to_string(),
                    role: identity.role.to_string(),
                    volume: identity.volume.to_string(),
                    epoch: identity.epoch,
                    complete: identity.is_complete(),
                    used: usage.used,
                    damaged: usage.damaged,
                    connections: load.connections,
                    calls: load.calls,
                    failed_calls: load.failed_calls,
                })
            },
            || match read_secrets(&args) {
                Ok(secrets) => server.set_secrets(secrets),
                Err(error) => say(format_args!("the secret stays as it was: {error:#}")),
            },
        )
        .with_context(|| listen.to_string())?;
    // No call of the owner starts after this one has returned.
    let drained = if ended.drains() {
        server.drain()
    } else {
        Ok(())
    };
    ended.leave();
    Ok(drained?)
}

fn read_secrets(args: &TargetArgs) -> Result<Vec<Secret>> {
    args.secret_file.iter().map(|path| secret(path)).collect()
}
