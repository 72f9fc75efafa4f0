//! The sockets of NBD clients: Unix sockets and TCP.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use xgvmi_daemon::keep_alive;

/// Reads have no limit: the connection is not drained.
const UNLIMITED: usize = usize::MAX;

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// Programs of this machine.
    Unix(UnixListener),
    /// Programs of any machine.
    Tcp(TcpListener),
}

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

/// A connection. Any thread may read or write.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// Bytes that may still be read.
    left: AtomicUsize,
}

impl Listener {
    pub(super) fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(listener) => listener.accept()?.0.into(),
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Stream::new(Socket::Tcp(stream, address))
            }
        })
    }

    /// Ends a call of [`Listener::accept`] and all later ones.
    pub(super) fn close(&self) {
        let fd = match self {
            Self::Unix(listener) => listener.as_raw_fd(),
            Self::Tcp(listener) => listener.as_raw_fd(),
        };
        // SAFETY: an open socket of this process; no memory is involved.
        unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::new(Socket::Unix(stream))
    }
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.socket {
            Socket::Unix(_) => write!(f, "a client"),
            Socket::Tcp(_, address) => write!(f, "the client {address}"),
        }
    }
}

impl Stream {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            left: AtomicUsize::new(UNLIMITED),
        }
    }

    /// Prepares a connection that was accepted: replies leave at once, and a machine without power is noticed.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if let Socket::Tcp(stream, _) = &self.socket {
            stream.set_nodelay(true)?;
            keep_alive(stream)?;
        }
        Ok(())
    }

    pub(super) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(stream) => stream.set_read_timeout(limit),
            Socket::Tcp(stream, _) => stream.set_read_timeout(limit),
        }
    }

    pub(super) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(stream) => stream.set_write_timeout(limit),
            Socket::Tcp(stream, _) => stream.set_write_timeout(limit),
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // The client may be gone already.
        let _ = match &self.socket {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream, _) => stream.shutdown(how),
        };
    }

    /// Reads get the bytes that have arrived, then the end. TCP alone would also take what arrives later.
    pub(super) fn end_reads(&self) {
        let mut arrived: libc::c_int = 0;
        // SAFETY: FIONREAD stores one int, at a pointer to one.
        unsafe { libc::ioctl(self.fd(), libc::FIONREAD, &raw mut arrived) };
        let arrived = usize::try_from(arrived).unwrap_or(0);
        self.left.store(arrived, Ordering::SeqCst);
        self.shutdown(Shutdown::Read);
    }

    fn fd(&self) -> RawFd {
        match &self.socket {
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Tcp(stream, _) => stream.as_raw_fd(),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::SeqCst);
        let most = bytes.len().min(left);
        let bytes = &mut bytes[..most];
        if bytes.is_empty() {
            return Ok(0);
        }
        let count = match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).read(bytes),
            Socket::Tcp(stream, _) => (&mut &*stream).read(bytes),
        }?;
        // One thread reads at a time. Of a read that began before the limit it counts nothing.
        if left != UNLIMITED {
            self.left.store(left - count, Ordering::SeqCst);
        }
        Ok(count)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
            Socket::Tcp(stream, _) => (&mut &*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.socket {
            Socket::Unix(stream) => (&mut &*stream).write_vectored(slices),
            Socket::Tcp(stream, _) => (&mut &*stream).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection whose reads and writes together end at a time: a client that sends a byte now and then gains nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hurried<'a> {
    stream: &'a Stream,
    end: Instant,
}

impl<'a> Hurried<'a> {
    pub(super) fn new(stream: &'a Stream, limit: Duration) -> Self {
        let end = Instant::now() + limit;
        Self { stream, end }
    }

    /// From now on nothing has a limit.
    pub(super) fn relax(self) -> io::Result<&'a Stream> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok(self.stream)
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        Ok(Some(left))
    }
}

fn late() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "it has not finished its handshake in time",
    )
}

/// The system's word for the end of a socket's timeout.
fn timely(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
        _ => error,
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(bytes).map_err(timely)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(bytes).map_err(timely)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
