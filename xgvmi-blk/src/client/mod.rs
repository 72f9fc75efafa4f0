//! The initiator: a volume behind a service on this host's DPU.
//!
//! The caller's own memory is the buffer of each transfer. The library registers it and binds a pooled key to it, the
//! service reads or writes it by DMA, and when the call returns, no access through the key succeeds any more. Small
//! transfers are copied through memory that is registered once: below some size that costs less.

mod host;
mod slots;
mod transfer;

pub use transfer::{Io, Ticket};

use crate::disk::Disk;
use crate::error::{BlkError, Result};
use crate::frames::{Call, EXTENTS_MAX, Hello, PROTOCOL, Range, Welcome};
use crate::geometry::{Geometry, Id};
use crate::pipe::{Broken, Order, Pipe};
use crate::volume::{Extent, VolumeStatus};
use host::Host;
use slots::Slots;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, Secret};

pub use crate::frames::SECRET_CONTEXT;

/// Transfers of at most this number of bytes are copied by default.
pub const COPY_MAX: usize = 16 << 10;
/// Time between attempts to reach a service again.
const RETRY: Duration = Duration::from_millis(100);
/// Longest transfer of zeros, or of the states of bytes, per request.
const RANGE_MAX: u64 = 1 << 30;

/// How the service gets access to the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Not at all: data is copied through memory that is registered once, whatever its size.
    Copy,
    /// A key of its own for each transfer, and an alias of it. For comparison.
    Ksm,
    /// A key of a pool for each transfer. The first use of each key creates its alias.
    Pool,
    /// As `Pool`; the connection announces the pool's keys, so that their aliases exist before the first transfer.
    Announced,
}

/// How to reach a volume.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The service's `host:port`.
    pub service: String,
    /// The secret of both sides. None on machines where everyone is trusted.
    pub secret: Option<Secret>,
    /// RDMA device of the host; `None` for the first one.
    pub device: Option<String>,
    /// How the service gets access to memory.
    pub scheme: Scheme,
    /// Transfers of at most this number of bytes are copied through memory that is registered once.
    pub copy_max: usize,
    /// Most requests under way. The service may allow fewer.
    pub requests_max: u32,
    /// Longest wait for an answer. A service that takes longer counts as gone.
    pub limit: Duration,
    /// A call that meets a lost connection tries to connect again for this time, and repeats its request.
    pub reconnect: Duration,
}

impl Spec {
    /// The defaults for a service.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            secret: None,
            device: None,
            scheme: Scheme::Announced,
            copy_max: COPY_MAX,
            requests_max: 16,
            limit: Duration::from_secs(30),
            reconnect: Duration::from_secs(10),
        }
    }
}

/// A volume behind a service. Any thread may use it; clones share the connection.
#[derive(Debug, Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: Spec,
    host: &'static Host,
    geometry: Geometry,
    id: Id,
    session: u64,
    transfer_max: u32,
    prepared: u32,
    gate: Gate,
    slots: Option<Slots>,
    pipe: Mutex<Arc<Pipe>>,
}

