//! The rank's side: registers and exports its buffers, sends calls to its SP, and waits for the completion.

mod call;
mod connect;
mod introduction;
mod lanes;
mod launch;
mod message;
mod names;
mod options;
mod patience;
mod spans;
mod state;
mod streams;
mod types;
mod waiting;
mod window;

#[cfg(any(test, feature = "stand-in"))]
pub(crate) use introduction::{Told, tabulate};
#[cfg(any(test, feature = "stand-in"))]
pub(crate) use lanes::Lanes;
pub use lanes::{SLICE_MIN, services_used};
pub use options::{ClientArgs, ClientOptions, RANKS_PER_SP};
pub use patience::{Patience, Verdict};
pub use state::Client;
pub use types::{Call, ClientStats, CommunicatorId, Memory, Numbered, Registered, Request, Side};
#[cfg(test)]
pub(crate) use window::Window;

use super::control::Frame;
use super::error::{OffloadError, Result};
use super::exchange::Exchange;
use super::reduction::Reduction;
use super::wire::Message;
use call::{To, Way};
use state::{Communicator, arguments};
use std::time::{Duration, Instant};
use xgvmi_daemon::{LinkError, poll, pollfd};

/// Interval between checks of the SP's connection in a program that only calls `test`. Each check is a system call.
const LINK_CHECK: Duration = Duration::from_millis(1);

/// The longest sleep in a wait. It bounds the time to detect a silent SP; the smallest silence limit of an SP is one
/// second.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Maximum time to send a goodbye.
const BYE_LIMIT: Duration = Duration::from_secs(2);

impl Client {
    /// Connects this rank and all others to the SPs. The call is collective: all ranks call it, and all fail if one
    /// fails.
    ///
    /// # Errors
    /// All ranks return the same error: options that disagree, an SP that is missing or refuses, or a version mismatch.
    pub fn connect(
        options: &ClientOptions,
        rank: u32,
        size: u32,
        exchange: &mut dyn Exchange,
    ) -> Result<Self> {
        connect::connect(options, rank, size, exchange)
    }

