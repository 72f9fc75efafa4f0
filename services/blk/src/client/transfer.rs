//! Requests under way.

use super::connection::Inner;
use super::host::Held;
use crate::error::{BlkError, Result};
use crate::frames::{Answer, Call, Memory, Outcome, Range, Request};
use crate::pipe::Pipe;
use crate::volume::Extent;
use std::sync::Arc;
use std::time::Duration;

/// Longest trim of one request in bytes.
const TRIM_MAX: u32 = 1 << 30;

/// A transfer between the volume and the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// From the volume to the memory.
    Read {
        /// First byte in the volume.
        offset: u64,
        /// The memory.
        memory: *mut u8,
        /// Bytes.
        length: usize,
    },
    /// From the memory to the volume.
    Write {
        /// First byte in the volume.
        offset: u64,
        /// The memory.
        memory: *const u8,
        /// Bytes.
        length: usize,
    },
    /// All writes that were acknowledged before become durable.
    Flush,
    /// Gives the space of whole blocks back, which are zero afterwards.
    Trim {
        /// First byte in the volume.
        offset: u64,
        /// Bytes, at most 1 GiB.
        length: usize,
    },
}

/// A request under way. Dropping it waits for its end, at most for the limit of the connection.
#[derive(Debug)]
#[must_use = "dropping it waits for its end"]
pub struct Ticket {
    inner: Arc<Inner>,
    pipe: Arc<Pipe>,
    /// `None` after the end.
    number: Option<u64>,
    /// Key of the caller's memory.
    held: Option<Held>,
    /// Slot with a copy of the data.
    slot: Option<usize>,
    /// Where the data of a slot goes after a read.
    copy_to: Option<(*mut u8, usize)>,
}

// SAFETY: the pointer is the caller's memory, which the caller of `submit` promises to leave alone until the end.
unsafe impl Send for Ticket {}
// SAFETY: shared references read nothing behind the pointer.
unsafe impl Sync for Ticket {}

impl Ticket {
    /// A request whose key and place are free. Sends it.
    ///
    /// # Safety
    /// As for [`super::Volume::submit`].
    pub(super) unsafe fn start(inner: &Arc<Inner>, pipe: Arc<Pipe>, io: Io) -> Result<Self> {
        let mut ticket = Self::new(inner, pipe);
        // SAFETY: the caller's promise.
        let call = unsafe { ticket.prepare(io) }?;
        ticket.send(call)?;
        Ok(ticket)
    }

    /// A request without memory. Sends it.
    pub(super) fn plain(inner: &Arc<Inner>, pipe: Arc<Pipe>, call: Call) -> Result<Self> {
        let mut ticket = Self::new(inner, pipe);
        ticket.send(call)?;
        Ok(ticket)
    }

    fn new(inner: &Arc<Inner>, pipe: Arc<Pipe>) -> Self {
        Self {
            inner: Arc::clone(inner),
            pipe,
            number: None,
            held: None,
            slot: None,
            copy_to: None,
        }
    }

    /// # Safety
    /// As for [`Ticket::start`].
    unsafe fn prepare(&mut self, io: Io) -> Result<Call> {
        let (offset, memory, length, writes) = match io {
            Io::Flush => return Ok(Call::Flush),
            Io::Trim { offset, length } => {
                let length = u32::try_from(length)
                    .ok()
                    .filter(|length| *length <= TRIM_MAX);
                let length = length.ok_or_else(|| {
                    BlkError::Argument(format!("a trim of more than {TRIM_MAX} bytes: trim parts"))
                })?;
                return Ok(Call::Trim {
                    range: Range { offset, length },
                });
            }
            Io::Read {
                offset,
                memory,
                length,
            } => (offset, memory, length, false),
            Io::Write {
                offset,
                memory,
                length,
            } => (offset, memory.cast_mut(), length, true),
        };
        let range = Range {
            offset,
            length: self.inner.length(length)?,
        };
        let slots = self.inner.slots.as_ref();
        let slot = slots.filter(|slots| length <= slots.bytes());
        let slot = slot.and_then(|slots| Some((slots, slots.mkey()?, slots.take()?)));
        let memory = match slot {
            Some((slots, mkey, slot)) => {
                self.slot = Some(slot);
                if writes {
                    // SAFETY: the slot is free and long enough; the caller vouches for its memory.
                    unsafe { std::ptr::copy_nonoverlapping(memory, slots.at(slot), length) };
                } else {
                    self.copy_to = Some((memory, length));
                }
                Memory {
                    mkey,
                    address: slots.at(slot) as u64,
                }
            }
            None => {
                let Inner { host, spec, .. } = &*self.inner;
                // SAFETY: the caller keeps its memory until this value is gone.
                let held = unsafe { host.hold(spec.scheme, memory, length) }?;
                let mkey = held.mkey().raw();
                self.held = Some(held);
                Memory {
                    mkey,
                    address: memory as u64,
                }
            }
        };
        Ok(if writes {
            Call::Write { range, memory }
        } else {
            Call::Read { range, memory }
        })
    }

