//! One side of a session: the structure of the C interface, followed by what belongs to it.
//!
//! The structure of the C interface is the only copy of the data that it contains, because C programs read and change
//! it between calls. A pointer to it is a pointer to the whole [`Endpoint`].

use crate::abi::{CommContext, CommContext2, Kernel, MrInternal, MrLocal, MrPeer};
use crate::error::{NaaError, Result};
use crate::kernels;
use crate::machine::{Completion, Host, Naa, State};
use crate::server::{Block, MemoryLimit, Taken};
use crate::spec::Claim;
use crate::verbs::{self, EventChannel, Id, Queues, Registration, Rights, Work};
use crate::wire::{GRANT_BYTES, HEADER_BYTES, MESSAGE_BYTES_MAX, Message, REQUEST_BYTES};
use rdmacm_sys::{
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, ibv_wc,
    rdma_cm_id,
};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit from the start of a session until the connection is established.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of the announcement. The accelerator allocates and registers its regions in this time.
pub const ANNOUNCE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of address resolution, and of route resolution.
pub(crate) const RESOLVE_LIMIT_MS: i32 = 2000;
/// A host that waits for an answer, and an accelerator that waits for a call, probe the connection at this interval with
/// an empty write. A peer that is gone then causes an error after the transport's retries.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Environment variable: `off` sends no probes, for an accelerator that cannot receive an empty write.
const PROBES: &str = "NAAICE_PROBES";
/// `wr_id` of a probe.
const PROBE: u64 = u64::MAX;

/// The state machine of this side.
#[derive(Debug)]
pub(crate) enum Role {
    Host(Host),
    Naa(Naa),
}

/// The end of a connection, as the thread with the event channel reports it to a session's thread.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    state: AtomicI32,
    /// Address of the identifier; 0 once the session destroys it.
    id: Mutex<usize>,
}

impl Ended {
    fn attach(&self, id: &Id) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = id.as_ptr().expose_provenance();
    }

    fn detach(&self) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    /// Marks the end and flushes the session's requests, which wakes its thread.
    pub(crate) fn set(&self, state: State) {
        self.state.store(state as i32, Ordering::Release);
        let attached = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        let id = ptr::with_exposed_provenance_mut::<rdma_cm_id>(*attached);
        if !id.is_null()
            && let Ok(lib) = verbs::lib()
        {
            // SAFETY: the session has not destroyed the identifier: it detaches first, which needs this lock.
            unsafe { lib.rdma_disconnect(id) };
        }
    }

    pub(crate) fn get(&self) -> Option<State> {
        match self.state.load(Ordering::Acquire) {
            0 => None,
            number => State::from_number(number),
        }
    }
}

/// A session with an accelerator that is not reached over an RDMA connection of this process.
pub(crate) trait Remote: std::fmt::Debug + Send {
    /// Starts a call with 24 bits of user data, in bits 8 to 31.
    fn invoke(&mut self, user: u32) -> Result<()>;

    /// The end of the call: return code and bytes of the answer; `None` while it runs. Waits for at most `limit`.
    fn wait(&mut self, limit: Duration) -> Result<Option<(u8, u32)>>;
}

