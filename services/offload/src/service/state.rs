//! State of an SP: its jobs, its connections, and the end of both.

use super::connections::{ConnectionId, Connections, KEY_FIRST};
use super::counters::Counters;
use super::job::Job;
use super::options::ServiceOptions;
use super::preparing::{Moving, Prepared};
use super::pulse::Pulse;
use super::transport::{Fabric, Ucx};
use crate::control::Frame;
use crate::job_id::JobId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Background, Daemon, Dialer, LogLevel, Poller, Secret, Secrets};
use xgvmi_ucp::InboxBudget;

/// Maximum number of jobs at once: each has a UCX context.
pub(super) const JOBS_MAX: usize = 64;

/// Number of failed jobs to remember. Ranks that connect late receive the failure.
pub(super) const FAILURES_MAX: usize = 64;

/// Maximum number of log lines about refused peers per timer check. A hostile peer must not fill the disk.
pub(super) const REFUSALS_LOGGED: u32 = 10;

/// Name of the refusals of UCP messages that no peer of the job has sent.
pub(super) const STRANGER: &str = "stranger";

/// Key of all workers: their events only end the sleep.
pub(super) const WORKERS: u64 = KEY_FIRST - 1;

/// A listening SP.
#[derive(Debug)]
pub struct Service(pub(super) Sp<Ucx>);

/// A listening SP with any transport.
#[derive(Debug)]
pub(super) struct Sp<F: Fabric> {
    pub(super) options: ServiceOptions,
    /// Opens the transport of each job.
    pub(super) library: F::Library,
    pub(super) unique: u64,
    pub(super) advertise: String,
    pub(super) secrets: Secrets,
    pub(super) listener: TcpListener,
    /// Set when no descriptor was left for a caller, or when there were too many callers: time of the next accept.
    pub(super) accept_after: Option<Instant>,
    /// Callers since the last timer check that have not become members of a job.
    pub(super) accepts: u32,
    /// The pause ends when enough of these callers have become members of a job.
    pub(super) awaits_callers: bool,
    pub(super) daemon: Daemon,
    pub(super) dialer: Dialer,
    /// SPs with a connection attempt in progress, by the dialer's keys.
    pub(super) dialing: BTreeMap<u64, (JobId, u32)>,
    pub(super) next_dial: u64,
    /// Opens UCX for new jobs and creates aliases.
    pub(super) preparing: Background<Prepared<F>>,
    /// Jobs whose UCX is being opened.
    pub(super) opening: BTreeSet<JobId>,
    /// Closes UCX of ended jobs.
    pub(super) closing: Background<()>,
    /// Memory of the waiting UCP messages of all jobs.
    pub(super) inbox: InboxBudget,
    pub(super) poller: Poller,
    pub(super) connections: Connections,
    /// Connections with frames that were read but not handled.
    pub(super) unheard: Vec<ConnectionId>,
    pub(super) jobs: BTreeMap<JobId, Entry<F>>,
    /// The most recent failed jobs.
    pub(super) failures: VecDeque<(JobId, String)>,
    pub(super) counters: Counters,
    pub(super) timers_looked: Instant,
    pub(super) pulse: Pulse,
    /// Calls that ranks have entered since the last read of the clock.
    pub(super) entries: u32,
    /// Refusals since the last timer check. The first ones are logged; many of them pause the accepting of callers.
    pub(super) refusals_logged: u32,
    /// Set after SIGTERM: jobs may continue until then.
    pub(super) draining: Option<Instant>,
}

/// A job and its connections.
#[derive(Debug)]
pub(super) struct Entry<F: Fabric> {
    pub(super) job: Job<F>,
    /// The secret that the job's ranks have proved. Connections to other SPs use the same one.
    pub(super) secret: Option<Secret>,
    pub(super) since: Instant,
    pub(super) is_ready: bool,
    /// Connections of ranks and SPs that have not sent a goodbye.
    pub(super) ranks: BTreeMap<u32, ConnectionId>,
    pub(super) services: BTreeMap<u32, ConnectionId>,
    /// SPs that have connected to this one, or have accepted its connection.
    pub(super) accepted: BTreeSet<u32>,
    pub(super) beat: Instant,
    /// UCX has failed; the job waits until then for the cause.
    pub(super) suspect: Option<(String, Instant)>,
}

