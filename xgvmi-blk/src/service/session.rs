//! One connection of an initiator.

use super::queue::Job;
use super::{REQUESTS_MAX, Shared};
use crate::frames::{Answer, Hello, Outcome, PROTOCOL, REQUEST_MAX, Request, Welcome};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, poll};
use xgvmi_pool::{AnnounceError, Gvmi, OwnerUuid};

/// Time limit of an initiator's first frame.
const HELLO: Duration = Duration::from_secs(10);
/// Longest wait for an initiator that does not read its answers.
const UNREAD: Duration = Duration::from_secs(10);
/// Interval at which an idle connection is looked at.
const LOOK: Duration = Duration::from_secs(60);

/// The connections that have said hello.
#[derive(Default)]
pub(super) struct Connections(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Number of connections of each owner of keys. When the last one ends, the owner's aliases end.
    owners: HashMap<u64, u32>,
    /// The connection of each session.
    sessions: HashMap<u64, Arc<Connection>>,
}

impl Connections {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Ends an older one of the same session, so that no request of it follows those of the new one.
    fn enter(&self, session: u64, connection: &Arc<Connection>) {
        let owner = connection.keys.owner.get();
        let old = {
            let mut known = self.known();
            *known.owners.entry(owner).or_default() += 1;
            known.sessions.insert(session, Arc::clone(connection))
        };
        if let Some(old) = old {
            old.end();
            old.drain();
        }
    }

    /// Removes a connection. True if it was its owner's last one.
    fn leave(&self, session: u64, connection: &Arc<Connection>) -> bool {
        let owner = connection.keys.owner.get();
        let mut known = self.known();
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
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    pub(super) pooled: bool,
    pub(super) gvmi: Gvmi,
    pub(super) owner: OwnerUuid,
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
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, u32> {
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
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.link().close_when_sent();
    }

    /// True if its requests are to be dropped.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until no request is under way.
    fn drain(&self) {
        let mut open = self.open();
        while *open != 0 {
            open = self.done.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Serves a connection until it ends.
pub(super) fn serve(shared: &Shared, stream: TcpStream) -> Result<(), LinkError> {
    let mut link = Link::called(stream, PROTOCOL, &shared.secrets, &shared.budget)?;
    let hello = match hello(&mut link) {
        Ok(Some(hello)) => hello,
        Ok(None) => return Ok(()),
        Err(error) => {
            if error.is_violation() {
                // The initiator learns the reason, such as a wrong secret.
                link.refuse(&error.to_string());
            }
            return Err(error);
        }
    };
    let Some(prepared) = prepare(shared, &mut link, &hello) else {
        return Ok(());
    };
    link.set_frame_max(REQUEST_MAX);
    let connection = Arc::new(Connection {
        keys: Keys {
            pooled: hello.pooled,
            gvmi: Gvmi::new(hello.gvmi),
            owner: OwnerUuid::new(hello.owner),
        },
        link: Mutex::new(link),
        ended: AtomicBool::new(false),
        open: Mutex::default(),
        done: Condvar::new(),
    });
    shared.connections.enter(hello.session, &connection);
    let welcome = Welcome {
        geometry: shared.volume.geometry(),
        volume: shared.volume.id(),
        transfer_max: shared.transfer_max,
        requests_max: REQUESTS_MAX,
        prepared,
    };
    let sent = connection.link().send(&welcome.to_bytes());
    let ended = sent.and_then(|()| requests(shared, &connection));
    connection.end();
    connection.drain();
    if shared.connections.leave(hello.session, &connection) {
        shared.hooks.reap_owner(connection.keys.owner);
    }
    ended
}

fn hello(link: &mut Link) -> Result<Option<Hello>, LinkError> {
    let Some(bytes) = link.wait(HELLO)? else {
        link.refuse("no hello within 10 s");
        return Ok(None);
    };
    match Hello::parse(&bytes) {
        Ok(hello) => Ok(Some(hello)),
        Err(error) => {
            link.refuse(&error.to_string());
            Ok(None)
        }
    }
}

/// Creates the aliases of announced keys. Returns their number, or nothing if the announcement was refused.
fn prepare(shared: &Shared, link: &mut Link, hello: &Hello) -> Option<u32> {
    if !hello.pooled || hello.announcement.is_empty() {
        return Some(0);
    }
    match shared.hooks.receive(&hello.announcement) {
        Ok((_, aliases)) => Some(u32::try_from(aliases.ready).unwrap_or(u32::MAX)),
        // Connections of one process may overtake each other. The newer announcement has all keys of this one.
        Err(AnnounceError::Replayed { .. }) => Some(0),
        Err(error) => {
            link.refuse(&format!("the announcement of the keys: {error}"));
            None
        }
    }
}

/// Takes requests until the connection ends.
fn requests(shared: &Shared, connection: &Arc<Connection>) -> Result<(), LinkError> {
    loop {
        let mut fds = [connection.link().pollfd()];
        poll(&mut fds, Some(LOOK))?;
        loop {
            let mut link = connection.link();
            link.flush()?;
            let Some(bytes) = link.take()? else {
                break;
            };
            let request = match Request::parse(&bytes) {
                Ok(request) => request,
                Err(error) => {
                    link.refuse(&error.to_string());
                    return Ok(());
                }
            };
            drop(link);
            if !accept(shared, connection, request) {
                connection
                    .link()
                    .refuse("more requests at once than the welcome allows");
                return Ok(());
            }
        }
    }
}

/// Hands a request to the workers. False if the initiator exceeds its limit.
fn accept(shared: &Shared, connection: &Arc<Connection>, request: Request) -> bool {
    {
        let mut open = connection.open();
        if *open >= REQUESTS_MAX {
            return false;
        }
        *open += 1;
    }
    let job = Job {
        connection: Arc::clone(connection),
        request,
    };
    if shared.queue.push(job).is_err() {
        let busy = Outcome::Failed("the service has too many requests".to_owned());
        connection.answer(request.number, busy);
    }
    true
}
