//! `xgvmi-blk target`: serves a target file to the process that owns its volume.

use super::common::secret;
use super::control::{ReadSecrets, on_sighup, take_commands};
use super::daemon::run;
use super::options::TargetArgs;
use super::status::{Status, TargetProcessStatus};
use crate::remote::{Rdma, TargetServer};
use crate::store::Store;
use anyhow::{Context as _, Result, ensure};
use std::sync::Arc;
use xgvmi_daemon::{Daemon, Secret, ready};

/// Serves a target until SIGTERM or SIGINT.
///
/// # Errors
/// The options contradict each other, the file is no target, the socket fails.
pub fn target(args: &TargetArgs) -> Result<()> {
    let file = args.check()?;
    let secrets = read_secrets(args)?;
    let store = Store::open_past(&file, args.capacity, args.direct == Some(true))?;
    let listen = args.listen;
    let listener =
        xgvmi_daemon::listen(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address")?;
    let daemon = Daemon::new(
        &format!("xgvmi-blk-target-{}", address.port()),
        args.status_socket.as_deref(),
    )?;
    let mut server = TargetServer::new(store, secrets);
    let mut scheme = "tcp";
    if args.rdma == Some(true) {
        let device = args.device.clone();
        server = server.with_rdma(Rdma { device })?;
        scheme = "rdma";
    }
    let server = Arc::new(server);
    let identity = server.identity();
    ready(&format!(
        "xgvmi-blk {} serves {} of volume {} at {scheme}:{address}",
        env!("CARGO_PKG_VERSION"),
        identity.role,
        identity.volume,
    ))?;
    let again: ReadSecrets = {
        let (args, server) = (args.clone(), Arc::clone(&server));
        Arc::new(move || {
            let secrets = read_secrets(&args)?;
            ensure!(
                !secrets.is_empty(),
                "the target has no secret (--secret-file) to read again"
            );
            server.set_secrets(secrets);
            Ok("the secret was read again".to_owned())
        })
    };
    let _commands = take_commands(&daemon, None, &again)?;
    let serving = Arc::clone(&server);
    let status = || {
        let (identity, usage, load) = (server.identity(), server.usage(), server.load());
        Status::Target(TargetProcessStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: daemon.uptime_s(),
            address: format!("{scheme}:{address}"),
            file: file.display().to_string(),
            role: identity.role.to_string(),
            volume: identity.volume.to_string(),
            epoch: identity.epoch,
            complete: identity.is_complete(),
            encrypted: identity.wrapping.is_some(),
            used: usage.used,
            damaged: usage.damaged,
            connections: load.connections,
            calls: load.calls,
            failed_calls: load.failed_calls,
        })
    };
    let reload = || on_sighup(&again);
    let serve = move || serving.run(&listener);
    let ended = run(&daemon, serve, None, status, reload).with_context(|| listen.to_string())?;
    // No call of the owner starts after this one has returned.
    let drained = if ended.drains { server.drain() } else { Ok(()) };
    ended.leave();
    Ok(drained?)
}

fn read_secrets(args: &TargetArgs) -> Result<Vec<Secret>> {
    args.secret_file.iter().map(|path| secret(path)).collect()
}
