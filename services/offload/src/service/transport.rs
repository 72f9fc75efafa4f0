//! Moves messages and blocks for a job. A service process uses UCX; measurements of this project's own code use a
//! stand-in.

use super::imported::Imported;
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{ExportRef, Kind, hello_header};
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::time::Duration;
use ucx_sys::Ucp;
use xgvmi_ucp::{
    Context, Endpoint, Gets, InboxLimits, Message, PackedRkey, RemoteKey, Request, UcpError,
};

/// A message that the transport has accepted.
#[derive(Debug)]
pub(super) enum Sent<O> {
    /// It is sent or copied. The data is free for another message.
    AtOnce(Vec<u8>),
    /// It is under way.
    Started(O),
}

/// The end of a read. The error is boxed because every read moves this, and few fail.
pub(super) type Ended = std::result::Result<(), Box<OffloadError>>;

/// A range to read: `length` bytes at `address` of the key's memory, for `into` at offset `to`.
#[derive(Debug)]
pub(super) struct Range<'a, T: Transport + ?Sized> {
    pub(super) key: &'a T::Key,
    pub(super) address: u64,
    pub(super) into: &'a T::Memory,
    pub(super) to: u64,
    pub(super) length: usize,
}

/// The operations of the data path. None of them blocks.
pub(super) trait Transport {
    /// A connection to a rank or to another SP.
    type Peer: Debug;
    /// An imported buffer of a rank, or memory of this process.
    type Memory: Debug;
    /// A key to a rank's memory, packed by another SP.
    type Key: Debug;
    /// A packed key to an imported buffer.
    type Packed: AsRef<[u8]> + Default + Debug;
    /// A message on its way.
    type Operation: Debug;
    /// Reads under way, by number.
    type Reads: Default + Debug;

    /// Sends a message with the token that its receiver expects.
    fn send(
        &self,
        to: &Self::Peer,
        kind: Kind,
        token: Token,
        data: Vec<u8>,
    ) -> Result<Sent<Self::Operation>>;

    /// Imports a rank's buffer.
    fn import(&self, export: ExportRef<'_>) -> Result<Self::Memory>;

    /// Address of a buffer in the address space of its rank.
    fn address(&self, memory: &Self::Memory) -> u64;

    /// Packs the key with which other SPs read a buffer.
    fn pack(&self, memory: &Self::Memory) -> Result<Self::Packed>;

    /// Allocates memory of this process that can take the place of an imported buffer.
    fn stage(&self, length: usize) -> Result<Self::Memory>;

    /// The bytes of memory of this process; `None` for an imported buffer, and while an operation uses the memory.
    fn bytes<'a>(&self, memory: &'a mut Self::Memory) -> Option<&'a mut [u8]>;

    /// Releases an imported buffer.
    fn unmap(&self, memory: Self::Memory) -> Result<()>;

    /// Unpacks a key that `from` has packed.
    fn unpack(&self, from: &Self::Peer, key: &[u8]) -> Result<Self::Key>;

    /// Starts a read. Returns its number, which is below the maximum number of reads that were under way at once; `None`
    /// if the read is complete.
    fn read(&self, reads: &mut Self::Reads, range: Range<'_, Self>) -> Result<Option<u32>>;

    /// Number of reads that were started and not taken.
    fn reads_len(reads: &Self::Reads) -> usize;

    /// Takes a read that has ended: its number, and its error if it has failed.
    fn next_read(&self, reads: &mut Self::Reads) -> Option<(u32, Ended)>;

    /// The process's alias lookups so far, hits and misses; `None` without the library's counters.
    fn aliases(&self) -> Option<(u64, u64)>;

    /// Whether a message has been sent.
    fn has_ended(&self, message: &Self::Operation) -> Result<bool>;
}

/// A transport with what a job needs beside its data path: a worker, connections, and hellos.
///
/// # Safety
/// A job may move to another thread: what a transport, its worker and their objects share by reference counts belongs to
/// one job, or is safe to share between threads.
pub(super) unsafe trait Fabric:
    Transport<Peer: Clone> + Debug + Sized + 'static
{
    /// Opens jobs.
    type Library: Copy + Debug + Send + 'static;
    /// Receives messages and connects to peers.
    type Worker: Worker<Peer = Self::Peer>;

    /// The version, which is the same at all members of a job.
    fn version(library: Self::Library) -> &'static str;

    /// Opens a transport and its worker for a job.
    fn open(
        library: Self::Library,
        scheme: Scheme,
        inbox: InboxLimits,
    ) -> Result<(Self, Self::Worker)>;

    /// Sends a hello, which opens the connection.
    fn greet(&self, to: &Self::Peer, token: Token, data: Vec<u8>) -> Result<Self::Operation>;

    /// Closes a connection without waiting. Its operations end.
    fn abandon(peer: &Self::Peer);
}

/// The messages and connections of a job. The functions are those of [`xgvmi_ucp::Worker`].
pub(super) trait Worker: Debug {
    /// A connection.
    type Peer;