    fn send(&mut self, call: Call) -> Result<()> {
        let sent = self.pipe.send(|number| Request { number, call }.to_bytes());
        self.number = Some(sent.map_err(|error| self.inner.broken(&error))?);
        Ok(())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The request or the connection has failed.
    pub fn wait(mut self) -> Result<()> {
        self.finish().map(drop)
    }

    /// True if the request has ended; [`Ticket::wait`] then returns at once. Does not block.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.number.is_none_or(|number| self.pipe.has(number))
    }

    /// Waits until one of these requests has ended, at most for `limit`. False if none has. With zero it does not block.
    pub fn wait_any(tickets: &[&Self], limit: Duration) -> bool {
        let Some(first) = tickets.first() else {
            return false;
        };
        // Only the newest connection is open. Requests of another one have ended.
        let mut others = tickets.iter();
        if others.any(|ticket| !Arc::ptr_eq(&ticket.pipe, &first.pipe)) {
            return true;
        }
        let numbers: Option<Vec<u64>> = tickets.iter().map(|ticket| ticket.number).collect();
        numbers.is_none_or(|numbers| first.pipe.wait_any(&numbers, limit))
    }

    /// Waits for the end, and returns the extents that the request asked for.
    pub(super) fn finish(&mut self) -> Result<Vec<Extent>> {
        let Some(number) = self.number.take() else {
            return Ok(Vec::new());
        };
        let waited = self.pipe.wait(number);
        let bytes = match waited {
            Ok(bytes) => bytes,
            Err(error) => {
                // From here on the service cannot reach the memory any more.
                self.held = None;
                return Err(self.inner.broken(&error));
            }
        };
        let answer = Answer::parse(&bytes).map_err(|error| {
            let broken = self.pipe.shut(&error.to_string());
            self.inner.broken(&broken)
        })?;
        self.held = None;
        let service = || self.inner.spec.service.clone();
        match answer.outcome {
            Outcome::Done => {
                if let (Some((to, length)), Some(slot), Some(slots)) =
                    (self.copy_to, self.slot, &self.inner.slots)
                {
                    // SAFETY: the caller vouches for its memory; the service has written the slot and is done.
                    unsafe { std::ptr::copy_nonoverlapping(slots.at(slot), to, length) };
                }
                Ok(Vec::new())
            }
            Outcome::Extents(extents) => Ok(extents),
            Outcome::Full(reason) => Err(BlkError::ServiceFull {
                service: service(),
                reason,
            }),
            Outcome::Invalid(reason) => Err(BlkError::Argument(reason)),
            Outcome::Failed(reason) => Err(BlkError::Service {
                service: service(),
                reason,
            }),
            Outcome::Denied(reason) => Err(BlkError::Denied {
                service: service(),
                reason,
            }),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nobody asks for the outcome any more.
        let _ = self.finish();
        self.held = None;
        if let (Some(slot), Some(slots)) = (self.slot.take(), &self.inner.slots) {
            slots.put(slot);
        }
        self.inner.gate.leave();
    }
}
