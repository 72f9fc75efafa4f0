//! The Unix socket of an export and its connections.

use super::connection::{self, REQUESTS_MAX};
use super::export::Export;
use super::handshake;
use crate::say::say;
use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xgvmi_daemon::accept_patiently;

/// Most connections at once. Each may hold buffers of 32 MiB for the data of requests.
pub const CONNECTIONS_MAX: usize = 32;
/// A client that takes longer for its handshake loses its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Accepts connections to an export, up to [`CONNECTIONS_MAX`] at once.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    export: Export,
    open: Mutex<HashMap<u64, Arc<UnixStream>>>,
    drains: AtomicBool,
}

impl Server {
    /// Serves `export` on a socket.
    #[must_use]
    pub fn new(listener: UnixListener, export: Export) -> Self {
        Self {
            listener,
            export,
            open: Mutex::default(),
            drains: AtomicBool::new(false),
        }
    }

    /// Bytes of requests that have no whole reply. Each connection has 32 MiB at most.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.export.buffered_bytes()
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<UnixStream>>> {
        // A panic cannot leave the table half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until [`Server::drain`].
    ///
    /// # Errors
    /// The socket fails.
    pub fn run(self: &Arc<Self>) -> io::Result<()> {
        for number in 0.. {
            let tell = |error: &io::Error| say(format_args!("no client is accepted: {error}"));
            let stream = match accept_patiently(|| self.listener.accept(), tell) {
                Ok((stream, _)) => stream,
                Err(_) if self.drains.load(Ordering::SeqCst) => return Ok(()),
                Err(error) => return Err(error),
            };
            let stream = Arc::new(stream);
            {
                let mut open = self.open();
                if open.len() >= CONNECTIONS_MAX || self.drains.load(Ordering::SeqCst) {
                    say(format_args!(
                        "a client was refused: {} are connected",
                        open.len()
                    ));
                    continue;
                }
                open.insert(number, Arc::clone(&stream));
            }
            let server = Arc::clone(self);
            let work = move || {
                if let Err(error) = serve_stream(&stream, &server.export) {
                    say(format_args!("a client is disconnected: {error}"));
                }
                server.open().remove(&number);
            };
            if let Err(error) = std::thread::Builder::new()
                .name("nbd".to_owned())
                .spawn(work)
            {
                self.open().remove(&number);
                say(format_args!("a client was refused: {error}"));
            }
        }
        Ok(())
    }

    /// Accepts nothing more: neither connections nor requests that have not arrived yet. Requests that have arrived are
    /// answered; [`Server::connections`] is 0 afterwards.
    pub fn drain(&self) {
        let open = self.open();
        self.drains.store(true, Ordering::SeqCst);
        // SAFETY: an open socket of this process; no memory is involved.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        for stream in open.values() {
            // The client may be gone already.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

/// Serves one client.
pub(super) fn serve_stream(stream: &UnixStream, export: &Export) -> io::Result<()> {
    stream.set_read_timeout(Some(HANDSHAKE))?;
    let mut both = stream;
    let Some((chosen, export)) = handshake::shake(&mut both, export)? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    let hang_up = || {
        // The client may be gone already.
        let _ = stream.shutdown(Shutdown::Both);
    };
    connection::serve((stream, stream), &export, chosen, (REQUESTS_MAX, &hang_up))
}
