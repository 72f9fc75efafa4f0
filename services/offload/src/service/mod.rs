//! The service process (SP): admits ranks, connects to the job's other SPs, and executes their collectives.
//!
//! One thread moves data and never blocks: connects, name look-ups, opening and closing UCX, and creating aliases of
//! announced keys run in threads of their own. The thread waits for
//! the listener, TCP connections and UCP workers. Each job has its own worker; the end of the job frees all its state.
//! [`ledger`] has the rules, [`job`] the UCX objects, [`connections`] the peers, and this file the main loop.

mod actions;
mod admission;
mod again;
mod connections;
mod counters;
mod dpa;
#[cfg(test)]
#[path = "../../tests/standin/fakes.rs"]
mod fakes;
mod familiar;
mod greeting;
mod hearing;
mod imported;
mod imports;
mod incoming;
mod job;
mod late;
mod ledger;
mod memory;
mod mover;
mod options;
mod outbox;
mod preparing;
mod pulse;
mod ready;
mod relays;
mod repeats;
pub(crate) mod script;
mod segments;
mod sharing;
mod slots;
mod spacing;
#[cfg(any(test, feature = "stand-in"))]
#[doc(hidden)]
#[path = "../../tests/standin/mod.rs"]
pub mod standin;
mod state;
mod status;
mod timers;
mod transport;
mod trees;
mod turns;
mod vectors;
mod windows;

pub use options::{DIRECT_LENGTH, RECEIVES, SENDS, ServiceOptions};
pub use outbox::OFFER_BLOCKS;
pub use state::Service;
pub use status::Status;
pub use windows::{Division, WINDOWS_AT_ONCE, Window};

use super::control::Frame;
use super::error::{OffloadError, Result};
use super::job_id::JobId;
use super::secret;
use connections::{ConnectionId, Connections};
use counters::Counters;
use pulse::{Part, Pulse};
use state::{Entry, Sp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};
use timers::{BEATS, LISTENER};
use transport::{Fabric, Libraries};
use ucx_sys::Ucp;
use xgvmi_daemon::{Asked, Background, Daemon, Dialer, LogLevel, Poller, Secrets, thread_time};
use xgvmi_ucp::InboxBudget;

/// Rounds of work between two reads of the clock.
const BUSY_ROUNDS: u32 = 32;

/// Number of calls that ranks enter between two reads of the clock. Each takes up to three device calls, and these take
/// up to milliseconds each if a buffer has a new key: 32 rounds of 256 messages would take longer than the silence limit.
const ENTRIES_MAX: u32 = 32;

/// Interval between polls of the sockets while there is work. Sockets carry no data of a collective and can wait.
const SOCKETS_LOOK: Duration = Duration::from_millis(1);

/// Number of sched_yield calls before a sleep. Another process that waits for the core may be about to send something.
/// A sleep and a wake-up cost several times as much as the yield; on a dedicated core the yields cost an SP nothing.
const YIELDS: u32 = 2;

/// Maximum sleep.
const TICK: Duration = Duration::from_millis(500);

/// Time that a failure of UCX waits for its cause. The end of a TCP connection is detected slightly later than that of
/// its queue pairs, and identifies the peer.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);

/// Interval between timer checks. It bounds the cost of many connections.
const TIMERS_LOOK: Duration = Duration::from_millis(100);

/// Maximum number of callers between two timer checks while a job is served. Others wait in the listener's queue. A caller
/// that has become a member of a job does not count: all ranks of a job connect at once, and a stranger cannot be one.
const ACCEPTS_MAX: u32 = 32;

/// After a pause because of [`ACCEPTS_MAX`] callers, the thread accepts again when no more than these are unidentified.
const ACCEPTS_AGAIN: u32 = ACCEPTS_MAX / 2;

/// After this many refusals the thread accepts nobody until the next timer check, with or without a job. A refused caller
/// costs up to a quarter of a millisecond, so a flood takes about two percent of the thread's time.
const REFUSALS_MAX: u32 = 8;

/// Runs a part of a job. A panic is a defect of this program: it ends the job and not the service.
fn contained<T>(step: impl FnOnce() -> Result<T>) -> Result<T> {
    // After an error the job is only closed.
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        Err(OffloadError::Failed(
            "an internal error of the service; its log has the place: please report it".to_owned(),
        ))
    })
}

