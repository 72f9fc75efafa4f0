//! Finds a running process and asks it for its state: `xgvmi-blk status`.

use super::status::{Status, StatusArgs};
use crate::encryption::Wrapping;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Layout};
use crate::store::{Store, Target as _};
use anyhow::{Context as _, Result, bail};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use xgvmi_daemon::status::{ask_for, default_path};

/// Where the systemd units have their runtime directories.
const UNITS: &str = "/run";
/// Beginning of the names of these directories.
const DIRECTORY: &str = "xgvmi-blk-";
/// The socket in each of them.
const SOCKET: &str = "status.sock";

/// Asks a running process for its state and shows it.
///
/// # Errors
/// There is no such process or more than one, or its answer is no status.
pub fn show_status(args: &StatusArgs) -> Result<String> {
    let (answer, state) = match &args.socket {
        Some(socket) => ask_for(socket)?,
        None => {
            let (_, answer, state) = find(args, Path::new(UNITS))?;
            (answer, state)
        }
    };
    Ok(args.form.format(&answer, &state))
}

/// Size, layout and identifier of the volume of a target file, or of a running process with this status socket, where it may have
/// a `name`; and the wrapped key, which a process gives its targets itself.
///
/// # Errors
/// It is neither, or the process has no such volume, or a service has it.
pub fn like(path: &Path, name: Option<&str>) -> Result<(Geometry, Layout, Id, Option<Wrapping>)> {
    let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
    if !path.metadata().is_ok_and(is_socket) {
        if name.is_some() {
            bail!(
                "{}: no status socket: --volume is for a process with several volumes",
                path.display()
            );
        }
        let store = match Store::open_file(path, None) {
            Err(error @ BlkError::InUse { .. }) => bail!("{error}: give its status socket instead"),
            store => store?,
        };
        let identity = store.identity();
        let layout = identity.role.layout();
        return Ok((
            identity.geometry,
            layout,
            identity.volume,
            identity.wrapping,
        ));
    }
    let (_, state) = ask_for::<Status>(path)?;
    let volume = state.volume(name);
    let volume = volume.with_context(|| path.display().to_string())?;
    let id = u128::from_str_radix(&volume.volume, 16).context("the volume's identifier")?;
    let geometry = Geometry::of_size(volume.block_size, volume.size)?;
    if volume.targets.is_empty() {
        bail!(
            "{}: the volume is that of a service: give the socket of that",
            path.display()
        );
    }
    let names = volume.targets.iter().map(|target| &target.role[..]);
    let layout = Layout::of_names(names).context("the roles of the volume's targets")?;
    Ok((geometry, layout, Id(id.to_be_bytes()), None))
}

/// The status socket of a running process, and its state.
pub(super) fn process(args: &StatusArgs) -> Result<(PathBuf, Status)> {
    match &args.socket {
        Some(socket) => Ok((socket.clone(), ask_for(socket)?.1)),
        None => find(args, Path::new(UNITS)).map(|(socket, _, state)| (socket, state)),
    }
}

/// The process at the default socket; else the one among the systemd units.
fn find(args: &StatusArgs, units: &Path) -> Result<(PathBuf, String, Status)> {
    let name = match (args.target, args.service) {
        (Some(port), _) => format!("xgvmi-blk-target-{port}"),
        (None, Some(port)) => format!("xgvmi-blk-service-{port}"),
        (None, None) => "xgvmi-blk-export".to_owned(),
    };
    let usual = default_path(&name).filter(|path| path.exists());
    if let Some(socket) = usual {
        let (text, state) = ask_for(&socket)?;
        return Ok((socket, text, state));
    }
    let sockets = sockets(units);
    let asked: Vec<_> = sockets
        .iter()
        .map(|socket| (socket, ask_for(socket)))
        .collect();
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for (socket, answer) in asked {
        match answer {
            Ok((text, state)) if is_meant(args, &state) => found.push((socket, text, state)),
            Ok(_) => {}
            Err(error) => faults.push(error.to_string()),
        }
    }
    if found.len() > 1 {
        let names: Vec<String> = found
            .iter()
            .map(|(socket, ..)| socket.display().to_string())
            .collect();
        bail!("give --socket FILE with one of {}", names.join(", "));
    }
    let place = units.join(format!("{DIRECTORY}*")).join(SOCKET);
    let reasons = match faults.len() {
        0 => String::new(),
        _ => format!(" ({})", faults.join("; ")),
    };
    let (socket, text, state) = found.pop().with_context(|| {
        format!(
            "no {name}.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR, and none of its kind at {}{reasons}: give --socket \
             FILE, the process's --status-socket",
            place.display()
        )
    })?;
    Ok((socket.clone(), text, state))
}

