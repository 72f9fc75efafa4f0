//! `xgvmi-blk export`: serves a volume to NBD clients.

use super::certificates;
use super::common::initiator_secret;
use super::control::{ReadSecrets, on_sighup, take_commands};
use super::daemon::{check_address_space, run};
use super::fronts::Fronts;
use super::keeper::keep;
use super::opener::{Opener, new_id};
use super::options::{ExportArgs, OpenArgs};
use super::snapshots::merge_beside;
use super::status::{ExportStatus, Status};
use super::volumes::Volumes;
use crate::client;
use crate::disk::Disk;
use crate::geometry::{Geometry, Layout};
use crate::say::say;
use crate::store::{MemoryMedium, NewTarget, Shape, Store, Target};
use crate::volume::Volume;
use anyhow::{Context as _, Result, bail};
use std::sync::Arc;
use xgvmi_daemon::{Daemon, Secret, ready};

/// Serves NBD clients until SIGTERM or SIGINT.
///
/// # Errors
/// The options contradict each other, the volume cannot be opened, the socket fails.
pub fn export(args: &ExportArgs) -> Result<()> {
    let address = args.check()?;
    check_address_space()?;
    let tls = certificates::read(&args.tls)?;
    let limit = args.drain_limit;
    let named = args.named()?;
    let has_secret = |open: &OpenArgs| open.secret_file.is_some();
    let has_secret = has_secret(&args.open) || named.iter().any(|one| has_secret(&one.open));
    let name = args.name.clone().unwrap_or_default();
    // Before any other thread: they inherit the blocked signals.
    let daemon = Daemon::new("xgvmi-blk-export", args.status_socket.as_deref())?;
    let volumes = Arc::new(match (&args.service, &named[..]) {
        (Some(service), []) => {
            let spec = spec(args, service)?;
            Volumes::one(Arc::new(client::Volume::connect(&spec)?), None)
        }
        (Some(service), named) => Volumes::open(named, Some(&spec(args, service)?))?,
        (None, []) => {
            let (volume, opener) = here(args)?;
            Volumes::one(Arc::clone(&volume) as Arc<dyn Disk>, Some((volume, opener)))
        }
        (None, named) => Volumes::open(named, None)?,
    });
    let fronts = Fronts::open(args, address, &volumes, tls)?;
    let read_secrets: ReadSecrets = {
        let (args, volumes) = (args.clone(), Arc::clone(&volumes));
        Arc::new(move || match read_secret_again(&args, &volumes)? {
            true => Ok("the secret was read again".to_owned()),
            false => bail!("the export has no secret (--secret-file) to read again"),
        })
    };
    let _commands = take_commands(&daemon, Some(&volumes), &read_secrets)?;
    ready(&format!(
        "xgvmi-blk {} exports {} on {}",
        env!("CARGO_PKG_VERSION"),
        volumes.names(),
        fronts.names()
    ))?;
    let status = || {
        let (volume, several) = volumes.status();
        Status::Export(ExportStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: daemon.uptime_s(),
            socket: fronts.names(),
            name: name.clone(),
            clients: fronts.connections(),
            refused_clients: fronts.nbd.as_ref().map_or(0, |server| server.refused()),
            buffered_bytes: fronts
                .nbd
                .as_ref()
                .map_or(0, |server| server.buffered_bytes()),
            volume,
            volumes: several,
        })
    };
    let reload = || {
        let tls = fronts.nbd.as_ref().and_then(|server| server.tls());
        if let Some(tls) = tls {
            match certificates::reload(&args.tls, tls) {
                Ok(()) => say("SIGHUP: the certificates were read again"),
                Err(error) => say(format_args!(
                    "the certificates stay as they were: {error:#}"
                )),
            }
        }
        if has_secret || tls.is_none() {
            on_sighup(&read_secrets);
        }
    };
    let ended = run(
        &daemon,
        fronts.serve(),
        volumes.wait_taken(),
        status,
        reload,
    )
    .with_context(|| format!("the socket {}", fronts.names()))?;
    fronts.unlink();
    let mut drained = Ok(());
    if ended.drains {
        fronts.drain();
        let is_done = || fronts.connections() == 0;
        let is_drained = daemon.wait_until(limit, is_done, || status().to_json())?;
        if !is_drained {
            say(format_args!(
                "{} clients still have requests after {limit:?}",
                fronts.connections()
            ));
        }
        drained = volumes.end(is_drained);
    }
    ended.leave();
    Ok(drained?)
}

/// Reads the secret of the service, or those of targets, again, for connections from here on. False if there is none.
fn read_secret_again(args: &ExportArgs, volumes: &Volumes) -> Result<bool> {
    if args.service.is_none() {
        return volumes.read_secrets_again();
    }
    let secret = secret_of_service(args)?;
    if let Some(secret) = &secret {
        volumes.set_secret(secret);
    }
    Ok(secret.is_some())
}

fn secret_of_service(args: &ExportArgs) -> Result<Option<Secret>> {
    let path = args.open.secret_file.as_deref();
    path.map(|path| initiator_secret(path, args.identity.as_deref()))
        .transpose()
}

/// How to reach the volumes of a service.
fn spec(args: &ExportArgs, service: &str) -> Result<client::Spec> {
    Ok(client::Spec {
        secret: secret_of_service(args)?,
        device: args.device.clone(),
        volume: args.volume_of_service()?.unwrap_or_default(),
        ..client::Spec::new(service)
    })
}

/// A volume of this process, which a thread keeps complete.
fn here(args: &ExportArgs) -> Result<(Arc<Volume>, Arc<Opener>)> {
    let opener = Arc::new(Opener::new(&args.targets, &args.open)?);
    let volume = Arc::new(match args.memory {
        Some(size) => in_memory(args, size)?,
        None => opener.open_patiently()?,
    });
    keep(&opener, &volume)?;
    merge_beside(&volume)?;
    Ok((volume, opener))
}

fn in_memory(args: &ExportArgs, size: u64) -> Result<Volume> {
    let block_size = u32::try_from(args.block_size)
        .with_context(|| format!("block size {}: the most is 1 MiB", args.block_size))?;
    let geometry = Geometry::of_size(block_size, size)?;
    let volume = new_id()?;
    let mut stores: Vec<Arc<dyn Target>> = Vec::new();
    for role in Layout::HALVES.roles() {
        let new = NewTarget {
            geometry,
            role,
            volume,
            complete: true,
        };
        stores.push(Arc::new(Store::create_with(
            &format!("memory {role}"),
            Box::new(MemoryMedium::default()),
            new,
            Shape::that_grows(geometry),
            args.open.capacity,
        )?));
    }
    Ok(Volume::open(stores)?)
}