const SIGNALS: u64 = 0;
const DIALER: u64 = 2;
const STATUS: u64 = 3;
const PREPARING: u64 = 4;
const CLOSING: u64 = 5;

/// Reads a program of the DPA, which each job starts anew: it stays for the life of the process.
fn read_program(file: &Path) -> Result<&'static [u8]> {
    let program = std::fs::read(file)
        .map_err(|error| OffloadError::io(format!("--dpa {}", file.display()), error))?;
    // Magic, then class, byte order and versions, type, and the machine (elf.h).
    let is_program = program.starts_with(b"\x7fELF") && program.get(18..20) == Some(&[243, 0]);
    if !is_program {
        return Err(OffloadError::Options(format!(
            "--dpa {}: not a program for RISC-V; give NAME.elf of the directory of `dpacc -app-name=NAME -keep-dir=DIR`",
            file.display()
        )));
    }
    Ok(program.leak())
}

impl Service {
    /// Loads UCX and starts to listen.
    ///
    /// # Errors
    /// The library cannot be loaded, the address is unusable, or the secret is missing.
    pub fn new(options: ServiceOptions) -> Result<Self> {
        memory::map_large_blocks();
        let ucp = Ucp::load(options.ucx_library.as_deref())
            .map_err(|error| OffloadError::Options(error.to_string()))?;
        let program = options.dpa.as_deref().map(read_program).transpose()?;
        Sp::new(options, Libraries { ucp, program }).map(Self)
    }

    /// The address at which other SPs reach this one.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.advertise
    }

    /// The version of UCX.
    #[must_use]
    pub fn ucx_version(&self) -> &'static str {
        self.0.library.ucp.version()
    }

    /// Serves until a signal arrives or the requested number of jobs is complete.
    ///
    /// # Errors
    /// Failures of the loop itself. A failed job does not end the loop.
    pub fn run(&mut self) -> Result<()> {
        self.0.run()
    }
}