/// One side of a session.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) public: CommContext,
    /// The process that created the session. A forked child must not use it.
    process: u32,
    /// The structure of a program with interface 2. It is copied at the begin and at the end of each call.
    newer: Option<Box<CommContext2>>,
    /// The last answer, 24 bits.
    pub(crate) answer: u32,
    pub(crate) role: Role,
    /// Address of the peer, for messages.
    pub(crate) peer: String,
    pub(crate) regions: Vec<MrLocal>,
    pub(crate) peers: Vec<MrPeer>,
    pub(crate) internal: Vec<MrInternal>,
    message: Box<MrLocal>,
    buffer: Box<[u8; MESSAGE_BYTES_MAX]>,
    pub(crate) queues: Option<Queues>,
    registrations: Vec<Registration>,
    message_registration: Option<Registration>,
    pub(crate) id: Option<Id>,
    /// `None` for a session of a server, whose listener has the channel.
    pub(crate) channel: Option<Arc<EventChannel>>,
    /// Memory of a server's regions.
    pub(crate) blocks: Vec<Block>,
    pub(crate) claim: Option<Claim>,
    /// The session of a service on the host's DPU. It then has neither identifier nor queues.
    pub(crate) remote: Option<Box<dyn Remote>>,
    pub(crate) ended: Arc<Ended>,
    /// Bytes that the peer may make this process allocate.
    pub(crate) bytes_max: u64,
    /// Limit of the bytes of all sessions.
    pub(crate) memory: Option<Arc<MemoryLimit>>,
    /// This session's bytes of it.
    pub(crate) taken: Option<Taken>,
    /// Writes of the current transfer.
    writes_posted: u8,
    /// Whether the connection is probed, and whether a probe has no completion yet.
    probes: bool,
    probe_outstanding: bool,
    pub(crate) probed: Instant,
    pub(crate) call_began: Instant,
    /// The first error. Later calls repeat it.
    failure: Option<String>,
}

impl Endpoint {
    pub(crate) fn new(role: Role, peer: String) -> Box<Self> {
        let now = Instant::now();
        let mut endpoint = Box::new(Self {
            public: CommContext::unconnected(),
            process: std::process::id(),
            newer: None,
            answer: 0,
            role,
            peer,
            regions: Vec::new(),
            peers: Vec::new(),
            internal: Vec::new(),
            message: Box::new(MrLocal {
                ibv: ptr::null_mut(),
                addr: ptr::null_mut(),
                size: MESSAGE_BYTES_MAX,
                to_write: false,
                single_send: false,
            }),
            buffer: Box::new([0; MESSAGE_BYTES_MAX]),
            queues: None,
            registrations: Vec::new(),
            message_registration: None,
            id: None,
            channel: None,
            blocks: Vec::new(),
            claim: None,
            remote: None,
            ended: Arc::new(Ended::default()),
            bytes_max: u64::MAX,
            memory: None,
            taken: None,
            writes_posted: 0,
            probes: probes_of(std::env::var(PROBES).ok().as_deref()),
            probe_outstanding: false,
            probed: now,
            call_began: now,
            failure: None,
        });
        endpoint.message.addr = endpoint.buffer.as_mut_ptr().cast();
        endpoint.public.mr_local_message = &raw mut *endpoint.message;
        endpoint
    }

    /// Makes the session one of a program with interface 2.
    pub(crate) fn use_newer(&mut self) {
        self.newer = Some(Box::new(CommContext2::of(&self.public, 0)));
    }

    /// The structure that the program gets.
    pub(crate) fn shown(&mut self) -> *mut CommContext {
        match &mut self.newer {
            Some(newer) => (&raw mut **newer).cast(),
            None => &raw mut self.public,
        }
    }

    pub(crate) fn is_newer(&self) -> bool {
        self.newer.is_some()
    }

    /// Takes what the program has changed.
    pub(crate) fn read_newer(&mut self) {
        if let Some(newer) = &self.newer {
            newer.read_into(&mut self.public);
        }
    }

    /// Shows the program what a call has changed.
    pub(crate) fn show_newer(&mut self) {
        if let Some(newer) = &mut self.newer {
            **newer = CommContext2::of(&self.public, self.answer);
        }
    }

    /// Runs a kernel of the program in this thread. Returns the code that the caller receives.
    ///
    /// # Safety
    /// As for [`kernels::run`].
    pub(crate) unsafe fn run_kernel(&mut self, kernel: Option<Kernel>) -> u8 {
        self.answer = 0;
        self.show_newer();
        // SAFETY: the caller's promise; the structure has the layout of the program's interface.
        unsafe {
            match &mut self.newer {
                Some(newer) => kernels::run_newer(kernel, newer),
                None => kernels::run(kernel, &mut self.public),
            }
        }
    }

