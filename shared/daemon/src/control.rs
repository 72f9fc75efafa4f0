//! Commands for a running daemon, beside its status socket: a request of one line, and one answer.
//!
//! The socket is beside that of the status, with the ending `.ctl`. Only the daemon's user can connect.

use crate::error::DaemonError;
use crate::listener::accept_patiently;
use crate::status::listen_at;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Only the daemon's user may give commands.
const MODE: u32 = 0o600;
/// Longest request and answer.
const TEXT_MAX: u64 = 64 << 10;
/// Time limit for a request, once a client is connected.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_mins(10);
/// First bytes of an answer to a request that was carried out, and to one that was not.
const DONE: &str = "done ";
const REFUSED: &str = "refused ";

/// The socket for commands of a daemon with this status socket.
#[must_use]
pub fn control_path(status: &Path) -> PathBuf {
    status.with_extension("ctl")
}

/// The socket. Dropping it removes its file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens beside a status socket.
    ///
    /// # Errors
    /// As [`crate::status::StatusSocket::bind`].
    pub fn bind(status: &Path) -> Result<Self, DaemonError> {
        let path = control_path(status);
        let listener = listen_at(&path, "control", MODE)?;
        Ok(Self { listener, path })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Carries out one request after the other, without end.
    ///
    /// # Errors
    /// The socket fails.
    pub fn serve(&self, carry_out: impl Fn(&str) -> Result<String, String>) -> io::Result<()> {
        loop {
            let (client, _) = accept_patiently(|| self.listener.accept(), |_| {})?;
            // The client may have disconnected.
            let _ = serve_one(&client, &carry_out);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve_one(
    mut client: &UnixStream,
    carry_out: impl Fn(&str) -> Result<String, String>,
) -> io::Result<()> {
    client.set_read_timeout(Some(REQUEST_LIMIT))?;
    client.set_write_timeout(Some(REQUEST_LIMIT))?;
    // The file's mode says so, too, but for the first moment.
    let peer = rustix::net::sockopt::socket_peercred(client)?.uid;
    // SAFETY: no memory is involved.
    let own = unsafe { libc::geteuid() };
    if !peer.is_root() && peer.as_raw() != own {
        return client
            .write_all(format!("{REFUSED}only the daemon's user gives commands").as_bytes());
    }
    let mut request = String::new();
    BufReader::new(client.take(TEXT_MAX)).read_line(&mut request)?;
    let Some(request) = request.strip_suffix('\n') else {
        return client.write_all(format!("{REFUSED}the request has no end").as_bytes());
    };
    let answer = match carry_out(request) {
        Ok(text) => format!("{DONE}{text}"),
        Err(text) => format!("{REFUSED}{text}"),
    };
    client.write_all(answer.as_bytes())
}

/// Lets the daemon with this status socket carry out a request.
///
/// # Errors
/// Errors of the system, with the path; [`DaemonError::Options`] with the reason if the daemon refuses, or gives no answer.
pub fn control(status: &Path, request: &str) -> Result<String, DaemonError> {
    let path = control_path(status);
    let io = |error| DaemonError::io(format!("asking the daemon at {}", path.display()), error);
    let mut stream = UnixStream::connect(&path).map_err(io)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(io)?;
    stream
        .write_all(format!("{request}\n").as_bytes())
        .map_err(io)?;
    stream.shutdown(Shutdown::Write).map_err(io)?;
    let mut answer = String::new();
    stream
        .take(TEXT_MAX)
        .read_to_string(&mut answer)
        .map_err(io)?;
    if let Some(text) = answer.strip_prefix(DONE) {
        return Ok(text.to_owned());
    }
    Err(DaemonError::Options(match answer.strip_prefix(REFUSED) {
        Some(reason) => reason.to_owned(),
        None => format!(
            "the daemon at {} has ended before its answer: look into its log",
            path.display()
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_request_has_one_answer_and_bad_clients_harm_nobody() {
        let place = tempfile::tempdir().expect("a directory");
        let status = place.path().join("status.sock");
        let socket = ControlSocket::bind(&status).expect("bound");
        let path = control_path(&status);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let error = ControlSocket::bind(&status).unwrap_err().to_string();
        assert!(error.contains("another daemon"), "{error}");
        std::thread::spawn(move || {
            socket.serve(|request| match request.strip_prefix("say ") {
                Some(text) => Ok(text.to_owned()),
                None => Err(format!("no command {request}")),
            })
        });
        // One that leaves, and one whose request has no end.
        drop(UnixStream::connect(&path).expect("connected"));
        let mut endless = UnixStream::connect(&path).expect("connected");
        let much = vec![b'x'; 1 << 16];
        endless.write_all(&much).expect("sent");
        endless.shutdown(Shutdown::Write).expect("shut");
        let mut answer = String::new();
        endless.read_to_string(&mut answer).expect("answered");
        assert!(answer.contains("has no end"), "{answer}");
        assert_eq!(control(&status, "say yes").expect("done"), "yes");
        let error = control(&status, "sing").unwrap_err().to_string();
        assert_eq!(error, "no command sing");
        let other = place.path().join("other.sock");
        let error = control(&other, "say yes").unwrap_err().to_string();
        assert!(error.contains("other.ctl"), "{error}");
    }
}