impl<F: Fabric> Sp<F> {
    /// Starts to listen.
    fn new(options: ServiceOptions, library: F::Library) -> Result<Self> {
        let listen = || format!("listening on {}", options.listen);
        let listener = xgvmi_daemon::listen(&options.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| OffloadError::io(listen(), error))?;
        let bound = listener
            .local_addr()
            .map_err(|error| OffloadError::io(listen(), error))?;
        if options.advertise.is_none() && bound.ip().is_unspecified() {
            return Err(OffloadError::Options(format!(
                "listening on {bound} tells other SPs no address: give --advertise ADDR:PORT"
            )));
        }
        let advertise = options.advertise.clone().unwrap_or(bound.to_string());
        let secrets = Secrets::read(options.secret_file.clone(), secret::CONTEXT)?;
        if secrets.all().is_empty() && !bound.ip().is_loopback() {
            if options.insecure != Some(true) {
                return Err(OffloadError::Options(format!(
                    "listening on {bound} without a secret would serve everybody who reaches it: give --secret-file \
                     FILE (`openssl rand -hex 32` makes a good one), or --insecure"
                )));
            }
            eprintln!(
                "xgvmi-sp {advertise}: warning: --insecure: whoever reaches {bound} is served, and may read and write \
                 the memory of the ranks of their own jobs and crash this service"
            );
        }
        let name = format!("xgvmi-sp-{}", bound.port());
        // Before any thread: all inherit the mask of signals.
        let daemon = Daemon::new(&name, options.status_socket.as_deref())?;
        let io = |what: &'static str| move |error| OffloadError::io(what, error);
        let unique = xgvmi_daemon::random().map_err(io("random number"))?;
        #[expect(clippy::cast_possible_truncation, reason = "64 random bits of 128")]
        let unique = unique as u64;
        let dialer = Dialer::new().map_err(io("sockets of the dialer"))?;
        let preparing = Background::new("prepare").map_err(io("a thread"))?;
        let closing = Background::new("close").map_err(io("a thread"))?;
        let poller = Poller::new().map_err(io("epoll"))?;
        let fds = [
            (Some(daemon.signal_fd()), SIGNALS),
            (daemon.status_fd(), STATUS),
            (Some(listener.as_raw_fd()), LISTENER),
            (Some(dialer.fd()), DIALER),
            (Some(preparing.fd()), PREPARING),
            (Some(closing.fd()), CLOSING),
        ];
        for (fd, key) in fds.into_iter().filter_map(|(fd, key)| Some((fd?, key))) {
            poller.add(fd, key, false).map_err(io("epoll"))?;
        }
        let now = Instant::now();
        Ok(Self {
            inbox: InboxBudget::new(options.buffer_bytes_max),
            connections: Connections::new(options.buffer_bytes_max, options.callers_per_address),
            options,
            library,
            unique,
            advertise,
            secrets,
            listener,
            accept_after: None,
            accepts: 0,
            awaits_callers: false,
            daemon,
            dialer,
            dialing: BTreeMap::new(),
            next_dial: 0,
            preparing,
            opening: BTreeSet::new(),
            closing,
            poller,
            unheard: Vec::new(),
            jobs: BTreeMap::new(),
            failures: VecDeque::new(),
            counters: Counters::default(),
            timers_looked: now,
            pulse: Pulse::new(now, thread_time()),
            entries: 0,
            refusals_logged: 0,
            draining: None,
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut last_event = Instant::now();
        let mut next_look = last_event + SOCKETS_LOOK;
        let mut yields = 0;
        let mut ready = Vec::new();
        loop {
            let mut busy = false;
            self.entries = 0;
            for _ in 0..BUSY_ROUNDS {
                if !self.work() {
                    break;
                }
                busy = true;
                if self.entries >= ENTRIES_MAX {
                    break;
                }
            }
            let now = Instant::now();
            self.pulse.passed(Part::Jobs, now);
            if busy {
                self.limit_memory();
                last_event = now;
                yields = 0;
            }
            let may_spin = !self.options.spin.is_zero();
            let spin = may_spin && now - last_event < self.options.spin;
            let sleep = if busy || spin || !self.unheard.is_empty() {
                false
            } else if yields < YIELDS {
                yields += 1;
                std::thread::yield_now();
                false
            } else if self.settle() {
                last_event = now;
                yields = 0;
                false
            } else {
                self.arm()
            };
            if !sleep && now < next_look && self.unheard.is_empty() {
                continue;
            }
            let limit = if sleep { self.tick() } else { Duration::ZERO };
            let before = thread_time();
            self.poller
                .wait(limit, &mut ready)
                .map_err(|error| OffloadError::io("epoll_wait", error))?;
            // Callers that wake the thread also cost it the wait.
            if !ready.is_empty() && ready.iter().all(|key| self.is_of_callers(*key)) {
                self.counters.on_callers += thread_time().saturating_sub(before);
            }
            self.pulse.passed(Part::Sleep, Instant::now());
            if self.attend(&ready) || self.is_done() {
                self.stop();
                return Ok(());
            }
            let looked = Instant::now();
            next_look = looked + SOCKETS_LOOK;
            self.pulse.passed(Part::Connections, looked);
        }
    }

    /// Maximum sleep in the current state.
    fn tick(&self) -> Duration {
        if self.jobs.values().any(|entry| entry.suspect.is_some()) {
            CAUSE_LIMIT / 4
        } else if self.accept_after.is_some() {
            TIMERS_LOOK
        } else {
            TICK.min(self.options.silence_limit / BEATS)
        }
    }

    /// Whether the requested work is complete.
    fn is_done(&self) -> bool {
        let ended = self.counters.jobs_done + self.counters.jobs_failed;
        let enough = self.options.jobs.is_some_and(|jobs| ended >= jobs);
        let idle = self.jobs.is_empty() && self.opening.is_empty();
        idle && (enough || self.draining.is_some())
    }

    /// Runs one round over all jobs; returns true when something happened.
    fn work(&mut self) -> bool {
        let (mut busy, mut heard, mut lacks_room) = (false, false, false);
        // An empty vector does not allocate.
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        for (id, entry) in &mut self.jobs {
            if entry.suspect.is_some() {
                continue;
            }
            match contained(|| entry.job.progress()) {
                Ok(of_job) => {
                    busy |= of_job.happened;
                    heard |= of_job.heard;
                    lacks_room |= of_job.lacks_room;
                    self.entries += of_job.entries;
                }
                Err(error) => {
                    entry.suspect = Some((error.to_string(), Instant::now() + CAUSE_LIMIT));
                    continue;
                }
            }
            if !entry.is_ready && entry.job.is_connected() && entry.is_joined() {
                entry.is_ready = true;
                self.counters.setup.record(entry.since.elapsed());
                busy = true;
                match entry.job.greet_ranks() {
                    Ok(()) => ready.push((*id, entry.ranks.values().copied().collect::<Vec<_>>())),
                    Err(error) => failed.push((*id, error.to_string())),
                }
            }
        }
        for (id, ranks) in ready {
            for connection in ranks {
                self.tell(connection, &Frame::Ready);
            }
            self.log(LogLevel::Info, format_args!("job {id}: ready"));
        }
        for (id, reason) in failed {
            self.fail(id, &reason, None);
        }
        if lacks_room {
            self.drop_free();
        }
        // The memory of calls grows with messages.
        if heard {
            self.limit_memory();
        }
        busy
    }

    /// Returns the memory that no call uses if all jobs together keep too much. If that is not enough, ends the job whose
    /// calls keep the most.
    ///
    /// Ranks keep windows ([`Welcome::call_bytes`](super::control::Welcome)), with which the calls of one job stay below
    /// its share of the memory.
    fn limit_memory(&mut self) {
        let bytes_max = self.options.call_bytes_max;
        let sum = |jobs: &BTreeMap<JobId, Entry<F>>, of: fn(&job::Job<F>) -> usize| -> usize {
            jobs.values().map(|entry| of(&entry.job)).sum()
        };
        let all = sum(&self.jobs, job::Job::bytes);
        if all.saturating_add(sum(&self.jobs, job::Job::free_bytes)) <= bytes_max {
            return;
        }
        self.drop_free();
        if all <= bytes_max {
            return;
        }
        let jobs = self.jobs.iter().map(|(id, entry)| (entry.job.bytes(), *id));
        if let Some((most, id)) = jobs.max() {
            let reason = format!(
                "its calls keep {most} bytes at the service {}, and those of all jobs {all}; the most of all jobs is \
                 {bytes_max}: let fewer calls be outstanding, or raise --calls-mib",
                self.advertise
            );
            self.fail(id, &reason, None);
        }
    }

    /// Releases what the jobs keep for later calls: memory, and imports in the device.
    fn drop_free(&mut self) {
        for entry in self.jobs.values_mut() {
            if let Err(error) = contained(|| entry.job.drop_free()) {
                entry.suspect = Some((error.to_string(), Instant::now() + CAUSE_LIMIT));
            }
        }
    }

    /// Sends data that jobs held back for aggregation; returns true if there was any.
    fn settle(&mut self) -> bool {
        let mut busy = false;
        for entry in self.jobs.values_mut() {
            if entry.suspect.is_some() {
                continue;
            }
            match contained(|| entry.job.settle()) {
                Ok(happened) => busy |= happened,
                Err(error) => {
                    entry.suspect = Some((error.to_string(), Instant::now() + CAUSE_LIMIT));
                }
            }
        }
        busy
    }

    /// Requests a wake-up from all workers; returns false when one has work already.
    fn arm(&mut self) -> bool {
        for (id, entry) in self
            .jobs
            .iter()
            .filter(|(_, entry)| entry.suspect.is_none())
        {
            match entry.job.arm() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    let (id, reason) = (*id, error.to_string());
                    self.fail(id, &reason, None);
                    return false;
                }
            }
        }
        true
    }

