//! A non-blocking TCP connection that carries frames.
//!
//! ```text
//! magic (4)  version (4)  length (4)  class (1)  body (length - 1, or length - 17)  [seal (16)]
//! ```
//!
//! Numbers are little endian. With a secret, the first four frames are those of [`super::secret`], and every later
//! frame ends in a seal over its number, its header and its bytes. The program defines the bodies.

mod buffer;
mod error;
mod reach;

use super::budget::{Budget, Payer, Share};
use super::poll::{poll, pollfd};
use super::secret::{Called, Calling, Nonce, Proof, SEAL, Seals, Secret, WORD};
use super::text::printable;
use buffer::Buffer;
use bytes::Bytes;
pub use error::{LinkError, STRANGER_FRAME_MAX};
pub use reach::{keep_alive, reach, reach_within};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::borrow::Cow;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

/// Length of a header: magic, version, length.
const HEADER: usize = 12;

/// Maximum length of any frame.
pub const FRAME_MAX: usize = 32 << 20;

/// Maximum number of unsent bytes. A peer that reads too slowly to stay below loses its connection.
const OUTPUT_MAX: usize = 2 * FRAME_MAX;

/// Maximum number of bytes per visit of a connection. A peer that floods its connection leaves time for the others. A message of
/// 256 KiB with its headers fits, so that its bytes are not moved.
const VISIT_MAX: usize = 288 << 10;

/// Most parts that a call of the system sends.
const PARTS_MAX: usize = 1024;

/// Bytes per read.
const CHUNK: usize = 16 << 10;

/// The longest reason of a refusal in bytes.
const REASON_MAX: usize = STRANGER_FRAME_MAX / 2;

/// Format parameters of one program's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The first bytes of every frame.
    pub magic: [u8; 4],
    /// Version of everything after the header. Peers of different versions still parse each other's headers.
    pub version: u32,
    /// Name of the program, for errors.
    pub program: &'static str,
}

/// Refusal that an accepting peer sends to a peer without the secret.
pub const NO_SECRET: &str = "this service serves only owners of its secret: give --secret-file FILE with the service's file";

const OTHER_SECRET: &str = "its secret is not this service's: the key files (--secret-file) differ";

const NOT_ASKED: &str =
    "it has a secret, and this service none: give --secret-file to both, or to neither";

const NOT_THEIRS: &str =
    "it does not have the secret of this caller: the key files (--secret-file) differ";

/// Class of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Data = 0,
    Open = 1,
    Challenge = 2,
    Proof = 3,
    Refused = 4,
}

/// The body of a frame: the bytes from the number on.
type Body = (Vec<u8>, usize);

/// State of the mutual authentication.
#[derive(Debug)]
enum Trust {
    /// No secret is configured.
    Open,
    /// The peer has connected and proved nothing.
    Awaited(Vec<Secret>),
    /// The challenge has been sent.
    Asked(Vec<Secret>, Called),
    /// This side has connected. Its frames wait for the end of the authentication.
    Calling(Secret, Calling, Vec<Vec<u8>>),
    /// Both ends have proved this secret.
    Sealed(Secret, Seals),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    protocol: Protocol,
    trust: Trust,
    input: Buffer,
    output: Buffer,
    share: Option<Share>,
    closed: bool,
    closing: bool,
    /// Time since when an incomplete frame has been buffered.
    partial: Option<Instant>,
    frame_max: usize,
    /// Bytes of the last frame, if it was a long one: the next one may be as long.
    long: usize,
    /// Frames stay here.
    holds: bool,
}

