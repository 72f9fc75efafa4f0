//! Connection identifiers and their events.

use super::address::storage;
use crate::error::{NaaError, Result};
use rdmacm_sys::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_TOS, RDMA_PS_TCP, RdmaCmLib,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Status of a rejection by the peer, with or without a text (`IB_CM_REJ_CONSUMER_DEFINED`). Without a listener there is
/// another one.
const BY_CONSUMER: c_int = 28;
/// Maximum length of a rejection's text, a limit of the connection manager's private data.
const REJECT_TEXT_MAX: usize = 148;

/// Exponent of the acknowledgement timeout, as in the newer original: 4.096 us * 2^12 = 16.8 ms for each of the seven
/// retries. On RoCE the kernel's own value is 18, 1.07 s for each retry.
const ACK_TIMEOUT: u8 = 12;
/// Type of service of RoCE packets: switches may mark them instead of dropping them (ECN, ECT(0)).
const TYPE_OF_SERVICE: u8 = 2;
/// Longest wait for a port that is in use.
const PORT_LIMIT: Duration = Duration::from_secs(5);
/// Interval between attempts to bind it.
const PORT_INTERVAL: Duration = Duration::from_millis(20);

/// A channel of connection events.
#[derive(Debug)]
pub(crate) struct EventChannel {
    lib: &'static RdmaCmLib,
    channel: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm's objects may be used from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: librdmacm takes events of a channel and creates identifiers of it under locks of its own.
unsafe impl Sync for EventChannel {}

/// A copy of an event. The original is acknowledged.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) kind: EventKind,
    /// Name and status of the event, for messages.
    pub(crate) text: String,
}

/// The events that sessions distinguish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventKind {
    AddressResolved,
    RouteResolved,
    ConnectRequest,
    Established,
    /// With the peer's text.
    Rejected(String),
    /// The peer's system rejects for the moment, not its program: as many requests wait as the program permits.
    Crowded,
    Disconnected,
    /// The end of a connection that has been closed.
    Closed,
    DeviceRemoved,
    /// Errors of address, route and connection.
    Failed,
}

impl EventChannel {
    pub(crate) fn create(lib: &'static RdmaCmLib) -> Result<Self> {
        // SAFETY: the call has no preconditions.
        let channel = unsafe { lib.rdma_create_event_channel() };
        let channel =
            NonNull::new(channel).ok_or_else(|| NaaError::last("rdma_create_event_channel"))?;
        let channel = Self { lib, channel };
        channel.set_nonblocking()?;
        Ok(channel)
    }

    /// A channel that a C program owns.
    ///
    /// # Safety
    /// The channel is live as long as the result is used.
    pub(crate) unsafe fn borrowed(
        lib: &'static RdmaCmLib,
        channel: NonNull<rdma_event_channel>,
    ) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self { lib, channel })
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    fn set_nonblocking(&self) -> Result<()> {
        super::nonblocking::set_nonblocking(self.fd()).map_err(|source| NaaError::Call {
            call: "fcntl of the event channel",
            source,
        })
    }

    /// Takes the next event, if there is one.
    pub(crate) fn next(&self) -> Result<Option<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live, and the result can be written.
        let taken = unsafe { self.lib.rdma_get_cm_event(self.as_ptr(), &raw mut event) };
        if taken != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(NaaError::Call {
                    call: "rdma_get_cm_event",
                    source: error,
                }),
            };
        }
        let Some(event) = NonNull::new(event) else {
            return Ok(None);
        };
        // SAFETY: the event is live until it is acknowledged.
        let copy = unsafe { Event::copy(self.lib, event.as_ref()) };
        // SAFETY: the event came from rdma_get_cm_event and is acknowledged once.
        unsafe { self.lib.rdma_ack_cm_event(event.as_ptr()) };
        Ok(Some(copy))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: each identifier of the channel shares its ownership, so all of them are destroyed.
        unsafe { self.lib.rdma_destroy_event_channel(self.as_ptr()) };
    }
}

