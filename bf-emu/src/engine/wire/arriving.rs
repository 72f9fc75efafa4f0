//! A message that arrives in packets, in their order: the checks of its parts, and their way into memory (C 9.7.4.1).

use super::packet::{Atomic, Body, Head, Nak, Part, Range, Service};

/// Reason why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No receive entry. The peer shall wait this long (a code).
    NotReady(u8),
    /// An error. It ends the connection.
    Nak(Nak),
    /// The request breaks a rule of the protocol. It ends the connection.
    Invalid,
    /// No answer.
    Silent,
}

/// A message whose last packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its bytes.
    pub length: u32,
    /// It is an RDMA write.
    pub is_write: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<u32>,
    /// The completion is solicited.
    pub solicited: bool,
}

/// The memory and the queues of the responder.
#[expect(clippy::missing_errors_doc, reason = "they are the same: see Refusal")]
pub trait Target {
    /// A request breaks a rule of the protocol: the connection ends.
    fn invalid(&mut self);
    /// Makes the shared receive queue of an extended connection's request that of what follows. False if it cannot be.
    fn select(&mut self, service: Service) -> bool;
    /// Reserves the next receive entry for a message, unless one is reserved.
    fn open(&mut self) -> Result<(), Refusal>;
    /// Writes a part of the message into the reserved entry.
    fn deliver(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal>;
    /// Completes the reserved entry.
    fn close(&mut self, arrived: &Arrived) -> Result<(), Refusal>;
    /// Writes a part of an RDMA write. The part at offset 0 checks the whole range.
    fn write(&mut self, target: &Range, offset: u32, data: &[u8]) -> Result<(), Refusal>;
    /// Checks that a range is readable.
    fn check_read(&mut self, source: &Range) -> Result<(), Refusal>;
    /// Reads a part of a range.
    fn read(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Result<(), Refusal>;
    /// Reads a part of a range for a request that was executed before. None if the range is no longer readable, which breaks
    /// nothing: a requester that has its data may have given up the key.
    fn read_again(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Option<()>;
    /// Executes an atomic operation and returns the value before it.
    fn atomic(&mut self, address: u64, rkey: u32, atomic: Atomic) -> Result<u64, Refusal>;
}

/// A message of several packets.
#[derive(Clone, Copy, Debug)]
enum Open {
    Send { offset: u32 },
    Write { target: Range, offset: u32 },
}

/// The message that is arriving.
#[derive(Debug)]
pub(super) struct Arriving {
    mtu: u32,
    open: Option<Open>,
}

impl Arriving {
    /// None, of packets with so many bytes of data.
    pub(super) fn new(mtu: u32) -> Self {
        Self { mtu, open: None }
    }

    /// True between the first and the last packet of a message.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Forgets the message. Its receive entry stays reserved.
    pub(super) fn forget(&mut self) {
        self.open = None;
    }

    /// Takes the next packet of a send or a write. Nothing changes if its receiver is not ready.
    pub(super) fn take(
        &mut self,
        head: &Head,
        data: &[u8],
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let part = head.body.part().ok_or(Refusal::Invalid)?;
        if self.is_open() == part.begins() || !self.fits(part, data.len()) {
            return Err(Refusal::Invalid);
        }
        let open = match head.body {
            Body::Send { .. } => self.send(head, data, target)?,
            _ => self.write(head, data, target)?,
        };
        self.open = (!part.ends()).then_some(open);
        Ok(())
    }

    fn send(&self, head: &Head, data: &[u8], target: &mut impl Target) -> Result<Open, Refusal> {
        let Body::Send {
            part,
            imm,
            invalidate,
        } = head.body
        else {
            return Err(Refusal::Invalid);
        };
        let offset = match self.open {
            None => {
                target.open()?;
                0
            }
            Some(Open::Send { offset }) => offset,
            Some(Open::Write { .. }) => return Err(Refusal::Invalid),
        };
        target.deliver(offset, data)?;
        let length = end_of(offset, data).ok_or(Refusal::Invalid)?;
        if part.ends() {
            target.close(&Arrived {
                length,
                is_write: false,
                imm,
                invalidate,
                solicited: head.solicited,
            })?;
        }
        Ok(Open::Send { offset: length })
    }

    fn write(&self, head: &Head, data: &[u8], target: &mut impl Target) -> Result<Open, Refusal> {
        let Body::Write {
            part,
            target: begins,
            imm,
        } = head.body
        else {
            return Err(Refusal::Invalid);
        };
        let (range, offset) = match (self.open, begins) {
            (None, Some(range)) => (range, 0),
            (Some(Open::Write { target, offset }), None) => (target, offset),
            _ => return Err(Refusal::Invalid),
        };
        let end = end_of(offset, data).ok_or(Refusal::Invalid)?;
        if end > range.length || part.ends() && end != range.length {
            return Err(Refusal::Invalid);
        }
        let notifies = part.ends() && imm.is_some();
        if notifies {
            target.open()?;
        }
        target.write(&range, offset, data)?;
        if notifies {
            target.close(&Arrived {
                length: end,
                is_write: true,
                imm,
                invalidate: None,
                solicited: head.solicited,
            })?;
        }
        Ok(Open::Write {
            target: range,
            offset: end,
        })
    }

    /// True if a packet at this place may have so much data.
    fn fits(&self, part: Part, bytes: usize) -> bool {
        let mtu = usize::try_from(self.mtu).unwrap_or(0);
        match part {
            Part::First | Part::Middle => bytes == mtu,
            Part::Last => bytes != 0 && bytes <= mtu,
            Part::Only => bytes <= mtu,
        }
    }
}

/// End of data at an offset.
fn end_of(offset: u32, data: &[u8]) -> Option<u32> {
    offset.checked_add(u32::try_from(data.len()).ok()?)
}
