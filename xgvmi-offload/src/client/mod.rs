//! What a rank does: registers and exports its buffers, tells its SP, and waits for the completion.

mod call;
mod connect;
mod options;
mod types;

pub use options::{ClientArgs, ClientOptions};
pub use types::{ClientStats, CommunicatorId, Memory, Registered, Request, Side};

use super::control::Frame;
use super::error::{OffloadError, Result};
use super::exchange::Exchange;
use super::library::Library;
use super::token::Token;
use super::wire::{Collective, HostFin, Kind};
use call::arguments;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, poll, pollfd};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, Endpoint, MappedBuffer, MappedRange, Request as Operation, Worker};

/// Calls that a rank may have under way: each holds two registrations and, at the SP, two imports.
const LIVE_MAX: usize = 1024;

/// How often a program that only tests looks whether its SP is still there; it is a system call.
const LINK_CHECK: Duration = Duration::from_millis(1);

/// The longest sleep in a wait, so that silence is noticed: SPs may be silent for a second at the least.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The longest wait for a goodbye to leave.
const BYE_LIMIT: Duration = Duration::from_secs(2);

/// A rank's connection to its SP. To be closed with [`Client::close`] by all ranks; the SP takes one that is merely
/// dropped for dead, and ends the job.
#[derive(Debug)]
pub struct Client {
    // What is under way goes before what it uses, the connection before its worker, that before its context.
    live: HashMap<Collective, Live>,
    sends: Vec<Operation>,
    endpoint: Endpoint,
    worker: Worker,
    /// What the SPs have tried their ways out with. Its key is in use until here, so that no call gets it.
    _greeting: MappedBuffer,
    context: Context,
    link: Link,
    /// The SP's messages bear this.
    from_service: Token,
    /// Messages to the SP bear this.
    to_service: Token,
    library: Option<Library>,
    service: String,
    rank: u32,
    direct_min: usize,
    communicators: HashMap<u32, Communicator>,
    limit: Duration,
    spin: Duration,
    /// What the SP says of how long it may be silent.
    silence_max: Duration,
    link_checked: Instant,
    heard: Instant,
    failed: Option<String>,
    numbers: Numbers,
}

#[derive(Debug)]
struct Communicator {
    members: Rc<[u32]>,
    next: u32,
}

/// A call under way.
#[derive(Debug)]
struct Live {
    is_done: bool,
    /// Registered by the call, to be given back at its end.
    mapped: Vec<MappedRange>,
    receive: *mut u8,
    receive_length: usize,
    /// The send buffer of a call in place.
    copy: Option<Buffer>,
}

#[derive(Debug, Default)]
struct Numbers {
    connect: Duration,
    registration: Duration,
    deregistration: Duration,
    registrations: u64,
    calls: u64,
    announced_aliases: u64,
    aliases: Option<(u64, u64)>,
}

impl Client {
    /// Connects this rank, with all others, to the SPs. Collective: all ranks call it, and all fail if one does.
    ///
    /// # Errors
    /// One and the same at all ranks: options that disagree, an SP that is missing or refuses, another version.
    pub fn connect(
        options: &ClientOptions,
        rank: u32,
        size: u32,
        exchange: &mut dyn Exchange,
    ) -> Result<Self> {
        connect::connect(options, rank, size, exchange)
    }

    /// Makes a group known. Its members all call this with the same number, which is not in use, before its first
    /// collective; nothing is sent.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] for a number in use, or members that are not there, not us, or there twice.
    pub fn add_communicator(&mut self, id: CommunicatorId, members: &[u32]) -> Result<()> {
        let size = self.communicators[&0].members.len();
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let known = sorted.last().is_some_and(|last| (*last as usize) < size);
        if sorted.len() != members.len() || !known || !members.contains(&self.rank) {
            return Err(arguments(format!(
                "communicator {} of {members:?} at rank {} of {size}",
                id.0, self.rank
            )));
        }
        if self.communicators.contains_key(&id.0) {
            return Err(arguments(format!("communicator {} is there already", id.0)));
        }
        let communicator = Communicator::new(members.to_vec());
        self.communicators.insert(id.0, communicator);
        Ok(())
    }

    /// Forgets a group, none of whose collectives is under way. Its number must not be used again.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] while one is.
    pub fn remove_communicator(&mut self, id: CommunicatorId) -> Result<()> {
        if id == CommunicatorId::WORLD || self.live.keys().any(|live| live.communicator == id.0) {
            return Err(arguments(format!("communicator {} is in use", id.0)));
        }
        // The entry stays, without members: a number that came again would begin with calls that were there before.
        if let Some(communicator) = self.communicators.get_mut(&id.0) {
            communicator.members = Rc::new([]);
        }
        Ok(())
    }