impl Volume {
    /// Connects to a service. Waits for one that is still starting, up to the limit of the reconnection.
    ///
    /// # Errors
    /// There is no service, it refuses, or the host's adapter cannot be used.
    pub fn connect(spec: &Spec) -> Result<Self> {
        let host = Host::get(spec.device.as_deref())?;
        let session =
            xgvmi_daemon::random().map_err(|error| BlkError::io("random bytes", error))?;
        let session = u64::try_from(session >> 64).unwrap_or(0);
        let (pipe, welcome) = dial(spec, host, (session, spec.reconnect))?;
        let requests_max = spec.requests_max.clamp(1, welcome.requests_max);
        let slot = match spec.scheme {
            Scheme::Copy => welcome.transfer_max as usize,
            // A key per connection would need the pool, which this scheme does without.
            Scheme::Ksm => 0,
            Scheme::Pool | Scheme::Announced => spec.copy_max.min(welcome.transfer_max as usize),
        };
        let slots = match slot {
            0 => None,
            bytes => {
                let bytes = bytes.next_multiple_of(4096);
                Some(Slots::new(host, requests_max as usize, bytes)?)
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                spec: spec.clone(),
                host,
                geometry: welcome.geometry,
                id: welcome.volume,
                session,
                transfer_max: welcome.transfer_max,
                prepared: welcome.prepared,
                gate: Gate::new(requests_max),
                slots,
                pipe: Mutex::new(Arc::new(pipe)),
            }),
        })
    }

    /// Size of the volume.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    /// Identifier of the volume.
    #[must_use]
    pub fn id(&self) -> Id {
        self.inner.id
    }

    /// Longest transfer of one request in bytes.
    #[must_use]
    pub fn transfer_max(&self) -> u32 {
        self.inner.transfer_max
    }

    /// Aliases that existed before the first transfer.
    #[must_use]
    pub fn prepared(&self) -> u32 {
        self.inner.prepared
    }

    /// Starts a transfer of up to [`Volume::transfer_max`] bytes, or a flush. `None` if [`Spec::requests_max`] requests
    /// are under way: wait for one of them. Does not wait for an answer, and does not connect again.
    ///
    /// # Errors
    /// The transfer is too long, the memory cannot be registered, or the connection is lost.
    ///
    /// # Safety
    /// The memory of the transfer stays mapped until the ticket is gone. Until then nobody writes to it, and nobody reads
    /// the memory of a read.
    pub unsafe fn submit(&self, io: Io) -> Result<Option<Ticket>> {
        if !self.inner.gate.try_enter() {
            return Ok(None);
        }
        let pipe = Arc::clone(&self.inner.pipe());
        // SAFETY: the caller's promise.
        unsafe { Ticket::start(&self.inner, pipe, io) }.map(Some)
    }

    /// Reads `bytes` from `offset`.
    ///
    /// # Errors
    /// The range is outside the volume or no multiple of 512 bytes, or its data cannot be read.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.geometry.check(offset, bytes.len() as u64)?;
        let (memory, length) = (bytes.as_mut_ptr(), bytes.len());
        let part = |at: usize, length: usize| Io::Read {
            offset: offset + at as u64,
            memory: memory.wrapping_add(at),
            length,
        };
        // SAFETY: the slice is borrowed exclusively until the call returns, when no request is under way.
        let done = unsafe { self.in_parts(length, part) };
        // The compiler did not see that the adapter has written the bytes.
        std::hint::black_box(bytes);
        done
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The range is outside the volume or no multiple of 512 bytes, or fewer than two targets take the data.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.geometry.check(offset, bytes.len() as u64)?;
        let (memory, length) = (std::hint::black_box(bytes).as_ptr(), bytes.len());
        let part = |at: usize, length: usize| Io::Write {
            offset: offset + at as u64,
            memory: memory.wrapping_add(at),
            length,
        };
        // SAFETY: the slice is borrowed until the call returns, when no request is under way.
        unsafe { self.in_parts(length, part) }
    }

    /// Makes all writes durable that were acknowledged before.
    ///
    /// # Errors
    /// Fewer than two targets could do it.
    pub fn flush(&self) -> Result<()> {
        self.call(Call::Flush).map(drop)
    }

    /// Gives the space of whole blocks back. They are zero afterwards. The rest of the range does not change.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.ranges(offset, length, |range| Call::Trim { range })
    }

    /// Writes zeros. Whole blocks take no space unless `allocate` is set.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.ranges(offset, length, |range| Call::Zero { range, allocate })
    }

    /// The states of the bytes from `offset` on, up to `length` bytes in at most `limit` runs, and at most 1,024.
    ///
    /// # Errors
    /// The range is outside the volume.
    pub fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.inner.geometry.check(offset, length)?;
        let range = Range {
            offset,
            // Cannot be cut: at most 1 GiB.
            length: u32::try_from(length.min(RANGE_MAX)).unwrap_or(u32::MAX),
        };
        let limit = u32::try_from(limit.min(EXTENTS_MAX)).unwrap_or(1);
        self.call(Call::Extents { range, limit })
    }

    /// Transfers a range in parts, several at once.
    ///
    /// # Safety
    /// As for [`Volume::submit`], until the call returns.
    unsafe fn in_parts(&self, length: usize, part: impl Fn(usize, usize) -> Io) -> Result<()> {
        let most = self.inner.transfer_max as usize;
        let mut end = None;
        loop {
            let pipe = self.inner.live(&mut end)?;
            let transfer = || {
                let mut tickets = VecDeque::new();
                let mut at = 0;
                while at < length {
                    let bytes = (length - at).min(most);
                    while !self.inner.gate.try_enter() {
                        // This call's own requests first: otherwise two calls could wait for each other.
                        match tickets.pop_front() {
                            Some(ticket) => Ticket::wait(ticket)?,
                            None => {
                                self.inner.gate.enter();
                                break;
                            }
                        }
                    }
                    let pipe = Arc::clone(&pipe);
                    // SAFETY: the caller's promise; dropping the tickets waits for their ends.
                    tickets
                        .push_back(unsafe { Ticket::start(&self.inner, pipe, part(at, bytes)) }?);
                    at += bytes;
                }
                tickets.into_iter().try_for_each(Ticket::wait)
            };
            match transfer() {
                Err(BlkError::Disconnected { .. }) if self.inner.may_retry(&mut end) => {}
                other => return other,
            }
        }
    }

    /// A request without memory.
    fn call(&self, call: Call) -> Result<Vec<Extent>> {
        let mut end = None;
        loop {
            let pipe = self.inner.live(&mut end)?;
            self.inner.gate.enter();
            let done =
                Ticket::plain(&self.inner, pipe, call).and_then(|mut ticket| ticket.finish());
            match done {
                Err(BlkError::Disconnected { .. }) if self.inner.may_retry(&mut end) => {}
                other => return other,
            }
        }
    }

    fn ranges(&self, offset: u64, length: u64, call: impl Fn(Range) -> Call) -> Result<()> {
        self.inner.geometry.check(offset, length)?;
        let mut done = 0;
        while done < length {
            let part = (length - done).min(RANGE_MAX);
            self.call(call(Range {
                offset: offset + done,
                // Cannot be cut: at most 1 GiB.
                length: u32::try_from(part).unwrap_or(u32::MAX),
            }))?;
            done += part;
        }
        Ok(())
    }
}

