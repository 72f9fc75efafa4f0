//! Commands for a running export or service: `xgvmi-blk ctl`.

use super::daemon::Unlink;
use super::snapshots::Snapshot;
use super::status::Status;
use super::volumes::Volumes;
use super::{asking, status::StatusArgs};
use crate::encryption::KeyFile;
use crate::say::say;
use crate::volume::{Pace, Volume};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;
use xgvmi_daemon::options::bytes;
use xgvmi_daemon::status::Form;
use xgvmi_daemon::{Daemon, control};

/// Time between two looks of `--wait`.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `xgvmi-blk ctl`.
#[derive(Debug, Args)]
pub struct ControlArgs {
    /// The --status-socket of the process [default: as `xgvmi-blk status`]. The socket for commands is beside it.
    #[arg(long, value_name = "FILE", global = true)]
    socket: Option<PathBuf>,
    /// The service at this port.
    #[arg(long, value_name = "PORT", conflicts_with = "socket", global = true)]
    service: Option<u16>,
    /// The volume, if the process has several.
    #[arg(long, value_name = "NAME", global = true)]
    volume: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the state of the volume as JSON.
    Show,
    /// Reads everything, compares checksums and parity, and repairs, while the volume serves.
    Scrub {
        /// Most bytes of the volume per second, or with K, M, G.
        #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
        rate: u64,
        /// End the scrub that runs.
        #[arg(long)]
        stop: bool,
        /// Wait for its end.
        #[arg(long, conflicts_with = "stop")]
        wait: bool,
    },
    /// Uses a target in place of that of its role, and completes it, while the volume serves.
    Replace {
        /// The new target: a file, tcp:HOST:PORT, rdma:HOST:PORT, or nbd:SOCKET. `xgvmi-blk create --like` makes one.
        target: String,
        /// Wait until it is complete.
        #[arg(long)]
        wait: bool,
    },
    /// Wraps the key of an encrypted volume with another key file. Data is not written again. From then on that file opens the
    /// volume: name it where the process gets its key from.
    RotateKey {
        /// The new key file, which the process reads.
        file: PathBuf,
    },
    /// Reads the files of secrets again, as SIGHUP does: of an export, a service or a target. Open connections stay. If one cannot
    /// be read, all stay as they were.
    RotateSecret,
    /// Makes, names or deletes snapshots.
    Snapshot {
        #[command(subcommand)]
        command: Snapshot,
    },
    /// Gives the volume more blocks, which are zeros. Clients see them at their next connection.
    Resize {
        /// New size of the volume in bytes, or with K, M, G, T.
        #[arg(value_parser = bytes)]
        size: u64,
    },
}

/// A command on its way to the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Scrub { rate: u64 },
    StopScrub {},
    Replace { target: String },
    Resize { size: u64 },
    RotateKey { file: PathBuf },
    RotateSecret {},
    Snapshot { is: Snapshot },
}

/// A command, for the volume with a name if the process has several.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Message {
    Named { volume: String, request: Request },
    Plain(Request),
}

/// Lets a running process carry out a command. Returns what it says.
///
/// # Errors
/// There is no such process, or it refuses.
pub fn ctl(args: &ControlArgs) -> Result<String> {
    let (socket, state) = asking::process(&StatusArgs {
        socket: args.socket.clone(),
        target: None,
        service: args.service,
        form: Form::default(),
    })?;
    let name = args.volume.as_deref();
    if matches!(args.command, Command::RotateSecret) {
        ensure!(
            name.is_none(),
            "the secrets are those of the process: give no --volume"
        );
        let message = serde_json::to_string(&Message::Plain(Request::RotateSecret {}))?;
        return Ok(control(&socket, &message)?);
    }
    let volume = state.volume(name)?;
    let ask = |request: Request| -> Result<String> {
        let message = match name {
            Some(name) => Message::Named {
                volume: name.to_owned(),
                request,
            },
            None => Message::Plain(request),
        };
        Ok(control(&socket, &serde_json::to_string(&message)?)?)
    };
    match &args.command {
        Command::Show => Ok(serde_json::to_string_pretty(volume)?),
        Command::Scrub { stop: true, .. } => ask(Request::StopScrub {}),
        Command::Scrub { rate, wait, .. } => {
            let said = ask(Request::Scrub { rate: *rate })?;
            if !wait {
                return Ok(said);
            }
            let (bad, lost) = (volume.scrub_bad_halves, volume.scrub_lost_blocks);
            let end = wait_for((&socket, name), |volume| volume.scrubbing == 0)?;
            Ok(format!(
                "{} half blocks were absent or wrong, {} blocks cannot be read",
                end.scrub_bad_halves - bad,
                end.scrub_lost_blocks - lost
            ))
        }
        Command::Replace { target, wait } => {
            let said = ask(Request::Replace {
                target: absolute(target)?,
            })?;
            if *wait {
                let new = absolute(target)?;
                wait_for((&socket, name), |volume| {
                    let mut targets = volume.targets.iter();
                    targets.any(|target| {
                        target.name == new && target.complete && target.missing_blocks == 0
                    })
                })?;
            }
            Ok(said)
        }
        Command::Resize { size } => ask(Request::Resize { size: *size }),
        Command::RotateKey { file } => ask(Request::RotateKey {
            file: std::path::absolute(file).with_context(|| file.display().to_string())?,
        }),
        // Needs no volume.
        Command::RotateSecret => ask(Request::RotateSecret {}),
        Command::Snapshot { command } => ask(Request::Snapshot {
            is: command.clone(),
        }),
    }
}

