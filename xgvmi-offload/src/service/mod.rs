//! The service process (SP): takes in ranks, joins with the job's other SPs, and carries out their collectives.
//!
//! One thread, one poll loop: listener, TCP connections and UCP workers, of which each job has its own, so that nothing
//! of a job is left when it is over. [`ledger`] has the rules, [`job`] the UCX objects, this file the connections.

mod admission;
mod greeting;
mod job;
mod ledger;
mod options;
mod signal;
mod trust;
mod workers;

pub(super) use job::settings;
pub use options::{Credits, LogLevel, ServiceArgs, ServiceOptions};
pub(super) use options::{read_toml, within};
pub use workers::supervise;

use super::control::{Frame, JobId};
use super::error::{OffloadError, Result};
use super::link::{Link, poll, pollfd};
use super::secret::{Called, Calling};
use job::Job;
use signal::Signals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};
use ucx_sys::Ucp;

/// Most jobs at once: each has a UCX context.
const JOBS_MAX: usize = 64;

/// Most connections at once: the ranks and SPs of those jobs, and some that nobody knows yet.
const CONNECTIONS_MAX: usize = 1 << 14;

/// Beats of an SP in the time for which it may be silent. Opening UCX, or making aliases of announced keys, takes an SP a
/// fraction of a second; on a crowded machine, some.
const BEATS: u32 = 10;

/// The longest that a caller may take to say who it is, and that the last words of a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest wait for another SP to take a call: it listens since its ranks have met it, and other jobs wait as well.
const DIAL_LIMIT: Duration = Duration::from_secs(1);

/// How long a failure of UCX's waits for its cause: a connection's end is seen a little later than that of its queue
/// pairs, and says more.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);

/// Failed jobs that are remembered, for those who come late.
const FAILURES_MAX: usize = 64;

/// Rounds of work between two looks at the clock.
const BUSY_ROUNDS: u32 = 32;

/// How often sockets are looked at while there is work: what they bring is no collective's, and can wait a moment.
const SOCKETS_LOOK: Duration = Duration::from_millis(1);

/// How often the core is offered to others before a sleep. Who else wants it may be about to send something, and a
/// sleep and a wake-up cost several times as much as the offer; on a core of one's own the offers are over at once.
const YIELDS: u32 = 2;

/// The longest sleep: timers are looked at that often.
const TICK: Duration = Duration::from_millis(500);

/// An SP that listens.
#[derive(Debug)]
pub struct Service {
    options: ServiceOptions,
    ucp: &'static Ucp,
    unique: u64,
    advertise: String,
    listener: TcpListener,
    signals: Signals,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    jobs: BTreeMap<JobId, Entry>,
    /// Jobs that have failed, the last ones.
    failures: VecDeque<(JobId, String)>,
    ended: u64,
}

#[derive(Debug)]
struct Connection {
    link: Link,
    name: String,
    role: Role,
    since: Instant,
    heard: Instant,
    trust: Trust,
}

/// How far two that need a secret have got.
#[derive(Debug)]
enum Trust {
    /// The other side has it, or there is none.
    Full,
    /// The other side has called, and not proved anything.
    None,
    /// It has been asked to.
    Asked(Called),
    /// We have called, and say this when both have proved it.
    Calling(Calling, Frame),
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Has not said.
    Caller,
    Rank {
        job: JobId,
        rank: u32,
    },
    Service {
        job: JobId,
        index: u32,
    },
    /// Nothing more is expected; the last words are on their way.
    Leaving,
}

/// A job and who is connected for it.
#[derive(Debug)]
struct Entry {
    job: Job,
    since: Instant,
    is_ready: bool,
    /// Connections of ranks and of SPs that have not said goodbye.
    ranks: BTreeMap<u32, u64>,
    services: BTreeMap<u32, u64>,
    /// SPs that have called us, or have answered our call with anything but a refusal.
    accepted: BTreeSet<u32>,
    beat: Instant,
    /// UCX has failed, and why may be learnt until then.
    suspect: Option<(String, Instant)>,
}

