//! Connects jobs to service processes without UCX: the frames, the tables and the greetings are real, and a mailbox in this
//! process takes the place of a UCP worker.
//!
//! The services run in threads of their own, the ranks in one. The ranks' exchange with each other is not part: a
//! launcher or MPI provides it.

pub mod one;

use crate::client::{Told, tabulate};
use crate::control::{FRAMES, Frame, Hello, Keys, Welcome};
use crate::error::{OffloadError, Result};
use crate::job_id::JobId;
use crate::scheme::Scheme;
use crate::service::options::ServiceOptions;
use crate::service::state::Sp;
use crate::service::transport::{Ended, Fabric, Range, Sent, Transport, Worker};
use crate::token::Token;
use crate::wire::{
    Export, ExportRef, From, GREETING_BYTES, Hello as HelloMessage, Kind, hello_header,
};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError};
use xgvmi_ucp::{InboxLimits, Message};

/// Time for each step of a job. A step that hangs is a defect.
const LIMIT: Duration = Duration::from_secs(120);

/// Length of an exported handle and of a packed key; matches UCX 1.20 with one device.
const KEY_BYTES: usize = 40;

/// An exported handle whose import panics, in tests.
#[cfg(test)]
const PANICS: &[u8] = b"panics";

/// Distance between the greeting memories of two ranks.
const APART: u64 = 1 << 20;

/// A job on two nodes that connects and ends.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Total number of ranks, an even number.
    pub ranks: u32,
    /// Number of service processes per node.
    pub services_per_node: u32,
}

/// Measurements of a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Time from the first rank's call to the last rank's readiness.
    pub time: Duration,
    /// Number of hellos in the place of UCP's, between ranks and services and between services.
    pub messages: u64,
}

/// The place of a UCP worker: anything may put messages in, its owner takes them.
#[derive(Debug)]
struct Mailbox {
    queue: Mutex<VecDeque<Message>>,
    /// Wakes the owner; `None` for a rank, which polls.
    bell: Option<UnixStream>,
    messages: Arc<AtomicU64>,
}

/// The mailboxes of a plan; an address is an index.
#[derive(Debug, Default)]
struct Mailboxes {
    all: Mutex<Vec<Arc<Mailbox>>>,
    /// Number of messages so far.
    messages: Arc<AtomicU64>,
    /// Imports and buffers of services in use, and the most; 0 is no limit.
    imports: Arc<AtomicU64>,
    imports_max: AtomicU64,
}

/// The error of a read of memory that no rank has exported.
const OUTSIDE: &str = "a read outside of what the ranks have exported";

