//! A host's session with a service: one connection per session at a time. Connections outlive sessions, so that a
//! session costs no connection.

use super::frames::{FRAMES, HostFrame, KeyedRegion, SECRET_CONTEXT, ServiceFrame};
use super::host::{Held, Host, Unkeyed, Way, keys};
use crate::endpoint::{ANNOUNCE_LIMIT, CONNECT_LIMIT, Endpoint, Remote, Role};
use crate::error::{NaaError, Result};
use crate::machine::{self, State};
use crate::pages;
use crate::plan::Region;
use crate::spec::Claim;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use xgvmi_daemon::{Link, LinkError, Secret};
use xgvmi_pool::Seal;

/// Environment variable: file with the service's secret.
const SECRET_FILE: &str = "NAAICE_SECRET_FILE";
/// Maximum number of unused connections of this process.
const IDLE_MAX: usize = 8;

/// Connections without a session.
static IDLE: Mutex<Vec<Connection>> = Mutex::new(Vec::new());

/// A connection that the service has welcomed.
#[derive(Debug)]
struct Connection {
    peer: String,
    way: Way,
    process: u32,
    bytes_max: u64,
    link: Link,
}

/// Creates a session.
///
/// # Safety
/// The regions stay mapped until the endpoint is closed.
pub(crate) unsafe fn create(
    function: u8,
    regions: &[Region],
    claim: Claim,
) -> Result<Box<Endpoint>> {
    let way = Way::from_env()?;
    let peer = claim.entry().peer();
    let host = Host::get()?;
    let (mut connection, was_idle) = match idle(&peer, way) {
        Some(connection) => (connection, true),
        None => (connect(host, &peer, way)?, false),
    };
    let bytes: u64 = regions.iter().map(|region| u64::from(region.size)).sum();
    if bytes > connection.bytes_max {
        let reason = format!(
            "its regions have {bytes} bytes; the service serves at most {} per session",
            connection.bytes_max
        );
        keep(connection);
        return Err(NaaError::Refused { peer, reason });
    }
    let (inputs, later): (Vec<Region>, Vec<Region>) = regions.iter().partition(|r| r.input);
    // The keys follow: the service prepares the session while this process registers the inputs.
    let keyed = regions
        .iter()
        .map(|region| KeyedRegion {
            flags: region.flags(),
            mkey: 0,
            addr: region.addr,
            size: region.size,
        })
        .collect();
    let frame = HostFrame::Create {
        function,
        regions: keyed,
    };
    let sent = connection.send(&frame);
    // SAFETY: the caller's promise; the session ends before the regions.
    let held = unsafe { host.hold(way, &inputs) }.or_else(|_| {
        // Registrations of past sessions count against the limit of locked memory.
        release_late_ends();
        // SAFETY: as above.
        unsafe { host.hold(way, &inputs) }
    })?;
    let answer = match sent.and_then(|()| connection.created()) {
        // The service may have closed a connection without a session just now.
        Err(error) if was_idle && error.is_unreachable() => {
            connection = connect(host, &peer, way)?;
            connection.send(&frame)?;
            connection.created()
        }
        answer => answer,
    };
    match answer? {
        ServiceFrame::Created => {}
        ServiceFrame::Refused(reason) => {
            drop(held);
            keep(connection);
            return Err(NaaError::Refused { peer, reason });
        }
        _ => return Err(connection.strange()),
    }
    if !held.is_empty() {
        connection.send(&keys_of(&held))?;
    }
    let mut endpoint = Endpoint::new(Role::Host(machine::Host::new()), peer);
    endpoint.public.fncode = function;
    endpoint.public.immediate[0] = function;
    endpoint.claim = Some(claim);
    endpoint.remote = Some(Box::new(DpuSession {
        host,
        way,
        held,
        later,
        connection: Some(connection),
        is_busy: false,
        has_failed: false,
    }));
    endpoint.set_state(State::Announced);
    Ok(endpoint)
}

/// An unused connection of this process that is still alive.
fn idle(peer: &str, way: Way) -> Option<Connection> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    // A forked child must not speak on its parent's connections.
    idle.retain(|connection| connection.process == std::process::id());
    loop {
        let at = idle.iter().position(|c| c.peer == peer && c.way == way)?;
        let mut connection = idle.swap_remove(at);
        // The service is silent between sessions: anything else than silence is an end.
        if matches!(connection.link.take(), Ok(None)) {
            return Some(connection);
        }
    }
}

/// Keeps a connection for the next session.
fn keep(connection: Connection) {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < IDLE_MAX {
        idle.push(connection);
    }
}

fn connect(host: &Host, peer: &str, way: Way) -> Result<Connection> {
    let secret = match std::env::var(SECRET_FILE) {
        Ok(file) if !file.is_empty() => {
            Some(Secret::read(Path::new(&file), SECRET_CONTEXT).map_err(keys)?)
        }
        _ => None,
    };
    let link = Link::connect(peer, CONNECT_LIMIT, FRAMES, secret.as_ref()).map_err(|error| {
        NaaError::Connect {
            peer: peer.to_owned(),
            reason: error.to_string(),
        }
    })?;
    let mut connection = Connection {
        peer: peer.to_owned(),
        way,
        process: std::process::id(),
        bytes_max: 0,
        link,
    };
    let announcement = match way {
        Way::Pool => host.announcement(&Seal::OPEN),
        Way::Ksm => Vec::new(),
    };
    connection.send(&HostFrame::Hello {
        pooled: way == Way::Pool,
        gvmi: host.gvmi().get(),
        access: host.access_key().clone(),
        announcement,
    })?;
    match connection.answer("the service's welcome", CONNECT_LIMIT)? {
        ServiceFrame::Welcome { bytes_max, .. } => {
            connection.bytes_max = bytes_max;
            Ok(connection)
        }
        ServiceFrame::Refused(reason) => Err(NaaError::Refused {
            peer: peer.to_owned(),
            reason,
        }),
        _ => Err(connection.strange()),
    }
}

