//! `xgvmi-blk service`: serves a volume on a DPU to initiators on its host.

use super::common::initiator_secret;
use super::control::{ReadSecrets, on_sighup, take_commands};
use super::daemon::{check_address_space, run};
use super::initiators;
use super::keeper::keep;
use super::opener::Opener;
use super::options::ServiceArgs;
use super::snapshots::merge_beside;
use super::status::{ServiceProcessStatus, Status};
use super::volumes::Volumes;
use crate::disk::Disk;
use crate::say::say;
use crate::service::{Access, Service};
use anyhow::{Context as _, Result, bail};
use std::sync::Arc;
use xgvmi_daemon::{Daemon, ready};

/// Serves initiators until SIGTERM or SIGINT.
///
/// # Errors
/// The options contradict each other, the volume cannot be opened, the adapter cannot be used, the socket fails.
pub fn service(args: &ServiceArgs) -> Result<()> {
    args.check()?;
    check_address_space()?;
    let named = args.named()?;
    let (listen, limit) = (args.listen, args.drain_limit);
    let names: Vec<String> = named.iter().flat_map(|one| one.name.clone()).collect();
    let allowed = access(args, &names)?;
    let listener =
        xgvmi_daemon::listen(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address")?;
    // Before any other thread: they inherit the blocked signals.
    let name = format!("xgvmi-blk-service-{}", address.port());
    let daemon = Daemon::new(&name, args.status_socket.as_deref())?;
    let volumes = Arc::new(match &named[..] {
        [] => {
            let opener = Arc::new(Opener::new(&args.targets, &args.open)?);
            let volume = Arc::new(opener.open_patiently()?);
            keep(&opener, &volume)?;
            merge_beside(&volume)?;
            Volumes::one(Arc::clone(&volume) as Arc<dyn Disk>, Some((volume, opener)))
        }
        named => Volumes::open(named, None)?,
    });
    let waits = named.iter().map(|one| one.open.longest_wait());
    let wait = waits.max().unwrap_or(args.open.longest_wait());
    let service = Service::new(volumes.find_volumes(), &args.service, wait, allowed);
    let service = Arc::new(service.context("the adapter")?);
    ready(&format!(
        "xgvmi-blk {} serves {} at {address} by {}",
        env!("CARGO_PKG_VERSION"),
        volumes.names(),
        service.transfer(),
    ))?;
    let read_secrets: ReadSecrets = {
        let (args, names) = (args.clone(), names);
        let (volumes, service) = (Arc::clone(&volumes), Arc::clone(&service));
        Arc::new(move || {
            let allowed = access(&args, &names)?;
            let of_targets = volumes.read_secrets_again()?;
            let has_some = !(allowed.secrets.is_empty() && allowed.initiators.is_empty());
            service.set_access(allowed);
            match (has_some, of_targets) {
                (true, true) => Ok("the secrets of initiators and of targets were read again"),
                (true, false) => Ok("the secrets of initiators were read again"),
                (false, true) => Ok("the secret of targets was read again"),
                (false, false) => bail!("the service has no secrets to read again"),
            }
            .map(str::to_owned)
        })
    };
    let _commands = take_commands(&daemon, Some(&volumes), &read_secrets)?;
    let serving = Arc::clone(&service);
    let status = || {
        let (volume, several) = volumes.status();
        Status::Service(ServiceProcessStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: daemon.uptime_s(),
            address: address.to_string(),
            transfer: service.transfer().to_owned(),
            requests: service.status(),
            initiators: service.initiators(),
            volume,
            volumes: several,
        })
    };
    let reload = || on_sighup(&read_secrets);
    let serve = move || serving.serve(&listener);
    let ended = run(&daemon, serve, volumes.wait_taken(), status, reload)
        .with_context(|| listen.to_string())?;
    let mut drained = Ok(());
    if ended.drains {
        service.drain();
        let is_done = || service.under_way() == 0;
        let is_drained = daemon.wait_until(limit, is_done, || status().to_json())?;
        if !is_drained {
            // Their initiators repeat them at the next service.
            say(format_args!(
                "{} requests have no answer after {limit:?}",
                service.under_way()
            ));
        }
        drained = volumes.end(is_drained);
    }
    ended.leave();
    Ok(drained?)
}

/// Who may connect to volumes with these names.
fn access(args: &ServiceArgs, volumes: &[String]) -> Result<Access> {
    let secrets = args.initiator_secret_file.iter();
    let secrets = secrets.map(|path| initiator_secret(path, None));
    let initiators = args
        .initiators
        .as_deref()
        .map(|path| initiators::read(path, volumes))
        .transpose()?;
    // An empty list serves nobody, and no list everybody.
    if initiators.as_ref().is_some_and(Vec::is_empty) && args.initiator_secret_file.is_none() {
        bail!("no initiator may connect: name one in the file of --initiators");
    }
    Ok(Access {
        secrets: secrets.collect::<Result<_>>()?,
        initiators: initiators.unwrap_or_default(),
    })
}
