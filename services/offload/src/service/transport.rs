//! Moves messages and blocks for a job. A service process uses UCX; measurements of this project's own code use a
//! stand-in.

use super::dpa::reads::{Read, Reads};
use super::dpa::{self, Dpa, Target};
use super::familiar::KeyList;
use super::imported::Imported;
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{ExportRef, Kind, hello_header};
use std::cell::Cell;
use std::fmt::Debug;
use std::os::fd::{AsRawFd as _, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use ucx_sys::Ucp;
use xgvmi_daemon::Poller;
use xgvmi_ucp::{
    Context, Endpoint, InboxLimits, Message, PackedRkey, Places, RemoteKey, Request, UcpError,
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

/// Ranges of one length, for equally spaced places.
#[derive(Debug)]
pub(super) struct Run<'a, T: Transport + ?Sized> {
    pub(super) into: &'a T::Memory,
    /// The list of all keys.
    pub(super) keys: &'a KeyList<T::Key>,
    /// Offset of the first range in it, and distance to the next one.
    pub(super) to: u64,
    pub(super) stride: u64,
    pub(super) length: usize,
    /// Maximum number of reads that are under way, and number of ranges.
    pub(super) room: usize,
    pub(super) most: u32,
    /// Tag of the first read. The next ones follow.
    pub(super) tag: u64,
}

/// How many reads of a run were started, and how many of them are complete.
pub(super) type Started = (u32, u32);

/// Starts the reads of a run one by one.
#[inline]
fn read_each<'a, T: Transport + ?Sized>(
    transport: &T,
    reads: &mut T::Reads,
    run: &Run<'a, T>,
    sources: impl Iterator<Item = (&'a T::Key, u64)>,
) -> Result<Started>
where
    T::Key: 'a,
{
    let (mut count, mut done, mut room, mut to) = (0, 0, run.room, run.to);
    for (key, address) in sources {
        if room == 0 {
            break;
        }
        let range = Range {
            key,
            address,
            into: run.into,
            to,
            length: run.length,
        };
        to = to.wrapping_add(run.stride);
        if transport.read(reads, range, run.tag + u64::from(count))? {
            room -= 1;
        } else {
            done += 1;
        }
        count += 1;
    }
    Ok((count, done))
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
    /// Reads under way.
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

    /// Whether an imported buffer contains this range of the rank's address space.
    fn holds(&self, memory: &Self::Memory, address: u64, length: u64) -> bool {
        let _ = (memory, address, length);
        true
    }

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

    /// Starts a read. False if it is complete.
    fn read(&self, reads: &mut Self::Reads, range: Range<'_, Self>, tag: u64) -> Result<bool>;

    /// Starts the reads of a run: from these keys, which are in its list, and addresses.
    #[inline]
    fn read_run<'a>(
        &self,
        reads: &mut Self::Reads,
        run: Run<'a, Self>,
        sources: impl Iterator<Item = (&'a Self::Key, u64)>,
    ) -> Result<Started>
    where
        Self::Key: 'a,
    {
        read_each(self, reads, &run, sources)
    }

    /// Posts the reads that were started and held back. Called once per round.
    fn post(&self) {}

    /// Number of reads that were started and not taken.
    fn reads_len(reads: &Self::Reads) -> usize;

    /// Takes a read that has ended: its tag, and its error if it has failed. Of the reads of a run it may take several at once.
    fn next_read(&self, reads: &mut Self::Reads) -> Option<(u64, Ended)>;

    /// Takes some reads of one run that have ended: the tag of one of this run, which is that of one that has failed, their
    /// number, and the error.
    #[inline]
    fn next_reads(&self, reads: &mut Self::Reads) -> Option<(u64, u32, Ended)> {
        let (tag, ended) = self.next_read(reads)?;
        Some((tag, 1, ended))
    }

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

    /// Makes progress until nothing happens, at most `steps` times, and until messages of more than `waiting` bytes wait.
    /// Returns true when something happened.
    fn progress(&self, steps: u32, waiting: usize) -> bool;

    /// Makes progress until all sent messages have arrived, at most for `limit`.
    fn settle(&self, limit: Duration);

    /// Takes the oldest message.
    fn take(&self) -> Result<Option<Message>>;

    /// Keeps the memory of a message that has been handled, for a later message.
    fn reuse(&self, message: Message) {
        drop(message);
    }
}

/// Number of imports of this process. Each looks an alias up, and nothing else does.
static IMPORTS: AtomicU64 = AtomicU64::new(0);

/// UCX, and a DPA if it posts the reads.
#[derive(Debug)]
pub(super) struct Ucx {
    context: Context,
    library: Option<Library>,
    /// The alias lookups after a number of imports: most calls use kept ones.
    lookups: Cell<Option<(u64, (u64, u64))>>,
    dpa: Option<Rc<Dpa>>,
}

/// Numbers of UCX's message buffers of 8 KiB. By default each job has 4,096 to receive on its connections, as many again to
/// open them, and 1,024 to send: 80 MB, of which a job uses few. If no buffer is free, the device tries again.
const POOLS: [(&str, &str); 6] = [
    ("RC_MLX5_RX_QUEUE_LEN", "1024"),
    ("RC_MLX5_TX_BUFS_GROW", "256"),
    ("DC_MLX5_RX_QUEUE_LEN", "1024"),
    ("DC_MLX5_TX_BUFS_GROW", "256"),
    ("UD_MLX5_RX_QUEUE_LEN", "1024"),
    ("UD_MLX5_TX_BUFS_GROW", "256"),
];

/// What a job's UCX is opened with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Libraries {
    pub(super) ucp: &'static Ucp,
    /// The program of the DPA, if it posts the reads.
    pub(super) program: Option<&'static [u8]>,
}

/// A peer's key as UCX knows it, and as the DPA reads with it.
#[derive(Debug)]
pub(super) struct Key {
    ucx: RemoteKey,
    target: Option<Target>,
}

/// A key that UCX has packed, or a copy with what the DPA of another service needs.
#[derive(Debug)]
pub(super) enum Packed {
    Ucx(PackedRkey),
    Both(Vec<u8>),
}

impl Default for Packed {
    fn default() -> Self {
        Self::Both(Vec::new())
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Ucx(packed) => packed,
            Self::Both(bytes) => bytes,
        }
    }
}