    pub(crate) fn state(&self) -> State {
        State::from_number(self.public.state).unwrap_or(State::Error)
    }

    pub(crate) fn set_state(&mut self, state: State) {
        match &mut self.role {
            Role::Host(host) => host.state = state,
            Role::Naa(naa) => naa.state = state,
        }
        self.show_state();
    }

    /// Copies the machine's state to the C structure. Other threads of a C program may read it.
    fn show_state(&mut self) {
        let (state, left) = match &self.role {
            Role::Host(host) => (host.state, host.writes_left),
            Role::Naa(naa) => (naa.state, naa.writes_left),
        };
        self.public.rdma_writes_done = match state {
            State::DataSending => self.writes_posted.saturating_sub(left),
            _ => 0,
        };
        // SAFETY: the field belongs to this endpoint; all accesses to it are atomic or from this thread.
        let shown = unsafe { AtomicI32::from_ptr(&raw mut self.public.state) };
        shown.store(state as i32, Ordering::Release);
    }

    /// Whether only the peer's next write, or an error, needs to wake this side.
    pub(crate) fn awaits_peer(&self) -> bool {
        match &self.role {
            Role::Host(host) => host.awaits_peer(),
            Role::Naa(naa) => naa.awaits_peer(),
        }
    }

    /// Records an error: only the end of the session is possible afterwards.
    pub(crate) fn fail(&mut self, error: NaaError) -> NaaError {
        self.set_state(State::Error);
        self.failure.get_or_insert_with(|| error.to_string());
        error
    }

    /// Takes an identifier that an event channel of another owner serves.
    pub(crate) fn adopt(&mut self, id: Id) {
        self.public.id = id.as_ptr();
        self.ended.attach(&id);
        self.id = Some(id);
    }

