//! The status of a daemon on a local socket, and the command that asks for it. Each connection receives one text, then the
//! end of the stream.

use super::error::{DaemonError, Result};
use serde::de::DeserializeOwned;
use std::cell::LazyCell;
use std::fmt::Display;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of connections per visit.
const VISIT_MAX: u32 = 4;

/// Time limit for a daemon's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Maximum length of a status. It is far above that of a fully loaded daemon.
const STATUS_MAX: u64 = 4 << 20;

/// The socket. Dropping it removes its file.
#[derive(Debug)]
pub struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StatusSocket {
    /// Listens at `path`. Only the owner and the group can connect. The socket of an ended daemon is replaced.
    ///
    /// # Errors
    /// Errors of the system; [`DaemonError::Options`] if another daemon listens there, or if the file is no socket.
    pub fn bind(path: &Path) -> Result<Self> {
        let listener = listen_at(path, "status", 0o660)?;
        let set = listener.set_nonblocking(true);
        set.map_err(|error| DaemonError::io("the status socket", error))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when a client is waiting.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers some waiting clients with one text. It never blocks: a client receives a truncated text if its socket
    /// buffer is full.
    pub fn answer(&self, text: impl FnOnce() -> String) {
        let text = LazyCell::new(text);
        for _ in 0..VISIT_MAX {
            let Ok((mut client, _)) = self.listener.accept() else {
                return;
            };
            if client.set_nonblocking(true).is_ok() {
                // The client may have disconnected.
                let _ = client.write_all(text.as_bytes());
            }
        }
    }
}

/// Listens at `path`, whose file has this mode. The socket of an ended daemon is replaced.
pub(crate) fn listen_at(path: &Path, kind: &str, mode: u32) -> Result<UnixListener> {
    let path_shown = path.display();
    let io = |error| DaemonError::io(format!("the {kind} socket {path_shown}"), error);
    if UnixStream::connect(path).is_ok() {
        return Err(DaemonError::Options(format!(
            "the {kind} socket {path_shown} belongs to another daemon: give --status-socket FILE"
        )));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(io)?,
        Ok(_) => {
            return Err(DaemonError::Options(format!(
                "the {kind} socket {path_shown} exists and is no socket: remove it, or give --status-socket FILE"
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let listener = UnixListener::bind(path).map_err(io)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io)?;
    Ok(listener)
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Requests the status of the daemon at `path`.
///
/// # Errors
/// Errors of the system, with the path; [`DaemonError::Options`] if the daemon has ended without an answer, or does
/// not answer in time.
pub fn ask(path: &Path) -> Result<String> {
    let io = |error| DaemonError::io(format!("asking the daemon at {}", path.display()), error);
    read(UnixStream::connect(path).map_err(io)?, path)
}

/// Reads the answer of the daemon at `path`.
fn read(stream: UnixStream, path: &Path) -> Result<String> {
    let io = |error| DaemonError::io(format!("asking the daemon at {}", path.display()), error);
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(io)?;
    let mut text = String::new();
    let no_answer = |what: &str| {
        DaemonError::Options(format!(
            "the daemon at {} {what}; look into its log and ask again",
            path.display()
        ))
    };
    match stream.take(STATUS_MAX).read_to_string(&mut text) {
        Ok(0) => Err(no_answer("has closed the connection without a status")),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            Err(no_answer("has ended before its answer"))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(no_answer(&format!(
            "did not answer within {} s",
            ANSWER_LIMIT.as_secs()
        ))),
        Err(error) => Err(io(error)),
    }
}

/// Default socket path of the daemon `name`: in `$RUNTIME_DIRECTORY`, else in `$XDG_RUNTIME_DIR`.
#[must_use]
pub fn default_path(name: &str) -> Option<PathBuf> {
    let directory = ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"]
        .into_iter()
        .find_map(|variable| std::env::var_os(variable).filter(|value| !value.is_empty()))?;
    Some(Path::new(&directory).join(format!("{name}.sock")))
}

/// A status: JSON for its socket, lines for people, and metrics.
pub trait Shown: DeserializeOwned + Display {
    /// In the text format of Prometheus.
    fn prometheus(&self) -> String;
}

/// Form in which a status is shown.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Form {
    /// As JSON.
    #[arg(long, conflicts_with = "prom")]
    pub json: bool,
    /// In the text format of Prometheus.
    #[arg(long)]
    pub prom: bool,
}

impl Form {
    /// Formats the answer of a daemon.
    #[must_use]
    pub fn format(self, answer: &str, status: &impl Shown) -> String {
        match (self.json, self.prom) {
            (true, _) => answer.to_owned() + "\n",
            (_, true) => status.prometheus(),
            _ => status.to_string(),
        }
    }
}

/// Options of the command `status` of a service whose usual port is `PORT`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs<const PORT: u16> {
    /// The service's --status-socket [default: the service's name and port with .sock, in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR].
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// The service's port, for the default socket.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    form: Form,
}

impl<const PORT: u16> StatusArgs<PORT> {
    /// Asks the running service `name` for its status.
    ///
    /// # Errors
    /// There is no such service, or its answer is no status.
    pub fn show<S: Shown>(&self, name: &str) -> Result<String> {
        let usual = || default_path(&format!("{name}-{}", self.port));
        let socket = self.socket.clone().or_else(usual).ok_or_else(|| {
            DaemonError::Options(
                "neither $RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR is set: give --socket FILE, the service's --status-socket"
                    .to_owned(),
            )
        })?;
        let (answer, status) = ask_for::<S>(&socket)?;
        Ok(self.form.format(&answer, &status))
    }
}

/// Requests the status of the daemon at `path`: its answer, and the status in it.
///
/// # Errors
/// As [`ask`]; [`DaemonError::Options`] if the answer is no status of this kind.
pub fn ask_for<S: Shown>(path: &Path) -> Result<(String, S)> {
    let answer = ask(path)?;
    let status = serde_json::from_str(&answer).map_err(|error| {
        let path = path.display();
        DaemonError::Options(format!(
            "the answer of the daemon at {path} is no status of it: {error}"
        ))
    })?;
    Ok((answer, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_without_an_answer_is_an_error() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("status.sock");
        // A client that waits when the daemon ends, and one that gets nothing.
        for (text, expect) in [(None, "has ended before"), (Some(""), "without a status")] {
            let socket = StatusSocket::bind(&path).expect("bound");
            let stream = UnixStream::connect(&path).expect("connected");
            if let Some(text) = text {
                socket.answer(|| text.to_owned());
            }
            drop(socket);
            let error = read(stream, &path).unwrap_err().to_string();
            assert!(
                error.contains(expect) && error.contains("status.sock"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("precious");
        fs::write(&path, "data").expect("written");
        let error = StatusSocket::bind(&path).unwrap_err().to_string();
        assert!(
            error.contains("precious exists and is no socket"),
            "{error}"
        );
        assert_eq!(fs::read(&path).expect("still there"), b"data");
    }

    #[test]
    fn clients_that_never_read_hold_nobody_up() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("status.sock");
        let socket = StatusSocket::bind(&path).expect("bound");
        let text = "x".repeat(1 << 20);
        let mut texts = 0;
        let mut clients = Vec::new();
        for _ in 0..250 {
            for _ in 0..VISIT_MAX {
                clients.push(UnixStream::connect(&path).expect("connected"));
            }
            socket.answer(|| {
                texts += 1;
                text.clone()
            });
            if clients.len() < 100 {
                continue;
            }
            for mut client in clients.drain(..) {
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).expect("closed");
                assert!(!answer.is_empty() && answer.iter().all(|byte| *byte == b'x'));
            }
        }
        // One text for all clients of a visit, and none without a client.
        socket.answer(|| unreachable!("nobody waits"));
        assert_eq!((texts, clients.len()), (250, 0));
    }

    #[test]
    fn a_client_gets_the_text_and_a_left_file_is_replaced() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("status.sock");
        // The file of a daemon that was killed.
        drop(UnixListener::bind(&path).expect("bound"));
        let socket = StatusSocket::bind(&path).expect("bound");
        let client = {
            let path = path.clone();
            std::thread::spawn(move || ask(&path))
        };
        let end = std::time::Instant::now() + ANSWER_LIMIT;
        while !client.is_finished() {
            socket.answer(|| "all is well".to_owned());
            assert!(std::time::Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        assert_eq!(
            client.join().expect("no panic").expect("answered"),
            "all is well"
        );
        let error = StatusSocket::bind(&path).unwrap_err().to_string();
        assert!(error.contains("another daemon"), "{error}");
        drop(socket);
        assert!(!path.exists());
        let error = ask(&path).unwrap_err().to_string();
        assert!(error.contains("status.sock"), "{error}");
    }
}