impl Service {
    /// Opens UCX's library and listens.
    ///
    /// # Errors
    /// What cannot be opened, or listened on.
    pub fn new(options: ServiceOptions) -> Result<Self> {
        let ucp = Ucp::load(options.ucx_library.as_deref())
            .map_err(|error| OffloadError::Options(error.to_string()))?;
        let signals = Signals::new().map_err(|error| OffloadError::io("signalfd", error))?;
        let listen = || format!("listening on {}", options.listen);
        let listener = TcpListener::bind(&options.listen)
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
        if options.secret.is_none() && !bound.ip().is_loopback() {
            eprintln!(
                "xgvmi-sp {advertise}: warning: whoever reaches {bound} is served: give --secret-file, unless the \
                 network is the job's alone"
            );
        }
        let unique = super::random().map_err(|error| OffloadError::io("random number", error))?;
        #[expect(clippy::cast_possible_truncation, reason = "64 random bits of 128")]
        let unique = unique as u64;
        Ok(Self {
            options,
            ucp,
            unique,
            advertise,
            listener,
            signals,
            connections: BTreeMap::new(),
            next_connection: 0,
            jobs: BTreeMap::new(),
            failures: VecDeque::new(),
            ended: 0,
        })
    }

    /// Where other SPs find this one.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.advertise
    }

    /// UCX's version.
    #[must_use]
    pub fn ucx_version(&self) -> &'static str {
        self.ucp.version()
    }

    /// Serves until a signal, or the last of the jobs asked for.
    ///
    /// # Errors
    /// When the loop itself fails. A job that fails is none of it.
    pub fn run(&mut self) -> Result<()> {
        let mut last_event = Instant::now();
        let mut looked = last_event;
        let mut yields = 0;
        loop {
            let mut busy = false;
            for _ in 0..BUSY_ROUNDS {
                if !self.work() {
                    break;
                }
                busy = true;
            }
            let now = Instant::now();
            if busy {
                last_event = now;
                yields = 0;
            }
            let spin = now - last_event < self.options.spin;
            let sleep = if busy || spin {
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
            if !sleep && now - looked < SOCKETS_LOOK {
                continue;
            }
            let tick = if self.jobs.values().any(|entry| entry.suspect.is_some()) {
                CAUSE_LIMIT / 4
            } else {
                TICK.min(self.options.silence_limit / BEATS)
            };
            if self.wait(if sleep { tick } else { Duration::ZERO })? {
                self.stop();
                return Ok(());
            }
            looked = Instant::now();
            if self.options.jobs.is_some_and(|jobs| self.ended >= jobs) && self.jobs.is_empty() {
                self.stop();
                return Ok(());
            }
        }
    }

    /// One round over all jobs; true when something happened.
    fn work(&mut self) -> bool {
        let mut busy = false;
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(entry) = self.jobs.get_mut(&id) else {
                continue;
            };
            if entry.suspect.is_some() {
                continue;
            }
            match entry.job.progress() {
                Ok(happened) => busy |= happened,
                Err(error) => {
                    entry.suspect = Some((error.to_string(), Instant::now() + CAUSE_LIMIT));
                    continue;
                }
            }
            if !entry.is_ready && entry.job.is_connected() && entry.is_joined() {
                entry.is_ready = true;
                busy = true;
                if let Err(error) = entry.job.greet_ranks() {
                    self.fail(id, &error.to_string(), None);
                    continue;
                }
                for connection in entry.ranks.values().copied().collect::<Vec<_>>() {
                    self.tell(connection, &Frame::Ready);
                }
                self.log(LogLevel::Info, format_args!("job {id}: ready"));
            }
        }
        busy
    }

    /// Lets go what jobs have kept back for more to go with it; true if there was anything.
    fn settle(&mut self) -> bool {
        let mut busy = false;
        for entry in self.jobs.values_mut() {
            if entry.suspect.is_some() {
                continue;
            }
            match entry.job.settle() {
                Ok(happened) => busy |= happened,
                Err(error) => {
                    entry.suspect = Some((error.to_string(), Instant::now() + CAUSE_LIMIT));
                }
            }
        }
        busy
    }

    /// Asks all workers for a wake-up; false when one has something to do.
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

    /// Waits for sockets and workers, and sees to the sockets and timers; true when a signal asks for the end.
    fn wait(&mut self, limit: Duration) -> Result<bool> {
        let mut fds = vec![
            pollfd(self.signals.fd(), libc::POLLIN),
            pollfd(self.listener.as_raw_fd(), libc::POLLIN),
        ];
        fds.extend(self.connections.values().map(|c| c.link.pollfd()));
        fds.extend(
            self.jobs
                .values()
                .map(|entry| pollfd(entry.job.event_fd(), libc::POLLIN)),
        );
        poll(&mut fds, Some(limit)).map_err(|error| OffloadError::io("poll", error))?;
        if fds[0].revents != 0 {
            return Ok(true);
        }
        let ready: Vec<u64> = self
            .connections
            .keys()
            .copied()
            .zip(&fds[2..])
            .filter(|(_, fd)| fd.revents != 0)
            .map(|(id, _)| id)
            .collect();
        for id in ready {
            self.serve(id);
        }
        if fds[1].revents != 0 {
            self.accept();
        }
        self.keep_time();
        Ok(false)
    }

    fn accept(&mut self) {
        // A caller that is gone again, or a lack of descriptors, is no reason to end; the latter shows at the caller.
        while let Ok((stream, address)) = self.listener.accept() {
            if self.connections.len() >= CONNECTIONS_MAX {
                self.log(
                    LogLevel::Error,
                    format_args!("{address}: {CONNECTIONS_MAX} connections are the most"),
                );
                continue;
            }
            match Link::new(stream) {
                Ok(mut link) => {
                    let trust = match self.options.secret {
                        Some(_) => Trust::None,
                        None => Trust::Full,
                    };
                    link.trust(matches!(trust, Trust::Full));
                    self.add(link, address.to_string(), Role::Caller, trust);
                }
                Err(error) => self.log(LogLevel::Error, format_args!("{address}: {error}")),
            }
        }
    }

    fn add(&mut self, link: Link, name: String, role: Role, trust: Trust) -> u64 {
        let id = self.next_connection;
        self.next_connection += 1;
        let now = Instant::now();
        let connection = Connection {
            link,
            name,
            role,
            since: now,
            heard: now,
            trust,
        };
        self.connections.insert(id, connection);
        id
    }

    /// Sees to one connection.
    fn serve(&mut self, id: u64) {
        while let Some(connection) = self.connections.get_mut(&id) {
            let taken = connection
                .link
                .flush()
                .and_then(|()| connection.link.take());
            match taken {
                Ok(Some(frame)) => {
                    connection.heard = Instant::now();
                    if connection.role != Role::Leaving {
                        self.hear(id, frame);
                    }
                }
                Ok(None) => return,
                Err(error) => return self.lose(id, &error),
            }
        }
    }

    fn hear(&mut self, id: u64, frame: Frame) {
        let Some(role) = self.connections.get(&id).map(|connection| connection.role) else {
            return;
        };
        if let Some(frame) = self.get_acquainted(id, frame) {
            self.take(id, role, frame);
        }
    }

    /// A frame of somebody who may speak.
    fn take(&mut self, id: u64, role: Role, frame: Frame) {
        match (role, frame) {
            (Role::Caller, Frame::Hello(hello)) => {
                if let Err(error) = self.admit(id, &hello) {
                    self.refuse(id, &error.to_string());
                }
            }
            (Role::Caller, Frame::Peer(peer)) => self.join(id, &peer),
            (Role::Rank { job, .. }, Frame::Table(table)) => {
                if let Err(error) = self.set_table(job, table) {
                    self.fail(job, &error.to_string(), None);
                }
            }
            (Role::Rank { job, rank }, Frame::Bye) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.ranks.remove(&rank);
                }
                self.leave(id);
                self.end_if_done(job);
            }
            (Role::Service { job, index }, Frame::Bye) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.services.remove(&index);
                }
                self.leave(id);
            }
            (Role::Service { job, index }, Frame::Beat) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.accepted.insert(index);
                }
            }
            (
                Role::Rank { job, .. } | Role::Service { job, .. },
                Frame::Abort { reason } | Frame::Refused { reason },
            ) => {
                self.fail(job, &reason, Some(id));
            }
            (role, frame) => {
                // By characters: what a stranger sent may be cut within one.
                let text: String = format!("{frame:?}").chars().take(40).collect();
                let reason = format!("{role:?}: unexpected {text}");
                match role {
                    Role::Rank { job, .. } | Role::Service { job, .. } => {
                        self.fail(job, &reason, None);
                    }
                    Role::Caller | Role::Leaving => self.refuse(id, &reason),
                }
            }
        }
    }

    /// A connection has ended.
    fn lose(&mut self, id: u64, error: &io::Error) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if connection.role == Role::Caller && error.kind() == io::ErrorKind::InvalidData {
            // Another version of this program, which may still understand the answer's first bytes.
            return self.refuse(id, &error.to_string());
        }
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let how = if error.kind() == io::ErrorKind::UnexpectedEof {
            "has closed its connection without a goodbye: it has ended or was killed".to_owned()
        } else {
            format!("is lost: {error}")
        };
        let name = connection.name;
        match connection.role {
            Role::Rank { job, .. } => self.fail(job, &format!("{name} {how}"), Some(id)),
            Role::Service { job, .. } => {
                self.fail(job, &format!("{name} {how}"), Some(id));
            }
            Role::Caller => self.log(LogLevel::Debug, format_args!("{name} {how}")),
            Role::Leaving => {}
        }
    }

    /// Ends a job that has failed, and tells everybody in it but `but`, who knows.
    fn fail(&mut self, id: JobId, reason: &str, but: Option<u64>) {
        let Some(entry) = self.jobs.remove(&id) else {
            return;
        };
        self.log(LogLevel::Error, format_args!("job {id}: {reason}"));
        self.failures.truncate(FAILURES_MAX - 1);
        self.failures.push_front((id, reason.to_owned()));
        let frame = Frame::Abort {
            reason: reason.to_owned(),
        };
        for connection in entry.ranks.values().chain(entry.services.values()) {
            if Some(*connection) != but {
                self.tell(*connection, &frame);
            }
            self.leave(*connection);
        }
        entry.job.shut();
        self.ended += 1;
    }

    /// Ends a job whose ranks have all said goodbye.
    fn end_if_done(&mut self, id: JobId) {
        let is_done = |entry: &Entry| entry.ranks.is_empty();
        if !self.jobs.get(&id).is_some_and(is_done) {
            return;
        }
        if let Some(entry) = self.jobs.remove(&id) {
            for connection in entry.services.values() {
                self.tell(*connection, &Frame::Bye);
                self.leave(*connection);
            }
            entry.job.shut();
            self.ended += 1;
            self.log(LogLevel::Info, format_args!("job {id}: done"));
        }
    }

    fn refuse(&mut self, id: u64, reason: &str) {
        if let Some(connection) = self.connections.get(&id) {
            self.log(
                LogLevel::Error,
                format_args!("refused {}: {reason}", connection.name),
            );
        }
        let reason = reason.to_owned();
        self.tell(id, &Frame::Refused { reason });
        self.leave(id);
    }

    /// Sends a frame; a connection that takes none is found out when it is read next.
    fn tell(&mut self, id: u64, frame: &Frame) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let _ = connection.link.send(frame);
        }
    }

    /// Expects nothing more of a connection. The other side closes it, or time does.
    fn leave(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Leaving;
            connection.since = Instant::now();
            connection.link.close_when_sent();
        }
    }

    /// Beats, and ends what has taken too long.
    fn keep_time(&mut self) {
        let now = Instant::now();
        let silence_max = self.options.silence_limit;
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| match connection.role {
                Role::Caller | Role::Leaving => now - connection.since > PATIENCE,
                Role::Service { .. } => now - connection.heard > silence_max,
                Role::Rank { .. } => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let silence = format!("nothing was heard for {} s", silence_max.as_secs());
            self.lose(id, &io::Error::other(silence));
        }
        let mut beats = Vec::new();
        let mut failed = Vec::new();
        for (id, entry) in &mut self.jobs {
            if now - entry.beat > silence_max / BEATS {
                entry.beat = now;
                beats.extend(entry.services.values().chain(entry.ranks.values()));
            }
            if let Some((reason, until)) = &entry.suspect
                && now > *until
            {
                failed.push((*id, reason.clone()));
                continue;
            }
            if !entry.is_ready && now - entry.since > self.options.setup_limit {
                failed.push((*id, entry.missing(self.options.setup_limit)));
            }
        }
        for connection in beats {
            self.tell(connection, &Frame::Beat);
        }
        for (id, reason) in failed {
            self.fail(id, &reason, None);
        }
    }

    /// Ends all jobs, and waits a moment for the last words to leave.
    fn stop(&mut self) {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.fail(
                id,
                &format!("the service at {} was stopped", self.advertise),
                None,
            );
        }
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end && self.connections.values().any(|c| c.link.wants_to_send()) {
            for connection in self.connections.values_mut() {
                // A connection that takes nothing has nothing to send any more.
                let _ = connection.link.flush();
            }
            std::thread::yield_now();
        }
    }

    fn log(&self, level: LogLevel, text: std::fmt::Arguments<'_>) {
        if level <= self.options.log {
            eprintln!("xgvmi-sp {}: {text}", self.advertise);
        }
    }
}