    /// The address, for peers.
    fn address(&self) -> Result<Vec<u8>>;

    /// The descriptor that is readable, once armed, when there is work.
    fn event_fd(&self) -> RawFd;

    /// Arms the descriptor; false when there is work already.
    fn arm(&self) -> Result<bool>;

    /// Accepts messages with this token.
    fn expect(&self, token: Token);

    /// Number of messages that were dropped because their token was not expected.
    fn strangers(&self) -> u64;

    /// Connects to the rank whose worker has this address.
    fn connect(&self, address: &[u8], name: &str) -> Result<Self::Peer>;

    /// Connects to the SP whose worker has this address.
    fn connect_for_gets(&self, address: &[u8], name: &str) -> Result<Self::Peer>;

    /// Makes progress; returns true when something happened.
    fn progress(&self) -> bool;

    /// Makes progress until all sent messages have arrived, at most for `limit`.
    fn settle(&self, limit: Duration);

    /// Bytes of the messages that [`Worker::take`] can return.
    fn waiting_bytes(&self) -> usize;

    /// Takes the oldest message.
    fn take(&self) -> Result<Option<Message>>;

    /// Keeps the memory of a message that has been handled, for a later message.
    fn reuse(&self, message: Message) {
        drop(message);
    }
}

/// UCX.
#[derive(Debug)]
pub(super) struct Ucx {
    context: Context,
    library: Option<Library>,
}

/// A key that UCX has packed.
#[derive(Debug, Default)]
pub(super) struct Packed(Option<PackedRkey>);

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

// SAFETY: each job opens its own UCX context, and every object of the context is inside the job. UCX permits calls on a
// context from one thread at a time; the worker is created for this (UCS_THREAD_MODE_SERIALIZED).
unsafe impl Fabric for Ucx {
    type Library = &'static Ucp;
    type Worker = xgvmi_ucp::Worker;

    fn version(library: &'static Ucp) -> &'static str {
        library.version()
    }

    fn open(
        library: &'static Ucp,
        scheme: Scheme,
        inbox: InboxLimits,
    ) -> Result<(Self, Self::Worker)> {
        let context = Context::with_settings(library, "xgvmi-sp", scheme.settings())?;
        let worker = context.worker_within(Kind::COUNT, inbox)?;
        let library = Library::find();
        Ok((Self { context, library }, worker))
    }

    fn greet(&self, to: &Endpoint, token: Token, data: Vec<u8>) -> Result<Request> {
        Ok(to.send(Kind::Hello as u16, hello_header(token), data)?)
    }

    fn abandon(peer: &Endpoint) {
        peer.abandon();
    }
}

impl Worker for xgvmi_ucp::Worker {
    type Peer = Endpoint;

    fn address(&self) -> Result<Vec<u8>> {
        Ok(Self::address(self)?)
    }

    fn event_fd(&self) -> RawFd {
        Self::event_fd(self)
    }

    fn arm(&self) -> Result<bool> {
        Ok(Self::arm(self)?)
    }

    fn expect(&self, token: Token) {
        Self::expect(self, token.0);
    }