impl Connection {
    fn send(&mut self, frame: &HostFrame) -> Result<()> {
        self.link
            .send(&frame.to_bytes())
            .map_err(|error| self.lost(&error))
    }

    /// The next frame, if it arrives within the limit.
    fn take(&mut self, limit: Duration) -> Result<Option<ServiceFrame>> {
        let body = match limit.is_zero() {
            true => self.link.flush().and_then(|()| self.link.take()),
            false => self.link.wait(limit),
        };
        match body.map_err(|error| self.lost(&error))? {
            None => Ok(None),
            Some(body) => ServiceFrame::parse(&body)
                .map(Some)
                .map_err(|bad| NaaError::Lost {
                    peer: self.peer.clone(),
                    reason: bad.to_string(),
                }),
        }
    }

    fn created(&mut self) -> Result<ServiceFrame> {
        self.answer("the session's creation", ANNOUNCE_LIMIT)
    }

    fn answer(&mut self, step: &'static str, limit: Duration) -> Result<ServiceFrame> {
        self.take(limit)?.ok_or(NaaError::Late { step, limit })
    }

    fn strange(&self) -> NaaError {
        NaaError::Lost {
            peer: self.peer.clone(),
            reason: "an answer that fits no question".to_owned(),
        }
    }

    fn lost(&self, error: &LinkError) -> NaaError {
        let peer = self.peer.clone();
        match error {
            LinkError::Refused(reason) => NaaError::Refused {
                peer,
                reason: reason.clone(),
            },
            error => NaaError::Lost {
                peer,
                reason: error.to_string(),
            },
        }
    }
}

/// A session with a service.
#[derive(Debug)]
struct DpuSession {
    host: &'static Host,
    way: Way,
    /// Regions with their keys.
    held: Vec<Held>,
    /// Outputs that get their keys while the service reads the inputs of the first call.
    later: Vec<Region>,
    /// `None` after the end.
    connection: Option<Connection>,
    /// The service may access the regions.
    is_busy: bool,
    has_failed: bool,
}

impl Remote for DpuSession {
    fn invoke(&mut self, user: u32) -> Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let sent = connection.send(&HostFrame::Invoke { user });
        self.is_busy = true;
        let done = sent.and_then(|()| self.hold_outputs());
        self.has_failed |= done.is_err();
        if done.is_err() {
            // The service must not wait for keys.
            self.connection = None;
        } else {
            release_late_ends();
        }
        done
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<(u8, u32)>> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let outcome = match connection.take(limit) {
            Ok(None) => return Ok(None),
            Ok(Some(ServiceFrame::Done { code, bytes })) => {
                self.is_busy = false;
                return Ok(Some((code, bytes)));
            }
            Ok(Some(_)) => Err(connection.strange()),
            Err(error) => Err(error),
        };
        self.has_failed = true;
        outcome
    }
}

impl DpuSession {
    /// Touches, registers and binds the outputs, and sends their keys.
    fn hold_outputs(&mut self) -> Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if self.later.is_empty() {
            return Ok(());
        }
        let later = std::mem::take(&mut self.later);
        for region in &later {
            populate(region);
        }
        // SAFETY: the promise of the session's creator; the session ends before the regions.
        let held = unsafe { self.host.hold(self.way, &later) }?;
        let keys = keys_of(&held);
        self.held.extend(held);
        connection.send(&keys)
    }
}

fn keys_of(held: &[Held]) -> HostFrame {
    HostFrame::Keys(held.iter().map(|held| held.mkey().raw()).collect())
}

/// Lets the system allocate the pages of an output now, while this core has nothing else to do. An error has no effect:
/// the pages then appear with the first write.
fn populate(region: &Region) {
    // The plan has checked that the region does not exceed the address space.
    let (start, length) = pages::around(region.addr, region.size.into(), pages::bytes());
    let length = usize::try_from(length).unwrap_or(0);
    // SAFETY: the call changes no byte; it fails on memory that is not mapped or not writable.
    unsafe { libc::madvise(start as *mut _, length, libc::MADV_POPULATE_WRITE) };
}

/// Bytes of registrations without keys that may wait for their end.
const LATE_BYTES_MAX: usize = 64 << 20;
/// Registrations that may wait for their end.
const LATE_MAX: usize = 64;

/// Registrations of past sessions. Their end waits for a moment in which the process waits for a service.
static LATE: Mutex<Vec<(u32, Unkeyed)>> = Mutex::new(Vec::new());

/// Ends a registration later, if the limits allow it.
fn end_late(unkeyed: Unkeyed) {
    let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes: usize = late.iter().map(|(_, unkeyed)| unkeyed.len()).sum();
    if late.len() < LATE_MAX && bytes + unkeyed.len() <= LATE_BYTES_MAX {
        late.push((std::process::id(), unkeyed));
    }
}

fn release_late_ends() {
    let late = std::mem::take(&mut *LATE.lock().unwrap_or_else(PoisonError::into_inner));
    for (process, unkeyed) in late {
        // Those of a parent belong to the parent.
        if process != std::process::id() {
            std::mem::forget(unkeyed);
        }
    }
}

impl Drop for DpuSession {
    fn drop(&mut self) {
        // Before the caller frees the regions: afterwards no access through these keys succeeds.
        for held in self.held.drain(..) {
            end_late(held.end_access());
        }
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if self.is_busy || self.has_failed {
            return;
        }
        if connection.send(&HostFrame::Finalize).is_ok() && !connection.link.wants_to_send() {
            keep(connection);
        }
    }
}