impl Link {
    /// Wraps a connection that a peer has opened. The peer must prove one of `secrets` unless the list is empty.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn called(
        stream: TcpStream,
        protocol: Protocol,
        secrets: &[Secret],
        budget: &Budget,
    ) -> io::Result<Self> {
        let trust = if secrets.is_empty() {
            Trust::Open
        } else {
            Trust::Awaited(secrets.to_vec())
        };
        let mut link = Self::new(stream, protocol, trust)?;
        link.frame_max = STRANGER_FRAME_MAX;
        link.share = Some(budget.share());
        Ok(link)
    }

    /// Wraps a connection that this side has opened, and starts to prove the secret if there is one.
    ///
    /// # Errors
    /// Errors of the system and of the connection.
    pub fn calling(
        stream: TcpStream,
        protocol: Protocol,
        secret: Option<&Secret>,
    ) -> Result<Self, LinkError> {
        let Some(secret) = secret else {
            return Ok(Self::new(stream, protocol, Trust::Open)?);
        };
        let calling = Secret::call()?;
        let mine = calling.mine;
        let trust = Trust::Calling(secret.clone(), calling, Vec::new());
        let mut link = Self::new(stream, protocol, trust)?;
        link.put(Class::Open, &[&mine.0])?;
        Ok(link)
    }

    /// Connects to `host:port`. Retries until `limit` because the peer may still be starting. Blocks.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn connect(
        address: &str,
        limit: Duration,
        protocol: Protocol,
        secret: Option<&Secret>,
    ) -> Result<Self, LinkError> {
        let stream = reach(address, limit)?;
        Self::calling(stream, protocol, secret)
    }

    fn new(stream: TcpStream, protocol: Protocol, trust: Trust) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        Ok(Self {
            stream,
            protocol,
            trust,
            input: Buffer::default(),
            output: Buffer::default(),
            share: None,
            closed: false,
            closing: false,
            partial: None,
            frame_max: FRAME_MAX,
            long: 0,
            holds: false,
        })
    }

    /// Accepts frames of up to `bytes` from now on. Call this after the peer has identified itself.
    pub fn set_frame_max(&mut self, bytes: usize) {
        self.frame_max = bytes.min(FRAME_MAX);
    }

    /// Names the payer of this connection's buffers. A connection that this side has opened has no limit before.
    pub fn charge(&mut self, budget: &Budget, payer: Payer) {
        self.share
            .get_or_insert_with(|| budget.share())
            .charge(payer);
    }

    /// The secret that both ends have proved.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        match &self.trust {
            Trust::Sealed(secret, _) => Some(secret),
            _ => None,
        }
    }

    /// Time since when an incomplete frame has been buffered.
    #[must_use]
    pub fn partial_since(&self) -> Option<Instant> {
        self.partial
    }

    /// Queues a frame and sends as much as the connection takes.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn send(&mut self, body: &[u8]) -> Result<(), LinkError> {
        self.send_parts(&[body])
    }

    /// As [`Link::send`], of a frame in parts. Without a secret, what leaves at once is not copied.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send_parts(&mut self, body: &[&[u8]]) -> Result<(), LinkError> {
        if let Trust::Calling(_, _, waiting) = &mut self.trust {
            waiting.push(body.concat());
            return Ok(());
        }
        self.put(Class::Data, body)
    }

    /// As [`Link::send_parts`], but the frame stays here until the next one, or [`Link::flush`], takes it along: each send wakes the
    /// peer.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn queue_parts(&mut self, body: &[&[u8]]) -> Result<(), LinkError> {
        self.holds = true;
        let queued = self.send_parts(body);
        self.holds = false;
        queued
    }

    /// Whether another frame has arrived as a whole.
    #[must_use]
    pub fn has_next(&self) -> bool {
        self.input.len() >= HEADER && self.rest_of_frame() == 0
    }

    /// Sends the reason for a refusal to the peer and closes the connection afterwards.
    pub fn refuse(&mut self, reason: &str) {
        let end = reason.len().min(REASON_MAX);
        // If the send fails, the peer sees a closed connection. The peer replaces a truncated character.
        let _ = self.put(Class::Refused, &[&reason.as_bytes()[..end]]);
        self.close_when_sent();
    }

    /// Sends as much as the connection takes.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        while !self.output.is_empty() {
            match self.stream.write(self.output.bytes()) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => self.output.consume(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.account()?;
        if self.closing && self.output.is_empty() {
            // The read half stays open until the peer has read all data: a close now could reset the connection before
            // that.
            self.stream.shutdown(Shutdown::Write)?;
            self.closing = false;
        }
        Ok(())
    }

    /// Closes this side after everything is sent. The peer reads the end of the stream after the last frame.
    pub fn close_when_sent(&mut self) {
        self.closing = true;
        // The next read of the connection returns the error again.
        let _ = self.flush();
    }

    /// Whether unsent data is queued.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        !self.output.is_empty()
    }

    /// Bytes of unsent data.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.output.len()
    }

    /// Returns a complete frame, if there is one.
    ///
    /// # Errors
    /// Errors of the connection; [`LinkError::Closed`] when the peer has closed and no frame is left.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let taken = self.taken()?;
        Ok(taken.map(|(mut body, start)| {
            body.drain(..start);
            body
        }))
    }

    /// As [`Link::take`]. Parts of the frame may be kept without a copy.
    ///
    /// # Errors
    /// As [`Link::take`].
    pub fn take_shared(&mut self) -> Result<Option<Bytes>, LinkError> {
        let taken = self.taken()?;
        Ok(taken.map(|(body, start)| Bytes::from(body).slice(start..)))
    }

    fn taken(&mut self) -> Result<Option<Body>, LinkError> {
        loop {
            while let Some((class, body)) = self.buffered()? {
                if let Some(body) = self.hear(class, body)? {
                    return Ok(Some(body));
                }
            }
            if self.closed {
                return Err(LinkError::Closed);
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Waits for a frame until `limit`; `None` if none arrived. Blocks.
    ///
    /// # Errors
    /// As for [`Link::take`].
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, LinkError> {
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

    /// Entry for a poll loop: readable, and writable if unsent data is queued.
    #[must_use]
    pub fn pollfd(&self) -> libc::pollfd {
        let out = if self.wants_to_send() {
            libc::POLLOUT
        } else {
            0
        };
        pollfd(self.fd(), libc::POLLIN | out)
    }

    /// The socket.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.stream.peer_addr().ok().map(|address| address.ip())
    }

    /// Queues a frame of any class.
    fn put(&mut self, class: Class, body: &[&[u8]]) -> Result<(), LinkError> {
        let sealed = match self.trust {
            Trust::Sealed(..) => SEAL,
            _ => 0,
        };
        let length = 1 + body.iter().map(|part| part.len()).sum::<usize>() + sealed;
        if length > FRAME_MAX {
            return Err(LinkError::TooLong {
                length,
                max: FRAME_MAX,
            });
        }
        if self.output.len() > OUTPUT_MAX {
            return Err(LinkError::Unread(self.output.len()));
        }
        let length = u32::try_from(length).expect("at most FRAME_MAX");
        let mut head = [0; HEADER + 1];
        head[..4].copy_from_slice(&self.protocol.magic);
        head[4..8].copy_from_slice(&self.protocol.version.to_le_bytes());
        head[8..HEADER].copy_from_slice(&length.to_le_bytes());
        head[HEADER] = class as u8;
        match (&mut self.trust, body) {
            (Trust::Sealed(_, seals), parts) => {
                // The hash of a whole is cheaper than that of its parts.
                let body = match *parts {
                    [body] => Cow::Borrowed(body),
                    _ => Cow::Owned(parts.concat()),
                };
                let seal = seals.send.of(&head, &body);
                self.leave(&[&head, &body, &seal])
            }
            (_, [body]) => self.leave(&[&head, body]),
            (_, parts) => self.leave(&[&[&head[..]], parts].concat()),
        }
    }

    /// Sends parts of a frame, or queues what the connection does not take at once.
    fn leave(&mut self, parts: &[&[u8]]) -> Result<(), LinkError> {
        // What leaves at once is not copied.
        let mut sent = match self.output.is_empty() && !self.holds {
            true => self.send_at_once(parts)?,
            false => 0,
        };
        for part in parts {
            let of_part = sent.min(part.len());
            sent -= of_part;
            self.output.push(&part[of_part..]);
        }
        match self.holds {
            true => self.account(),
            false => self.flush(),
        }
    }

    /// Sends as much as the connection takes at once. Returns the number of bytes.
    ///
    /// Not by `writev`: on a closed connection it would end a host program that does not ignore SIGPIPE.
    fn send_at_once(&mut self, parts: &[&[u8]]) -> Result<usize, LinkError> {
        let mut control = SendAncillaryBuffer::default();
        let (few, many);
        let parts = match *parts {
            [head, body] => {
                few = [head, body, &[]].map(IoSlice::new);
                &few[..2]
            }
            [head, body, seal] => {
                few = [head, body, seal].map(IoSlice::new);
                &few[..]
            }
            ref parts => {
                let some = parts.iter().take(PARTS_MAX);
                many = some.map(|part| IoSlice::new(part)).collect::<Vec<_>>();
                &many[..]
            }
        };
        loop {
            match sendmsg(&self.stream, parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(0),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Removes a complete frame from the input and checks its seal.
    fn buffered(&mut self) -> Result<Option<(Class, Body)>, LinkError> {
        let input = self.input.bytes();
        let Some((head, rest)) = input.split_first_chunk::<{ HEADER + 1 }>() else {
            // Rejects another protocol as early as its first bytes show.
            let known = input.len().min(4);
            if input[..known] != self.protocol.magic[..known] {
                return Err(LinkError::Stranger(self.protocol.program));
            }
            // A frame of an old version may be empty.
            if let Some(header) = input.first_chunk::<HEADER>() {
                self.check_version(header)?;
            }
            return Ok(None);
        };
        let (header, class) = head.split_first_chunk::<HEADER>().expect("13 bytes");
        self.check_version(header)?;
        let length = word(header, 8) as usize;
        if length > self.frame_max {
            // The error for an unauthenticated peer names the secret first: a wrong secret is the more likely mistake.
            return Err(match self.trust {
                Trust::Awaited(_) => LinkError::Secret(NO_SECRET),
                _ => LinkError::TooLong {
                    length,
                    max: self.frame_max,
                },
            });
        }
        if length == 0 {
            return Err(LinkError::Malformed("a frame without a class"));
        }
        let Some(body) = rest.get(..length - 1) else {
            return Ok(None);
        };
        let class = Class::from_byte(class[0])?;
        let body = match &mut self.trust {
            Trust::Sealed(_, seals) => {
                let (body, seal) = body.split_last_chunk::<SEAL>().ok_or(LinkError::Seal)?;
                if !seals.receive.check(head, body, seal) {
                    return Err(LinkError::Seal);
                }
                body
            }
            _ => body,
        };
        let part = HEADER + 1..HEADER + 1 + body.len();
        let body = self.input.take(HEADER + length, part);
        self.long = match HEADER + length {
            long @ CHUNK.. => long,
            _ => 0,
        };
        self.partial = (!self.input.is_empty()).then(Instant::now);
        self.account()?;
        Ok(Some((class, body)))
    }

    fn check_version(&self, header: &[u8; HEADER]) -> Result<(), LinkError> {
        if header[..4] != self.protocol.magic {
            return Err(LinkError::Stranger(self.protocol.program));
        }
        let theirs = word(header, 4);
        if theirs != self.protocol.version {
            return Err(LinkError::Version {
                theirs,
                ours: self.protocol.version,
            });
        }
        Ok(())
    }

    /// Handles the frames of the link itself; returns the body of a program's frame.
    fn hear(&mut self, class: Class, (all, start): Body) -> Result<Option<Body>, LinkError> {
        let malformed = LinkError::Malformed;
        let body = &all[start..];
        if class == Class::Refused {
            // Anybody on the way can write this frame before the secret is proved, and the reason appears in logs.
            let reason = String::from_utf8_lossy(body);
            return Err(LinkError::Refused(printable(&reason, REASON_MAX)));
        }
        let word = || {
            <[u8; WORD]>::try_from(body)
                .map_err(|_| malformed("a nonce or proof of a wrong length"))
        };
        match (std::mem::replace(&mut self.trust, Trust::Open), class) {
            (trust @ (Trust::Open | Trust::Sealed(..)), Class::Data) => {
                self.trust = trust;
                return Ok(Some((all, start)));
            }
            (Trust::Open, Class::Open) => return Err(LinkError::Secret(NOT_ASKED)),
            (Trust::Awaited(secrets), Class::Open) => {
                let called = Secret::answer(Nonce(word()?))?;
                let mine = called.mine;
                self.trust = Trust::Asked(secrets, called);
                self.put(Class::Challenge, &[&mine.0])?;
            }
            (Trust::Asked(secrets, called), Class::Proof) => {
                let proof = Proof(word()?);
                let found = secrets
                    .into_iter()
                    .find_map(|secret| called.check(&secret, &proof).map(|found| (secret, found)));
                let Some((secret, (answer, seals))) = found else {
                    return Err(LinkError::Secret(OTHER_SECRET));
                };
                // The answer is the last frame without a seal.
                self.put(Class::Proof, &[&answer.0])?;
                self.trust = Trust::Sealed(secret, seals);
            }
            (Trust::Calling(secret, mut calling, waiting), Class::Challenge) => {
                let proof = calling
                    .challenged(&secret, Nonce(word()?))
                    .ok_or(malformed("a second challenge"))?;
                self.put(Class::Proof, &[&proof.0])?;
                self.trust = Trust::Calling(secret, calling, waiting);
            }
            (Trust::Calling(secret, calling, waiting), Class::Proof) => {
                let seals = calling
                    .check(&secret, &Proof(word()?))
                    .ok_or(LinkError::Secret(NOT_THEIRS))?;
                self.trust = Trust::Sealed(secret, seals);
                for body in waiting {
                    self.put(Class::Data, &[&body])?;
                }
            }
            (Trust::Awaited(_) | Trust::Asked(..), _) => {
                return Err(LinkError::Secret(NO_SECRET));
            }
            (Trust::Calling(..), _) => {
                return Err(LinkError::Secret(
                    "the service asks for no secret, and this caller has one (--secret-file)",
                ));
            }
            (Trust::Open | Trust::Sealed(..), _) => {
                return Err(malformed("a proof that nobody asked for"));
            }
        }
        Ok(None)
    }

    /// Reads available bytes up to a limit; returns false when there are none.
    fn fill(&mut self) -> Result<bool, LinkError> {
        // Most reads are short: to zero the chunk first would cost more than the rest of the read.
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut count = 0;
        while count < VISIT_MAX && self.input.len() < HEADER + self.frame_max {
            // The rest of a long frame comes where it stays.
            let rest = match self.input.is_empty() {
                true => self.long,
                false => self.rest_of_frame(),
            };
            let rest = rest.min(VISIT_MAX);
            if rest == 0 && self.input.len() > CHUNK {
                // What is read behind a long frame would be copied when that is taken.
                break;
            }
            let (wanted, read) = if rest > CHUNK {
                let place = self.input.place(rest);
                let place = rustix::buffer::spare_capacity(place);
                (rest, rustix::io::read(&self.stream, place))
            } else {
                let read = rustix::io::read(&self.stream, &mut chunk);
                let read = read.map(|(read, _)| {
                    self.input.push(read);
                    read.len()
                });
                (CHUNK, read)
            };
            match read {
                // A peer that ended with unread data resets the connection.
                Ok(0) | Err(Errno::CONNRESET) => {
                    self.closed = true;
                    return Ok(true);
                }
                Ok(read) => {
                    count += read;
                    self.account()?;
                    if read < wanted {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        if count > 0 && self.partial.is_none() {
            self.partial = Some(Instant::now());
        }
        Ok(count > 0)
    }

    /// Bytes that the first frame of the input lacks. 0 if that is not known, or the frame may be refused.
    fn rest_of_frame(&self) -> usize {
        let input = self.input.bytes();
        let length = input.first_chunk::<HEADER>();
        let length = length.map_or(0, |header| word(header, 8) as usize);
        match length <= self.frame_max {
            true => (HEADER + length).saturating_sub(input.len()),
            false => 0,
        }
    }

    /// Charges the bytes of both buffers to the budget.
    fn account(&mut self) -> Result<(), LinkError> {
        if let Some(share) = &mut self.share {
            share.resize(self.input.len() + self.output.len())?;
        }
        Ok(())
    }
}

impl Class {
    fn from_byte(byte: u8) -> Result<Self, LinkError> {
        [
            Self::Data,
            Self::Open,
            Self::Challenge,
            Self::Proof,
            Self::Refused,
        ]
        .into_iter()
        .find(|class| *class as u8 == byte)
        .ok_or(LinkError::Malformed("a frame of an unknown class"))
    }
}

fn word(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]))
}

#[cfg(test)]
mod tests;