/// Starts a read of the DPA, or of UCX if the DPA cannot.
#[cold]
fn read_by(
    dpa: &Dpa,
    reads: &mut Reads,
    range: &Range<'_, Ucx>,
    to: u64,
    tag: u64,
) -> std::result::Result<bool, UcpError> {
    let read = Read {
        key: &range.key.ucx,
        target: range.key.target,
        address: range.address,
        into: &range.into.memory,
        alias: range.into.alias.as_ref(),
        to,
        length: range.length,
        tag,
    };
    Ok(reads.start_on(dpa, &read) || reads.start(&read)?)
}

/// A worker, and the DPA whose ends of reads wake the same waiter.
#[derive(Debug)]
pub(super) struct UcxWorker {
    worker: xgvmi_ucp::Worker,
    dpa: Option<(Rc<Dpa>, Poller)>,
}

// SAFETY: each job opens its own UCX context, and every object of the context is inside the job. UCX permits calls on a
// context from one thread at a time; the worker is created for this (UCS_THREAD_MODE_SERIALIZED). The DPA's objects are
// inside the job as well, and verbs objects may be used from any thread.
unsafe impl Fabric for Ucx {
    type Library = Libraries;
    type Worker = UcxWorker;

    fn version(library: Libraries) -> &'static str {
        library.ucp.version()
    }

    fn open(
        library: Libraries,
        scheme: Scheme,
        inbox: InboxLimits,
    ) -> Result<(Self, Self::Worker)> {
        // The operator's own values count.
        let unset = |(name, _): &(&str, &str)| std::env::var_os(format!("UCX_{name}")).is_none();
        let pools: Vec<_> = POOLS.into_iter().filter(unset).collect();
        let context = Context::with_hints(library.ucp, "xgvmi-sp", scheme.settings(), &pools)?;
        let worker = context.worker_within(Kind::COUNT, inbox)?;
        let dpa = library.program.and_then(|program| {
            let dpa = Dpa::open(program).inspect_err(|reason| dpa::say(reason));
            dpa.ok().map(Rc::new)
        });
        let worker = UcxWorker::new(worker, dpa.clone())?;
        let ucx = Self {
            context,
            library: Library::find(),
            lookups: Cell::new(None),
            dpa,
        };
        Ok((ucx, worker))
    }

    fn greet(&self, to: &Endpoint, token: Token, data: Vec<u8>) -> Result<Request> {
        Ok(to.send(Kind::Hello as u16, hello_header(token), data)?)
    }

    fn abandon(peer: &Endpoint) {
        peer.abandon();
    }
}