impl Event {
    /// # Safety
    /// The event has not been acknowledged.
    pub(crate) unsafe fn copy(lib: &RdmaCmLib, event: &rdma_cm_event) -> Self {
        let kind = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest,
            RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
            // SAFETY: the caller's promise.
            RDMA_CM_EVENT_REJECTED => match unsafe { private_text(event) } {
                text if text.is_empty() && event.status == BY_CONSUMER => EventKind::Crowded,
                text => EventKind::Rejected(text),
            },
            RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::Closed,
            RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoved,
            _ => EventKind::Failed,
        };
        // SAFETY: the function takes any number and returns a constant text.
        let name = unsafe { CStr::from_ptr(lib.rdma_event_str(event.event)) }.to_string_lossy();
        let text = match event.status {
            0 => name.into_owned(),
            // Statuses of rejections are reasons of the connection manager; the others are negative errnos.
            status if event.event == RDMA_CM_EVENT_REJECTED => format!("{name}, reason {status}"),
            status => format!(
                "{name}: {}",
                io::Error::from_raw_os_error(status.wrapping_abs())
            ),
        };
        let text = match event.event {
            RDMA_CM_EVENT_ADDR_ERROR => format!("{text} (no RDMA device reaches this address)"),
            _ => text,
        };
        Self {
            id: event.id,
            kind,
            text,
        }
    }
}