    fn strangers(&self) -> u64 {
        Self::strangers(self)
    }

    fn connect(&self, address: &[u8], name: &str) -> Result<Endpoint> {
        // SAFETY: the rank has authenticated itself if a secret is set, and sends the bytes of Worker::address
        // unchanged; its UCX version equals ours.
        Ok(unsafe { Self::connect(self, address, name) }?)
    }

    fn connect_for_gets(&self, address: &[u8], name: &str) -> Result<Endpoint> {
        // SAFETY: the table comes from a rank that has authenticated itself if a secret is set. It holds the worker
        // addresses of SPs with our version of UCX, unchanged.
        Ok(unsafe { Self::connect_for_gets(self, address, name) }?)
    }

    fn progress(&self) -> bool {
        Self::progress(self)
    }

    fn settle(&self, limit: Duration) {
        Self::settle(self, limit);
    }

    fn waiting_bytes(&self) -> usize {
        Self::waiting_bytes(self)
    }

    fn take(&self) -> Result<Option<Message>> {
        Ok(Self::take(self, |_| true)?)
    }

    fn reuse(&self, message: Message) {
        Self::reuse(self, message);
    }
}

impl Transport for Ucx {
    type Peer = Endpoint;
    type Memory = Imported;
    type Key = RemoteKey;
    type Packed = Packed;
    type Operation = Request;
    type Reads = Gets;

    #[inline]
    fn send(
        &self,
        to: &Endpoint,
        kind: Kind,
        token: Token,
        data: Vec<u8>,
    ) -> Result<Sent<Request>> {
        Ok(match to.send_as(kind as u16, token.0, data)? {
            xgvmi_ucp::Sent::AtOnce(data) => Sent::AtOnce(data),
            xgvmi_ucp::Sent::Started(request) => Sent::Started(request),
        })
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Imported> {
        Imported::new(&self.context, export)
    }

    fn address(&self, memory: &Imported) -> u64 {
        memory.address
    }

    fn pack(&self, memory: &Imported) -> Result<Packed> {
        Ok(Packed(Some(memory.memory.pack_rkey()?)))
    }

    fn stage(&self, length: usize) -> Result<Imported> {
        Imported::stage(&self.context, length)
    }

    fn bytes<'a>(&self, memory: &'a mut Imported) -> Option<&'a mut [u8]> {
        memory.memory.own_bytes()
    }

    fn unmap(&self, memory: Imported) -> Result<()> {
        Ok(memory.memory.unmap()?)
    }

    fn unpack(&self, from: &Endpoint, key: &[u8]) -> Result<RemoteKey> {
        // SAFETY: the offering SP has authenticated itself if a secret is set. It sends the bytes of UCX's packed key
        // unchanged, and its UCX version equals ours.
        Ok(unsafe { RemoteKey::unpack(from, key) }?)
    }

    #[inline]
    fn read(&self, reads: &mut Gets, range: Range<'_, Self>) -> Result<Option<u32>> {
        let Range {
            key,
            address,
            into,
            to,
            length,
        } = range;
        // The destination is inside the buffer, see check_blocks.
        let to = into.address.wrapping_add(to);
        let started = reads.start(key, address, &into.memory, to, length);
        started.map_err(of_ucx)
    }

    #[inline]
    fn reads_len(reads: &Gets) -> usize {
        reads.len()
    }

    #[inline]
    fn next_read(&self, reads: &mut Gets) -> Option<(u32, Ended)> {
        let (number, ended) = reads.take()?;
        Some((number, ended.map_err(boxed_of_ucx)))
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        let stats = self.library?.stats();
        Some((stats.alias_hits, stats.alias_misses))
    }

    fn has_ended(&self, message: &Request) -> Result<bool> {
        Ok(message.test()?)
    }
}

#[cold]
fn of_ucx(error: UcpError) -> OffloadError {
    error.into()
}

#[cold]
#[expect(clippy::boxed_local, reason = "the caller has a box")]
fn boxed_of_ucx(error: Box<UcpError>) -> Box<OffloadError> {
    Box::new((*error).into())
}