impl UcxWorker {
    fn new(worker: xgvmi_ucp::Worker, dpa: Option<Rc<Dpa>>) -> Result<Self> {
        let both = |dpa: Rc<Dpa>| {
            let poller = Poller::new()?;
            poller.add(worker.event_fd(), 0, false)?;
            poller.add(dpa.fd(), 1, false)?;
            Ok((dpa, poller))
        };
        let dpa = dpa.map(both).transpose();
        let dpa = dpa.map_err(|error| OffloadError::io("epoll", error))?;
        Ok(Self { worker, dpa })
    }
}

impl Worker for UcxWorker {
    type Peer = Endpoint;

    fn address(&self) -> Result<Vec<u8>> {
        Ok(self.worker.address()?)
    }

    fn event_fd(&self) -> RawFd {
        match &self.dpa {
            Some((_, poller)) => poller.as_raw_fd(),
            None => self.worker.event_fd(),
        }
    }

    fn arm(&self) -> Result<bool> {
        let quiet = self.dpa.as_ref().is_none_or(|(dpa, _)| dpa.arm());
        Ok(quiet && self.worker.arm()?)
    }

    fn expect(&self, token: Token) {
        self.worker.expect(token.0);
    }

    fn strangers(&self) -> u64 {
        self.worker.strangers()
    }

    fn connect(&self, address: &[u8], name: &str) -> Result<Endpoint> {
        // SAFETY: the rank has authenticated itself if a secret is set, and sends the bytes of Worker::address
        // unchanged; its UCX version equals ours.
        Ok(unsafe { self.worker.connect(address, name) }?)
    }

    fn connect_for_gets(&self, address: &[u8], name: &str) -> Result<Endpoint> {
        // SAFETY: the table comes from a rank that has authenticated itself if a secret is set. It holds the worker
        // addresses of SPs with our version of UCX, unchanged.
        Ok(unsafe { self.worker.connect_for_gets(address, name) }?)
    }

    #[inline]
    fn progress(&self, steps: u32, waiting: usize) -> bool {
        let ended = self.dpa.as_ref().is_some_and(|(dpa, _)| dpa.collect());
        self.worker.progress_within(steps, waiting) || ended
    }

    fn settle(&self, limit: Duration) {
        self.worker.settle(limit);
    }

    #[inline(always)]
    fn take(&self) -> Result<Option<Message>> {
        Ok(self.worker.take(|_| true)?)
    }

    #[inline(always)]
    fn reuse(&self, message: Message) {
        self.worker.reuse(message);
    }
}