/// The sockets of the systemd units, in the order of their names.
fn sockets(units: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(units).into_iter().flatten().flatten();
    let of_unit = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.starts_with(DIRECTORY))
    };
    let mut sockets: Vec<PathBuf> = entries
        .filter(of_unit)
        .map(|entry| entry.path().join(SOCKET))
        .filter(|socket| socket.exists())
        .collect();
    sockets.sort();
    sockets
}

/// True if the options mean this process.
fn is_meant(args: &StatusArgs, state: &Status) -> bool {
    let is_at = |address: &str, port: u16| address.rsplit(':').next() == Some(&port.to_string());
    match (args.target, args.service, state) {
        (Some(port), _, Status::Target(target)) => is_at(&target.address, port),
        (None, Some(port), Status::Service(service)) => is_at(&service.address, port),
        (None, None, Status::Export(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::{ExportStatus, TargetProcessStatus};
    use std::sync::atomic::{AtomicBool, Ordering};
    use xgvmi_daemon::status::{Form, StatusSocket};

    fn export(pid: u32) -> Status {
        Status::Export(ExportStatus {
            version: "v".to_owned(),
            pid,
            uptime_s: 2,
            socket: "s".to_owned(),
            name: String::new(),
            clients: 0,
            refused_clients: 0,
            buffered_bytes: 0,
            volume: crate::volume::VolumeStatus {
                volume: "id".to_owned(),
                ..Default::default()
            },
            volumes: Vec::new(),
        })
    }

    fn target(pid: u32, address: &str) -> Status {
        Status::Target(TargetProcessStatus {
            version: "v".to_owned(),
            pid,
            uptime_s: 2,
            address: address.to_owned(),
            file: "f".to_owned(),
            role: "data_1".to_owned(),
            volume: "id".to_owned(),
            epoch: 5,
            complete: true,
            encrypted: false,
            used: 6,
            damaged: 0,
            connections: 1,
            calls: 21,
            failed_calls: 22,
        })
    }

    fn args(target: Option<u16>) -> StatusArgs {
        StatusArgs {
            socket: None,
            target,
            service: None,
            form: Form::default(),
        }
    }

    #[test]
    fn the_process_of_a_systemd_unit_is_found() {
        let units = tempfile::tempdir().unwrap();
        let answers = [
            ("xgvmi-blk-vol", export(1)),
            ("xgvmi-blk-target-a", target(2, "tcp:127.0.0.1:7710")),
            ("xgvmi-blk-target-b", target(3, "tcp:[::1]:7711")),
            ("other", export(4)),
        ];
        let sockets = answers.map(|(name, status)| {
            let dir = units.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            (StatusSocket::bind(&dir.join(SOCKET)).unwrap(), status)
        });
        // One that has ended.
        std::fs::create_dir(units.path().join("xgvmi-blk-old")).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    for (socket, status) in &sockets {
                        socket.answer(|| status.to_json());
                    }
                    std::thread::yield_now();
                }
            });
            let find = |target| find(&args(target), units.path());
            let found = (find(None), find(Some(7711)), find(Some(771)));
            let second = units.path().join("xgvmi-blk-second");
            std::fs::create_dir(&second).unwrap();
            std::os::unix::fs::symlink(
                units.path().join("other").join(SOCKET),
                second.join(SOCKET),
            )
            .unwrap();
            let two = find(None);
            ended.store(true, Ordering::Release);
            assert_eq!(found.0.unwrap().2, export(1));
            assert_eq!(found.1.unwrap().2, target(3, "tcp:[::1]:7711"));
            let error = found.2.unwrap_err().to_string();
            assert!(
                error.contains("xgvmi-blk-target-771.sock") && error.contains("--socket FILE"),
                "{error}"
            );
            let error = two.unwrap_err().to_string();
            assert!(
                error.contains("xgvmi-blk-vol") && error.contains("xgvmi-blk-second"),
                "{error}"
            );
        });
    }
}
