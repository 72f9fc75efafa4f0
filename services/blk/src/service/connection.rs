//! Connections that have said hello.

use super::identities::{Identity, Right};
use crate::frames::{Answer, Outcome};
use crate::volume::Volume;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, poll};
use xgvmi_verbs::Keys;

/// Longest wait for an initiator that does not read its answers.
const UNREAD: Duration = Duration::from_secs(10);

/// The connection of each session of an owner that has said hello.
#[derive(Default)]
pub(super) struct Connections(Mutex<HashMap<(u64, u64), Arc<Connection>>>);

impl Connections {
    fn known(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Ends an older one of the same session, so that no request of it follows those of the new one.
    pub(super) fn enter(&self, session: u64, connection: &Arc<Connection>) {
        let session = (connection.keys.owner.get(), session);
        let old = self.known().insert(session, Arc::clone(connection));
        if let Some(old) = old {
            old.end();
            old.drain();
        }
    }

    /// Ends the connections of an initiator.
    pub(super) fn end_of(&self, identity: &Arc<Identity>) {
        let is_its = |connection: &&Arc<Connection>| {
            let of = connection.identity.as_ref();
            of.is_some_and(|of| Arc::ptr_eq(of, identity))
        };
        let all: Vec<_> = self.known().values().filter(is_its).cloned().collect();
        all.iter().for_each(|connection| connection.end());
    }

    /// Ends the connections whose initiators have other rights to their volumes than they were told. Returns each of these
    /// initiators with the number of the volume.
    pub(super) fn end_changed(&self) -> Vec<(Arc<Identity>, usize)> {
        let all: Vec<_> = self.known().values().cloned().collect();
        let changed = all.iter().filter(|connection| connection.has_changed());
        let mut ended: Vec<(Arc<Identity>, usize)> = Vec::new();
        for connection in changed {
            connection.end();
            if let Some(identity) = &connection.identity {
                let is_it = |(one, of): &(Arc<Identity>, usize)| {
                    Arc::ptr_eq(one, identity) && *of == connection.of
                };
                if !identity.is_revoked() && !ended.iter().any(is_it) {
                    ended.push((Arc::clone(identity), connection.of));
                }
            }
        }
        ended
    }

    /// Removes a connection.
    pub(super) fn leave(&self, session: u64, connection: &Arc<Connection>) {
        let session = (connection.keys.owner.get(), session);
        let mut known = self.known();
        let present = known.get(&session);
        if present.is_some_and(|present| Arc::ptr_eq(present, connection)) {
            known.remove(&session);
        }
    }
}

/// An initiator, for messages.
pub(super) fn who(identity: Option<&Arc<Identity>>) -> String {
    match identity {
        Some(identity) => format!("initiator {}", identity.name),
        None => "an initiator".to_owned(),
    }
}

/// What an initiator may do with the volume of a number.
fn right(identity: Option<&Arc<Identity>>, of: usize) -> Option<Right> {
    match identity {
        Some(identity) => identity.right(of),
        None => Some(Right::Write),
    }
}

/// A connection that has said hello.
pub(super) struct Connection {
    pub(super) keys: Keys,
    /// The volume that it has named, and its number.
    pub(super) volume: Arc<Volume>,
    pub(super) of: usize,
    /// Whose it is, if the initiator has a name.
    pub(super) identity: Option<Arc<Identity>>,
    /// What its initiator was told that it may do with the volume.
    pub(super) told: Option<Right>,
    link: Mutex<Link>,
    /// No further request of it is carried out.
    ended: AtomicBool,
    /// Requests under way.
    open: Mutex<u32>,
    done: Condvar,
}

impl Connection {
    pub(super) fn new(
        keys: Keys,
        (of, volume): (usize, Arc<Volume>),
        identity: Option<Arc<Identity>>,
        link: Link,
    ) -> Arc<Self> {
        Arc::new(Self {
            keys,
            volume,
            of,
            told: right(identity.as_ref(), of),
            identity,
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

    /// What its initiator may do with its volume now.
    pub(super) fn right(&self) -> Option<Right> {
        right(self.identity.as_ref(), self.of)
    }

    /// True if its initiator has another right than it was told: it learns that when it connects again.
    pub(super) fn has_changed(&self) -> bool {
        self.right().is_none() || self.right() != self.told
    }

    /// The initiator, for messages.
    pub(super) fn who(&self) -> String {
        who(self.identity.as_ref())
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