    /// An error in a child of the process that created the session.
    pub(crate) fn check_process(&self) -> Result<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(NaaError::Forked),
        }
    }

    /// The error that ended the session.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.check_process()?;
        match &self.failure {
            None => Ok(()),
            Some(reason) => Err(self.lost(reason.clone())),
        }
    }

    pub(crate) fn lost(&self, reason: String) -> NaaError {
        NaaError::Lost {
            peer: self.peer.clone(),
            reason,
        }
    }

    /// The time limit of a call. A limit of 0 or less in the C structure means none.
    pub(crate) fn call_limit(&self) -> Duration {
        Duration::try_from_secs_f64(self.public.timeout)
            .ok()
            .filter(|limit| !limit.is_zero())
            .unwrap_or(Duration::MAX)
    }

    pub(crate) fn queues(&self) -> Result<&Queues> {
        self.queues.as_ref().ok_or(NaaError::State {
            call: "use of the queues",
            state: self.state().name(),
            rule: "connect first (naaice_setup_connection)",
        })
    }

    /// Creates the queues, shows them in the C structure, and registers the message buffer.
    pub(crate) fn create_queues(&mut self) -> Result<()> {
        let Some(id) = &self.id else {
            return Err(self.lost("it has no identifier".to_owned()));
        };
        let queues = Queues::create(verbs::lib()?, id)?;
        self.public.ibv_ctx = queues.context();
        self.public.pd = queues.pd();
        self.public.comp_channel = queues.channel();
        self.public.cq = queues.cq();
        self.public.qp = queues.qp();
        self.public.max_inline_data = u16::try_from(queues.inline_max()).unwrap_or(u16::MAX);
        let range = (self.buffer.as_ptr() as u64, MESSAGE_BYTES_MAX);
        // SAFETY: the buffer is boxed and lives as long as the registration; nobody holds references into it while a
        // receive is posted: `received` copies after the completion.
        let registration =
            unsafe { Registration::new(verbs::lib()?, queues.domain(), range, Rights::Write) }?;
        self.message.ibv = registration.as_ptr();
        self.message_registration = Some(registration);
        self.queues = Some(queues);
        Ok(())
    }

    /// Registers region `index` of `regions`.
    ///
    /// # Safety
    /// The region stays mapped until [`Self::close`]. Nobody holds a reference to it while a call runs.
    pub(crate) unsafe fn register(&mut self, index: usize, rights: Rights) -> Result<()> {
        let domain = self.queues()?.domain();
        let region = self.regions[index];
        // The whole region, even if the program sends only a part of it.
        let range = (region.addr as u64, self.peers[index].size);
        // SAFETY: the caller's promise.
        let registration = unsafe { Registration::new(verbs::lib()?, domain, range, rights) }?;
        self.regions[index].ibv = registration.as_ptr();
        self.registrations.push(registration);
        Ok(())
    }

    /// The keys of a registered region.
    pub(crate) fn keys(&self, index: usize) -> Option<(u32, u32)> {
        let ibv = self.regions[index].ibv;
        let found = self.registrations.iter().find(|mr| mr.as_ptr() == ibv)?;
        Some((found.lkey(), found.rkey()))
    }

    /// Shows the arrays in the C structure. Needed after their lengths have changed.
    pub(crate) fn show_regions(&mut self) {
        let count = |length: usize| u8::try_from(length).expect("at most 32 regions");
        self.public.mr_local_data = self.regions.as_mut_ptr();
        self.public.no_local_mrs = count(self.regions.len());
        self.public.mr_peer_data = self.peers.as_mut_ptr();
        self.public.no_peer_mrs = count(self.peers.len());
        self.public.mr_internal = self.internal.as_mut_ptr();
        self.public.no_internal_mrs = count(self.internal.len());
    }

    /// Posts a receive for an announcement.
    pub(crate) fn receive_message(&mut self) -> Result<()> {
        let buffer = self.message_buffer(MESSAGE_BYTES_MAX)?;
        // SAFETY: the buffer is registered with this key and lives until the queue pair is destroyed.
        unsafe { self.queues()?.post_receive(Some(buffer)) }
    }

    /// Posts a receive for the write that starts or ends a call.
    pub(crate) fn receive_start(&mut self) -> Result<()> {
        // SAFETY: the request has no buffer.
        unsafe { self.queues()?.post_receive(None) }
    }

    /// Sends an announcement.
    pub(crate) fn send_message(&mut self, message: &Message) -> Result<()> {
        let bytes = message.to_bytes();
        self.buffer[..bytes.len()].copy_from_slice(&bytes);
        let buffer = self.message_buffer(bytes.len())?;
        self.set_state(State::AnnouncementSending);
        // SAFETY: as in `receive_message`.
        unsafe { self.queues()?.post_message(buffer) }
    }

    fn message_buffer(&self, length: usize) -> Result<(u64, u32, u32)> {
        let Some(registration) = &self.message_registration else {
            return Err(self.lost("the message buffer is not registered".to_owned()));
        };
        let length = u32::try_from(length).expect("at most 772");
        Ok((self.buffer.as_ptr() as u64, length, registration.lkey()))
    }

    /// The received message.
    pub(crate) fn received(&self, bytes: u32) -> Result<Message> {
        let length = (bytes as usize).min(MESSAGE_BYTES_MAX);
        // The adapter wrote it: the compiler must not assume earlier contents.
        let received = std::hint::black_box(&self.buffer[..length]).to_vec();
        Message::parse(&received).map_err(|error| NaaError::Message {
            peer: self.peer.clone(),
            error,
        })
    }

    /// The message in the buffer of a C program that has taken its completion itself: its header tells its length.
    pub(crate) fn message_in_buffer(&self) -> Result<Message> {
        let [kind, count] = [self.buffer[0], self.buffer[1]];
        let each = if kind == 1 {
            REQUEST_BYTES
        } else {
            GRANT_BYTES
        };
        let bytes = HEADER_BYTES + usize::from(count) * each;
        self.received(u32::try_from(bytes).expect("at most 6 KiB"))
    }

    /// Writes regions to the peer, the last write with the immediate value. Without regions the write is empty.
    pub(crate) fn write_regions(&mut self, indices: &[usize], immediate: u32) -> Result<()> {
        let mut writes = Vec::with_capacity(indices.len().max(1));
        for (number, index) in (1..).zip(indices) {
            let (region, peer) = (self.regions[*index], self.peers[*index]);
            let Some((lkey, _)) = self.keys(*index) else {
                return Err(self.lost(format!("region {index} is not registered")));
            };
            let size = u32::try_from(region.size.min(peer.size)).expect("at most 4 GiB - 1");
            writes.push(Work {
                from: Some((region.addr as u64, size, lkey)),
                to: (peer.addr, peer.rkey),
                immediate: None,
                wr_id: number,
            });
        }
        if writes.is_empty() {
            let to = self
                .peers
                .first()
                .map_or((0, 0), |peer| (peer.addr, peer.rkey));
            writes.push(Work {
                from: None,
                to,
                immediate: None,
                wr_id: 1,
            });
        }
        // Ordering: the completion of the immediate value says that the writes ahead of it on this queue have arrived.
        // The peer looks at no byte before.
        if let Some(last) = writes.last_mut() {
            last.immediate = Some(immediate);
        }
        let writes: Vec<Work> = writes.into_iter().flat_map(Work::split).collect();
        let count = u8::try_from(writes.len()).expect("at most 4 parts of 32 regions");
        self.writes_posted = count;
        match &mut self.role {
            Role::Host(host) => host.begin(count),
            Role::Naa(naa) => naa.begin(count),
        }
        self.show_state();
        // SAFETY: the regions are registered with these keys until the queue pair is destroyed.
        unsafe { self.queues()?.post_writes(&writes) }
    }

    /// Sends an empty write, if none is outstanding. The peer does not notice it.
    pub(crate) fn probe(&mut self) -> Result<()> {
        if self.probe_outstanding || !self.probes {
            return Ok(());
        }
        let to = self
            .peers
            .first()
            .map_or((0, 0), |peer| (peer.addr, peer.rkey));
        let write = Work {
            from: None,
            to,
            immediate: None,
            wr_id: PROBE,
        };
        // SAFETY: the write has no buffer.
        unsafe { self.queues()?.post_writes(&[write]) }?;
        self.probe_outstanding = true;
        Ok(())
    }

    /// Takes a completion from the queue.
    pub(crate) fn take_completion(&mut self) -> Result<Option<Completion>> {
        loop {
            let Some(completion) = self.queues()?.poll()? else {
                return Ok(None);
            };
            if let Some(completion) = self.read_completion(&completion)? {
                return Ok(Some(completion));
            }
        }
    }

    /// Reads a completion. `None` is a probe's.
    pub(crate) fn read_completion(&mut self, completion: &ibv_wc) -> Result<Option<Completion>> {
        if completion.status != IBV_WC_SUCCESS {
            let status = self.queues()?.status(completion);
            return Err(self.lost(status));
        }
        if completion.wr_id == PROBE && completion.opcode == IBV_WC_RDMA_WRITE {
            self.probe_outstanding = false;
            return Ok(None);
        }
        let bytes = completion.byte_len;
        match completion.opcode {
            IBV_WC_SEND => Ok(Some(Completion::Sent)),
            IBV_WC_RDMA_WRITE => Ok(Some(Completion::Written)),
            IBV_WC_RECV => Ok(Some(Completion::Received { bytes })),
            IBV_WC_RECV_RDMA_WITH_IMM => {
                // SAFETY: a completion of this opcode has an immediate value.
                let immediate = u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data });
                Ok(Some(Completion::Started { immediate, bytes }))
            }
            _ => Err(NaaError::Protocol {
                what: "a completion of an operation that was not requested",
                state: self.state().name(),
            }),
        }
    }

    /// Passes a completion to the machine.
    pub(crate) fn with_host<T>(&mut self, step: impl FnOnce(&mut Host) -> Result<T>) -> Result<T> {
        let Role::Host(host) = &mut self.role else {
            return Err(not_for(
                self.state(),
                "a host's call for an accelerator's session",
            ));
        };
        let done = step(host);
        self.show_state();
        done
    }

    /// Passes a completion to the machine.
    pub(crate) fn with_naa<T>(&mut self, step: impl FnOnce(&mut Naa) -> Result<T>) -> Result<T> {
        let Role::Naa(naa) = &mut self.role else {
            return Err(not_for(
                self.state(),
                "an accelerator's call for a host's session",
            ));
        };
        let done = step(naa);
        self.show_state();
        done
    }

    /// Descriptors that become readable when something happens: completions and, for a host, connection events.
    pub(crate) fn descriptors(&self) -> [RawFd; 2] {
        [
            self.queues.as_ref().map_or(-1, Queues::event_fd),
            self.channel.as_ref().map_or(-1, |channel| channel.fd()),
        ]
    }

    /// Ends the connection and frees everything. The caller's memory is no longer accessed afterwards.
    pub(crate) fn close(&mut self) {
        if self.check_process().is_err() {
            return self.abandon();
        }
        self.ended.detach();
        if let Some(id) = &self.id {
            id.disconnect();
        }
        if let Some(queues) = &mut self.queues {
            queues.end_pair();
        }
        self.registrations.clear();
        self.message_registration = None;
        self.queues = None;
        self.id = None;
        self.channel = None;
        self.blocks.clear();
        self.taken = None;
        self.remote = None;
        self.claim = None;
    }
}

