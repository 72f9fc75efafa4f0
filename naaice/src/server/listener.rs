//! Accepts sessions on a port.

use super::worker::{Worker, accept_request};
use crate::endpoint::{Ended, wait_readable};
use crate::error::Result;
use crate::machine::State;
use crate::verbs::{self, Event, EventChannel, EventKind, Id};
use rdmacm_sys::{RdmaCmLib, rdma_cm_id};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connection requests that may wait, as in the original.
const BACKLOG: i32 = 10;
/// Longest wait for the thread of a session that has ended.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Maximum number of sessions at a time. Further hosts are refused.
    pub sessions_max: usize,
    /// Maximum number of bytes that a session's regions take here.
    pub session_bytes_max: u64,
}

/// A port at which hosts connect. One thread calls [`Listener::accept`].
#[derive(Debug)]
pub struct Listener {
    lib: &'static RdmaCmLib,
    /// Sessions whose connection is being established. They end before the channel.
    pending: HashMap<usize, Worker>,
    /// Marks of all sessions, by identifier.
    marks: HashMap<usize, Arc<Ended>>,
    /// Marks of sessions that have ended and may still have a thread.
    ending: Vec<Arc<Ended>>,
    used: Arc<AtomicUsize>,
    options: ListenerOptions,
    port: u16,
    _id: Id,
    channel: EventChannel,
}

/// A session, and its place among the listener's sessions.
#[derive(Debug)]
pub struct Accepted {
    /// The session.
    pub worker: Worker,
    /// Drop it after the session's end.
    pub slot: Slot,
}

/// One of the listener's places.
#[derive(Debug)]
pub struct Slot {
    used: Arc<AtomicUsize>,
    /// Tells the listener that the place is not free yet.
    _mark: Option<Arc<Ended>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listener {
    /// Listens at `host:port`. Port 0 selects a free port.
    ///
    /// # Errors
    /// If librdmacm is missing or the address is not available.
    pub fn bind(host: &str, port: u16, options: ListenerOptions) -> Result<Self> {
        let address: SocketAddr = verbs::resolve(host, port, None)?;
        let lib = verbs::lib()?;
        let channel = EventChannel::create(lib)?;
        let id = Id::create(lib, &channel)?;
        let port = id.bind_and_listen(&address, BACKLOG)?;
        Ok(Self {
            lib,
            pending: HashMap::new(),
            marks: HashMap::new(),
            ending: Vec::new(),
            used: Arc::new(AtomicUsize::new(0)),
            options,
            port,
            _id: id,
            channel,
        })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Becomes readable when [`Listener::accept`] has something to do.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// Number of sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Handles connection events for at most `limit`. Returns a session when its connection is established.
    ///
    /// # Errors
    /// If the connection manager fails. A failed connection is no error of the listener: `report` receives it.
    pub fn accept(
        &mut self,
        limit: Duration,
        report: &mut dyn FnMut(String),
    ) -> Result<Option<Accepted>> {
        let mut event = self.channel.next()?;
        if event.is_none() {
            wait_readable(&[self.channel.fd()], limit)?;
            event = self.channel.next()?;
        }
        let Some(event) = event else {
            return Ok(None);
        };
        Ok(self.handle(&event, report))
    }

    fn handle(&mut self, event: &Event, report: &mut dyn FnMut(String)) -> Option<Accepted> {
        let key = event.id.addr();
        match &event.kind {
            EventKind::ConnectRequest => {
                if let Some(id) = NonNull::new(event.id) {
                    self.request(id, report);
                }
                None
            }
            EventKind::Established => {
                let worker = self.pending.remove(&key)?;
                Some(Accepted {
                    worker,
                    slot: Slot {
                        used: Arc::clone(&self.used),
                        _mark: self.marks.get(&key).cloned(),
                    },
                })
            }
            EventKind::AddressResolved | EventKind::RouteResolved | EventKind::Closed => None,
            EventKind::Rejected(_) | EventKind::Disconnected | EventKind::Failed => {
                if let Some(mark) = self.marks.remove(&key) {
                    mark.set(State::Finished, event.id);
                    self.ending.retain(|mark| Arc::strong_count(mark) > 1);
                    self.ending.push(mark);
                }
                if self.pending.remove(&key).is_some() {
                    self.used.fetch_sub(1, Ordering::AcqRel);
                    report(format!("a host's connection has failed: {}", event.text));
                }
                None
            }
        }
    }

    /// A host that ends a session and begins the next may be faster than the thread of its old session. Without a free
    /// place, the listener waits shortly for sessions that have ended.
    fn await_ending_session(&self) {
        let began = Instant::now();
        let is_ending = |mark: &Arc<Ended>| Arc::strong_count(mark) > 1 && mark.get().is_some();
        while self.sessions() >= self.options.sessions_max
            && self.ending.iter().any(is_ending)
            && began.elapsed() < END_LIMIT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn request(&mut self, id: NonNull<rdma_cm_id>, report: &mut dyn FnMut(String)) {
        // SAFETY: the identifier of a request belongs to its receiver.
        let id = unsafe { Id::adopt(self.lib, id) };
        let key = id.as_ptr().addr();
        // Sessions that ended by themselves leave their marks.
        self.marks.retain(|_, mark| Arc::strong_count(mark) > 1);
        self.await_ending_session();
        if self.sessions() >= self.options.sessions_max {
            let text = format!(
                "all {} sessions of this accelerator are in use; try again later",
                self.options.sessions_max
            );
            match id.reject(&text) {
                Ok(()) => report(format!("refused a host: {text}")),
                Err(error) => report(format!("refused a host: {error}")),
            }
            return;
        }
        match accept_request(id, "the host".to_owned(), self.options.session_bytes_max) {
            Ok(endpoint) => {
                self.used.fetch_add(1, Ordering::AcqRel);
                self.marks.insert(key, endpoint.end_mark());
                self.pending.insert(key, Worker::new(endpoint));
            }
            Err(error) => report(format!("cannot serve a host: {error}")),
        }
    }
}