impl<F: Fabric> Sp<F> {
    /// Ends a failed job and notifies all its members except `but`, which reported the failure.
    pub(super) fn fail(&mut self, id: JobId, reason: &str, but: Option<ConnectionId>) {
        let Some(entry) = self.jobs.remove(&id) else {
            return;
        };
        self.remember(id, reason);
        let frame = Frame::Abort(reason.to_owned());
        for connection in entry.ranks.values().chain(entry.services.values()) {
            if Some(*connection) != but {
                self.tell(*connection, &frame);
            }
            self.connections.leave(*connection, &self.poller);
        }
        self.counters.past.add(entry.job.moved());
        self.close(id, entry.job, false);
        self.counters.jobs_failed += 1;
    }

    /// Releases a job, which is done or has failed, in another thread.
    fn close(&mut self, id: JobId, job: Job<F>, done: bool) {
        self.dialer.cancel(id.0);
        self.dialing.retain(|_, (of, _)| *of != id);
        if job.strangers() > 0 {
            *self.counters.refusals.entry(STRANGER).or_default() += job.strangers();
        }
        // The descriptor must not wake this thread any more.
        let _ = self.poller.remove(job.event_fd());
        let job = Moving::new(job);
        // After a panic of the job its end may panic as well.
        self.closing.submit(move || {
            let _ = catch_unwind(AssertUnwindSafe(|| job.shut(done)));
        });
    }

    /// Remembers why a job has failed, for ranks that connect later.
    pub(super) fn remember(&mut self, id: JobId, reason: &str) {
        self.log(LogLevel::Error, format_args!("job {id}: {reason}"));
        self.failures.truncate(FAILURES_MAX - 1);
        self.failures.push_front((id, reason.to_owned()));
    }

    /// Ends a job whose ranks have all sent a goodbye.
    pub(super) fn end_if_done(&mut self, id: JobId) {
        let is_done = |entry: &Entry<F>| entry.ranks.is_empty();
        if !self.jobs.get(&id).is_some_and(is_done) {
            return;
        }
        if let Some(entry) = self.jobs.remove(&id) {
            for connection in entry.services.values() {
                self.tell(*connection, &Frame::Bye);
                self.connections.leave(*connection, &self.poller);
            }
            let moved = entry.job.moved();
            let (calls, blocks, copies) = (moved.calls, moved.blocks, moved.copies);
            self.counters.past.add(moved);
            self.close(id, entry.job, true);
            self.counters.jobs_done += 1;
            self.log(
                LogLevel::Info,
                format_args!("job {id}: done, {calls} calls of its ranks completed, {blocks} blocks, {copies} copies"),
            );
        }
    }

    /// Refuses a peer. `kind` is the reason's short name.
    pub(super) fn refuse(&mut self, id: ConnectionId, kind: &'static str, reason: &str) {
        if let Some(connection) = self.connections.get(id) {
            let name = connection.name.clone();
            self.note_refusal(kind, &name, reason);
        }
        self.connections.refuse(id, reason, &self.poller);
    }

    pub(super) fn note_refusal(&mut self, kind: &'static str, peer: &str, reason: &str) {
        *self.counters.refusals.entry(kind).or_default() += 1;
        self.refusals_logged += 1;
        if self.refusals_logged <= REFUSALS_LOGGED {
            self.log(LogLevel::Error, format_args!("refused {peer}: {reason}"));
        }
    }

    pub(super) fn tell(&mut self, id: ConnectionId, frame: &Frame) {
        self.connections.tell(id, frame, &self.poller);
    }

    pub(super) fn log(&self, level: LogLevel, text: std::fmt::Arguments<'_>) {
        if level <= self.options.log {
            eprintln!("xgvmi-sp {}: {text}", self.advertise);
        }
    }
}

impl<F: Fabric> Entry<F> {
    /// Whether all other SPs are connected and have accepted.
    pub(super) fn is_joined(&self) -> bool {
        self.job.table().is_some_and(|(me, table)| {
            (0..)
                .take(table.services.len())
                .all(|index| index == me || self.accepted.contains(&index))
        })
    }

    /// Describes the peers that the job still waits for.
    pub(super) fn missing(&self, limit: Duration) -> String {
        match self.job.table() {
            None => format!(
                "after {limit:?} no rank has named the services; {} ranks are here",
                self.ranks.len()
            ),
            Some((me, table)) => {
                let ours = table.ranks_of(me);
                let absent: Vec<String> = ours
                    .filter(|rank| !self.ranks.contains_key(rank))
                    .map(|rank| rank.to_string())
                    .collect();
                let others = (0..)
                    .take(table.services.len())
                    .filter(|index| *index != me);
                let unjoined: Vec<String> = others
                    .filter(|index| !self.accepted.contains(index))
                    .map(|index| index.to_string())
                    .collect();
                format!(
                    "after {limit:?} not all are connected: ranks without a connection: [{}], services: [{}]",
                    absent.join(", "),
                    unjoined.join(", ")
                )
            }
        }
    }
}
