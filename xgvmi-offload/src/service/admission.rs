//! How a job comes together at one SP: ranks are taken in, the table tells of the other SPs, and these are met.

use super::job::Job;
use super::{DIAL_LIMIT, Entry, JOBS_MAX, LogLevel, Role, Service};
use crate::control::{Frame, Hello, JobId, PeerHello, RANKS_MAX, ServiceAddress, Table, Welcome};
use crate::error::{OffloadError, Result};
use crate::link::Link;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

impl Service {
    /// Takes in a rank.
    pub(super) fn admit(&mut self, id: u64, hello: &Hello) -> Result<()> {
        let refused = |reason: String| Err(OffloadError::Failed(reason));
        if hello.ucx_version != self.ucp.version() {
            return refused(format!(
                "it has UCX {}, and this service UCX {}",
                hello.ucx_version,
                self.ucp.version()
            ));
        }
        if let Some(scheme) = self.options.scheme
            && scheme != hello.scheme
        {
            return refused(format!(
                "its scheme is {}, and this service's {scheme}",
                hello.scheme
            ));
        }
        if hello.size > RANKS_MAX || hello.rank >= hello.size {
            return refused(format!("rank {} of {}", hello.rank, hello.size));
        }
        if let Some(reason) = self.failure_of(hello.job) {
            return refused(reason);
        }
        if !self.jobs.contains_key(&hello.job) {
            if self.jobs.len() >= JOBS_MAX {
                return refused(format!("{JOBS_MAX} jobs are the most"));
            }
            let (credits, direct_min) = (self.options.credits, self.options.direct_min);
            let now = Instant::now();
            let entry = Entry {
                job: Job::open(self.ucp, hello, credits, direct_min)?,
                since: now,
                is_ready: false,
                ranks: BTreeMap::new(),
                services: BTreeMap::new(),
                accepted: BTreeSet::new(),
                beat: now,
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
        }
        let Some(entry) = self.jobs.get_mut(&hello.job) else {
            return refused("the job is gone".to_owned());
        };
        if (entry.job.size, entry.job.scheme) != (hello.size, hello.scheme) {
            return refused(format!(
                "it is of a job of {} ranks, scheme {}; others said {}, scheme {}",
                hello.size, hello.scheme, entry.job.size, entry.job.scheme
            ));
        }
        if entry.job.has_rank(hello.rank) {
            return refused(format!("rank {} is here already", hello.rank));
        }
        let accepted = entry.job.admit(hello)?;
        entry.ranks.insert(hello.rank, id);
        let welcome = Welcome {
            service: ServiceAddress {
                unique: self.unique,
                tcp: self.advertise.clone(),
                worker: entry.job.address()?,
            },
            direct_min: self.options.direct_min,
            silence_ms: u64::try_from(self.options.silence_limit.as_millis()).unwrap_or(u64::MAX),
            accepted,
        };
        if let Some(connection) = self.connections.get_mut(&id) {
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

    /// Another SP has called.
    pub(super) fn join(&mut self, id: u64, peer: &PeerHello) {
        if let Some(reason) = self.failure_of(peer.job) {
            return self.refuse(id, &reason);
        }
        let Some(entry) = self.jobs.get_mut(&peer.job) else {
            return self.refuse(id, &format!("there is no job {}", peer.job));
        };
        if entry.services.contains_key(&peer.index) {
            return self.refuse(id, &format!("service {} is here already", peer.index));
        }
        entry.services.insert(peer.index, id);
        entry.accepted.insert(peer.index);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.name = format!("service {} ({})", peer.index, connection.name);
            connection.role = Role::Service {
                job: peer.job,
                index: peer.index,
            };
        }
        // So that it knows that it was not refused.
        self.tell(id, &Frame::Beat);
    }

    /// Takes a job's table and calls the SPs in it that are before us; the others call us.
    pub(super) fn set_table(&mut self, id: JobId, table: Table) -> Result<()> {
        let Some(entry) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let me = entry.job.set_table(table, self.unique)?;
        let Some((_, table)) = entry.job.table() else {
            return Ok(());
        };
        let before: Vec<(u32, String)> = (0..me)
            .zip(&table.services)
            .filter(|(index, _)| !entry.services.contains_key(index))
            .map(|(index, service)| (index, service.tcp.clone()))
            .collect();
        for (index, address) in before {
            let name = format!("service {index} ({address})");
            let mut link = Link::connect(&address, DIAL_LIMIT)
                .map_err(|error| OffloadError::Failed(format!("cannot reach {name}: {error}")))?;
            let purpose = Frame::Peer(PeerHello { job: id, index: me });
            let trust = self
                .call(&mut link, purpose)
                .map_err(|error| OffloadError::Failed(format!("{name}: {error}")))?;
            let connection = self.add(link, name, Role::Service { job: id, index }, trust);
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.services.insert(index, connection);
            }
        }
        Ok(())
    }

    fn failure_of(&self, job: JobId) -> Option<String> {
        self.failures
            .iter()
            .find(|(failed, _)| *failed == job)
            .map(|(_, reason)| reason.clone())
    }
}

impl Entry {
    /// Whether all other SPs are connected, and none refuses.
    pub(super) fn is_joined(&self) -> bool {
        self.job.table().is_some_and(|(me, table)| {
            (0..)
                .take(table.services.len())
                .all(|index| index == me || self.accepted.contains(&index))
        })
    }

    /// Why it is not ready.
    pub(super) fn missing(&self, limit: Duration) -> String {
        let seconds = limit.as_secs();
        match self.job.table() {
            None => format!(
                "after {seconds} s nobody has told which services there are; {} ranks are here",
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
                    "after {seconds} s not all are connected: ranks without a connection: [{}], services: [{}]",
                    absent.join(", "),
                    unjoined.join(", ")
                )
            }
        }
    }
}
