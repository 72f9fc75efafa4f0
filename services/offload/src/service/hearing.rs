//! Handles the frames of an SP's connections, and the end of connections.

use super::connections::{ConnectionId, FRAMES_MAX, Role};
use super::state::Sp;
use super::transport::Fabric;
use crate::control::Frame;
use crate::job_id::JobId;
use std::time::Instant;
use xgvmi_daemon::{LinkError, LogLevel};

/// Maximum number of frames per visit of a connection. The rest waits until all other connections have been visited.
const VISIT_MAX: u32 = 16;

/// The role of a peer, without its state.
#[derive(Debug, Clone, Copy)]
enum Speaker {
    Caller,
    Candidate,
    Admitting,
    Rank(JobId, u32),
    Service(JobId, u32),
    Leaving,
}

impl<F: Fabric> Sp<F> {
    /// Reads one connection and handles its frames.
    pub(super) fn serve(&mut self, id: ConnectionId) {
        for _ in 0..VISIT_MAX {
            let Some(connection) = self.connections.get_mut(id) else {
                return;
            };
            let taken = connection
                .link
                .flush()
                .and_then(|()| connection.link.take());
            match taken {
                Ok(Some(body)) => {
                    connection.heard = Instant::now();
                    connection.frames += 1;
                    if connection.frames > FRAMES_MAX {
                        return self.break_off(id, "flood", "it floods its connection with frames");
                    }
                    self.hear(id, &body);
                }
                Ok(None) => return self.connections.watch(id, &self.poller),
                Err(error) => return self.end(id, &error),
            }
        }
        self.connections.watch(id, &self.poller);
        self.unheard.push(id);
    }

    fn hear(&mut self, id: ConnectionId, body: &[u8]) {
        let Some(connection) = self.connections.get(id) else {
            return;
        };
        let speaker = match connection.role {
            Role::Caller => Speaker::Caller,
            Role::Candidate(_) => Speaker::Candidate,
            Role::Admitting { .. } => Speaker::Admitting,
            Role::Rank { job, rank } => Speaker::Rank(job, rank),
            Role::Service { job, index } => Speaker::Service(job, index),
            Role::Leaving => Speaker::Leaving,
        };
        if matches!(speaker, Speaker::Leaving) {
            return;
        }
        match Frame::parse(body) {
            Ok(frame) => self.take(id, speaker, frame),
            Err(bad) => self.break_off(id, "malformed", &bad.to_string()),
        }
    }

    fn take(&mut self, id: ConnectionId, speaker: Speaker, frame: Frame) {
        match (speaker, frame) {
            (Speaker::Caller, Frame::Hello(hello)) => self.hello(id, hello),
            (Speaker::Caller, Frame::Peer(peer)) => self.join(id, &peer),
            (Speaker::Candidate, Frame::Keys(keys)) => self.admit(id, keys),
            (Speaker::Candidate | Speaker::Admitting, Frame::Abort(_)) => {
                self.connections.leave(id, &self.poller);
            }
            (Speaker::Rank(..), Frame::More(announcement)) => self.more(id, announcement),
            (Speaker::Rank(job, _), Frame::Table(table)) => {
                if let Err(error) = self.set_table(job, table) {
                    self.fail(job, &error.to_string(), None);
                }
            }
            (Speaker::Rank(job, rank), Frame::Bye) => {
                let mut forgotten = Ok(());
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.ranks.remove(&rank);
                    forgotten = entry.job.forget(rank);
                }
                self.connections.leave(id, &self.poller);
                if let Err(error) = forgotten {
                    self.fail(job, &error.to_string(), None);
                }
                self.end_if_done(job);
            }
            (Speaker::Service(job, index), Frame::Bye) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.services.remove(&index);
                }
                self.connections.leave(id, &self.poller);
            }
            (Speaker::Service(job, index), Frame::PeerWelcome(token)) => {
                let Some(entry) = self.jobs.get_mut(&job) else {
                    return;
                };
                if !entry.accepted.insert(index) {
                    return self.break_off(id, "malformed", "a second PEER_WELCOME");
                }
                if let Err(error) = entry.job.meet_service(index, token) {
                    self.fail(job, &error.to_string(), None);
                }
            }
            (Speaker::Service(..), Frame::Beat) => {}
            (Speaker::Rank(..), Frame::Beat) if self.is_answer(id) => {}
            (Speaker::Rank(job, _) | Speaker::Service(job, _), Frame::Abort(reason)) => {
                self.fail(job, &reason, Some(id));
            }
            (_, frame) => {
                let reason = format!("{} is not expected now", frame.name());
                self.break_off(id, "unexpected", &reason);
            }
        }
    }

    /// Whether a rank's beat is the answer to one of this SP.
    fn is_answer(&mut self, id: ConnectionId) -> bool {
        let connection = self.connections.get_mut(id);
        connection.is_some_and(|connection| std::mem::take(&mut connection.is_asked))
    }

    /// Refuses a peer that violates the protocol. If the peer belongs to a job, the job fails.
    fn break_off(&mut self, id: ConnectionId, kind: &'static str, reason: &str) {
        let Some(connection) = self.connections.get(id) else {
            return;
        };
        let name = connection.name.clone();
        let job = match connection.role {
            Role::Rank { job, .. } | Role::Admitting { job, .. } | Role::Service { job, .. } => {
                Some(job)
            }
            Role::Caller | Role::Candidate(_) | Role::Leaving => None,
        };
        let reason = format!("it breaks the protocol: {reason}");
        self.refuse(id, kind, &reason);
        if let Some(job) = job {
            self.fail(job, &format!("{name}: {reason}"), Some(id));
        }
    }

    /// Handles a fatal error of a connection.
    fn end(&mut self, id: ConnectionId, error: &LinkError) {
        match error {
            LinkError::Closed => self.lose(
                id,
                "has closed its connection without a goodbye: it has ended or was killed",
            ),
            LinkError::Refused(reason) => self.lose(id, &format!("refuses: {reason}")),
            error if error.is_violation() => {
                let job = self.connections.get(id).and_then(|c| match c.role {
                    Role::Rank { job, .. }
                    | Role::Admitting { job, .. }
                    | Role::Service { job, .. } => Some((job, format!("{}: {error}", c.name))),
                    _ => None,
                });
                // A peer of another version may still understand the first bytes of the answer.
                self.refuse(id, error.reason(), &error.to_string());
                if let Some((job, reason)) = job {
                    self.fail(job, &reason, Some(id));
                }
            }
            error => self.lose(id, &format!("is lost: {error}")),
        }
    }

    /// Handles the end of a connection.
    pub(super) fn lose(&mut self, id: ConnectionId, how: &str) {
        let Some(connection) = self.connections.remove(id) else {
            return;
        };
        let name = connection.name;
        match connection.role {
            Role::Rank { job, .. } | Role::Admitting { job, .. } | Role::Service { job, .. } => {
                self.fail(job, &format!("{name} {how}"), Some(id));
            }
            Role::Caller | Role::Candidate(_) => {
                self.log(LogLevel::Debug, format_args!("{name} {how}"));
            }
            Role::Leaving => {}
        }
    }
}
