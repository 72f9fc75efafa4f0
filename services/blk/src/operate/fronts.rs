//! The front ends of an export: NBD clients, and virtual machines.

use super::daemon::Unlink;
use super::options::{ExportArgs, NbdAddress};
use super::volumes::Volumes;
use crate::nbd::{Export, Exports, Listener, Server, Tls};
use crate::vhost::VhostServer;
use anyhow::{Context as _, Result, bail};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Descriptors of targets, sockets and files.
const OTHER_FILES: u64 = 256;

/// The front ends of an export, at least one.
pub(super) struct Fronts {
    pub(super) nbd: Option<Arc<Server>>,
    vhost: Vec<Arc<VhostServer>>,
    names: Vec<String>,
    files: Mutex<Vec<Unlink>>,
}

impl Fronts {
    /// Listens on all sockets of the options.
    pub(super) fn open(
        args: &ExportArgs,
        address: Option<NbdAddress>,
        volumes: &Volumes,
        tls: Option<Tls>,
    ) -> Result<Self> {
        let (mut names, mut files) = (Vec::new(), Vec::new());
        let read_only = args.read_only == Some(true);
        let nbd = match address {
            None => None,
            Some(address) => {
                let (listener, name, file) = listen(&address)?;
                names.push(name);
                files.extend(file);
                let exports =
                    match volumes.only() {
                        Some(disk) => {
                            let name = args.name.as_deref().unwrap_or_default();
                            Export::new(disk, name).read_only(read_only).into()
                        }
                        None => Exports::named(volumes.iter().map(|slot| {
                            (slot.name.clone(), Volumes::find_disk(slot), slot.read_only)
                        })),
                    };
                let clients = usize::from(args.clients);
                make_room(clients)?;
                let server = Server::new(listener, exports, tls).with_clients(clients);
                Some(Arc::new(server))
            }
        };
        let mut vhost = Vec::new();
        for slot in volumes.iter() {
            let Some(path) = slot.vhost_socket.as_ref().or(args.vhost_socket.as_ref()) else {
                continue;
            };
            let listener = bind(path)?;
            names.push(format!("vhost-user {}", path.display()));
            files.push(Unlink(path.clone()));
            let queues = usize::from(args.vhost_queues);
            let find = Volumes::find_disk(slot);
            let read_only = read_only || slot.read_only;
            vhost.push(Arc::new(VhostServer::new(
                listener, find, queues, read_only,
            )));
        }
        Ok(Self {
            nbd,
            vhost,
            names,
            files: Mutex::new(files),
        })
    }

    /// Names of the sockets.
    pub(super) fn names(&self) -> String {
        self.names.join(" and ")
    }

    /// Number of clients.
    pub(super) fn connections(&self) -> usize {
        let nbd = self.nbd.as_ref().map_or(0, |server| server.connections());
        nbd + self
            .vhost
            .iter()
            .map(|server| server.connections())
            .sum::<usize>()
    }

    /// Serves all clients until one of the sockets fails, or [`Fronts::drain`].
    pub(super) fn serve(&self) -> impl FnOnce() -> io::Result<()> + Send + 'static {
        let (nbd, vhost) = (self.nbd.clone(), self.vhost.clone());
        move || {
            let (first, ended) = mpsc::channel();
            let start = |name: &str, serve: Box<dyn FnOnce() -> io::Result<()> + Send>| {
                let first = first.clone();
                let thread = std::thread::Builder::new().name(name.to_owned());
                thread.spawn(move || {
                    // The other one may have ended before.
                    let _ = first.send(serve());
                })
            };
            if let Some(nbd) = nbd {
                start("accept-nbd", Box::new(move || nbd.run()))?;
            }
            for vhost in vhost {
                start("accept-vhost", Box::new(move || vhost.run()))?;
            }
            drop(first);
            ended.recv().unwrap_or(Ok(()))
        }
    }

    /// Accepts nothing more. What has arrived is answered; [`Fronts::connections`] is 0 afterwards.
    pub(super) fn drain(&self) {
        if let Some(nbd) = &self.nbd {
            nbd.drain();
        }
        for vhost in &self.vhost {
            vhost.drain();
        }
    }

    /// Removes the files of the sockets.
    pub(super) fn unlink(&self) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.clear();
    }
}

/// Makes room for the descriptors of so many clients, and as many whose handshake is not finished.
fn make_room(clients: usize) -> Result<()> {
    let wanted = 2 * clients as u64 + OTHER_FILES;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is valid and this function's own.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if asked != 0 || limit.rlim_cur >= wanted {
        return Ok(());
    }
    if limit.rlim_max < wanted {
        bail!(
            "--clients {clients} needs {wanted} open files, and this process may have {}: raise the limit (ulimit -Hn, \
             LimitNOFILE), or serve fewer clients",
            limit.rlim_max
        );
    }
    limit.rlim_cur = wanted;
    // SAFETY: as above.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("the limit of open files"),
    }
}

/// Listens for NBD clients. Returns the name of the socket too, and removes its file in the end.
fn listen(address: &NbdAddress) -> Result<(Listener, String, Option<Unlink>)> {
    Ok(match address {
        NbdAddress::File(path) => {
            let listener = Listener::Unix(bind(path)?);
            let unlink = Unlink(path.clone());
            (listener, path.display().to_string(), Some(unlink))
        }
        NbdAddress::Tcp(address) => {
            let listener = xgvmi_daemon::listen(address)
                .with_context(|| format!("cannot listen on {address}"))?;
            let address = listener.local_addr().context("the address")?;
            (Listener::Tcp(listener), format!("tcp:{address}"), None)
        }
    })
}

/// Listens on a socket. Replaces one that a process has left behind.
fn bind(path: &Path) -> Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!("{}: another process listens on this socket", path.display());
            }
            let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
            if !path.symlink_metadata().is_ok_and(is_socket) {
                bail!(
                    "{}: this file is no socket: give the path of a new one",
                    path.display()
                );
            }
            std::fs::remove_file(path)
                .with_context(|| format!("cannot replace {}", path.display()))?;
            UnixListener::bind(path)
        }
        other => other,
    };
    listener.with_context(|| format!("cannot listen on {}", path.display()))
}
