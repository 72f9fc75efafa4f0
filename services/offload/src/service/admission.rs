//! Set-up of a job at one SP: admits its ranks, receives the table of SPs, and connects to the other SPs.

use super::connections::{Candidate, Connection, ConnectionId, Role};
use super::mover::Limits;
use super::preparing::{Admission, Moving, Prepared, accept, prepare};
use super::state::{Entry, JOBS_MAX, Sp, WORKERS};
use super::transport::Fabric;
use crate::control::{
    FRAMES, Frame, Hello, Keys, PeerHello, RANKS_MAX, ServiceAddress, Table, Welcome,
};
use crate::error::{OffloadError, Result};
use crate::job_id::JobId;
use crate::scheme::Scheme;
use crate::token::Token;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xgvmi_daemon::{FRAME_MAX, Link, LinkError, LogLevel};
use xgvmi_ucp::InboxLimits;

/// Time limit for a connection to another SP. That SP is already listening: its ranks have connected to it.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// Share of the memory for calls that those of one communicator may keep. Ranks let further calls wait. The rest is for other
/// communicators, other jobs, and the segments of allreduces.
const WINDOWS: usize = 32;

/// A refusal: a short name for the counters, and the message.
type Refusal = (&'static str, String);

impl<F: Fabric> Sp<F> {
    /// Handles a rank's hello. All fields are checked before memory is allocated for the rank.
    pub(super) fn hello(&mut self, id: ConnectionId, hello: Hello) {
        if let Err((kind, reason)) = self.check_hello(&hello) {
            return self.refuse(id, kind, &reason);
        }
        self.caller_joined(id, hello.job);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.link.set_frame_max(FRAME_MAX);
            connection.name = format!(
                "rank {} of job {} ({})",
                hello.rank, hello.job, connection.name
            );
            connection.role = Role::Candidate(Candidate(hello));
        }
    }

    /// Number of jobs whose UCX is open, being opened, or being closed.
    fn contexts(&self) -> usize {
        self.jobs.len() + self.opening.len() + self.closing.pending()
    }

    fn check_hello(&self, hello: &Hello) -> std::result::Result<(), Refusal> {
        if hello.ucx_version != F::version(self.library) {
            let theirs: String = hello.ucx_version.chars().take(40).collect();
            return Err((
                "ucx_version",
                format!(
                    "it has UCX {theirs:?}, and this service UCX {}: use the same version",
                    F::version(self.library)
                ),
            ));
        }
        if let Some(scheme) = self.options.scheme
            && scheme != hello.scheme
        {
            return Err((
                "scheme",
                format!(
                    "its scheme is {}, and this service's {scheme}",
                    hello.scheme
                ),
            ));
        }
        if hello.size > RANKS_MAX || hello.rank >= hello.size {
            return Err((
                "rank",
                format!(
                    "rank {} of {}: ranks count from 0, and {RANKS_MAX} are the most of a job",
                    hello.rank, hello.size
                ),
            ));
        }
        if let Some(reason) = self.failure_of(hello.job) {
            return Err(("job_failed", reason));
        }
        match self.jobs.get(&hello.job) {
            // A job whose UCX is being opened has begun.
            None if self.draining.is_some() && !self.opening.contains(&hello.job) => Err((
                "draining",
                "this service ends when its jobs are done: use another one".to_owned(),
            )),
            None if !self.opening.contains(&hello.job) && self.contexts() >= JOBS_MAX => Err((
                "jobs",
                format!("{JOBS_MAX} jobs are the most of a service: try later, or use another one"),
            )),
            Some(entry) if (entry.job.size, entry.job.scheme) != (hello.size, hello.scheme) => {
                Err((
                    "job_differs",
                    format!(
                        "it is of a job of {} ranks, scheme {}; others said {}, scheme {}",
                        hello.size, hello.scheme, entry.job.size, entry.job.scheme
                    ),
                ))
            }
            Some(entry) if entry.job.has_rank(hello.rank) => {
                Err(("rank_taken", format!("rank {} is here already", hello.rank)))
            }
            Some(entry) if entry.job.table().is_some() => Err((
                "late",
                format!("job {} has begun without rank {}", hello.job, hello.rank),
            )),
            _ => Ok(()),
        }
    }

    /// Starts to admit a rank whose hello was accepted. Another thread opens UCX for its job if the job is new, and
    /// creates the aliases of its keys.
    pub(super) fn admit(&mut self, id: ConnectionId, keys: Keys) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let role = std::mem::replace(&mut connection.role, Role::Caller);
        let Role::Candidate(Candidate(hello)) = role else {
            return;
        };
        let secret = connection.link.secret().cloned();
        // Other ranks may have been admitted since the hello.
        if let Err((kind, reason)) = self.check_hello(&hello) {
            return self.refuse(id, kind, &reason);
        }
        if let Some(connection) = self.connections.get_mut(id) {
            connection.role = Role::Admitting { job: hello.job };
        }
        let is_new = !self.jobs.contains_key(&hello.job) && self.opening.insert(hello.job);
        let limits = Limits {
            sends: self.options.unanswered(),
            receives: self.options.receives,
            direct_min: self.options.direct_min,
            imports: self.options.imports,
            radix: self.options.trees(),
        };
        let inbox = InboxLimits {
            // The ranks of one job cannot stop those of another.
            bytes_per_worker: self.options.buffer_bytes_max / 2,
            budget: self.inbox.clone(),
            ..InboxLimits::default()
        };
        let open = is_new.then_some((self.library, limits, inbox));
        let admission = Box::new(Admission {
            connection: id,
            hello,
            keys,
            secret,
            since: Instant::now(),
        });
        self.preparing.submit(move || prepare(admission, open));
    }

    /// Handles finished work of the preparing thread.
    pub(super) fn take_prepared(&mut self) {
        while let Some(prepared) = self.preparing.take() {
            match prepared {
                Prepared::Admission {
                    admission,
                    job,
                    accepted,
                } => self.admit_prepared(&admission, job, accepted),
                Prepared::More {
                    connection,
                    accepted,
                } => self.more_accepted(connection, accepted),
            }
        }
    }

    fn admit_prepared(
        &mut self,
        admission: &Admission,
        job: Option<Result<Box<Moving<F>>>>,
        accepted: Result<u64>,
    ) {
        let (id, hello) = (admission.connection, &admission.hello);
        let opened = job.map_or(Ok(()), |job| {
            self.opening.remove(&hello.job);
            self.open(admission, *job?)
        });
        let is_here = |c: &Connection| matches!(c.role, Role::Admitting { .. });
        if !self.connections.get(id).is_some_and(is_here) {
            // Without this rank the job cannot start.
            let job = self.jobs.get(&hello.job);
            if job.is_some_and(|entry| !entry.job.has_rank(hello.rank)) {
                let reason = format!("rank {} has left while it was admitted", hello.rank);
                self.fail(hello.job, &reason, None);
            }
            return;
        }
        // Other ranks may have been admitted since the keys, or the job may have failed.
        if opened.is_ok()
            && let Err((kind, reason)) = self.check_hello(hello)
        {
            return self.refuse(id, kind, &reason);
        }
        let admitted = opened
            .and(accepted)
            .and_then(|accepted| self.admit_checked(admission, accepted));
        if let Err(error) = admitted {
            let reason = format!(
                "{error} (this service: {}, process {}, up {} s)",
                self.advertise,
                std::process::id(),
                self.daemon.uptime_s()
            );
            self.refuse(id, "keys", &reason);
            // Without this rank the job cannot start.
            let reason = format!("rank {}: {reason}", hello.rank);
            if self.jobs.contains_key(&hello.job) {
                self.fail(hello.job, &reason, Some(id));
            } else {
                self.remember(hello.job, &reason);
            }
        }
    }

    fn admit_checked(&mut self, admission: &Admission, accepted: u64) -> Result<()> {
        let (id, hello) = (admission.connection, &admission.hello);
        let ended = || OffloadError::Failed("its job has ended".to_owned());
        let token = Token::random().map_err(|error| OffloadError::io("random number", error))?;
        let entry = self.jobs.get_mut(&hello.job).ok_or_else(ended)?;
        if entry.job.admit(hello.rank, &admission.keys, token).is_err() {
            // The device may be full.
            self.drop_free();
            let entry = self.jobs.get_mut(&hello.job).ok_or_else(ended)?;
            entry.job.admit(hello.rank, &admission.keys, token)?;
        }
        let entry = self.jobs.get_mut(&hello.job).ok_or_else(ended)?;
        entry.ranks.insert(hello.rank, id);
        let silence = self.options.silence_limit.as_millis();
        let welcome = Welcome {
            service: ServiceAddress {
                unique: self.unique,
                tcp: self.advertise.clone(),
                worker: entry.job.address()?,
            },
            token,
            direct_min: self.options.direct_min,
            silence_ms: u64::try_from(silence).expect("an hour at the most"),
            accepted,
            call_bytes: (self.options.call_bytes_max / WINDOWS) as u64,
            // A host that destroys the key of a buffer expects that it has no aliases.
            imports: match hello.scheme {
                Scheme::Ksm => 0,
                Scheme::Stock | Scheme::Xgvmi => self.options.imports,
            },
            radix: self.options.trees(),
        };
        if let Some(connection) = self.connections.get_mut(id) {
            connection.name = format!("rank {}", hello.rank);
            connection.role = Role::Rank {
                job: hello.job,
                rank: hello.rank,
            };
        }
        self.log(
            LogLevel::Debug,
            format_args!(
                "job {}: rank {} is here, {accepted} aliases",
                hello.job, hello.rank
            ),
        );
        self.tell(id, &Frame::Welcome(welcome));
        Ok(())
    }

    /// Adds a job whose UCX is open.
    fn open(&mut self, admission: &Admission, job: Moving<F>) -> Result<()> {
        let (hello, job) = (&admission.hello, job.arrived());
        self.poller
            .add(job.event_fd(), WORKERS, false)
            .map_err(|error| OffloadError::io("epoll", error))?;
        let entry = Entry {
            job,
            secret: admission.secret.clone(),
            since: admission.since,
            is_ready: false,
            ranks: BTreeMap::new(),
            services: BTreeMap::new(),
            accepted: BTreeSet::new(),
            beat: Instant::now(),
            suspect: None,
        };
        self.jobs.insert(hello.job, entry);
        self.log(
            LogLevel::Info,
            format_args!(
                "job {}: {} ranks, scheme {}",
                hello.job, hello.size, hello.scheme
            ),
        );
        Ok(())
    }

    /// A rank's pool has grown: another thread creates the aliases of the new keys. A later announcement contains
    /// all keys of an earlier one, so only the last one waits.
    pub(super) fn more(&mut self, id: ConnectionId, announcement: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if let Some(waiting) = &mut connection.more {
            *waiting = Some(announcement);
            return;
        }
        connection.more = Some(None);
        self.preparing.submit(move || Prepared::More {
            connection: id,
            accepted: accept(&announcement),
        });
    }

    fn more_accepted(&mut self, id: ConnectionId, accepted: Result<u64>) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let waiting = connection.more.take().flatten();
        let name = connection.name.clone();
        match accepted {
            Ok(accepted) => {
                self.log(
                    LogLevel::Debug,
                    format_args!("{name}: {accepted} aliases of more keys"),
                );
                if let Some(waiting) = waiting {
                    self.more(id, waiting);
                }
            }
            // Its first use of the keys creates the aliases.
            Err(error) => self.log(LogLevel::Error, format_args!("{name}: {error}")),
        }
    }

    /// Handles the hello of another SP.
    pub(super) fn join(&mut self, id: ConnectionId, peer: &PeerHello) {
        if let Err((kind, reason)) = self.check_peer(peer) {
            return self.refuse(id, kind, &reason);
        }
        let token = match Token::random() {
            Ok(token) => token,
            Err(error) => return self.refuse(id, "io", &format!("no random number: {error}")),
        };
        self.caller_joined(id, peer.job);
        let entry = self.jobs.get(&peer.job);
        let name = entry.and_then(|entry| name_in_table(entry, peer.index));
        if let Some(connection) = self.connections.get_mut(id) {
            // The port of a caller says nothing. The table names the address; until it comes, the host is known.
            connection.name = name.unwrap_or_else(|| {
                let host = connection.link.peer_ip();
                let host = host.map_or_else(|| "a host".to_owned(), |ip| ip.to_string());
                format!("service {} of {host}", peer.index)
            });
            connection.role = Role::Service {
                job: peer.job,
                index: peer.index,
            };
        }
        let Some(entry) = self.jobs.get_mut(&peer.job) else {
            return;
        };
        entry.services.insert(peer.index, id);
        entry.accepted.insert(peer.index);
        entry.job.expect_service(peer.index, token);
        let met = entry.job.meet_service(peer.index, peer.token);
        self.tell(id, &Frame::PeerWelcome(token));
        if let Err(error) = met {
            self.fail(peer.job, &error.to_string(), None);
        }
    }

    fn check_peer(&self, peer: &PeerHello) -> std::result::Result<(), Refusal> {
        if let Some(reason) = self.failure_of(peer.job) {
            return Err(("job_failed", reason));
        }
        let Some(entry) = self.jobs.get(&peer.job) else {
            return Err((
                "no_job",
                format!(
                    "there is no job {} at the service {}: it may be an older one at the same port",
                    peer.job, self.advertise
                ),
            ));
        };
        let known = entry
            .job
            .table()
            .map(|(me, table)| (me, table.services.len()));
        // A job has at most as many SPs as ranks. SPs of higher index connect to SPs of lower index.
        let fits = known.map_or(peer.index < entry.job.size, |(me, count)| {
            peer.index > me && (peer.index as usize) < count
        });
        if !fits {
            return Err((
                "service",
                format!(
                    "service {} does not call this one in job {}",
                    peer.index, peer.job
                ),
            ));
        }
        if entry.services.contains_key(&peer.index) {
            return Err((
                "service_taken",
                format!("service {} is here already", peer.index),
            ));
        }
        Ok(())
    }

    /// Stores a job's table and connects to the SPs of lower index; the SPs of higher index connect to this one.
    pub(super) fn set_table(&mut self, id: JobId, table: Table) -> Result<()> {
        let Some(entry) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        if entry.job.table().is_some() {
            return Err(OffloadError::Failed(
                "a rank has sent a second table".to_owned(),
            ));
        }
        let me = entry.job.set_table(table, self.unique)?;
        if let Some(index) = entry.services.keys().find(|index| **index <= me) {
            return Err(OffloadError::Failed(format!(
                "service {index} has called, and is to be called by this one, service {me}"
            )));
        }
        for (index, connection) in &entry.services {
            if let Some(connection) = self.connections.get_mut(*connection)
                && let Some(name) = name_in_table(entry, *index)
            {
                connection.name = name;
            }
        }
        let Some((_, table)) = entry.job.table() else {
            return Ok(());
        };
        for (index, service) in (0..me).zip(&table.services) {
            let key = self.next_dial;
            self.next_dial += 1;
            self.dialing.insert(key, (id, index));
            self.dialer.dial(id.0, key, &service.tcp, DIAL_LIMIT);
        }
        Ok(())
    }

    /// Handles completed connection attempts to other SPs.
    pub(super) fn take_dialed(&mut self) {
        while let Some((key, stream)) = self.dialer.take() {
            let Some((id, index)) = self.dialing.remove(&key) else {
                continue;
            };
            // The job may have ended in the meantime.
            let Some(entry) = self.jobs.get_mut(&id) else {
                continue;
            };
            let Some((me, _)) = entry.job.table() else {
                continue;
            };
            let name = name_in_table(entry, index).unwrap_or_else(|| format!("service {index}"));
            let secret = entry.secret.clone();
            let called = stream.map_err(LinkError::Io).and_then(|stream| {
                let token = Token::random()?;
                let mut link = Link::calling(stream, FRAMES, secret.as_ref())?;
                let hello = Frame::Peer(PeerHello {
                    job: id,
                    index: me,
                    token,
                });
                link.send(&hello.to_bytes())?;
                Ok((link, token))
            });
            let added = called.and_then(|(link, token)| {
                let role = Role::Service { job: id, index };
                let connection =
                    self.connections
                        .add_dialed(link, name.clone(), role, id, &self.poller)?;
                Ok((connection, token))
            });
            match added {
                Ok((connection, token)) => {
                    entry.services.insert(index, connection);
                    entry.job.expect_service(index, token);
                }
                Err(error) => self.fail(id, &format!("cannot reach {name}: {error}"), None),
            }
        }
    }

    fn failure_of(&self, job: JobId) -> Option<String> {
        self.failures
            .iter()
            .find(|(failed, _)| *failed == job)
            .map(|(_, reason)| reason.clone())
    }
}

/// The name of an SP of the table: its index, and the address at which it listens.
fn name_in_table<F: Fabric>(entry: &Entry<F>, index: u32) -> Option<String> {
    let (_, table) = entry.job.table()?;
    let service = table.services.get(index as usize)?;
    Some(format!("service {index} ({})", service.tcp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::Scheme;
    use crate::service::standin::connect::idle;

    #[test]
    fn a_job_whose_ucx_is_being_opened_has_begun() {
        let mut sp = idle();
        let hello = |job| Hello {
            job: JobId(job),
            rank: 1,
            size: 2,
            scheme: Scheme::Stock,
            ucx_version: "stand-in".to_owned(),
        };
        sp.opening.insert(JobId(1));
        sp.draining = Some(Instant::now() + DIAL_LIMIT);
        assert_eq!(sp.check_hello(&hello(1)), Ok(()));
        let (kind, _) = sp.check_hello(&hello(2)).expect_err("refused");
        assert_eq!(kind, "draining");
    }
}
