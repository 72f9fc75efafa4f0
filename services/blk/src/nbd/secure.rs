//! A connection with TLS, whose two directions are used by different threads.
//!
//! The session is one object for both directions. Its lock is held to encrypt or decrypt, and never during a read or write of
//! the socket: a client that reads no replies does not stop the thread that takes its requests. What the session wants to
//! send in answer to a message, such as a new key, leaves before the next reply: one thread writes at a time, so records leave
//! in their order.

use super::stream::{Hurried, Stream};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a read of the socket: one record of the largest size.
const READ: usize = 16 << 10;
/// Bytes that are encrypted at once.
const ENCRYPTED: usize = 64 << 10;
/// A client that was refused gets so long to read why, and a client that leaves so long to take the last message.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most bytes that are read meanwhile.
const FAREWELL_BYTES: u64 = 64 << 10;

/// A session after its handshake.
#[derive(Debug)]
pub(super) struct Session(Mutex<ServerConnection>);

/// The direction from the client.
#[derive(Debug)]
pub(super) struct Decrypted<'a, R> {
    session: &'a Session,
    raw: R,
    encrypted: Box<[u8]>,
    /// The part of `encrypted` that the session has not taken.
    rest: Range<usize>,
}

/// The direction to the client.
#[derive(Debug)]
pub(super) struct Encrypted<'a, W> {
    session: &'a Session,
    raw: W,
    records: Vec<u8>,
}

/// Both directions, for one thread.
#[derive(Debug)]
pub(super) struct Both<R, W>(pub(super) R, pub(super) W);

fn refused(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}

impl Session {
    /// The server's side of the handshake. A client that is refused gets the reason as an alert.
    pub(super) fn shake(raw: &mut Hurried<'_>, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut session = ServerConnection::new(config).map_err(|error| refused(&error))?;
        session.set_buffer_limit(Some(ENCRYPTED));
        let mut bytes = vec![0; READ];
        while session.is_handshaking() {
            let count = match raw.read(&mut bytes) {
                Ok(0) => return Err(left()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let mut rest = &bytes[..count];
            let mut taken = Ok(());
            // A client may send requests behind its last message of the handshake; they are kept in the session.
            while taken.is_ok() && !rest.is_empty() {
                session.read_tls(&mut rest)?;
                taken = session.process_new_packets().map(drop);
            }
            let mut records = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut records)?;
            }
            raw.write_all(&records)?;
            taken.map_err(|error| refused(&error))?;
        }
        Ok(Self(Mutex::new(session)))
    }

    fn locked(&self) -> MutexGuard<'_, ServerConnection> {
        // A panic of a thread ends the connection when all threads have ended.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both directions over these ends of the socket.
    pub(super) fn over<R: Read, W: Write>(
        &self,
        (read, write): (R, W),
    ) -> Both<Decrypted<'_, R>, Encrypted<'_, W>> {
        let decrypted = Decrypted {
            session: self,
            raw: read,
            encrypted: vec![0; READ].into_boxed_slice(),
            rest: 0..0,
        };
        let encrypted = Encrypted {
            session: self,
            raw: write,
            records: Vec::new(),
        };
        Both(decrypted, encrypted)
    }

    /// Tells the client that nothing follows, or why it is disconnected, if it reads.
    pub(super) fn close(&self, stream: &Stream) {
        let mut records = Vec::new();
        {
            let mut session = self.locked();
            session.send_close_notify();
            while session.wants_write() && session.write_tls(&mut records).is_ok() {}
        }
        let _ = Hurried::new(stream, FAREWELL).write_all(&records);
    }
}

/// Ends a connection so that the client can read what was sent last: a socket that is closed with unread bytes loses it.
pub(super) fn part(stream: &Stream) {
    stream.shutdown(Shutdown::Write);
    let rest = Hurried::new(stream, FAREWELL);
    let _ = io::copy(&mut rest.take(FAREWELL_BYTES), &mut io::sink());
}

fn left() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "it has left during the TLS handshake",
    )
}

impl<'a, R, W> Both<Decrypted<'a, R>, Encrypted<'a, W>> {
    /// The same directions over other ends. Nothing that was read is lost.
    pub(super) fn over<S: Read, V: Write>(
        self,
        (read, write): (S, V),
    ) -> Both<Decrypted<'a, S>, Encrypted<'a, V>> {
        let Self(decrypted, encrypted) = self;
        let decrypted = Decrypted {
            session: decrypted.session,
            raw: read,
            encrypted: decrypted.encrypted,
            rest: decrypted.rest,
        };
        let encrypted = Encrypted {
            session: encrypted.session,
            raw: write,
            records: encrypted.records,
        };
        Both(decrypted, encrypted)
    }
}

impl<R: Read> Read for Decrypted<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut session = self.session.locked();
                loop {
                    match session.reader().read(bytes) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        other => return other,
                    }
                    if self.rest.is_empty() {
                        break;
                    }
                    let mut rest = &self.encrypted[self.rest.clone()];
                    self.rest.start += session.read_tls(&mut rest)?;
                    session
                        .process_new_packets()
                        .map_err(|error| refused(&error))?;
                }
            }
            let count = self.raw.read(&mut self.encrypted)?;
            if count == 0 {
                // Also without TLS's own end: a request that is cut is not carried out.
                return Ok(0);
            }
            self.rest = 0..count;
        }
    }
}

impl<W: Write> Encrypted<'_, W> {
    fn send(
        &mut self,
        fill: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let taken = {
            let mut session = self.session.locked();
            let taken = fill(&mut session.writer())?;
            while session.wants_write() {
                session.write_tls(&mut self.records)?;
            }
            taken
        };
        let sent = self.raw.write_all(&self.records);
        self.records.clear();
        sent.map(|()| taken)
    }
}

impl<W: Write> Write for Encrypted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(|writer| writer.write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(|writer| writer.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<R: Read, W> Read for Both<R, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl<R, W: Write> Write for Both<R, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}