impl Endpoint {
    /// Forgets everything that ends with a call of the device: it belongs to the parent of this process.
    fn abandon(&mut self) {
        std::mem::forget(self.queues.take());
        std::mem::forget(std::mem::take(&mut self.registrations));
        std::mem::forget(self.message_registration.take());
        std::mem::forget(self.id.take());
        std::mem::forget(self.channel.take());
        std::mem::forget(self.remote.take());
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

fn not_for(state: State, rule: &'static str) -> NaaError {
    NaaError::State {
        call: "step of the protocol",
        state: state.name(),
        rule,
    }
}

fn probes_of(value: Option<&str>) -> bool {
    value != Some("off")
}

/// Waits until a descriptor is readable or the time is over. Negative descriptors are ignored.
pub(crate) fn wait_readable(descriptors: &[RawFd], limit: Duration) -> Result<()> {
    let mut fds: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd {
            fd: *fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // Rounded up: a limit below a millisecond must not become a busy loop.
    let ms = limit.as_nanos().div_ceil(1_000_000);
    let ms = i32::try_from(ms).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(fds.len()).expect("a few descriptors");
    // SAFETY: the array has this many entries.
    let polled = unsafe { libc::poll(fds.as_mut_ptr(), count, ms) };
    if polled < 0 {
        let source = std::io::Error::last_os_error();
        if source.kind() != std::io::ErrorKind::Interrupted {
            return Err(NaaError::Call {
                call: "poll",
                source,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without queues a probe is an error, so success means that none was sent.
    #[test]
    fn probes_can_be_turned_off() {
        for (value, probes) in [(None, true), (Some("on"), true), (Some("off"), false)] {
            let mut endpoint = Endpoint::new(Role::Naa(Naa::new()), "a host".to_owned());
            endpoint.probes = probes_of(value);
            assert_eq!(endpoint.probe().is_err(), probes, "{value:?}");
        }
    }
}
