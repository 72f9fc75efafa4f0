//! A TCP connection that carries frames and never blocks: 12 bytes of header, then JSON.

use super::control::{Frame, PROTOCOL};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

/// The first bytes of every frame, so that something else at the other end is recognised.
const MAGIC: [u8; 4] = *b"xgsp";

/// Magic, protocol, length.
const HEADER: usize = 12;

/// The longest frame: a table of the most ranks and SPs, as JSON, is a few megabytes, announced keys are less.
const FRAME_MAX: usize = 64 << 20;

/// The longest frame of somebody who has to prove a secret first.
const STRANGER_MAX: usize = 4 << 10;

/// What a caller is told that says more, or anything else, before that.
pub(super) const UNTRUSTED: &str = "this service serves only who has its secret (--secret-file)";

/// Bytes that may wait for a peer that does not read; one that lets it come to this is gone.
const OUTPUT_MAX: usize = 2 * FRAME_MAX;

/// Between two attempts to reach somebody who is not there yet.
const RETRY: Duration = Duration::from_millis(20);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    closed: bool,
    closing: bool,
    /// The longest frame that is taken.
    frame_max: usize,
}

impl Link {
    /// Takes over a connection.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        Ok(Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            closed: false,
            closing: false,
            frame_max: FRAME_MAX,
        })
    }

    /// Takes short frames only, or all: who is not trusted gets no memory.
    pub(super) fn trust(&mut self, trusted: bool) {
        self.frame_max = if trusted { FRAME_MAX } else { STRANGER_MAX };
    }

    /// Connects to `host:port`, again and again until `limit`: whoever is called may still be starting.
    pub(super) fn connect(address: &str, limit: Duration) -> io::Result<Self> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let error = match connect_once(address, left.max(RETRY)) {
                Ok(stream) => return Self::new(stream),
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::InvalidInput || left <= RETRY {
                return Err(error);
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Queues a frame, and sends what can be sent.
    pub(super) fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let body = serde_json::to_vec(frame)?;
        if body.len() > FRAME_MAX || self.output.len() > OUTPUT_MAX {
            return Err(invalid(format!(
                "a frame of {} bytes, with {} bytes not taken yet",
                body.len(),
                self.output.len()
            )));
        }
        self.output.extend_from_slice(&MAGIC);
        self.output.extend_from_slice(&PROTOCOL.to_le_bytes());
        let length = u32::try_from(body.len()).map_err(|_| invalid("a frame of 4 GiB".into()))?;
        self.output.extend_from_slice(&length.to_le_bytes());
        self.output.extend_from_slice(&body);
        self.flush()
    }

    /// Sends what can be sent.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.closing && self.output.is_empty() {
            // The other half stays open until the other side has read all: closing now would cut off its reading.
            self.stream.shutdown(Shutdown::Write)?;
            self.closing = false;
        }
        Ok(())
    }

    /// Closes our half once everything is sent; the other side finds the end after the last frame.
    pub(super) fn close_when_sent(&mut self) {
        self.closing = true;
        // What fails here fails again when the connection is read.
        let _ = self.flush();
    }

    /// Whether something waits to be sent.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.output.is_empty()
    }

    /// Takes a frame, if a whole one is there.
    ///
    /// # Errors
    /// The connection's; [`io::ErrorKind::UnexpectedEof`] when the other side has closed and no frame is left.
    pub(super) fn take(&mut self) -> io::Result<Option<Frame>> {
        if let Some(frame) = self.buffered()? {
            return Ok(Some(frame));
        }
        self.fill()?;
        match self.buffered()? {
            None if self.closed => Err(io::ErrorKind::UnexpectedEof.into()),
            frame => Ok(frame),
        }
    }

    /// Waits for a frame until `limit`; `None` when none came.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<Option<Frame>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.flush()?;
            poll(&mut [self.pollfd()], Some(left))?;
        }
    }

    /// For a poll loop: to be read, and to be written if there is something to send.
    pub(super) fn pollfd(&self) -> libc::pollfd {
        let out = if self.wants_to_send() {
            libc::POLLOUT
        } else {
            0
        };
        pollfd(self.stream.as_raw_fd(), libc::POLLIN | out)
    }

    fn buffered(&mut self) -> io::Result<Option<Frame>> {
        let Some((header, rest)) = self.input.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        if header[..4] != MAGIC {
            return Err(invalid("what answers is no xgvmi-sp and no client".into()));
        }
        if word(4) != PROTOCOL {
            return Err(invalid(format!(
                "it speaks version {} of the protocol, and this is version {PROTOCOL}",
                word(4)
            )));
        }
        let length = word(8) as usize;
        if length > FRAME_MAX {
            return Err(invalid(format!(
                "a frame of {length} bytes; the most is {FRAME_MAX}"
            )));
        }
        if length > self.frame_max {
            return Err(invalid(UNTRUSTED.into()));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = serde_json::from_slice(body)?;
        self.input.drain(..HEADER + length);
        Ok(Some(frame))
    }

    /// Reads what is there.
    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        while !self.closed && self.input.len() < HEADER + self.frame_max {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.closed = true,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Whoever died with bytes unread resets the connection.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// For a poll loop.
pub(super) fn pollfd(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Waits until one of `fds` is ready, at most `limit`; a signal ends it early.
pub(super) fn poll(fds: &mut [libc::pollfd], limit: Option<Duration>) -> io::Result<()> {
    // Rounded up, so that a limit below a millisecond still sleeps.
    let timeout_ms = limit.map_or(-1, |limit| {
        i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: valid pollfd structures, that many counted.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

fn connect_once(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut last = invalid(format!("'{address}' names no address"));
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A machine that loses its power closes no connection: after some ten seconds of silence the kernel does it.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    const SECONDS: [(libc::c_int, libc::c_int, libc::c_int); 5] = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        // The same for bytes that were sent and not acknowledged, in milliseconds.
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 11_000),
    ];
    for (level, name, value) in SECONDS {
        let size = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
        // SAFETY: an open socket, and an option value of `size` bytes that lives through the call.
        let result = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(10);

    fn pair() -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let left = Link::connect(&address, LIMIT).expect("connected");
        let right = Link::new(listener.accept().expect("accepted").0).expect("a link");
        (left, right)
    }

    /// What a reader of these bytes says.
    fn refused(bytes: &[u8]) -> String {
        let (mut left, mut right) = pair();
        left.output.extend_from_slice(bytes);
        left.flush().expect("sent");
        drop(left);
        right.wait(LIMIT).unwrap_err().to_string()
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (mut left, mut right) = pair();
        let long = Frame::Abort {
            reason: "x".repeat(3 << 20),
        };
        for frame in [&Frame::Ready, &long, &Frame::Bye] {
            left.send(frame).expect("sent");
        }
        let mut got = Vec::new();
        // What does not fit into the sockets waits in the link.
        while got.len() < 3 {
            left.flush().expect("sent");
            got.extend(right.take().expect("open"));
        }
        assert_eq!(got, [Frame::Ready, long, Frame::Bye]);
        drop(left);
        let end = right.wait(LIMIT).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn another_version_is_named_and_strangers_are_refused() {
        let mut frame = [MAGIC, 99u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
        let message = refused(&frame);
        assert!(message.contains("version 99"), "{message}");
        let message = refused(b"HTTP/1.1 200 OK\r\n\r\n");
        assert!(message.contains("no xgvmi-sp"), "{message}");
        frame = [MAGIC, PROTOCOL.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
        let message = refused(&frame);
        assert!(message.contains("the most is"), "{message}");
    }

    #[test]
    fn strangers_get_no_memory() {
        let (mut left, mut right) = pair();
        right.trust(false);
        left.send(&Frame::Ready).expect("sent");
        assert_eq!(right.wait(LIMIT).expect("short"), Some(Frame::Ready));
        let reason = "x".repeat(STRANGER_MAX);
        left.send(&Frame::Abort { reason }).expect("sent");
        let error = right.wait(LIMIT).unwrap_err().to_string();
        assert_eq!(error, UNTRUSTED);
        right.trust(true);
        assert!(right.wait(LIMIT).expect("long").is_some());
    }

    #[test]
    fn nobody_there_is_an_error_within_the_limit() {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("bound").port()
        };
        let error = Link::connect(&format!("127.0.0.1:{port}"), RETRY).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(Link::connect("no port", RETRY).is_err());
    }
}
