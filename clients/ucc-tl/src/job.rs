//! The service jobs of this process. Each has one connection to a service process; all teams and threads share it.

use crate::log;
use crate::places::{self, Identity};
use crate::plan::{Goal, Plan, Reduce, Way};
use crate::sets::Set;
use crate::settings::name_of;
use crate::wait::Wait;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};
use xgvmi_offload::{
    Call, Client, CommunicatorId, Memory, Numbered, OffloadError, Registered, Request, Side,
};

/// A client and the registrations that it keeps for persistent calls. The thread that holds the job's lock may use them.
pub(crate) struct Held {
    // Drops first: the client has what the registrations use.
    kept: HashMap<Kept, Sides>,
    last: u64,
    client: Client,
}

/// The registrations of a persistent call. They end with [`Job::release`], or when the job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept(u64);

/// The registrations of the two sides.
type Sides = [Option<Registered>; 2];

/// Maximum number of persistent calls of a job that keep their registrations. Further ones register at each start: kept
/// memory is locked, and a limit of locked memory must leave some for the other calls.
const KEPT_MAX: usize = 256;

/// Maximum number of sets of ranks and tags with a communicator of their own.
const SETS_MAX: usize = 1 << 16;

// SAFETY: a client owns all its reference counts and pointers, and shares them only with its registrations. It shares
// nothing with other clients or with the thread that created it, and only the thread that holds the job's lock moves or
// uses both. UCX is configured for this: its workers are created for serialized use (xgvmi-ucp).
unsafe impl Send for Held {}

impl Held {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            kept: HashMap::new(),
            last: 0,
            client,
        }
    }
}

/// A service job: the ranks of one team. Other teams may be subsets of them.
pub(crate) struct Job {
    pub(crate) id: u128,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) leader: Leader,
    /// What this rank does while it waits for a message.
    pub(crate) wait: Wait,
    /// Ranks by their place in UCC's context; empty if the first team has none.
    rank_at: HashMap<u32, u32>,
    /// The first team exists. Its end is a collective of all ranks of the job, so they agree on whether a further team may
    /// join.
    is_open: AtomicBool,
    /// Number of communicators by the summary of their team, see [`places::number`].
    joined: Mutex<HashMap<u64, u64>>,
    process: u32,
    state: Mutex<State>,
}

/// Numbers of the communicators whose first member is this rank.
#[derive(Default)]
pub(crate) struct Leader(AtomicU32);

impl Leader {
    /// A number that no other communicator gets, also if several are created at once.
    pub(crate) fn reserve(&self) -> u32 {
        let next = |number: u32| number.checked_add(1);
        match self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        {
            Ok(number) | Err(number) => number,
        }
    }
}

struct State {
    /// `None` after the job has failed or was closed.
    client: Option<Held>,
    failed: Option<String>,
    /// Number of started calls by name of the collective.
    served: BTreeMap<&'static str, u64>,
    /// The team's communicator of each set's one.
    sets: HashMap<CommunicatorId, u64>,
    /// Number of refused calls of a served kind.
    left: u64,
    /// Number of started messages, and of those that are under way.
    messages: u64,
    messages_open: u64,
    /// A thread makes progress on them.
    is_watched: bool,
    /// Time of the last warning about a call that takes long.
    warned: Option<Instant>,
}

/// State of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Over,
    Under,
    /// Another thread makes the progress.
    Unknown,
}

/// Minimum time between two warnings about calls that take long: a program may have a thousand of them.
const WARNINGS_APART: Duration = Duration::from_secs(60);

/// All jobs of the process. The exit handler closes them.
static JOBS: Mutex<Vec<Weak<Job>>> = Mutex::new(Vec::new());

/// The exit handler is registered once.
static AT_EXIT: Once = Once::new();

