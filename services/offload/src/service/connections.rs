//! The TCP connections of an SP: the peer of each, and the resource limits.

use crate::control::{FRAMES, Frame, Hello};
use crate::job_id::JobId;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Instant;
use xgvmi_daemon::{Budget, FRAME_MAX, Link, Payer, Poller, STRANGER_FRAME_MAX, Secret};

/// Maximum number of connections: the ranks and SPs of all jobs, and some unidentified peers.
pub(super) const CONNECTIONS_MAX: usize = 1 << 14;

/// Maximum number of frames of one connection between two timer checks. A peer that sends more floods its connection. Ranks
/// send a handful in all, and SPs a few beats per minute.
pub(super) const FRAMES_MAX: u32 = 128;

/// Share of the memory for frames that the connections of one address, or of one job, may use.
const PAYERS: usize = 4;

/// What a frame takes beside its body.
const FRAME_OVERHEAD: usize = 64 << 10;

/// Keys of the poller below this one do not belong to connections.
pub(super) const KEY_FIRST: u64 = 16;

/// Number of a connection. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(u64);

/// A rank whose hello has arrived.
#[derive(Debug)]
pub(super) struct Candidate(pub(super) Hello);

/// The peer of a connection.
#[derive(Debug)]
pub(super) enum Role {
    /// Has sent nothing yet.
    Caller,
    /// A rank whose hello has arrived and whose keys have not.
    Candidate(Candidate),
    /// A rank whose keys have arrived. A thread opens UCX for its job or creates its aliases.
    Admitting {
        job: JobId,
    },
    Rank {
        job: JobId,
        rank: u32,
    },
    Service {
        job: JobId,
        index: u32,
    },
    /// The connection closes after the last frame is sent. Further input is ignored.
    Leaving,
}

impl Role {
    /// Whether the peer is not part of a job: not yet, or no longer.
    pub(super) fn is_caller(&self) -> bool {
        matches!(self, Self::Caller | Self::Candidate(_) | Self::Leaving)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) since: Instant,
    pub(super) heard: Instant,
    /// Frames since the last timer check.
    pub(super) frames: u32,
    /// The rank has not answered the last beat.
    pub(super) is_asked: bool,
    /// Whether a thread creates aliases of the rank's later keys, and the keys that came meanwhile.
    pub(super) more: Option<Option<Vec<u8>>>,
    address: Option<IpAddr>,
    writes: bool,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    all: HashMap<ConnectionId, Connection>,
    next: u64,
    budget: Budget,
    /// Number of unidentified peers per address.
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
            // The longest frame always fits.
            budget: Budget::with_payers(
                buffer_bytes_max,
                (buffer_bytes_max / PAYERS).max(FRAME_MAX + FRAME_OVERHEAD),
            ),
            callers: HashMap::new(),
            callers_per_address,
        }
    }

    /// Accepts a connection, or refuses it with a reason.
    pub(super) fn accept(
        &mut self,
        stream: TcpStream,
        address: std::net::SocketAddr,
        secrets: &[Secret],
        poller: &Poller,
    ) -> io::Result<Result<ConnectionId, (&'static str, String)>> {
        let mut link = Link::called(stream, FRAMES, secrets, &self.budget)?;
        let ip = address.ip();
        link.charge(&self.budget, Payer::Address(ip));
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
                    "{ip} has {callers} unidentified connections: try later, or raise --callers-per-address"
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

    /// Adds a connection that this SP has opened to another SP of a job. The other end may be anything: the address is a
    /// rank's.
    pub(super) fn add_dialed(
        &mut self,
        mut link: Link,
        name: String,
        role: Role,
        job: JobId,
        poller: &Poller,
    ) -> io::Result<ConnectionId> {
        if self.all.len() >= CONNECTIONS_MAX {
            return Err(io::Error::other(format!(
                "{CONNECTIONS_MAX} connections are the most of a service"
            )));
        }
        link.set_frame_max(STRANGER_FRAME_MAX);
        link.charge(&self.budget, Payer::Group(job.0));
        self.add(link, name, role, None, poller)
    }

    fn add(
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
            is_asked: false,
            more: None,
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

    /// Bytes of buffered frames.
    pub(super) fn buffered(&self) -> usize {
        self.budget.used()
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.known(id);
        self.all.remove(&id)
    }

    /// The peer has named its job, which pays for its frames from now on.
    pub(super) fn is_of(&mut self, id: ConnectionId, job: JobId) {
        self.known(id);
        if let Some(connection) = self.all.get_mut(&id) {
            connection.link.charge(&self.budget, Payer::Group(job.0));
        }
    }

    /// The peer is identified or leaves. It no longer counts as an unidentified peer.
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

    /// Sends a frame. The next read of the connection detects a failed send.
    pub(super) fn tell(&mut self, id: ConnectionId, frame: &Frame, poller: &Poller) {
        if let Some(connection) = self.all.get_mut(&id) {
            let _ = connection.link.send(&frame.to_bytes());
        }
        self.watch(id, poller);
    }

    /// Sends the reason for a refusal to a peer and then closes the connection.
    pub(super) fn refuse(&mut self, id: ConnectionId, reason: &str, poller: &Poller) {
        if let Some(connection) = self.all.get_mut(&id) {
            connection.link.refuse(reason);
        }
        self.leave(id, poller);
    }

    /// Ends the use of a connection. The peer closes it, or a timer does.
    pub(super) fn leave(&mut self, id: ConnectionId, poller: &Poller) {
        self.known(id);
        if let Some(connection) = self.all.get_mut(&id) {
            connection.role = Role::Leaving;
            connection.since = Instant::now();
            connection.link.close_when_sent();
        }
        self.watch(id, poller);
    }

    /// Polls a connection for writability while it has data to send.
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

    /// Number of connections, and number of unidentified peers among them.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.all.len(), self.callers.values().sum())
    }
}