    /// Registers a group. All members call this with the same unused number before the first collective of the group.
    /// The call sends nothing.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] if the number is in use, or if `members` has duplicates, unknown ranks, or lacks
    /// this rank.
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
        if Message::of(id.0).is_some() {
            return Err(arguments(format!(
                "communicator {}: the numbers from 2^62 to 2^63 - 1 are those of messages",
                id.0
            )));
        }
        if self.communicators.contains_key(&id.0) {
            return Err(arguments(format!("communicator {} is there already", id.0)));
        }
        let communicator = Communicator::new(
            members.iter().copied().collect(),
            &self.neighbours,
            self.lanes.count(),
        );
        self.communicators.insert(id.0, communicator);
        Ok(())
    }

    /// As [`Client::add_communicator`], for the members of the group `of` at these places, which ascend.
    ///
    /// # Errors
    /// As there; `of` is unknown, or has no such place.
    pub fn add_part(
        &mut self,
        id: CommunicatorId,
        of: CommunicatorId,
        places: &[u32],
    ) -> Result<()> {
        let members = self.group(of.0)?.members.clone();
        let ranks = places.iter().map(|place| members.get(*place as usize));
        let ranks: Option<Vec<u32>> = ranks.collect();
        let ranks = ranks.ok_or_else(|| {
            let size = members.len();
            arguments(format!("places {places:?} of {size} members"))
        })?;
        self.add_communicator(id, &ranks)
    }

    /// Removes a group that has no outstanding collective. Its number must not be used again: it would start at sequence
    /// numbers that calls of other members may still have.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] while a collective of the group is outstanding.
    pub fn remove_communicator(&mut self, id: CommunicatorId) -> Result<()> {
        if id == CommunicatorId::WORLD || self.live.keys().any(|live| live.communicator == id.0) {
            return Err(arguments(format!("communicator {} is in use", id.0)));
        }
        self.communicators.remove(&id.0);
        Ok(())
    }

    /// Registers and exports a buffer for use in several calls.
    ///
    /// # Errors
    /// Errors of UCX.
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

    /// As [`Client::register`], for all starts of a persistent exchange. `None` if a start would not register this side as it is:
    /// its blocks are short or far from each other, or its memory cannot be registered. Then the starts pass
    /// [`Memory::Temporary`].
    ///
    /// # Safety
    /// As for [`Client::register`].
    pub unsafe fn keep_blocks(&mut self, side: Side<'_>) -> Option<Registered> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.keep_side(side) }
    }

    /// As [`Client::keep_blocks`], for a vector, or a part of it, of a persistent reduction or broadcast. `whole` is the length of
    /// the vector.
    ///
    /// # Safety
    /// As for [`Client::register`].
    pub unsafe fn keep_vector(
        &mut self,
        start: *mut u8,
        length: usize,
        whole: usize,
    ) -> Option<Registered> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.keep(start, length, length > 0 && whole >= self.direct_min) }
    }

    /// Releases a registration. No outstanding call may use it.
    ///
    /// # Errors
    /// Errors of UCX.
    pub fn release(&mut self, registered: Registered) -> Result<()> {
        let start = Instant::now();
        self.names.forget(&registered.packed);
        let result = registered.range.unmap();
        self.numbers.deregistration += start.elapsed();
        Ok(result?)
    }

    /// Starts an alltoallv: member `i` receives block `i` of `send`, and its block for this rank goes to block `i` of
    /// `receive`.
    ///
    /// All members of the communicator call it. They number the calls of each communicator in the same order: at the start,
    /// or earlier by [`Client::number`]. Beyond a number of calls under way, further ones wait at the rank. Receive
    /// blocks must not overlap each other or the send buffer (see [`Client::alltoallv_in_place`]).
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] for invalid arguments; nothing has started then. [`OffloadError::Failed`] when the
    /// job has failed.
    ///
    /// # Safety
    /// Until the call completes or the client is dropped, both ranges are mapped memory of this process, no thread
    /// writes to the send buffer, and no thread accesses the receive buffer.
    pub unsafe fn alltoallv<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        send: Side<'_>,
        receive: Side<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin(call.into(), send, receive, Way::All) }
    }

    /// As [`Client::alltoallv`] with `MPI_IN_PLACE`: the blocks to send lie at the positions of the blocks to receive.
    /// The call registers and sends a copy of the blocks.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::alltoallv`].
    pub unsafe fn alltoallv_in_place<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        receive: Side<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin(call.into(), receive, receive, Way::InPlace) }
    }

    /// As [`Client::alltoallv`], for blocks that are all for member `root`. Beyond a few SPs, the SPs tell its SP of them along a
    /// tree.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::alltoallv`].
    pub unsafe fn gather<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        root: usize,
        send: Side<'_>,
        receive: Side<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin(call.into(), send, receive, Way::Gather(root)) }
    }

    /// As [`Client::gather`], for blocks that are all from member `root`.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::alltoallv`].
    pub unsafe fn scatter<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        root: usize,
        send: Side<'_>,
        receive: Side<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin(call.into(), send, receive, Way::Scatter(root)) }
    }

    /// Starts an allreduce: each member's receive buffer gets the reduction of all send buffers, element by element. All
    /// members pass equal lengths and the same reduction, and get the same bits. Without a send buffer the elements are
    /// in the receive buffer (`MPI_IN_PLACE`); no copy is made.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::alltoallv`]. The buffers are one and the same (pass `None`) or do not overlap.
    pub unsafe fn allreduce<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        send: Option<Memory<'_>>,
        receive: Memory<'_>,
        reduction: Reduction,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_reduce(call.into(), send, Some(receive), reduction, To::All) }
    }

    /// Starts a reduce: the receive buffer of member `root` gets what an allreduce would give to all. The other members have
    /// no receive buffer, and only the root may have no send buffer.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::allreduce`].
    pub unsafe fn reduce<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        root: usize,
        send: Option<Memory<'_>>,
        receive: Option<Memory<'_>>,
        reduction: Reduction,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_reduce(call.into(), send, receive, reduction, To::Root(root)) }
    }

    /// Starts a reduce-scatter: of what an allreduce would give to all, member `i` gets the next `counts[i]` bytes, whole
    /// elements, in its receive buffer of this length. The receive buffer may be those bytes of the send buffer.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::allreduce`].
    pub unsafe fn reduce_scatter<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        counts: &[usize],
        send: Memory<'_>,
        receive: Memory<'_>,
        reduction: Reduction,
    ) -> Result<Request> {
        let (send, receive) = (Some(send), Some(receive));
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_reduce(call.into(), send, receive, reduction, To::Each(counts)) }
    }

    /// Starts a broadcast: the memory of each member gets the bytes of member `root`. All members pass equal lengths.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for [`Client::alltoallv`]; the root's memory is the send buffer.
    pub unsafe fn broadcast<'c>(
        &mut self,
        call: impl Into<Call<'c>>,
        root: usize,
        memory: Memory<'_>,
    ) -> Result<Request> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_tree(call.into(), root, Some(memory)) }
    }

    /// Starts a barrier: it is complete when all members have started it.
    ///
    /// # Errors
    /// As for [`Client::alltoallv`].
    pub fn barrier<'c>(&mut self, call: impl Into<Call<'c>>) -> Result<Request> {
        // SAFETY: there is no memory.
        unsafe { self.begin_tree(call.into(), 0, None) }
    }

    /// Makes progress on all calls.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed.
    pub fn advance(&mut self) -> Result<()> {
        self.check()?;
        self.progress()?;
        if self.link_checked.elapsed() > LINK_CHECK {
            self.listen()?;
        }
        Ok(())
    }

    /// Makes progress. Returns true when the call is complete; its buffers then belong to the program again.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed.
    pub fn test(&mut self, request: &mut Request) -> Result<bool> {
        self.advance()?;
        match self.live.get(&request.collective) {
            Some(live) if !live.is_done => Ok(false),
            Some(live) => {
                request.message = live.message;
                self.live.remove(&request.collective);
                Ok(true)
            }
            // The request was already complete.
            None => Ok(true),
        }
    }

    /// Sleeps until something happens, at most for this time. For programs that test their calls in a loop.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed.
    pub fn rest(&mut self, most: Duration) -> Result<()> {
        self.check()?;
        if self.arm()? {
            self.sleep(most)?;
        }
        Ok(())
    }

    /// Sleeps until the worker or an SP's connection has something, and reads the connections.
    fn sleep(&mut self, most: Duration) -> Result<()> {
        let mut fds = Vec::with_capacity(1 + self.services.len());
        fds.push(pollfd(self.worker.event_fd(), libc::POLLIN));
        fds.extend(self.services.iter().map(|of| of.link.pollfd()));
        poll(&mut fds, Some(most)).map_err(|error| OffloadError::io("poll", error))?;
        if fds[1..].iter().any(|fd| fd.revents != 0) {
            self.listen()?;
        }
        Ok(())
    }

    /// Waits until the call is complete.
    ///
    /// # Errors
    /// [`OffloadError::Failed`] when the job has failed. A wait beyond the limit, if the options set one, fails the job
    /// for all ranks. Otherwise a line on standard error says at times that the call takes long.
    pub fn wait(&mut self, mut request: Request) -> Result<()> {
        self.wait_for(&mut request)
    }

    /// As [`Client::wait`], for a request that is asked for its [message](Request::message_length) then.
    ///
    /// # Errors
    /// As for [`Client::wait`].
    pub fn wait_for(&mut self, request: &mut Request) -> Result<()> {
        let start = Instant::now();
        let mut patience = Patience::new(self.limit, start);
        loop {
            if self.test(request)? {
                return Ok(());
            }
            let now = Instant::now();
            if now - start < self.spin {
                std::hint::spin_loop();
                continue;
            }
            match patience.look(now) {
                Verdict::Wait => {}
                Verdict::Warn(waited) => eprintln!(
                    "rank {}: {} is not complete after {} s; {} alive, so the rank goes on waiting for \
                     the other ranks (offload-limit sets a limit)",
                    self.rank,
                    request.collective,
                    waited.as_secs(),
                    self.services_named()
                ),
                Verdict::GiveUp(limit) => {
                    let reason = format!(
                        "rank {}: {} is not complete after {} s",
                        self.rank,
                        request.collective,
                        limit.as_secs()
                    );
                    return Err(self.fail(reason, true));
                }
            }
            if self.arm()? {
                let left = patience
                    .left()
                    .map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN));
                self.sleep(left)?;
            }
        }
    }

    /// Counters since the client connected.
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
            bounced_bytes: self.numbers.bounced_bytes,
            announced_aliases: self.numbers.announced_aliases,
            host_hits: pool.map(|stats| stats.pool_hits),
            host_misses: pool.map(|stats| stats.pool_misses),
            alias_hits: self.numbers.aliases.map(|(hits, _)| hits),
            alias_misses: self.numbers.aliases.map(|(_, misses)| misses),
        }
    }

    /// Says that the SPs of this rank are there.
    fn services_named(&self) -> String {
        let addresses: Vec<&str> = self.services.iter().map(|of| &of.address[..]).collect();
        match &addresses[..] {
            [one] => format!("the service at {one} is"),
            _ => format!("the services at {} are", addresses.join(", ")),
        }
    }

    /// The version of UCX.
    #[must_use]
    pub fn ucx_version(&self) -> &'static str {
        self.context.version()
    }

    /// Sends a goodbye to the SPs. Other ranks may continue.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] while a call is outstanding; the job fails then.
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
        let lost = |address: &str, error: LinkError| {
            OffloadError::Failed(format!("goodbye to the service at {address}: {error}"))
        };
        for of in &mut self.services {
            let sent = of.link.send(&Frame::Bye.to_bytes());
            sent.map_err(|error| lost(&of.address, error))?;
            of.link.close_when_sent();
        }
        for of in &mut self.services {
            while of.link.wants_to_send() && Instant::now() < end {
                let flushed = of.link.flush();
                flushed.map_err(|error| lost(&of.address, error))?;
            }
        }
        for endpoint in &self.endpoints {
            endpoint.abandon();
        }
        Ok(())
    }
}