impl Job {
    /// Creates a job from a connected client. `places` are those of its ranks in UCC's context, if they are known.
    pub(crate) fn new(
        id: u128,
        [rank, size]: [u32; 2],
        client: Held,
        places: Option<&[u32]>,
        wait: Wait,
    ) -> Arc<Self> {
        let mut job = Self::with_client(id, [rank, size], Some(client), places);
        job.wait = wait;
        let job = Arc::new(job);
        AT_EXIT.call_once(|| {
            // SAFETY: a function of this library, which is never unmapped. UCX was loaded earlier, so the function runs
            // before UCX's destructors.
            unsafe { libc::atexit(at_exit) };
        });
        let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|job| job.strong_count() > 0);
        jobs.push(Arc::downgrade(&job));
        job
    }

    fn with_client(
        id: u128,
        [rank, size]: [u32; 2],
        client: Option<Held>,
        places: Option<&[u32]>,
    ) -> Self {
        Self {
            id,
            rank,
            size,
            leader: Leader::default(),
            wait: Wait::Spin,
            rank_at: places.unwrap_or(&[]).iter().copied().zip(0..).collect(),
            is_open: AtomicBool::new(true),
            joined: Mutex::default(),
            process: std::process::id(),
            state: Mutex::new(State {
                client,
                failed: None,
                served: BTreeMap::new(),
                sets: HashMap::new(),
                left: 0,
                messages: 0,
                messages_open: 0,
                is_watched: false,
                warned: None,
            }),
        }
    }

    /// A job without a connection, for tests of the teams.
    #[cfg(test)]
    pub(crate) fn unconnected(
        id: u128,
        [rank, size]: [u32; 2],
        places: Option<&[u32]>,
    ) -> Arc<Self> {
        Arc::new(Self::with_client(id, [rank, size], None, places))
    }

    /// Whether further teams may join.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The members' ranks in the job, if all of them belong to it and a team may join.
    pub(crate) fn members(&self, team: &Identity) -> Option<Vec<u32>> {
        let rank = |place| self.rank_at.get(place).copied();
        let members = team.places.iter().map(rank).collect::<Option<Vec<u32>>>()?;
        (self.is_open() && members.contains(&self.rank)).then_some(members)
    }

    /// Registers a team of these members without a message between them, and returns its communicator. All members do the
    /// same. If the job has failed, the team's calls fail as those of its earlier teams do.
    pub(crate) fn join(&self, team: &Identity, members: &[u32]) -> u64 {
        let summary = places::summary(team.id, members);
        let count = {
            let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
            let next = joined.entry(summary).or_default();
            let count = *next;
            *next = count.wrapping_add(1);
            count
        };
        let communicator = places::number(team.id, members, count);
        if let Err(reason) = self.add_communicator(communicator, members) {
            // The other members use the job.
            self.abandon(&reason);
        }
        communicator
    }

    /// Why the job is unusable; `None` while it works.
    pub(crate) fn failed(&self) -> Option<String> {
        if self.is_forked() {
            return Some("this is a child process of the one that is connected".to_owned());
        }
        self.lock().failed.clone()
    }

    /// Registers a team. All its members use the same number.
    pub(crate) fn add_communicator(&self, id: u64, members: &[u32]) -> Result<(), String> {
        let mut state = self.lock();
        let Some(Held { client, .. }) = &mut state.client else {
            return Err("the job has ended".to_owned());
        };
        let added = client.add_communicator(CommunicatorId(id), members);
        added.map_err(|error| error.to_string())
    }

    /// Removes a team. The job closes with the last one.
    pub(crate) fn remove_communicator(&self, id: u64) {
        if id == 0 {
            self.is_open.store(false, Ordering::Release);
            return;
        }
        if self.is_forked() {
            return;
        }
        let mut state = self.lock();
        let State { client, sets, .. } = &mut *state;
        let Some(Held { client, .. }) = client else {
            return;
        };
        let sets = sets.extract_if(|_, team| *team == id);
        for gone in sets.map(|(set, _)| set).chain([CommunicatorId(id)]) {
            if let Err(error) = client.remove_communicator(gone) {
                log::debug!("communicator {}: {error}", gone.0);
            }
        }
    }

    /// Counts a call that goes to UCC's other components.
    pub(crate) fn leave(&self) {
        self.lock().left += 1;
    }

    /// Numbers a call. All members number the calls of a team in the same order.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn number(
        &self,
        communicator: u64,
        is_persistent: bool,
    ) -> Result<Numbered, OffloadError> {
        let mut state = self.lock();
        let Some(Held { client, .. }) = &mut state.client else {
            return Err(OffloadError::Failed("the job has ended".to_owned()));
        };
        client.number(CommunicatorId(communicator), is_persistent)
    }

    /// The communicator of a set of a team's ranks. The first call of a set adds it.
    ///
    /// # Errors
    /// The job has failed, or has too many sets.
    pub(crate) fn communicator_of(
        &self,
        set: &Set,
        team: u64,
    ) -> Result<CommunicatorId, OffloadError> {
        let id = CommunicatorId(set.number(team));
        let mut state = self.lock();
        let State { client, sets, .. } = &mut *state;
        let Some(Held { client, .. }) = client else {
            return Err(OffloadError::Failed("the job has ended".to_owned()));
        };
        if sets.contains_key(&id) {
            return Ok(id);
        }
        if sets.len() >= SETS_MAX {
            return Err(OffloadError::Arguments(format!(
                "more than {SETS_MAX} active sets and tags in one job: use the same ones again"
            )));
        }
        client.add_part(id, CommunicatorId(team), &set.ranks)?;
        sets.insert(id, team);
        Ok(id)
    }

    /// Whether to warn about a call that takes long.
    pub(crate) fn may_warn(&self) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        let may = state.warned.is_none_or(|at| now - at >= WARNINGS_APART);
        if may {
            state.warned = Some(now);
        }
        may
    }

    /// Registers the memory of a persistent call for all its starts. `None` if there is nothing to keep.
    ///
    /// # Safety
    /// The plan's buffers are mapped memory of the program until [`Job::release`], or until the job has failed.
    pub(crate) unsafe fn keep(&self, plan: &Plan) -> Option<Kept> {
        let mut state = self.lock();
        let Held { kept, last, client } = state.client.as_mut()?;
        if self.is_forked() || kept.len() >= KEPT_MAX {
            return None;
        }
        let sides = match plan {
            Plan::Exchange(plan) => {
                // In place, each start sends a copy.
                let of = [
                    (plan.way != Way::InPlace).then_some(&plan.send),
                    Some(&plan.receive),
                ];
                of.map(|of| {
                    let of = of?;
                    // SAFETY: the caller upholds the contract.
                    unsafe { client.keep_blocks(side(of, None, &blocks(of))) }
                })
            }
            Plan::Reduce(plan) => {
                let sent = if plan.send.is_null() { 0 } else { plan.length };
                [(plan.send, sent), (plan.receive, plan.received)].map(|(start, length)| {
                    // SAFETY: the same.
                    unsafe { client.keep_vector(start, length, plan.length) }
                })
            }
            Plan::Broadcast(plan) => [
                None,
                // SAFETY: the same.
                unsafe { client.keep_vector(plan.start, plan.length, plan.length) },
            ],
            Plan::Barrier => [None, None],
        };
        if sides.iter().all(Option::is_none) {
            return None;
        }
        *last += 1;
        kept.insert(Kept(*last), sides);
        Some(Kept(*last))
    }

    /// Releases what [`Job::keep`] has registered. No call under way uses it.
    pub(crate) fn release(&self, key: Kept) {
        if self.is_forked() {
            return;
        }
        let mut state = self.lock();
        // A job that has failed has released it.
        let Some(Held { kept, client, .. }) = &mut state.client else {
            return;
        };
        let sides = kept.remove(&key).into_iter().flatten().flatten();
        let released: Result<Vec<()>, _> = sides.map(|side| client.release(side)).collect();
        if let Err(error) = released {
            // The next call reports it.
            state.fail(&error.to_string());
        }
    }

    /// Starts a call. `kept` is what [`Job::keep`] has registered for this plan.
    ///
    /// # Errors
    /// Errors of the client.
    ///
    /// # Safety
    /// The plan's buffers belong to the call until it completes or the job has failed.
    pub(crate) unsafe fn begin(
        &self,
        call: Call<'_>,
        kind: crate::bindings::ucc_coll_type_t,
        plan: &Plan,
        kept: Option<Kept>,
    ) -> Result<Request, OffloadError> {
        if let Some(reason) = self.failed() {
            return Err(OffloadError::Failed(reason));
        }
        let mut state = self.lock();
        let Some(Held {
            client, kept: all, ..
        }) = &mut state.client
        else {
            return Err(OffloadError::Failed("the job has ended".to_owned()));
        };
        let kept = kept.and_then(|kept| all.get(&kept));
        let [from, into] = kept.map_or([None, None], |sides| sides.each_ref().map(Option::as_ref));
        let begun = match plan {
            Plan::Exchange(plan) if plan.way == Way::InPlace => {
                let receive = blocks(&plan.receive);
                // SAFETY: the caller upholds the contract.
                unsafe { client.alltoallv_in_place(call, side(&plan.receive, into, &receive)) }
            }
            Plan::Exchange(plan) => {
                let (send, receive) = (blocks(&plan.send), blocks(&plan.receive));
                let send = side(&plan.send, from, &send);
                let receive = side(&plan.receive, into, &receive);
                match plan.way {
                    // SAFETY: the same.
                    Way::Gather(root) => unsafe { client.gather(call, root, send, receive) },
                    // SAFETY: the same.
                    Way::Scatter(root) => unsafe { client.scatter(call, root, send, receive) },
                    // SAFETY: the same.
                    _ => unsafe { client.alltoallv(call, send, receive) },
                }
            }
            // SAFETY: the same.
            Plan::Reduce(plan) => unsafe { reduce(client, call, plan, [from, into]) },
            Plan::Broadcast(plan) => {
                let memory = memory(into, plan.start, plan.length);
                // SAFETY: the same.
                unsafe { client.broadcast(call, plan.root, memory) }
            }
            Plan::Barrier => client.barrier(call),
        };
        match begun {
            Ok(request) => {
                *state.served.entry(name_of(kind)).or_default() += 1;
                Ok(request)
            }
            Err(error @ OffloadError::Arguments(_)) => Err(error),
            Err(error) => Err(state.fail(&error.to_string())),
        }
    }

    /// Starts to send a message to another rank, or to receive one.
    ///
    /// # Errors
    /// Errors of the client.
    ///
    /// # Safety
    /// As for [`Client::send`] and [`Client::recv`].
    pub(crate) unsafe fn message(
        &self,
        is_received: bool,
        [peer, tag]: [u32; 2],
        memory: Memory<'_>,
    ) -> Result<Request, OffloadError> {
        if let Some(reason) = self.failed() {
            return Err(OffloadError::Failed(reason));
        }
        let mut state = self.lock();
        let Some(Held { client, .. }) = &mut state.client else {
            return Err(OffloadError::Failed("the job has ended".to_owned()));
        };
        let begun = if is_received {
            // SAFETY: the caller upholds the contract.
            unsafe { client.recv(peer, tag, memory) }
        } else {
            // SAFETY: the same.
            unsafe { client.send(peer, tag, memory) }
        };
        match begun {
            Ok(request) => {
                state.messages += 1;
                state.messages_open += 1;
                Ok(request)
            }
            Err(error @ OffloadError::Arguments(_)) => Err(error),
            Err(error) => Err(state.fail(&error.to_string())),
        }
    }

    /// A message is over.
    pub(crate) fn message_over(&self) {
        self.lock().messages_open -= 1;
    }

    /// Whether the caller has to see to it that somebody calls [`Job::advance`] until that returns false.
    pub(crate) fn wants_watch(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_watched, true)
    }

    /// Makes progress while messages are under way. Returns false when none is.
    pub(crate) fn advance(&self) -> bool {
        let mut state = self.lock();
        let is_over = state.messages_open == 0;
        let Some(Held { client, .. }) = state.client.as_mut().filter(|_| !is_over) else {
            state.is_watched = false;
            return false;
        };
        if let Err(error) = client.advance() {
            // The next test of a call reports it.
            state.fail(&error.to_string());
        }
        true
    }

    /// Tests a call for completion. If another thread currently holds the job, that thread makes the progress, and the
    /// state of the call stays unknown.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn test(&self, request: &mut Request) -> Result<Progress, OffloadError> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return Ok(Progress::Unknown),
            Err(TryLockError::Poisoned(_)) => self.lock(),
        };
        if let Some(reason) = &state.failed {
            return Err(OffloadError::Failed(reason.clone()));
        }
        let Some(Held { client, .. }) = &mut state.client else {
            return Err(OffloadError::Failed("the job has ended".to_owned()));
        };
        match client.test(request) {
            Ok(true) => Ok(Progress::Over),
            Ok(false) => Ok(Progress::Under),
            Err(error) => Err(state.fail(&error.to_string())),
        }
    }

    /// Sleeps until something happens, at most for this time. Another thread that holds the job makes the progress.
    pub(crate) fn rest(&self, most: Duration) {
        let Ok(mut state) = self.state.try_lock() else {
            std::thread::sleep(most);
            return;
        };
        if state.failed.is_none()
            && let Some(Held { client, .. }) = &mut state.client
            && let Err(error) = client.rest(most)
        {
            // The next test of a call reports it.
            state.fail(&error.to_string());
        }
    }

    /// Fails the job. The service processes notify the other ranks.
    pub(crate) fn abandon(&self, reason: &str) {
        self.lock().fail(reason);
    }

    /// Sends a goodbye to the service process. Outstanding calls end the job with an error.
    pub(crate) fn close(&self) {
        if self.is_forked() {
            return;
        }
        let mut state = self.lock();
        let Some(Held { kept, client, .. }) = state.client.take() else {
            return;
        };
        drop(kept);
        let kinds: Vec<String> = state
            .served
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        log::info!(
            "rank {} of {}: {} collectives offloaded ({}), {} left to other components; {} messages sent or received",
            self.rank,
            self.size,
            state.served.values().sum::<u64>(),
            kinds.join(", "),
            state.left,
            state.messages
        );
        if let Err(error) = client.close() {
            log::warning!("rank {}: goodbye to the service: {error}", self.rank);
        }
    }

    /// Whether this process is a child of the connected one.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// A panic under the lock fails the job.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.fail("internal error");
            self.state.clear_poison();
            state
        })
    }
}