impl Inner {
    fn pipe(&self) -> std::sync::MutexGuard<'_, Arc<Pipe>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection; a new one if it was lost. `end` is when a call gives up.
    fn live(&self, end: &mut Option<Instant>) -> Result<Arc<Pipe>> {
        let mut pipe = self.pipe();
        if !pipe.is_closed() {
            return Ok(Arc::clone(&pipe));
        }
        let end = *end.get_or_insert_with(|| Instant::now() + self.spec.reconnect);
        if let Some(slots) = &self.slots {
            slots.renew(self.host)?;
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match dial(&self.spec, self.host, (self.session, left)) {
                Ok((new, welcome)) => {
                    let same = (welcome.volume, welcome.geometry) == (self.id, self.geometry)
                        && welcome.transfer_max >= self.transfer_max
                        && welcome.requests_max >= self.gate.max;
                    if !same {
                        return Err(BlkError::Service {
                            service: self.spec.service.clone(),
                            reason: "another volume or other limits since the connection was lost"
                                .to_owned(),
                        });
                    }
                    *pipe = Arc::new(new);
                    return Ok(Arc::clone(&pipe));
                }
                Err(error) if Instant::now() + RETRY >= end => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// True if a call that has lost its connection may try again.
    fn may_retry(&self, end: &mut Option<Instant>) -> bool {
        let end = *end.get_or_insert_with(|| Instant::now() + self.spec.reconnect);
        Instant::now() < end
    }

    fn length(&self, length: usize) -> Result<u32> {
        let fits = u32::try_from(length).ok();
        fits.filter(|length| (1..=self.transfer_max).contains(length))
            .ok_or_else(|| {
                BlkError::Argument(format!(
                    "a transfer of {length} bytes: the service takes 1 to {}",
                    self.transfer_max
                ))
            })
    }

    fn broken(&self, error: &Broken) -> BlkError {
        BlkError::Disconnected {
            service: self.spec.service.clone(),
            reason: error.to_string(),
        }
    }
}

/// Connects and says hello.
fn dial(
    spec: &Spec,
    host: &'static Host,
    (session, wait): (u64, Duration),
) -> Result<(Pipe, Welcome)> {
    let failed = |reason: &dyn std::fmt::Display| BlkError::Disconnected {
        service: spec.service.clone(),
        reason: reason.to_string(),
    };
    let link = Link::connect(&spec.service, wait, PROTOCOL, spec.secret.as_ref());
    let mut link = link.map_err(|error| failed(&error))?;
    let announcement = match spec.scheme {
        Scheme::Announced => host.announcement(),
        Scheme::Copy | Scheme::Ksm | Scheme::Pool => Vec::new(),
    };
    let hello = Hello {
        pooled: spec.scheme != Scheme::Ksm,
        gvmi: host.gvmi().get(),
        owner: host.owner().get(),
        session,
        announcement,
    };
    link.send(&hello.to_bytes())
        .map_err(|error| failed(&error))?;
    let bytes = match link.wait(spec.limit) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(failed(&"no welcome in time")),
        Err(xgvmi_daemon::LinkError::Refused(reason)) => {
            return Err(BlkError::Service {
                service: spec.service.clone(),
                reason,
            });
        }
        Err(error) => return Err(failed(&error)),
    };
    let welcome = Welcome::parse(&bytes).map_err(|error| failed(&error))?;
    Ok((Pipe::new(link, Order::ByNumber, spec.limit), welcome))
}

impl Disk for Volume {
    fn id(&self) -> Id {
        self.id()
    }

    fn geometry(&self) -> Geometry {
        self.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(offset, bytes)
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.write_zeroes(offset, length, allocate)
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.trim(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.flush()
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.extents(offset, length, limit)
    }

    fn status(&self) -> VolumeStatus {
        VolumeStatus {
            volume: self.inner.id.to_string(),
            size: self.inner.geometry.size(),
            block_size: self.inner.geometry.block_size(),
            // Its targets and counters are the service's.
            ..VolumeStatus::default()
        }
    }
}

/// Bounds the requests under way.
#[derive(Debug)]
struct Gate {
    max: u32,
    inside: Mutex<u32>,
    left: Condvar,
}

impl Gate {
    fn new(max: u32) -> Self {
        Self {
            max,
            inside: Mutex::new(0),
            left: Condvar::new(),
        }
    }

    fn try_enter(&self) -> bool {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let free = *inside < self.max;
        *inside += u32::from(free);
        free
    }

    fn enter(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        while *inside >= self.max {
            inside = self
                .left
                .wait(inside)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *inside += 1;
    }

    fn leave(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        *inside -= 1;
        self.left.notify_one();
    }
}
