//! Set-up of a job at one SP: admits its ranks, receives the table of SPs, and connects to the other SPs.

use super::connections::{Candidate, ConnectionId, Role};
use super::job::Job;
use super::mover::Limits;
use super::state::{Entry, JOBS_MAX, Service, WORKERS};
use crate::control::{
    FRAMES, Frame, Hello, Keys, PeerHello, RANKS_MAX, ServiceAddress, Table, Welcome,
};
use crate::error::{OffloadError, Result};
use crate::job_id::JobId;
use crate::token::Token;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xgvmi_daemon::{FRAME_MAX, Link, LinkError, LogLevel};

/// Time limit for a connection to another SP. That SP is already listening: its ranks have connected to it.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// A refusal: a short name for the counters, and the message.
type Refusal = (&'static str, String);

impl Service {
    /// Handles a rank's hello. All fields are checked before memory is allocated for the rank.
    pub(super) fn hello(&mut self, id: ConnectionId, hello: Hello) {
        if let Err((kind, reason)) = self.check_hello(&hello) {
            return self.refuse(id, kind, &reason);
        }
        self.connections.known(id);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.link.set_frame_max(FRAME_MAX);
            connection.name = format!(
                "rank {} of job {} ({})",
                hello.rank, hello.job, connection.name
            );
            connection.role = Role::Candidate(Candidate(hello));
        }
    }

    fn check_hello(&self, hello: &Hello) -> std::result::Result<(), Refusal> {
        if hello.ucx_version != self.ucp.version() {
            let theirs: String = hello.ucx_version.chars().take(40).collect();
            return Err((
                "ucx_version",
                format!(
                    "it has UCX {theirs:?}, and this service UCX {}: use the same version",
                    self.ucp.version()
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
            None if self.draining.is_some() => Err((
                "draining",
                "this service ends when its jobs are done: use another one".to_owned(),
            )),
            None if self.jobs.len() >= JOBS_MAX => Err((
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

    /// Admits a rank whose hello was accepted, with its keys.
    pub(super) fn admit(&mut self, id: ConnectionId, keys: &Keys) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let role = std::mem::replace(&mut connection.role, Role::Caller);
        let Role::Candidate(Candidate(hello)) = role else {
            return;
        };
        // Other ranks may have been admitted since the hello.
        if let Err((kind, reason)) = self.check_hello(&hello) {
            return self.refuse(id, kind, &reason);
        }
        match self.admit_checked(id, &hello, keys) {
            Ok(()) => {}
            Err(error) => {
                let reason = format!(
                    "{error} (this service: {}, process {}, up {} s)",
                    self.advertise,
                    std::process::id(),
                    self.started.elapsed().as_secs()
                );
                self.refuse(id, "keys", &reason);
                // Without this rank the job cannot start.
                self.fail(
                    hello.job,
                    &format!("rank {}: {reason}", hello.rank),
                    Some(id),
                );
            }
        }
    }

    fn admit_checked(&mut self, id: ConnectionId, hello: &Hello, keys: &Keys) -> Result<()> {
        if !self.jobs.contains_key(&hello.job) {
            let entry = self.open(id, hello)?;
            self.jobs.insert(hello.job, entry);
            self.log(
                LogLevel::Info,
                format_args!(
                    "job {}: {} ranks, scheme {}",
                    hello.job, hello.size, hello.scheme
                ),
            );
        }
        let entry = self.jobs.get_mut(&hello.job).expect("just made");
        let token = Token::random().map_err(|error| OffloadError::io("random number", error))?;
        let accepted = entry.job.admit(hello.rank, keys, token)?;
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

    /// Opens UCX for a new job.
    fn open(&mut self, id: ConnectionId, hello: &Hello) -> Result<Entry> {
        let limits = Limits {
            sends: self.options.credits.sends,
            receives: self.options.credits.receives,
            direct_min: self.options.direct_min,
        };
        let job = Job::open(self.ucp, hello, limits)?;
        self.poller
            .add(job.event_fd(), WORKERS, false)
            .map_err(|error| OffloadError::io("epoll", error))?;
        let now = Instant::now();
        let connection = self.connections.get(id);
        Ok(Entry {
            job,
            secret: connection.and_then(|c| c.link.secret().cloned()),
            since: now,
            is_ready: false,
            ranks: BTreeMap::new(),
            services: BTreeMap::new(),
            accepted: BTreeSet::new(),
            beat: now,
            suspect: None,
        })
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
        self.connections.known(id);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.name = format!("service {} ({})", peer.index, connection.name);
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
        let Some((_, table)) = entry.job.table() else {
            return Ok(());
        };
        for (index, service) in (0..me).zip(&table.services) {
            let key = self.next_dial;
            self.next_dial += 1;
            self.dialing.insert(key, (id, index));
            self.dialer.dial(key, &service.tcp, DIAL_LIMIT);
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
            let Some((me, table)) = entry.job.table() else {
                continue;
            };
            let name = table.services.get(index as usize);
            let name = format!("service {index} ({})", name.map_or("", |of| &of.tcp));
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
                        .add(link, name.clone(), role, None, &self.poller)?;
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