/// A job of this process that is neither closed nor that of a parent process.
pub(crate) fn find(is_it: impl Fn(&Job) -> bool) -> Option<Arc<Job>> {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut jobs = jobs.iter().filter_map(Weak::upgrade);
    jobs.find(|job| !job.is_forked() && is_it(job))
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.is_forked() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            // The connection and the device's objects belong to the parent process.
            std::mem::forget(state.client.take());
        } else {
            self.close();
        }
    }
}

impl State {
    /// Drops the client. The device then has no access to the buffers of any call.
    fn fail(&mut self, reason: &str) -> OffloadError {
        let reason = self.failed.get_or_insert_with(|| reason.to_owned()).clone();
        drop(self.client.take());
        OffloadError::Failed(reason)
    }
}

/// Starts a reduction.
///
/// # Safety
/// As for [`Job::begin`].
unsafe fn reduce(
    client: &mut Client,
    call: Call<'_>,
    plan: &Reduce,
    [from, into]: [Option<&Registered>; 2],
) -> Result<Request, OffloadError> {
    let send = (!plan.send.is_null()).then(|| memory(from, plan.send, plan.length));
    let receive = memory(into, plan.receive, plan.received);
    let reduction = plan.reduction;
    match &plan.goal {
        // SAFETY: the caller upholds the contract.
        Goal::All => unsafe { client.allreduce(call, send, receive, reduction) },
        Goal::Root(root) => {
            let receive = (plan.received > 0).then_some(receive);
            // SAFETY: the same.
            unsafe { client.reduce(call, *root, send, receive, reduction) }
        }
        Goal::Each(counts) => {
            let send = memory(from, plan.send, plan.length);
            // SAFETY: the same.
            unsafe { client.reduce_scatter(call, counts, send, receive, reduction) }
        }
    }
}

/// Lengths and displacements of the blocks of a side.
fn blocks(of: &crate::plan::Side) -> (Vec<usize>, Vec<usize>) {
    of.blocks().unzip()
}

fn side<'a>(
    of: &crate::plan::Side,
    kept: Option<&'a Registered>,
    blocks: &'a (Vec<usize>, Vec<usize>),
) -> Side<'a> {
    Side {
        memory: memory(kept, of.start, of.length),
        counts: &blocks.0,
        displacements: &blocks.1,
    }
}

fn memory(kept: Option<&Registered>, start: *mut u8, length: usize) -> Memory<'_> {
    kept.map_or(Memory::Temporary { start, length }, Memory::Registered)
}

/// Closes the jobs of a program that does not destroy its teams.
extern "C" fn at_exit() {
    let closed = std::panic::catch_unwind(|| {
        let jobs = std::mem::take(&mut *JOBS.lock().unwrap_or_else(PoisonError::into_inner));
        for job in jobs.iter().filter_map(Weak::upgrade) {
            job.close();
        }
    });
    if closed.is_err() {
        log::error!("internal error at the end of the process");
    }
}