    /// Handles ready descriptors and timers; returns true when a signal requests the end.
    fn attend(&mut self, ready: &[u64]) -> bool {
        // The data of these connections has been read already; their descriptors do not become ready again.
        for id in std::mem::take(&mut self.unheard) {
            self.serve(id);
        }
        for key in ready {
            let before = self.is_of_callers(*key).then(thread_time);
            match *key {
                SIGNALS => {
                    if self.take_signals() {
                        return true;
                    }
                }
                LISTENER => self.accept(),
                DIALER => self.take_dialed(),
                STATUS => self.tell_status(),
                PREPARING => self.take_prepared(),
                CLOSING => self.take_closed(),
                key => {
                    if let Some(id) = ConnectionId::from_key(key) {
                        self.serve(id);
                    }
                }
            }
            if let Some(before) = before {
                self.counters.on_callers += thread_time().saturating_sub(before);
            }
        }
        if self.timers_looked.elapsed() > TIMERS_LOOK
            || self.jobs.values().any(|entry| entry.suspect.is_some())
        {
            self.keep_time();
        }
        self.draining.is_some_and(|until| Instant::now() > until)
    }

    /// Whether this key is the listener's, or that of a connection of no job.
    fn is_of_callers(&self, key: u64) -> bool {
        let connection = ConnectionId::from_key(key).and_then(|id| self.connections.get(id));
        key == LISTENER || connection.is_some_and(|connection| connection.role.is_caller())
    }