    /// Registers and exports a buffer that is used again and again.
    ///
    /// # Errors
    /// UCX's.
    ///
    /// # Safety
    /// As for a buffer of [`Client::alltoallv`], until [`Client::release`].
    pub unsafe fn register(&mut self, start: *mut u8, length: usize) -> Result<Registered> {
        self.check()?;
        // SAFETY: the caller upholds the contract.
        let (range, packed) = unsafe { self.map(start, length) }?;
        Ok(Registered {
            range,
            start,
            packed,
        })
    }

    /// Gives a registration back. No call that uses it is under way.
    ///
    /// # Errors
    /// UCX's.
    pub fn release(&mut self, registered: Registered) -> Result<()> {
        let start = Instant::now();
        let result = registered.range.unmap();
        self.numbers.deregistration += start.elapsed();
        Ok(result?)
    }

    /// Begins an alltoallv: member `i` gets block `i` of `send`, and its block for us goes to block `i` of `receive`.
    ///
    /// All members of the communicator call it, and each communicator's calls in the same order. Receive blocks must
    /// not overlap, and not lie in the send buffer (see [`Client::alltoallv_in_place`]).
    ///
    /// # Errors
    /// [`OffloadError::Arguments`], and nothing was begun; [`OffloadError::Failed`] when the job has failed.
    ///
    /// # Safety
    /// Until the call is complete, or the client is gone, both ranges are mapped memory of this process; nobody writes
    /// to the send buffer, nor touches the receive buffer.
    pub unsafe fn alltoallv(
        &mut self,
        communicator: CommunicatorId,
        send: Side<'_>,
        receive: Side<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin(communicator, send, receive, None) }
    }

    /// As [`Client::alltoallv`] with `MPI_IN_PLACE`: the blocks for the others are taken from where theirs will go. A
    /// copy of the buffer is sent, and registered, for the call.
    ///
    /// # Errors
    /// As [`Client::alltoallv`], and for want of memory.
    ///
    /// # Safety
    /// As [`Client::alltoallv`].
    pub unsafe fn alltoallv_in_place(
        &mut self,
        communicator: CommunicatorId,
        receive: Side<'_>,
    ) -> Result<Request> {
        let (start, length) = receive.memory.range();
        if length == 0 {
            // SAFETY: the caller upholds the contract.
            return unsafe { self.begin(communicator, receive, receive, None) };
        }
        let copy = Buffer::untouched(length)
            .map_err(|error| OffloadError::io("the copy of a buffer in place", error))?;
        let to = copy.as_ptr().cast_mut();
        // SAFETY: `length` bytes on both sides, guaranteed by the caller and as just mapped; a new mapping overlaps
        // nothing.
        unsafe { std::ptr::copy_nonoverlapping(start.cast_const(), to, length) };
        let send = Side {
            memory: Memory::Temporary { start: to, length },
            ..receive
        };
        // SAFETY: the caller upholds the contract; the copy is kept with the call.
        unsafe { self.begin(communicator, send, receive, Some(copy)) }
    }

    /// Moves things forward; true when the call is complete, and its buffers are the program's again.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed.
    pub fn test(&mut self, request: &mut Request) -> Result<bool> {
        self.check()?;
        self.progress()?;
        if self.link_checked.elapsed() > LINK_CHECK {
            self.listen()?;
        }
        match self.live.get(&request.collective) {
            Some(live) if !live.is_done => Ok(false),
            Some(_) => {
                self.live.remove(&request.collective);
                Ok(true)
            }
            // Tested after it was complete.
            None => Ok(true),
        }
    }

    /// Waits until the call is complete.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed, also because this took longer than the limit: then it fails
    /// for all ranks.
    pub fn wait(&mut self, mut request: Request) -> Result<()> {
        let start = Instant::now();
        loop {
            if self.test(&mut request)? {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if waited > self.limit {
                let reason = format!(
                    "rank {}: {} is not complete after {} s",
                    self.rank,
                    request.collective,
                    self.limit.as_secs()
                );
                return Err(self.fail(reason, true));
            }
            if self.arm()? {
                let mut fds = [
                    pollfd(self.worker.event_fd(), libc::POLLIN),
                    self.link.pollfd(),
                ];
                let left = self.limit.saturating_sub(waited).min(LOOK_AGAIN);
                poll(&mut fds, Some(left)).map_err(|error| OffloadError::io("poll", error))?;
                if fds[1].revents != 0 {
                    self.listen()?;
                }
            }
        }
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let pool = self.library.map(|library| library.stats());
        ClientStats {
            calls: self.numbers.calls,
            connect_us: micros(self.numbers.connect),
            registration_us: micros(self.numbers.registration),
            deregistration_us: micros(self.numbers.deregistration),
            registrations: self.numbers.registrations,
            announced_aliases: self.numbers.announced_aliases,
            host_hits: pool.map(|stats| stats.pool_hits),
            host_misses: pool.map(|stats| stats.pool_misses),
            alias_hits: self.numbers.aliases.map(|(hits, _)| hits),
            alias_misses: self.numbers.aliases.map(|(_, misses)| misses),
        }
    }

    /// UCX's version.
    #[must_use]
    pub fn ucx_version(&self) -> &'static str {
        self.context.version()
    }

    /// Says goodbye to the SP. The other ranks may still be at work.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] while a call is under way; the job has failed then.
    pub fn close(mut self) -> Result<()> {
        self.check()?;
        if let Some(collective) = self.live.keys().next() {
            let reason = format!("rank {}: close() during {collective}", self.rank);
            return Err(self.fail(reason, true));
        }
        let end = Instant::now() + BYE_LIMIT;
        while !self.sends.is_empty() && Instant::now() < end {
            self.progress()?;
        }
        let lost = |error: LinkError| {
            OffloadError::Failed(format!(
                "goodbye to the service at {}: {error}",
                self.service
            ))
        };
        self.link.send(&Frame::Bye.to_bytes()).map_err(lost)?;
        self.link.close_when_sent();
        while self.link.wants_to_send() && Instant::now() < end {
            self.link.flush().map_err(lost)?;
        }
        self.endpoint.abandon();
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        while self.worker.progress() {}
        loop {
            let message = match self.worker.take(|_| true) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(self.fail(error.to_string(), true)),
            };
            let fin = match Kind::from_id(message.id) {
                Some(Kind::HostFin) if message.header.starts_with(&self.from_service.0) => {
                    HostFin::parse(&message.data)
                }
                // Not the SP's: another process may have learnt this worker's address.
                _ => continue,
            };
            let ended = match fin {
                Ok(fin) => self.finish(fin),
                Err(bad) => Err(OffloadError::message(&self.service, &bad)),
            };
            if let Err(error) = ended {
                return Err(self.fail(error.to_string(), true));
            }
        }
        let mut index = 0;
        while let Some(request) = self.sends.get(index) {
            match request.test() {
                Ok(true) => drop(self.sends.swap_remove(index)),
                Ok(false) => index += 1,
                Err(error) => {
                    self.sends.swap_remove(index);
                    return Err(self.fail(error.to_string(), true));
                }
            }
        }
        Ok(())
    }

    /// Takes note of what the SP says beside collectives: nothing, unless the job has failed.
    fn listen(&mut self) -> Result<()> {
        self.link_checked = Instant::now();
        let taken = loop {
            match self.link.flush().and_then(|()| self.link.take()) {
                Ok(Some(body)) => match Frame::parse(&body) {
                    Ok(Frame::Beat) => self.heard = self.link_checked,
                    parsed => break Ok(Some(parsed)),
                },
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        let silence = self.link_checked - self.heard;
        let reason = match taken {
            Ok(None) if silence > self.silence_max => format!(
                "nothing was heard of the service at {} for {} s",
                self.service,
                silence.as_secs()
            ),
            Ok(None) => return Ok(()),
            Ok(Some(Ok(Frame::Abort(reason)))) | Err(LinkError::Refused(reason)) => reason,
            Ok(Some(Ok(frame))) => {
                format!("the service at {} says {}", self.service, frame.name())
            }
            Ok(Some(Err(bad))) => format!("the service at {}: {bad}", self.service),
            Err(LinkError::Closed) => format!(
                "the service at {} has closed its connection: it has ended or was killed",
                self.service
            ),
            Err(error) => format!("the service at {} is lost: {error}", self.service),
        };
        Err(self.fail(reason, false))
    }

    fn arm(&mut self) -> Result<bool> {
        match self.worker.arm() {
            Ok(armed) => Ok(armed),
            Err(error) => Err(self.fail(error.to_string(), true)),
        }
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(OffloadError::Failed(reason.clone())),
        }
    }

    /// The job has failed; `tell` the SP, which tells the others.
    fn fail(&mut self, reason: String, tell: bool) -> OffloadError {
        if tell && self.failed.is_none() {
            let frame = Frame::Abort(reason.clone());
            // An SP that cannot be told is gone, and that is found out anyway.
            let _ = self.link.send(&frame.to_bytes());
        }
        self.failed = Some(reason.clone());
        OffloadError::Failed(reason)
    }
}

impl Communicator {
    fn new(members: Vec<u32>) -> Self {
        Self {
            members: members.into(),
            next: 0,
        }
    }
}
