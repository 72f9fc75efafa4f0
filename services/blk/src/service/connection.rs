//! Connections that have said hello.

use crate::frames::{Answer, Outcome};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, poll};
use xgvmi_pool::{AccessKey, Gvmi, OwnerUuid};

/// Longest wait for an initiator that does not read its answers.
const UNREAD: Duration = Duration::from_secs(10);

/// The connections that have said hello.
#[derive(Default)]
pub(super) struct Connections(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Number of connections of each owner of keys. When the last one ends, the owner's aliases end.
    owners: HashMap<u64, u32>,
    /// The connection of each session of an owner.
    sessions: HashMap<(u64, u64), Arc<Connection>>,
}

impl Connections {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Ends an older one of the same session, so that no request of it follows those of the new one.
    pub(super) fn enter(&self, session: u64, connection: &Arc<Connection>) {
        let owner = connection.keys.owner.get();
        let old = {
            let mut known = self.known();
            *known.owners.entry(owner).or_default() += 1;
            let session = (owner, session);
            known.sessions.insert(session, Arc::clone(connection))
        };
        if let Some(old) = old {
            old.end();
            old.drain();
        }
    }

    /// Removes a connection. True if it was its owner's last one.
    pub(super) fn leave(&self, session: u64, connection: &Arc<Connection>) -> bool {
        let owner = connection.keys.owner.get();
        let mut known = self.known();
        let session = (owner, session);
        let present = known.sessions.get(&session);
        if present.is_some_and(|present| Arc::ptr_eq(present, connection)) {
            known.sessions.remove(&session);
        }
        let Some(count) = known.owners.get_mut(&owner) else {
            return false;
        };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            known.owners.remove(&owner);
        }
        is_last
    }
}

/// Whose keys a connection uses.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) pooled: bool,
    pub(super) gvmi: Gvmi,
    /// Follows from the access key of the hello: no initiator can name another one's keys.
    pub(super) owner: OwnerUuid,
    /// What the adapter asks for before it makes an alias.
    pub(super) access: AccessKey,
}

/// A connection that has said hello.
pub(super) struct Connection {
    pub(super) keys: Keys,
    link: Mutex<Link>,
    /// No further request of it is carried out.
    ended: AtomicBool,
    /// Requests under way.
    open: Mutex<u32>,
    done: Condvar,
}

impl Connection {
    pub(super) fn new(keys: Keys, link: Link) -> Arc<Self> {
        Arc::new(Self {
            keys,
            link: Mutex::new(link),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
            done: Condvar::new(),
        })
    }

    pub(super) fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self) -> MutexGuard<'_, u32> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request. An initiator that is gone needs none.
    pub(super) fn answer(&self, number: u64, outcome: Outcome) {
        let bytes = Answer { number, outcome }.to_bytes();
        let end = Instant::now() + UNREAD;
        // Before the answer, which allows the initiator one more.
        *self.open() -= 1;
        self.done.notify_all();
        let mut link = self.link();
        let mut sent = link.send(&bytes);
        while sent.is_ok() && link.wants_to_send() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                sent = Err(LinkError::Unread(bytes.len()));
                break;
            }
            let mut fds = [link.pollfd()];
            fds[0].events = libc::POLLOUT;
            sent = poll(&mut fds, Some(left))
                .map_err(Into::into)
                .and_then(|_| link.flush());
        }
        if sent.is_err() {
            // The thread of the connection sees the end.
            link.close_when_sent();
        }
    }

    /// Drops the requests that no worker has begun.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.link().close_when_sent();
    }

    /// True if its requests are to be dropped.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until no request is under way.
    pub(super) fn drain(&self) {
        let mut open = self.open();
        while *open != 0 {
            open = self.done.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