    /// UCX of a job is closed. It has used tens of megabytes.
    fn take_closed(&mut self) {
        while self.closing.take().is_some() {}
        if self.jobs.is_empty() && self.opening.is_empty() && self.closing.pending() == 0 {
            xgvmi_daemon::release_free_memory();
        }
    }

    fn take_signals(&mut self) -> bool {
        while let Some(asked) = self.daemon.asked() {
            match asked {
                Asked::Stop => return true,
                Asked::Drain if self.draining.is_some() => return true,
                Asked::Drain => {
                    self.draining = Some(Instant::now() + self.options.drain_limit);
                    let (jobs, limit) = (self.jobs.len(), self.options.drain_limit);
                    self.log(
                        LogLevel::Info,
                        format_args!(
                            "SIGTERM: {jobs} running jobs have {limit:?} to finish, new jobs are refused"
                        ),
                    );
                }
                Asked::Reload => match self.secrets.reload() {
                    Ok(event) => self.log(LogLevel::Info, format_args!("{event}")),
                    Err(error) => self.log(LogLevel::Error, format_args!("{error}")),
                },
                Asked::Child => {}
            }
        }
        false
    }

    fn accept(&mut self) {
        if self.accept_after.is_some() {
            return;
        }
        let is_served = |entry: &Entry<F>| entry.is_ready;
        loop {
            if self.refusals_logged >= REFUSALS_MAX {
                return self.pause_accepting();
            }
            if self.accepts >= ACCEPTS_MAX && self.jobs.values().any(is_served) {
                self.awaits_callers = true;
                return self.pause_accepting();
            }
            let (stream, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // The caller has disconnected already.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // The process probably has no free descriptor.
                    self.pause_accepting();
                    return self.log(
                        LogLevel::Error,
                        format_args!("a caller cannot be accepted: {error}; raise LimitNOFILE"),
                    );
                }
            };
            self.accepts += 1;
            let accepted =
                self.connections
                    .accept(stream, address, self.secrets.all(), &self.poller);
            match accepted {
                Ok(Ok(_)) => {}
                Ok(Err((kind, reason))) => self.note_refusal(kind, &address.to_string(), &reason),
                Err(error) => self.log(LogLevel::Error, format_args!("{address}: {error}")),
            }
        }
    }

    /// Accepts no callers for a moment. The listener stays readable, so it is removed from the poller.
    fn pause_accepting(&mut self) {
        self.accept_after = Some(Instant::now() + TIMERS_LOOK);
        let _ = self.poller.remove(self.listener.as_raw_fd());
    }

    /// Accepts callers again after a pause.
    fn resume_accepting(&mut self) {
        self.accept_after = None;
        self.awaits_callers = false;
        let added = self.poller.add(self.listener.as_raw_fd(), LISTENER, false);
        if let Err(error) = added {
            self.log(LogLevel::Error, format_args!("no more callers: {error}"));
        }
    }

    /// A caller is a member of a job now.
    fn caller_joined(&mut self, id: ConnectionId, job: JobId) {
        self.connections.is_of(id, job);
        self.accepts = self.accepts.saturating_sub(1);
        if self.awaits_callers && self.accepts <= ACCEPTS_AGAIN {
            self.resume_accepting();
        }
    }

    /// Ends all jobs and waits briefly until the last frames are sent.
    fn stop(&mut self) {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.fail(
                id,
                &format!("the service at {} was stopped", self.advertise),
                None,
            );
        }
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            let mut waits = false;
            for (_, connection) in self.connections.iter_mut() {
                // A failed connection has nothing left to send.
                waits |= connection.link.flush().is_ok() && connection.link.wants_to_send();
            }
            if !waits || Instant::now() > end {
                return;
            }
            std::thread::yield_now();
        }
    }
}