/// A name that means the same in the directory of the process.
fn absolute(target: &str) -> Result<String> {
    if target.starts_with("rdma:") {
        return Ok(target.to_owned());
    }
    let (kind, path) = match target.split_at_checked(4) {
        Some(("tcp:", _)) => return Ok(target.to_owned()),
        Some((kind @ "nbd:", path)) => (kind, path),
        _ => ("", target),
    };
    let path = std::path::absolute(path).with_context(|| target.to_owned())?;
    Ok(format!("{kind}{}", path.display()))
}

/// Asks for the state until it is as wanted.
fn wait_for(
    (socket, name): (&Path, Option<&str>),
    is_wanted: impl Fn(&crate::volume::VolumeStatus) -> bool,
) -> Result<crate::volume::VolumeStatus> {
    loop {
        let (_, state) = xgvmi_daemon::status::ask_for::<Status>(socket)?;
        match state.volume(name) {
            Ok(volume) if is_wanted(volume) => return Ok(volume.clone()),
            _ => std::thread::sleep(LOOK),
        }
    }
}

/// Reads the files of secrets of the process again, and says what was read.
pub(super) type ReadSecrets = Arc<dyn Fn() -> Result<String> + Send + Sync>;

/// Reads the files of secrets again for SIGHUP. If that fails, all stay as they were.
pub(super) fn on_sighup(read_secrets: &ReadSecrets) {
    match read_secrets() {
        Ok(read) => say(format_args!("SIGHUP: {read}")),
        Err(error) => say(format_args!("{}", unchanged(&error))),
    }
}

fn unchanged(error: &anyhow::Error) -> String {
    format!("the secret stays as it was: {error:#}")
}

/// Starts the thread that takes commands for the volumes of this process, if the process has a status socket. A target has no
/// volumes, only secrets. Dropping the result removes the socket's file.
pub(super) fn take_commands(
    daemon: &Daemon,
    volumes: Option<&Arc<Volumes>>,
    read_secrets: &ReadSecrets,
) -> Result<Option<Unlink>> {
    let Some(socket) = daemon.control()? else {
        return Ok(None);
    };
    let unlink = Unlink(socket.path().to_owned());
    let (volumes, read_secrets) = (volumes.cloned(), Arc::clone(read_secrets));
    let carry_out = move |message: &str| {
        let done = carry_out(message, volumes.as_deref(), &read_secrets);
        done.map_err(|error| format!("{error:#}"))
    };
    let serve = move || {
        if let Err(error) = socket.serve(carry_out) {
            say(format_args!("no commands are taken any more: {error}"));
        }
    };
    let thread = Builder::new().name("control".to_owned());
    thread.spawn(serve).context("cannot start a thread")?;
    Ok(Some(unlink))
}

fn carry_out(
    message: &str,
    volumes: Option<&Volumes>,
    read_secrets: &ReadSecrets,
) -> Result<String> {
    let message = serde_json::from_str(message).context("a command of another release")?;
    let (name, request) = match message {
        Message::Named { volume, request } => (Some(volume), request),
        Message::Plain(request) => (None, request),
    };
    if matches!(request, Request::RotateSecret {}) {
        let read = read_secrets().map_err(|error| anyhow!(unchanged(&error)))?;
        say(&read);
        return Ok(read);
    }
    let volumes = volumes.context("a target has no volume: give the command to its export")?;
    let (volume, opener) = &volumes.commanded(name.as_deref())?;
    match request {
        Request::Scrub { rate } => scrub(volume, rate),
        Request::StopScrub {} => {
            if !volume.stop_scrub() {
                bail!("no scrub runs");
            }
            Ok("the scrub ends".to_owned())
        }
        Request::Replace { target } => {
            let role = opener.replace(volume, &target)?;
            say(format_args!("{role} is replaced: {target}"));
            Ok(format!(
                "{role} is {target} from here on, and lacks {} blocks; name it where the process gets its targets from",
                volume.missing_blocks(role)
            ))
        }
        Request::RotateKey { file } => {
            volume.rotate_key(&KeyFile::read(&file)?)?;
            let file = file.display();
            say(format_args!(
                "the key in {file} opens the volume from here on"
            ));
            Ok(format!(
                "the key in {file} opens the volume from here on, and no other: name it where the process gets its key from"
            ))
        }
        Request::RotateSecret {} => bail!("the secrets are those of the process"),
        Request::Snapshot { is } => is.carry_out(volume, name.as_deref()),
        Request::Resize { size } => {
            let geometry = volume.grow(size)?;
            say(format_args!("the volume has {} bytes", geometry.size()));
            Ok(format!(
                "the volume has {} bytes; clients see that at their next connection",
                geometry.size()
            ))
        }
    }
}

fn scrub(volume: &Arc<Volume>, rate: u64) -> Result<String> {
    let pace = Pace::new(rate)?;
    let turn = volume.begin_scrub()?;
    let work = move || match turn.scrub(pace) {
        Ok(report) => say(format_args!("scrub: {report}")),
        Err(error) => say(format_args!("scrub: {error}")),
    };
    let thread = Builder::new().name("scrub".to_owned());
    thread.spawn(work).context("cannot start a thread")?;
    let present = volume
        .layout()
        .roles()
        .filter(|role| volume.used(*role).is_some());
    Ok(format!(
        "the scrub of {} targets has begun",
        present.count()
    ))
}
