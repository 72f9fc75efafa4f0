//! Accepts sessions on a port.

use super::memory::MemoryLimit;
use super::worker::{Worker, accept_request};
use crate::endpoint::{Ended, wait_readable};
use crate::error::{NaaError, Result};
use crate::machine::State;
use crate::verbs::{self, Event, EventChannel, EventKind, Id};
use rdmacm_sys::RdmaCmLib;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connection requests that may wait, the default maximum of the kernel (`net.rdma_ucm.max_backlog`).
pub(crate) const BACKLOG: i32 = 1024;
/// Longest wait of a request for the thread of a session that has ended.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Interval at which waiting requests look for a place.
const PLACE_INTERVAL: Duration = Duration::from_millis(2);

/// Limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Maximum number of sessions at a time. Further hosts are refused.
    pub sessions_max: usize,
    /// Maximum number of bytes that a session's regions take here.
    pub session_bytes_max: u64,
}

/// A port at which hosts connect. One thread calls [`Listener::accept`]. Dropping the listener ends its sessions: nobody
/// notices the end of a host's connection afterwards.
#[derive(Debug)]
pub struct Listener {
    lib: &'static RdmaCmLib,
    /// Sessions whose connection is being established. They end before the channel.
    pending: HashMap<usize, Worker>,
    /// Marks of all sessions, by identifier.
    marks: HashMap<usize, Arc<Ended>>,
    /// Marks of sessions that have ended and may still have a thread.
    ending: Vec<Arc<Ended>>,
    /// Requests that arrived when all places were taken, some of them by sessions that had ended.
    waiting: VecDeque<(Id, Instant)>,
    used: Arc<AtomicUsize>,
    options: ListenerOptions,
    memory: Arc<MemoryLimit>,
    port: u16,
    id: Id,
    channel: Arc<EventChannel>,
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
    /// Listens at `host:port`. Port 0 selects a free port. The regions of all sessions share `memory`.
    ///
    /// # Errors
    /// If librdmacm is missing or the address is not available. A port that a process has left just before is awaited
    /// for a few seconds.
    pub fn bind(
        host: &str,
        port: u16,
        options: ListenerOptions,
        memory: Arc<MemoryLimit>,
    ) -> Result<Self> {
        let address: SocketAddr = verbs::resolve(host, port, None)?;
        let lib = verbs::lib()?;
        let channel = Arc::new(EventChannel::create(lib)?);
        let (id, port) = Id::listen(lib, &channel, &address, BACKLOG)?;
        Ok(Self {
            lib,
            pending: HashMap::new(),
            marks: HashMap::new(),
            ending: Vec::new(),
            waiting: VecDeque::new(),
            used: Arc::new(AtomicUsize::new(0)),
            options,
            memory,
            port,
            id,
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
    /// If the connection manager fails or the device is removed: the listener serves no further host. A failed
    /// connection is no error of the listener: `report` receives it.
    pub fn accept(
        &mut self,
        limit: Duration,
        report: &mut dyn FnMut(String),
    ) -> Result<Option<Accepted>> {
        self.serve_waiting(report);
        let mut event = self.channel.next()?;
        if event.is_none() {
            let limit = match self.waiting.is_empty() {
                true => limit,
                false => limit.min(PLACE_INTERVAL),
            };
            wait_readable(&[self.channel.fd()], limit)?;
            event = self.channel.next()?;
        }
        let Some(event) = event else {
            return Ok(None);
        };
        self.handle(&event, report)
    }

    /// Ends all sessions: the hosts notice it, and the threads of the sessions end.
    pub fn end_sessions(&mut self) {
        self.waiting.clear();
        for mark in self.marks.values() {
            mark.set(State::Finished);
        }
        self.used.fetch_sub(self.pending.len(), Ordering::AcqRel);
        self.pending.clear();
    }

    fn handle(
        &mut self,
        event: &Event,
        report: &mut dyn FnMut(String),
    ) -> Result<Option<Accepted>> {
        let key = event.id.addr();
        match &event.kind {
            EventKind::ConnectRequest => {
                if let Some(id) = NonNull::new(event.id) {
                    // SAFETY: the identifier of a request belongs to its receiver, and the request came through this
                    // channel.
                    let id = unsafe { Id::adopt(self.lib, id, Some(Arc::clone(&self.channel))) };
                    self.request(id, Instant::now(), report);
                }
                Ok(None)
            }
            EventKind::Established => {
                let Some(worker) = self.pending.remove(&key) else {
                    return Ok(None);
                };
                Ok(Some(Accepted {
                    worker,
                    slot: Slot {
                        used: Arc::clone(&self.used),
                        _mark: self.marks.get(&key).cloned(),
                    },
                }))
            }
            EventKind::AddressResolved | EventKind::RouteResolved | EventKind::Closed => Ok(None),
            EventKind::DeviceRemoved if key == self.id.as_ptr().addr() => Err(NaaError::Lost {
                peer: "the RDMA device".to_owned(),
                reason: event.text.clone(),
            }),
            EventKind::Rejected(_)
            | EventKind::Crowded
            | EventKind::Disconnected
            | EventKind::DeviceRemoved
            | EventKind::Failed => {
                self.waiting.retain(|(id, _)| id.as_ptr() != event.id);
                if let Some(mark) = self.marks.remove(&key) {
                    mark.set(State::Finished);
                    self.ending.retain(|mark| Arc::strong_count(mark) > 1);
                    self.ending.push(mark);
                }
                if self.pending.remove(&key).is_some() {
                    self.used.fetch_sub(1, Ordering::AcqRel);
                    report(format!("a host's connection has failed: {}", event.text));
                }
                Ok(None)
            }
        }
    }

    /// Whether the thread of a session has not left its place yet, although the session has ended.
    fn is_any_ending(&self) -> bool {
        let is_ending = |mark: &Arc<Ended>| Arc::strong_count(mark) > 1 && mark.get().is_some();
        self.ending.iter().any(is_ending)
    }

    fn has_place(&self) -> bool {
        self.sessions() < self.options.sessions_max
    }

    /// Serves or refuses the requests that waited, in their order.
    fn serve_waiting(&mut self, report: &mut dyn FnMut(String)) {
        while let Some((_, since)) = self.waiting.front() {
            let is_over = since.elapsed() >= END_LIMIT || !self.is_any_ending();
            if !self.has_place() && !is_over {
                return;
            }
            if let Some((id, since)) = self.waiting.pop_front() {
                self.request(id, since, report);
            }
        }
    }

    /// A host that ends a session and begins the next may be faster than the thread of its old session. Without a free
    /// place, its request waits shortly for sessions that have ended.
    fn request(&mut self, id: Id, since: Instant, report: &mut dyn FnMut(String)) {
        // Sessions that ended by themselves leave their marks.
        self.marks.retain(|_, mark| Arc::strong_count(mark) > 1);
        if !self.has_place() {
            if self.is_any_ending() && since.elapsed() < END_LIMIT {
                self.waiting.push_back((id, since));
                return;
            }
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
        let key = id.as_ptr().addr();
        let bytes_max = self.options.session_bytes_max;
        let memory = Arc::clone(&self.memory);
        match accept_request(id, "the host".to_owned(), bytes_max, memory) {
            Ok(endpoint) => {
                self.used.fetch_add(1, Ordering::AcqRel);
                self.marks.insert(key, endpoint.end_mark());
                self.pending.insert(key, Worker::new(endpoint));
            }
            Err(error) => report(format!("cannot serve a host: {error}")),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.end_sessions();
    }
}
