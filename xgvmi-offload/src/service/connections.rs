//! The TCP connections of an SP: who is at the other end of each, and what one may cost.

use super::admission::Candidate;
use crate::control::{FRAMES, Frame};
use crate::job_id::JobId;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Instant;
use xgvmi_daemon::{Budget, Link, Poller, Secret};

/// Most connections at once: the ranks and SPs of all jobs, and some that nobody knows yet.
pub(super) const CONNECTIONS_MAX: usize = 1 << 14;

/// Frames of one connection between two looks at the clock. A peer that sends more floods its connection.
pub(super) const FRAMES_MAX: u32 = 4096;

/// Keys of the poller below this one are no connections.
pub(super) const KEY_FIRST: u64 = 16;

/// A connection, by its number. Numbers are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(u64);

/// The peer of a connection.
#[derive(Debug)]
pub(super) enum Role {
    /// Has said nothing.
    Caller,
    /// A rank that has said hello, whose keys are on their way.
    Candidate(Candidate),
    Rank {
        job: JobId,
        rank: u32,
    },
    Service {
        job: JobId,
        index: u32,
    },
    /// The last words are on their way, and nothing more is expected.
    Leaving,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) since: Instant,
    pub(super) heard: Instant,
    /// Since the last look at the clock.
    pub(super) frames: u32,
    address: Option<IpAddr>,
    writes: bool,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    all: HashMap<ConnectionId, Connection>,
    next: u64,
    budget: Budget,
    /// Callers of each address.
    callers: HashMap<IpAddr, usize>,
    callers_per_address: usize,
}

impl ConnectionId {
    pub(super) fn key(self) -> u64 {
        KEY_FIRST + self.0
    }

    pub(super) fn from_key(key: u64) -> Option<Self> {
        key.checked_sub(KEY_FIRST).map(Self)
    }
}

impl Connections {
    pub(super) fn new(buffer_bytes_max: usize, callers_per_address: usize) -> Self {
        Self {
            all: HashMap::new(),
            next: 0,
            budget: Budget::new(buffer_bytes_max),
            callers: HashMap::new(),
            callers_per_address,
        }
    }

    /// Takes in a caller, or refuses it with a reason.
    pub(super) fn accept(
        &mut self,
        stream: TcpStream,
        address: std::net::SocketAddr,
        secrets: &[Secret],
        poller: &Poller,
    ) -> io::Result<Result<ConnectionId, (&'static str, String)>> {
        let mut link = Link::called(stream, FRAMES, secrets, &self.budget)?;
        let ip = address.ip();
        let callers = self.callers.get(&ip).copied().unwrap_or(0);
        let refusal = if self.all.len() >= CONNECTIONS_MAX {
            Some((
                "connections",
                format!(
                    "{CONNECTIONS_MAX} connections are the most of a service: use another, or try later"
                ),
            ))
        } else if callers >= self.callers_per_address {
            Some((
                "callers",
                format!(
                    "{callers} connections of {ip} have not said who they are: try later, or raise --callers-per-address"
                ),
            ))
        } else {
            None
        };
        if let Some((kind, reason)) = refusal {
            link.refuse(&reason);
            return Ok(Err((kind, reason)));
        }
        *self.callers.entry(ip).or_default() += 1;
        self.add(link, address.to_string(), Role::Caller, Some(ip), poller)
            .map(Ok)
    }

    /// Adds a connection that this SP has made.
    pub(super) fn add(
        &mut self,
        link: Link,
        name: String,
        role: Role,
        address: Option<IpAddr>,
        poller: &Poller,
    ) -> io::Result<ConnectionId> {
        let id = ConnectionId(self.next);
        self.next += 1;
        let writes = link.wants_to_send();
        poller.add(link.fd(), id.key(), writes)?;
        let now = Instant::now();
        let connection = Connection {
            link,
            name,
            role,
            since: now,
            heard: now,
            frames: 0,
            address,
            writes,
        };
        self.all.insert(id, connection);
        Ok(id)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.all.get_mut(&id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Connection)> {
        self.all
            .iter_mut()
            .map(|(id, connection)| (*id, connection))
    }

    /// Bytes of frames that wait.
    pub(super) fn buffered(&self) -> usize {
        self.budget.used()
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.known(id);
        self.all.remove(&id)
    }

    /// The peer has said who it is, or leaves: it is no caller any more.
    pub(super) fn known(&mut self, id: ConnectionId) {
        let Some(ip) = self.all.get_mut(&id).and_then(|c| c.address.take()) else {
            return;
        };
        if let Some(count) = self.callers.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove(&ip);
            }
        }
    }

    /// Sends a frame. A connection that takes none is found out when it is read next.
    pub(super) fn tell(&mut self, id: ConnectionId, frame: &Frame, poller: &Poller) {
        if let Some(connection) = self.all.get_mut(&id) {
            let _ = connection.link.send(&frame.to_bytes());
        }
        self.watch(id, poller);
    }

    /// Tells a peer why it is refused, and expects nothing more of it.
    pub(super) fn refuse(&mut self, id: ConnectionId, reason: &str, poller: &Poller) {
        if let Some(connection) = self.all.get_mut(&id) {
            connection.link.refuse(reason);
        }
        self.leave(id, poller);
    }

    /// Expects nothing more of a connection. The peer closes it, or time does.
    pub(super) fn leave(&mut self, id: ConnectionId, poller: &Poller) {
        self.known(id);
        if let Some(connection) = self.all.get_mut(&id) {
            connection.role = Role::Leaving;
            connection.since = Instant::now();
            connection.link.close_when_sent();
        }
        self.watch(id, poller);
    }

    /// Waits for a connection to become writable while something is to be sent.
    pub(super) fn watch(&mut self, id: ConnectionId, poller: &Poller) {
        if let Some(connection) = self.all.get_mut(&id) {
            let writes = connection.link.wants_to_send();
            if writes != connection.writes
                && poller
                    .set_write(connection.link.fd(), id.key(), writes)
                    .is_ok()
            {
                connection.writes = writes;
            }
        }
    }

    /// Connections, and those of them that have not said who they are.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.all.len(), self.callers.values().sum())
    }
}