/// Imports and reads nothing, and passes messages to mailboxes.
#[derive(Debug)]
struct Mail(&'static Mailboxes);

/// The place of an import in the device.
#[derive(Debug)]
struct Taken(Arc<AtomicU64>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A buffer of a rank, or memory of a service.
#[derive(Debug)]
struct Area {
    address: u64,
    length: u64,
    bytes: Vec<u8>,
    _taken: Taken,
}

impl Mailboxes {
    /// A place in the device.
    fn place(&self) -> Result<Taken> {
        let taken = Taken(Arc::clone(&self.imports));
        let before = taken.0.fetch_add(1, Relaxed);
        let most = self.imports_max.load(Relaxed);
        match most > 0 && before >= most {
            true => Err(failed("the device is full")),
            false => Ok(taken),
        }
    }
}

/// The owner's side of a service's mailbox.
#[derive(Debug)]
struct MailWorker {
    mailboxes: &'static Mailboxes,
    mine: Arc<Mailbox>,
    address: usize,
    bell: UnixStream,
    expected: RefCell<BTreeSet<[u8; 16]>>,
    strangers: RefCell<u64>,
}

impl Mailbox {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Message>> {
        // A panic elsewhere leaves a queue of whole messages.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, kind: Kind, header: Vec<u8>, data: Vec<u8>) {
        let id = kind as u16;
        self.messages.fetch_add(1, Relaxed);
        let header = header.as_slice().into();
        self.queue().push_back(Message { id, header, data });
        if let Some(mut bell) = self.bell.as_ref() {
            // A full socket wakes the owner as well.
            let _ = bell.write(&[0]);
        }
    }

    fn take(&self) -> Option<Message> {
        self.queue().pop_front()
    }
}

/// Adds a mailbox; returns it with its address.
fn add(mailboxes: &Mailboxes, bell: Option<UnixStream>) -> (Arc<Mailbox>, usize) {
    let mailbox = Arc::new(Mailbox {
        queue: Mutex::default(),
        bell,
        messages: Arc::clone(&mailboxes.messages),
    });
    let mut all = mailboxes.all.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::clone(&mailbox));
    (mailbox, all.len() - 1)
}

fn find(mailboxes: &Mailboxes, address: &[u8]) -> Result<Arc<Mailbox>> {
    let index = address
        .first_chunk()
        .map(|first| usize::from_le_bytes(*first));
    let all = mailboxes.all.lock().unwrap_or_else(PoisonError::into_inner);
    let mailbox = index.and_then(|index| all.get(index));
    mailbox.cloned().ok_or_else(|| failed("no such mailbox"))
}

impl Transport for Mail {
    type Peer = Arc<Mailbox>;
    type Memory = Area;
    /// Address and length of the memory.
    type Key = (u64, u64);
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = ();

    fn send(&self, to: &Arc<Mailbox>, kind: Kind, token: Token, data: Vec<u8>) -> Result<Sent<()>> {
        to.put(kind, token.0.to_vec(), data);
        Ok(Sent::AtOnce(Vec::new()))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Area> {
        #[cfg(test)]
        assert_ne!(export.packed, PANICS, "a defect, made by a test");
        Ok(Area {
            address: export.address,
            length: export.length,
            bytes: Vec::new(),
            _taken: self.0.place()?,
        })
    }

    fn address(&self, memory: &Area) -> u64 {
        memory.address
    }

    fn holds(&self, memory: &Area, address: u64, length: u64) -> bool {
        let offset = address.checked_sub(memory.address);
        let end = offset.and_then(|offset| offset.checked_add(length));
        end.is_some_and(|end| end <= memory.length)
    }

    fn pack(&self, memory: &Area) -> Result<Vec<u8>> {
        let mut key = memory.address.to_le_bytes().to_vec();
        key.extend(memory.length.to_le_bytes());
        key.resize(KEY_BYTES, 0);
        Ok(key)
    }

    fn stage(&self, length: usize) -> Result<Area> {
        let bytes = vec![0; length];
        Ok(Area {
            address: bytes.as_ptr().addr() as u64,
            length: length as u64,
            bytes,
            _taken: self.0.place()?,
        })
    }

    fn bytes<'a>(&self, memory: &'a mut Area) -> Option<&'a mut [u8]> {
        (!memory.bytes.is_empty()).then_some(&mut memory.bytes[..])
    }

    fn unmap(&self, _: Area) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, _: &Arc<Mailbox>, key: &[u8]) -> Result<(u64, u64)> {
        let (words, _) = key.as_chunks();
        let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
        let address = word(0).ok_or_else(|| failed("a short key"))?;
        Ok((address, word(1).unwrap_or(u64::MAX)))
    }

    fn read(&self, (): &mut (), range: Range<'_, Self>, _: u64) -> Result<bool> {
        // Nothing is copied: the ranks of this stand-in have no buffers.
        let is_greeting = range.to == GREETING_BYTES && range.length as u64 == GREETING_BYTES;
        if is_greeting && range.key.0 != range.address {
            return Err(failed("a read of no greeting"));
        }
        let length = range.length as u64;
        let is_in = |(start, most): (u64, u64), at: u64| {
            let offset = at.checked_sub(start);
            let end = offset.and_then(|offset| offset.checked_add(length));
            end.is_some_and(|end| end <= most)
        };
        let to = (0, range.into.length);
        let is_inside = is_in(*range.key, range.address) && is_in(to, range.to);
        if !(is_greeting || is_inside) {
            return Err(failed(OUTSIDE));
        }
        Ok(false)
    }

    fn reads_len((): &()) -> usize {
        0
    }

    fn next_read(&self, (): &mut ()) -> Option<(u64, Ended)> {
        None
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

// SAFETY: mailboxes are shared between threads by `Arc` and locked.
unsafe impl Fabric for Mail {
    type Library = &'static Mailboxes;
    type Worker = MailWorker;

    fn version(_: &'static Mailboxes) -> &'static str {
        "stand-in"
    }

    fn open(
        mailboxes: &'static Mailboxes,
        _: Scheme,
        _: InboxLimits,
    ) -> Result<(Self, MailWorker)> {
        let pair = UnixStream::pair().and_then(|(bell, ringer)| {
            bell.set_nonblocking(true)?;
            ringer.set_nonblocking(true)?;
            Ok((bell, ringer))
        });
        let (bell, ringer) = pair.map_err(|error| OffloadError::io("sockets", error))?;
        let (mine, address) = add(mailboxes, Some(ringer));
        let worker = MailWorker {
            mailboxes,
            mine,
            address,
            bell,
            expected: RefCell::default(),
            strangers: RefCell::default(),
        };
        Ok((Self(mailboxes), worker))
    }

    fn greet(&self, to: &Arc<Mailbox>, token: Token, data: Vec<u8>) -> Result<()> {
        to.put(Kind::Hello, hello_header(token), data);
        Ok(())
    }

    fn abandon(_: &Arc<Mailbox>) {}
}

impl Worker for MailWorker {
    type Peer = Arc<Mailbox>;

    fn address(&self) -> Result<Vec<u8>> {
        Ok(self.address.to_le_bytes().to_vec())
    }

    fn event_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn arm(&self) -> Result<bool> {
        let mut rings = [0; 64];
        while (&self.bell).read(&mut rings).is_ok_and(|count| count > 0) {}
        // A message that arrives after this look rings again.
        Ok(self.mine.queue().is_empty())
    }

    fn expect(&self, token: Token) {
        self.expected.borrow_mut().insert(token.0);
    }

    fn strangers(&self) -> u64 {
        *self.strangers.borrow()
    }

    fn connect(&self, address: &[u8], _: &str) -> Result<Arc<Mailbox>> {
        find(self.mailboxes, address)
    }

    fn connect_for_gets(&self, address: &[u8], _: &str) -> Result<Arc<Mailbox>> {
        find(self.mailboxes, address)
    }

    fn settle(&self, _: std::time::Duration) {}

    fn progress(&self, _: u32, _: usize) -> bool {
        false
    }

    fn take(&self) -> Result<Option<Message>> {
        while let Some(message) = self.mine.take() {
            let token = message.header.first_chunk();
            if token.is_some_and(|token| self.expected.borrow().contains(token)) {
                return Ok(Some(message));
            }
            *self.strangers.borrow_mut() += 1;
        }
        Ok(None)
    }
}

/// A rank that has asked for admission.
struct Rank {
    link: Link,
    token: Token,
    mailbox: Arc<Mailbox>,
}

/// Connects all ranks of a job, and ends the job.
///
/// # Errors
/// Errors of the system; others are a defect of the services.
pub fn connect(plan: &Plan) -> Result<Outcome> {
    // The services' threads use it until the process ends.
    let mailboxes: &'static Mailboxes = Box::leak(Box::default());
    let (mut threads, mut services) = (Vec::new(), Vec::new());
    let per_node = plan.ranks / 2;
    let count = plan.services_per_node.min(per_node);
    for _ in 0..2 * count {
        let (thread, address) = start(mailboxes)?;
        threads.push(thread);
        services.push(address);
    }
    let begun = Instant::now();
    let ranks = (0..plan.ranks).map(|rank| {
        let (node, local) = (rank / per_node, rank % per_node);
        let service = &services[(node * count + local % count) as usize];
        knock(mailboxes, service, JobId(1), rank, plan.ranks)
    });
    let mut ranks = ranks.collect::<Result<Vec<Rank>>>()?;
    let welcomes = welcomes(&mut ranks)?;
    let told: Vec<Told> = welcomes
        .iter()
        .map(|welcome| Told::of(welcome, true))
        .collect();
    let table = tabulate(&told)?;
    let mut named = BTreeSet::new();
    for (number, (rank, welcome)) in (0..).zip(ranks.iter_mut().zip(&welcomes)) {
        if named.insert(welcome.service.unique) {
            let table = Frame::Table(table.clone()).to_bytes();
            rank.link.send(&table).map_err(lost)?;
        }
        greet(mailboxes, number, welcome)?;
    }
    for rank in &mut ranks {
        await_ready(rank)?;
        let hello = rank.mailbox.take();
        if !hello.is_some_and(|hello| hello.header.starts_with(&rank.token.0)) {
            return Err(failed("a rank is ready without the hello of its service"));
        }
    }
    let time = begun.elapsed();
    let messages = mailboxes.messages.load(Relaxed);
    for rank in &mut ranks {
        rank.link.send(&Frame::Bye.to_bytes()).map_err(lost)?;
    }
    for thread in threads {
        thread
            .join()
            .map_err(|_| failed("a service has panicked"))??;
    }
    Ok(Outcome { time, messages })
}

/// Starts a service for one job; returns its thread and its address.
fn start(mailboxes: &'static Mailboxes) -> Result<(JoinHandle<Result<()>>, String)> {
    let (told, address) = mpsc::channel();
    let thread = thread::spawn(move || serve(mailboxes, &told));
    let address = address.recv_timeout(LIMIT);
    let address = address.map_err(|_| failed("a service does not start"))??;
    Ok((thread, address))
}

/// What the services answer to their ranks.
fn welcomes(ranks: &mut [Rank]) -> Result<Vec<Welcome>> {
    let welcomes = ranks.iter_mut().map(|rank| match answer(&mut rank.link)? {
        Frame::Welcome(welcome) => Ok(welcome),
        frame => Err(failed(format!("a service answers {}", frame.name()))),
    });
    welcomes.collect()
}

/// Sends the hello of a rank to its service.
fn greet(mailboxes: &Mailboxes, rank: u32, welcome: &Welcome) -> Result<()> {
    let hello = HelloMessage {
        from: From::Rank(rank),
        greeting: None,
    };
    let service = find(mailboxes, &welcome.service.worker)?;
    service.put(Kind::Hello, hello_header(welcome.token), hello.to_bytes());
    Ok(())
}

/// Waits until the job of a rank is ready.
fn await_ready(rank: &mut Rank) -> Result<()> {
    rank.link.flush().map_err(lost)?;
    match answer(&mut rank.link)? {
        Frame::Ready => Ok(()),
        frame => Err(failed(format!("a service answers {}", frame.name()))),
    }
}

/// Runs a service for one job; tells its address.
fn serve(mailboxes: &'static Mailboxes, told: &mpsc::Sender<Result<String>>) -> Result<()> {
    let options = ServiceOptions {
        listen: "127.0.0.1:0".to_owned(),
        jobs: Some(1),
        log: xgvmi_daemon::LogLevel::Error,
        ..ServiceOptions::default()
    };
    let service = Sp::<Mail>::new(options, mailboxes);
    match service {
        Ok(mut service) => {
            // If nobody waits, the plan has failed already.
            let _ = told.send(Ok(service.advertise.clone()));
            service.run()
        }
        Err(error) => {
            let _ = told.send(Err(error));
            Ok(())
        }
    }
}

/// Connects a rank to its service and asks for admission.
fn knock(mailboxes: &Mailboxes, service: &str, job: JobId, rank: u32, size: u32) -> Result<Rank> {
    let token = Token::random().map_err(|error| OffloadError::io("random number", error))?;
    let (mailbox, address) = add(mailboxes, None);
    let mut link = Link::connect(service, LIMIT, FRAMES, None).map_err(lost)?;
    let hello = Frame::Hello(Hello {
        job,
        rank,
        size,
        scheme: Scheme::Stock,
        ucx_version: "stand-in".to_owned(),
    });
    let keys = Frame::Keys(Keys {
        token,
        address: address.to_le_bytes().to_vec(),
        announcement: Vec::new(),
        greeting: Export {
            address: APART * u64::from(1 + rank),
            length: 2 * GREETING_BYTES,
            packed: vec![1; KEY_BYTES],
            name: None,
        },
    });
    for frame in [hello, keys] {
        link.send(&frame.to_bytes()).map_err(lost)?;
    }
    Ok(Rank {
        link,
        token,
        mailbox,
    })
}

fn answer(link: &mut Link) -> Result<Frame> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let Some(body) = link.wait(LIMIT).map_err(lost)? else {
            break;
        };
        match Frame::parse(&body) {
            Ok(Frame::Beat) => link.send(&Frame::Beat.to_bytes()).map_err(lost)?,
            Ok(Frame::Abort(reason)) => return Err(failed(reason)),
            Ok(frame) => return Ok(frame),
            Err(bad) => return Err(OffloadError::message("a service", &bad)),
        }
    }
    Err(failed("a service does not answer"))
}

fn lost(error: LinkError) -> OffloadError {
    failed(format!("a service of the stand-in: {error}"))
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}

/// A service that does not run.
#[cfg(test)]
pub(in crate::service) fn idle() -> Sp<impl Fabric> {
    let options = ServiceOptions {
        listen: "127.0.0.1:0".to_owned(),
        ..ServiceOptions::default()
    };
    Sp::<Mail>::new(options, Box::leak(Box::default())).expect("a service")
}

#[cfg(test)]
mod hostile;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_of_a_job_gets_ready() {
        for (ranks, services_per_node, messages) in [(4, 1, 10), (16, 2, 44)] {
            let plan = Plan {
                ranks,
                services_per_node,
            };
            let outcome = connect(&plan).expect("connected");
            // Two for each rank, and two for each pair of services.
            assert_eq!(outcome.messages, messages);
        }
    }
}