/// The printable text at the start of a rejection's private data.
///
/// # Safety
/// The event has not been acknowledged and is one of a connection.
unsafe fn private_text(event: &rdma_cm_event) -> String {
    // SAFETY: the caller's promise: a rejection has connection parameters.
    let conn = unsafe { event.param.conn };
    if conn.private_data.is_null() {
        return String::new();
    }
    // SAFETY: librdmacm provides this many bytes until the event is acknowledged.
    let bytes: &[u8] = unsafe {
        std::slice::from_raw_parts(conn.private_data.cast(), usize::from(conn.private_data_len))
    };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// A connection identifier. The field after the identifier ends after it.
#[derive(Debug)]
pub(crate) struct Id {
    lib: &'static RdmaCmLib,
    id: NonNull<rdma_cm_id>,
    /// Its channel: librdmacm uses the channel until the identifier is destroyed. `None` if a C program owns the channel.
    channel: Option<Arc<EventChannel>>,
}

// SAFETY: librdmacm's objects may be used from any thread.
unsafe impl Send for Id {}

impl Id {
    pub(crate) fn create(lib: &'static RdmaCmLib, channel: &Arc<EventChannel>) -> Result<Self> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is live, and the result can be written.
        let made = unsafe {
            lib.rdma_create_id(channel.as_ptr(), &raw mut id, ptr::null_mut(), RDMA_PS_TCP)
        };
        check("rdma_create_id", made)?;
        let id = NonNull::new(id).ok_or_else(|| NaaError::last("rdma_create_id"))?;
        Ok(Self {
            lib,
            id,
            channel: Some(Arc::clone(channel)),
        })
    }

    /// Takes the ownership of an identifier, such as that of a connection request.
    ///
    /// # Safety
    /// The identifier is live and has no other owner. It belongs to `channel`; without it, to a channel that outlives
    /// the result.
    pub(crate) unsafe fn adopt(
        lib: &'static RdmaCmLib,
        id: NonNull<rdma_cm_id>,
        channel: Option<Arc<EventChannel>>,
    ) -> Self {
        Self { lib, id, channel }
    }

    /// Leaves identifier and channel to a C program, which destroys both.
    pub(crate) fn into_raw(self) -> (*mut rdma_cm_id, *mut rdma_event_channel) {
        let this = ManuallyDrop::new(self);
        let channel = this
            .channel
            .as_ref()
            .map_or(ptr::null_mut(), |c| c.as_ptr());
        (this.as_ptr(), channel)
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// An identifier that listens, and its port. The system keeps the port of a killed process until the process is gone,
    /// so a port that is in use is awaited.
    pub(crate) fn listen(
        lib: &'static RdmaCmLib,
        channel: &Arc<EventChannel>,
        address: &SocketAddr,
        backlog: c_int,
    ) -> Result<(Self, u16)> {
        let began = Instant::now();
        loop {
            // A failed attempt may have bound the identifier, so each has one of its own.
            let id = Self::create(lib, channel)?;
            match id.bind_and_listen(address, backlog) {
                Ok(port) => return Ok((id, port)),
                Err(NaaError::Call { source, .. })
                    if is_in_use(address, &source) && began.elapsed() < PORT_LIMIT =>
                {
                    std::thread::sleep(PORT_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn bind_and_listen(&self, address: &SocketAddr, backlog: c_int) -> Result<u16> {
        let mut storage = storage(address);
        // SAFETY: identifier and address are live.
        let bound = unsafe {
            self.lib
                .rdma_bind_addr(self.as_ptr(), (&raw mut storage).cast())
        };
        check("rdma_bind_addr", bound)?;
        // SAFETY: the identifier is live.
        check("rdma_listen", unsafe {
            self.lib.rdma_listen(self.as_ptr(), backlog)
        })?;
        // SAFETY: the identifier is live and bound.
        Ok(u16::from_be(unsafe {
            self.lib.rdma_get_src_port(self.as_ptr())
        }))
    }

    pub(crate) fn resolve_address(
        &self,
        local: Option<&SocketAddr>,
        remote: &SocketAddr,
        limit_ms: c_int,
    ) -> Result<()> {
        let mut remote = storage(remote);
        let mut local = local.map(storage);
        let local = local
            .as_mut()
            .map_or(ptr::null_mut(), |local| ptr::from_mut(local).cast());
        // SAFETY: identifier and addresses are live during the call.
        let called = unsafe {
            self.lib
                .rdma_resolve_addr(self.as_ptr(), local, (&raw mut remote).cast(), limit_ms)
        };
        check("rdma_resolve_addr", called)
    }

    pub(crate) fn resolve_route(&self, limit_ms: c_int) -> Result<()> {
        // SAFETY: the identifier is live.
        let called = unsafe { self.lib.rdma_resolve_route(self.as_ptr(), limit_ms) };
        check("rdma_resolve_route", called)
    }

    pub(crate) fn connect(&self, retry_count: u8) -> Result<()> {
        let mut param = parameters(retry_count);
        // SAFETY: the identifier has a queue pair, and the parameters are live during the call.
        let called = unsafe { self.lib.rdma_connect(self.as_ptr(), &raw mut param) };
        check("rdma_connect", called)
    }

    pub(crate) fn accept(&self, retry_count: u8) -> Result<()> {
        let mut param = parameters(retry_count);
        // SAFETY: the identifier of a request with a queue pair; the parameters are live during the call.
        let called = unsafe { self.lib.rdma_accept(self.as_ptr(), &raw mut param) };
        check("rdma_accept", called)
    }

    /// Refuses a request with a text, which ends in a zero byte as in the original.
    pub(crate) fn reject(&self, text: &str) -> Result<()> {
        let mut data: Vec<u8> = text.bytes().take(REJECT_TEXT_MAX - 1).collect();
        data.push(0);
        let length = u8::try_from(data.len()).expect("at most 148");
        // SAFETY: the identifier of a request; the data is live during the call.
        let called = unsafe {
            self.lib
                .rdma_reject(self.as_ptr(), data.as_ptr().cast(), length)
        };
        check("rdma_reject", called)
    }

    /// Makes lost packets and dead peers noticed early, before the connection is requested or accepted. A kernel without
    /// one of the options leaves its own value, so errors are ignored.
    pub(crate) fn set_options(&self) {
        for (name, mut value) in [
            (RDMA_OPTION_ID_ACK_TIMEOUT, ACK_TIMEOUT),
            (RDMA_OPTION_ID_TOS, TYPE_OF_SERVICE),
        ] {
            let value = (&raw mut value).cast();
            // SAFETY: the identifier is live, and the value has one byte, which lives during the call.
            unsafe {
                self.lib
                    .rdma_set_option(self.as_ptr(), RDMA_OPTION_ID, name, value, 1)
            };
        }
    }

    /// Ends the connection. Errors mean that it has ended already.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier is live.
        unsafe { self.lib.rdma_disconnect(self.as_ptr()) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the queue pair is destroyed before (order of the owners' fields), all events are acknowledged.
        unsafe { self.lib.rdma_destroy_id(self.as_ptr()) };
    }
}

/// The connection parameters of the original library: one outstanding read in each direction, retries of receivers
/// that are not ready.
fn parameters(retry_count: u8) -> rdma_conn_param {
    rdma_conn_param {
        retry_count: retry_count.min(7),
        initiator_depth: 1,
        responder_resources: 1,
        // 7 would retry without end.
        rnr_retry_count: 6,
        ..rdma_conn_param::default()
    }
}

/// Whether an error of a bind means that another process has the port. For all addresses of the machine at once the kernel
/// then reports that the address is not available.
fn is_in_use(address: &SocketAddr, error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => true,
        Some(libc::EADDRNOTAVAIL) => address.ip().is_unspecified(),
        _ => false,
    }
}

pub(super) fn check(call: &'static str, returned: c_int) -> Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(NaaError::last(call)),
    }
}
