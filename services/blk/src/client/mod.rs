//! The initiator: a volume behind a service on this host's DPU.
//!
//! The caller's own memory is the buffer of each transfer. The library registers it and binds a pooled key to it, the
//! service reads or writes it by DMA, and when the call returns, no access through the key succeeds any more. Small
//! transfers are copied through memory that is registered once: below some size that costs less.

mod connection;
mod host;
mod slots;
mod spec;
mod transfer;

pub use spec::{COPY_MAX, Scheme, Spec};
pub use transfer::{Io, Ticket};

use crate::disk::Disk;
use crate::error::{BlkError, Result};
use crate::frames::{Call, EXTENTS_MAX, Hello, Range};
use crate::geometry::{Geometry, Id, SECTOR};
use crate::pipe::Pipe;
use crate::volume::{Extent, VolumeStatus};
use connection::{Gate, Inner, dial, greet};
use host::Host;
use slots::Slots;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use xgvmi_daemon::Secret;
use xgvmi_pool::AccessKey;

pub use crate::frames::SECRET_CONTEXT;

/// Longest transfer of zeros, or of the states of bytes, per request.
const RANGE_MAX: u64 = 1 << 30;

/// A volume behind a service, as a [`Disk`]. Any thread may use it; clones share the connection. States are those of 1,024
/// runs at most.
#[derive(Debug, Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

impl Volume {
    /// Connects to a service. Waits for one that is still starting, up to the limit of the reconnection.
    ///
    /// # Errors
    /// There is no service, it refuses, or the host's adapter cannot be used.
    pub fn connect(spec: &Spec) -> Result<Self> {
        let host = Host::get(spec.device.as_deref())?;
        if spec.scheme == Scheme::Stock {
            host.open_ucx(spec.ucx.as_deref())?;
        }
        let session = random()?;
        let (pipe, welcome) = dial(spec, host, (session, spec.reconnect))?;
        let requests_max = spec.requests_max.clamp(1, welcome.requests_max);
        let slot = match spec.scheme {
            Scheme::Copy => welcome.transfer_max as usize,
            // A key per connection would need the pool, which this scheme does without.
            Scheme::Ksm => 0,
            Scheme::Pool | Scheme::Announced | Scheme::Stock => {
                spec.copy_max.min(welcome.transfer_max as usize)
            }
        };
        let slots = match slot {
            0 => None,
            bytes => {
                let bytes = bytes.next_multiple_of(4096);
                let size = (requests_max as usize, bytes);
                Some(Slots::new(host, spec.scheme, size)?)
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                spec: spec.clone(),
                secret: Mutex::new(spec.secret.clone()),
                host,
                block_size: welcome.geometry.block_size(),
                blocks: welcome.geometry.blocks().into(),
                id: welcome.volume,
                session,
                transfer_max: welcome.transfer_max,
                prepared: welcome.prepared,
                read_only: welcome.read_only.into(),
                gate: Gate::new(requests_max),
                slots,
                pipe: Mutex::new(Arc::new(pipe)),
            }),
        })
    }

    /// Opens the adapter of this process, which all volumes share.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn check_adapter(spec: &Spec) -> Result<()> {
        Host::get(spec.device.as_deref()).map(drop)
    }

    /// Size of a service's volume. Connects and disconnects without use of the adapter, so a process may ask before it
    /// forks.
    ///
    /// # Errors
    /// There is no service, or it refuses.
    pub fn ask(spec: &Spec) -> Result<Geometry> {
        let number = random()?;
        let hello = Hello {
            pooled: false,
            gvmi: 0,
            access_key: AccessKey::new(random_bytes()?),
            stock: false,
            session: number,
            announcement: Vec::new(),
            volume: spec.volume.clone(),
        };
        let (_, welcome) = greet(spec, &hello, spec.reconnect)?;
        Ok(welcome.geometry)
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

    /// Starts a transfer of up to [`Volume::transfer_max`] bytes, a flush or a trim. `None` if [`Spec::requests_max`] requests
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

    /// The connection, if the service says there that the volume has a sector behind the end that is known here.
    fn grown(&self) -> Option<Arc<Pipe>> {
        let behind = Range {
            offset: self.geometry().size() / u64::from(SECTOR) * u64::from(SECTOR),
            length: SECTOR,
        };
        let pipe = Arc::clone(&self.inner.pipe());
        if pipe.is_closed() || !self.inner.gate.try_enter() {
            return None;
        }
        let call = Call::Extents {
            range: behind,
            limit: 1,
        };
        let asked = Ticket::plain(&self.inner, Arc::clone(&pipe), call);
        let told = asked.and_then(|mut ticket| ticket.finish());
        told.is_ok().then_some(pipe)
    }

    fn ranges(&self, offset: u64, length: u64, call: impl Fn(Range) -> Call) -> Result<()> {
        self.inner.geometry().check(offset, length)?;
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

/// A number that no other connection of the service has.
fn random() -> Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    xgvmi_daemon::random_bytes().map_err(|error| BlkError::io("random bytes", error))
}

impl Disk for Volume {
    fn id(&self) -> Id {
        self.inner.id
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.geometry().check(offset, bytes.len() as u64)?;
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

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.geometry().check(offset, bytes.len() as u64)?;
        let (memory, length) = (std::hint::black_box(bytes).as_ptr(), bytes.len());
        let part = |at: usize, length: usize| Io::Write {
            offset: offset + at as u64,
            memory: memory.wrapping_add(at),
            length,
        };
        // SAFETY: the slice is borrowed until the call returns, when no request is under way.
        unsafe { self.in_parts(length, part) }
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.ranges(offset, length, |range| Call::Zero { range, allocate })
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.ranges(offset, length, |range| Call::Trim { range })
    }

    fn flush(&self) -> Result<()> {
        self.call(Call::Flush).map(drop)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.inner.geometry().check(offset, length)?;
        let range = Range {
            offset,
            // Cannot be cut: at most 1 GiB.
            length: u32::try_from(length.min(RANGE_MAX)).unwrap_or(u32::MAX),
        };
        let limit = u32::try_from(limit.min(EXTENTS_MAX)).unwrap_or(1);
        self.call(Call::Extents { range, limit })
    }

    fn is_read_only(&self) -> bool {
        self.inner.read_only.load(Ordering::Acquire)
    }

    fn renew(&self) -> std::result::Result<(), String> {
        self.inner.renew()?;
        if let Some(pipe) = self.grown() {
            // Requests under way are repeated on the new connection, whose welcome has the size.
            pipe.shut("the volume has grown");
            return self.inner.renew();
        }
        Ok(())
    }

    fn set_secret(&self, secret: &Secret) {
        *self.inner.secret() = Some(secret.clone());
    }

    fn status(&self) -> VolumeStatus {
        let geometry = self.geometry();
        VolumeStatus {
            volume: self.inner.id.to_string(),
            size: geometry.size(),
            block_size: geometry.block_size(),
            // Its targets and counters are the service's.
            ..VolumeStatus::default()
        }
    }
}