impl Transport for Ucx {
    type Peer = Endpoint;
    type Memory = Imported;
    type Key = Key;
    type Packed = Packed;
    type Operation = Request;
    type Reads = Reads;

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
        let memory = Imported::new(&self.context, export);
        IMPORTS.fetch_add(1, Relaxed);
        let memory = memory?;
        let alias = self.dpa.as_ref().and_then(|dpa| dpa.attach(export.packed));
        Ok(Imported { alias, ..memory })
    }

    fn address(&self, memory: &Imported) -> u64 {
        memory.address
    }

    fn holds(&self, memory: &Imported, address: u64, length: u64) -> bool {
        memory.holds(address, length)
    }

    fn pack(&self, memory: &Imported) -> Result<Packed> {
        let packed = memory.memory.pack_rkey()?;
        Ok(match (&self.dpa, &memory.alias) {
            (Some(dpa), Some(alias)) => {
                Packed::Both([&packed[..], &dpa.behind_key(alias)[..]].concat())
            }
            _ => Packed::Ucx(packed),
        })
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

    fn unpack(&self, from: &Endpoint, key: &[u8]) -> Result<Key> {
        // SAFETY: the offering SP has authenticated itself if a secret is set. It sends the bytes of UCX's packed key
        // unchanged, and its UCX version equals ours. UCX reads its own bytes only, which come first.
        let ucx = unsafe { RemoteKey::unpack(from, key) }?;
        let target = self.dpa.as_ref().and_then(|_| Target::of(key));
        Ok(Key { ucx, target })
    }

    fn read(&self, reads: &mut Reads, range: Range<'_, Self>, tag: u64) -> Result<bool> {
        // The destination is inside the buffer, see check_blocks.
        let to = range.into.address.wrapping_add(range.to);
        if let Some(dpa) = &self.dpa {
            return Ok(read_by(dpa, reads, &range, to, tag)?);
        }
        let (key, into) = (&range.key.ucx, &range.into.memory);
        let gets = reads.gets();
        Ok(gets.start(key, range.address, into, to, range.length, tag)?)
    }

    #[inline]
    fn read_run<'a>(
        &self,
        reads: &mut Reads,
        run: Run<'a, Self>,
        sources: impl Iterator<Item = (&'a Key, u64)>,
    ) -> Result<Started> {
        if self.dpa.is_some() {
            return read_each(self, reads, &run, sources);
        }
        let places = Places {
            address: run.into.address.wrapping_add(run.to),
            stride: run.stride,
            length: run.length,
            count: run.most,
        };
        let most = u32::try_from(run.room).unwrap_or(u32::MAX);
        let sources = sources.map(|(key, address)| (&key.ucx, address));
        let gets = reads.gets();
        let into = &run.into.memory;
        // SAFETY: the list owns the keys of the sources, see Transport::read_run, and nobody changes a shared list.
        Ok(unsafe { gets.start_run(run.keys, sources, into, places, most, run.tag) }?)
    }

    #[inline]
    fn post(&self) {
        if let Some(dpa) = &self.dpa {
            dpa.post();
        }
    }

    #[inline]
    fn reads_len(reads: &Reads) -> usize {
        reads.len()
    }

    #[inline(always)]
    fn next_read(&self, reads: &mut Reads) -> Option<(u64, Ended)> {
        let (tag, _, ended) = reads.take(self.dpa.as_deref())?;
        Some((tag, ended))
    }

    #[inline(always)]
    fn next_reads(&self, reads: &mut Reads) -> Option<(u64, u32, Ended)> {
        reads.take(self.dpa.as_deref())
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        let library = self.library.as_ref()?;
        let imports = IMPORTS.load(Relaxed);
        if let Some((of, lookups)) = self.lookups.get()
            && of == imports
        {
            return Some(lookups);
        }
        let stats = library.stats();
        let lookups = (stats.alias_hits, stats.alias_misses);
        self.lookups.set(Some((imports, lookups)));
        Some(lookups)
    }

    fn has_ended(&self, message: &Request) -> Result<bool> {
        Ok(message.test()?)
    }
}
