//! The socket of an export and its connections.

use super::connection;
use super::export::{Export, Exports};
use super::handshake::{self, Admit, Chosen, Security, Shaken};
use super::secure::{self, Both, Session};
use super::stream::{Hurried, Listener, Stream};
use super::tls::Tls;
use crate::crew::REQUESTS_MAX;
use crate::say::say;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xgvmi_daemon::accept_patiently;

/// Most clients at once, unless the server is told otherwise. Each may hold buffers of 32 MiB for the data of requests.
pub const CLIENTS: usize = 32;
/// Most clients that a server can be told to take.
pub const CLIENTS_MAX: usize = 4096;
/// Fewest places for connections whose handshake is not finished. Beyond them the oldest one ends.
const VISITORS_MIN: usize = 32;
/// A client that takes longer for its handshake, with that of TLS, loses its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The connections by age.
#[derive(Debug, Default)]
struct Open {
    /// Their handshake is not finished.
    visitors: BTreeMap<u64, Arc<Stream>>,
    clients: BTreeMap<u64, Arc<Stream>>,
}

/// Accepts connections to an export, up to a limit at once.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    exports: Exports,
    tls: Option<Tls>,
    /// Most clients. As many connections whose handshake is not finished, or [`VISITORS_MIN`].
    most: usize,
    open: Mutex<Open>,
    drains: AtomicBool,
    refused: AtomicU64,
}

impl Server {
    /// Serves one export or several on a socket.
    #[must_use]
    pub fn new(listener: Listener, exports: impl Into<Exports>, tls: Option<Tls>) -> Self {
        Self {
            listener,
            exports: exports.into(),
            tls,
            most: CLIENTS,
            open: Mutex::default(),
            drains: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// The same with places for so many clients, at most [`CLIENTS_MAX`].
    #[must_use]
    pub fn with_clients(self, clients: usize) -> Self {
        let most = clients.min(CLIENTS_MAX);
        Self { most, ..self }
    }

    /// Bytes of requests that have no whole reply. Each connection has 32 MiB at most.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.exports.buffered_bytes()
    }

    /// Number of connections, also of those whose handshake is not finished.
    #[must_use]
    pub fn connections(&self) -> usize {
        let open = self.open();
        open.visitors.len() + open.clients.len()
    }

    /// Connections that have ended before they had chosen the export: by an error, or for want of a place.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// TLS of the server.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
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
                Ok(stream) => Arc::new(stream),
                Err(_) if self.drains.load(Ordering::SeqCst) => return Ok(()),
                Err(error) => return Err(error),
            };
            if !self.arrive(number, &stream) {
                continue;
            }
            let server = Arc::clone(self);
            let work = move || {
                if let Err(error) = server.serve(number, &stream) {
                    say(format_args!("{stream} is disconnected: {error}"));
                }
                server.leave(number);
            };
            if let Err(error) = std::thread::Builder::new()
                .name("nbd".to_owned())
                .spawn(work)
            {
                self.leave(number);
                self.refused.fetch_add(1, Ordering::Relaxed);
                say(format_args!("a client was refused: {error}"));
            }
        }
        Ok(())
    }

    /// Takes a place for a handshake. If there is none, the one that has lasted longest ends: silent clients cannot keep
    /// others out.
    fn arrive(&self, number: u64, stream: &Arc<Stream>) -> bool {
        let mut open = self.open();
        if self.drains.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if open.visitors.len() >= self.most.max(VISITORS_MIN)
            && let Some((_, oldest)) = open.visitors.pop_first()
        {
            oldest.shutdown(Shutdown::Both);
        }
        open.visitors.insert(number, Arc::clone(stream));
        true
    }

    /// The client chooses the export: takes its place.
    fn admit(&self, number: u64) -> io::Result<()> {
        let mut open = self.open();
        if open.clients.len() >= self.most {
            let text = format!("all {} places for clients are taken (--clients)", self.most);
            return Err(io::Error::other(text));
        }
        let Some(stream) = open.visitors.remove(&number) else {
            return Err(io::Error::other("newer clients needed its place"));
        };
        open.clients.insert(number, stream);
        Ok(())
    }

    fn leave(&self, number: u64) {
        let mut open = self.open();
        open.visitors.remove(&number);
        open.clients.remove(&number);
    }

    /// Accepts nothing more: neither connections nor requests that have not arrived yet. Requests that have arrived are
    /// answered; [`Server::connections`] is 0 afterwards.
    pub fn drain(&self) {
        let open = self.open();
        self.drains.store(true, Ordering::SeqCst);
        self.listener.close();
        for stream in open.visitors.values().chain(open.clients.values()) {
            stream.end_reads();
        }
    }

    fn serve(&self, number: u64, stream: &Stream) -> io::Result<()> {
        stream.prepare()?;
        let admit = || self.admit(number);
        serve_stream(stream, &self.exports, self.tls.as_ref(), &admit).map_err(|error| {
            let is_client = self.open().clients.contains_key(&number);
            if !is_client {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            let phase = if is_client { "request" } else { "handshake" };
            match (error.kind(), error.get_ref()) {
                // The standard library's own text says nothing of a client.
                (io::ErrorKind::UnexpectedEof, None) => {
                    io::Error::other(format!("it has left in the middle of a {phase}"))
                }
                _ => error,
            }
        })
    }
}

/// Serves one client. `admit` is asked when it has chosen the export.
pub(super) fn serve_stream(
    stream: &Stream,
    exports: &Exports,
    tls: Option<&Tls>,
    admit: Admit<'_>,
) -> io::Result<()> {
    let mut hurried = Hurried::new(stream, HANDSHAKE);
    let security = match tls {
        None => Security::Absent,
        Some(tls) if tls.is_required() => Security::Required,
        Some(_) => Security::Offered,
    };
    let no_zeroes = handshake::greet(&mut hurried)?;
    match (
        handshake::options(&mut hurried, exports, (security, no_zeroes), admit)?,
        tls,
    ) {
        (Shaken::Chosen(chosen, export), _) => {
            let stream = hurried.relax()?;
            transmit((stream, stream), stream, &export, chosen)
        }
        (Shaken::StartTls, Some(tls)) => {
            // The client learns why it is refused.
            let parted = |_: &io::Error| secure::part(stream);
            let session = Session::shake(&mut hurried, tls.config()).inspect_err(parted)?;
            let served = serve_secure((stream, hurried), exports, &session, (no_zeroes, admit));
            session.close(stream);
            served
        }
        (Shaken::StartTls | Shaken::Left, _) => Ok(()),
    }
}

/// The options and requests of a client with TLS.
fn serve_secure(
    (stream, hurried): (&Stream, Hurried<'_>),
    exports: &Exports,
    session: &Session,
    (no_zeroes, admit): (bool, Admit<'_>),
) -> io::Result<()> {
    let mut ends = session.over((hurried, hurried));
    match handshake::options(&mut ends, exports, (Security::Active, no_zeroes), admit)? {
        Shaken::Chosen(chosen, export) => {
            hurried.relax()?;
            let Both(reader, writer) = ends.over((stream, stream));
            transmit((reader, writer), stream, &export, chosen)
        }
        Shaken::StartTls | Shaken::Left => Ok(()),
    }
}

fn transmit<R: Read + Send, W: Write + Send>(
    ends: (R, W),
    stream: &Stream,
    export: &Export,
    chosen: Chosen,
) -> io::Result<()> {
    let hang_up = || stream.shutdown(Shutdown::Both);
    connection::serve(ends, export, chosen, (REQUESTS_MAX, &hang_up))
}
