//! RDMA operations.

use super::buffers::Buffer;
use super::object::{Object, half};
use super::send::{FLUSH, NO_REPORT, Queue, Request};
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, WORD, queue, rdma, remote_event};
use mlx5_prm::wqe::opcode;

/// Most bytes of one operation.
const LENGTH_MAX: u64 = 1 << 30;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let handle = context.argument(0)?;
    let rdma = Rdma::of(context, handle)?;
    match number {
        0x075 | 0x085 => return rdma.receive(context, number),
        // The operations were given back when their completions were taken.
        0x077 => return Ok(Answer::Value(0)),
        _ => {}
    }
    let connection = half(context, 1)?;
    let request = request(number, context, &rdma)?;
    let (flags, immediate) = flags(number, context)?;
    rdma.post(context, connection, request.immediate(immediate), flags)
}

/// The operation of a call.
fn request(number: u16, context: &mut Context<'_, '_>, rdma: &Rdma) -> Result<Request, Refusal> {
    let pair = |context: &Context<'_, '_>, n: u8| -> Result<(u32, u64), Refusal> {
        Ok((half(context, n)?, context.argument(n + 1)?))
    };
    Ok(match number {
        // Read: the destination is local. Write: the source is.
        0x070 => {
            let (to, from) = (pair(context, 2)?, pair(context, 4)?);
            let length = length(context.argument(6)?)?;
            Request::transfer(opcode::RDMA_READ, from, to, length)
        }
        0x071 | 0x072 => {
            let (to, from) = (pair(context, 2)?, pair(context, 4)?);
            let length = length(context.argument(6)?)?;
            Request::transfer(write_opcode(number == 0x072), to, from, length)
        }
        0x073 | 0x074 => {
            let from = pair(context, 2)?;
            let length = length(context.argument(4)?)?;
            Request::send(send_opcode(number == 0x074), from, length)
        }
        0x076 => {
            let to = pair(context, 2)?;
            let value = context.argument(4)?;
            atomic(to, value, rdma)?
        }
        0x078 | 0x079 => {
            let event = Object::argument(context, Kind::RemoteEvent, 2)?;
            signal(context, event, rdma, number == 0x078, 3)?
        }
        0x080..=0x082 => {
            let to = Buffer::argument(context, 2)?;
            let from = Buffer::argument(context, 3)?;
            if from.length > to.length {
                return Err(Refusal(format!(
                    "{} bytes do not fit into a buffer of {}",
                    from.length, to.length
                )));
            }
            let length = length(from.length)?;
            let (to, from) = ((to.key, to.address), (from.key, from.address));
            if number == 0x080 {
                Request::transfer(opcode::RDMA_READ, from, to, length)
            } else {
                Request::transfer(write_opcode(number == 0x082), to, from, length)
            }
        }
        0x083 | 0x084 => {
            let from = Buffer::argument(context, 2)?;
            let opcode = send_opcode(number == 0x084);
            Request::send(opcode, (from.key, from.address), length(from.length)?)
        }
        _ => {
            let to = Buffer::argument(context, 2)?;
            let value = context.argument(3)?;
            atomic(to.part(0, 8)?, value, rdma)?
        }
    })
}

/// Flags and immediate value of a call: the last arguments.
fn flags(number: u16, context: &Context<'_, '_>) -> Result<(u32, u32), Refusal> {
    let (flags, immediate) = match number {
        0x070 | 0x071 => (7, None),
        0x072 => (8, Some(7)),
        0x073 => (5, None),
        0x074 => (6, Some(5)),
        0x076 => (5, None),
        // Signals take effect at once, and report nothing.
        0x078 | 0x079 => return Ok((FLUSH | NO_REPORT, 0)),
        0x080 | 0x081 => (4, None),
        0x082 => (5, Some(4)),
        0x083 => (3, None),
        0x084 => (4, Some(3)),
        _ => (4, None),
    };
    let flags = half(context, flags)?;
    if flags & !(FLUSH | NO_REPORT) != 0 {
        return Err(Refusal(format!("{flags:#x} has unknown flags")));
    }
    let immediate = match immediate {
        Some(n) => half(context, n)?,
        None => 0,
    };
    Ok((flags, immediate))
}

fn write_opcode(has_immediate: bool) -> u8 {
    if has_immediate {
        opcode::RDMA_WRITE_IMM
    } else {
        opcode::RDMA_WRITE
    }
}

fn send_opcode(has_immediate: bool) -> u8 {
    if has_immediate {
        opcode::SEND_IMM
    } else {
        opcode::SEND
    }
}

pub(super) fn length(length: u64) -> Result<u32, Refusal> {
    match u32::try_from(length) {
        Ok(bytes) if length <= LENGTH_MAX => Ok(bytes),
        _ => Err(Refusal(format!(
            "{length} bytes: an operation has at most {LENGTH_MAX}"
        ))),
    }
}

pub(super) fn atomic(to: (u32, u64), value: u64, rdma: &Rdma) -> Result<Request, Refusal> {
    if !to.1.is_multiple_of(8) {
        return Err(Refusal(format!(
            "the address {:#x} of an atomic operation is no multiple of 8",
            to.1
        )));
    }
    Ok(Request::add(to, value, rdma.scratch))
}

/// The operation that changes an event of the other node.
pub(super) fn signal(
    context: &mut Context<'_, '_>,
    event: Object,
    rdma: &Rdma,
    is_addition: bool,
    value: u8,
) -> Result<Request, Refusal> {
    let key = event.word(context, remote_event::KEY)?;
    let key = u32::try_from(key).map_err(|_| Refusal("the event has no key".to_owned()))?;
    let to = (key, event.word(context, remote_event::ADDRESS)?);
    let value = context.argument(value)?;
    if is_addition {
        atomic(to, value, rdma)
    } else {
        Ok(Request::set(to, value))
    }
}

/// An RDMA handle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rdma {
    connections: u64,
    count: u64,
    completion: u64,
    scratch: (u32, u64),
    shared: u64,
}

impl Rdma {
    pub(super) fn of(context: &mut Context<'_, '_>, handle: u64) -> Result<Self, Refusal> {
        let object = Object::of(context, Kind::Rdma, handle)?;
        let key = object.word(context, rdma::SCRATCH_KEY)?;
        Ok(Self {
            connections: object.word(context, rdma::CONNECTIONS)?,
            count: object.word(context, rdma::COUNT)?,
            completion: object.word(context, rdma::COMPLETION)?,
            shared: object.word(context, rdma::SHARED)?,
            scratch: (
                u32::try_from(key).unwrap_or_default(),
                object.word(context, rdma::SCRATCH)?,
            ),
        })
    }

    pub(super) fn queue(
        &self,
        context: &mut Context<'_, '_>,
        connection: u32,
    ) -> Result<Queue, Refusal> {
        let at = u64::from(connection);
        let queue = if at < self.count {
            context.read_u64(self.connections + at * WORD)?
        } else {
            0
        };
        if queue == 0 {
            return Err(Refusal(format!(
                "the RDMA handle has no connection {connection}"
            )));
        }
        Queue::of(context, queue, self.completion)
    }

    pub(super) fn post(
        &self,
        context: &mut Context<'_, '_>,
        connection: u32,
        request: Request,
        flags: u32,
    ) -> Result<Answer, Refusal> {
        let queue = self.queue(context, connection)?;
        if !queue.has_place(context, 1)? {
            return Ok(Answer::Again);
        }
        queue.post(context, request, flags)?;
        Ok(Answer::Value(0))
    }

    fn receive(self, context: &mut Context<'_, '_>, number: u16) -> Result<Answer, Refusal> {
        let (key, address, bytes) = if number == 0x075 {
            (
                half(context, 1)?,
                context.argument(2)?,
                context.argument(3)?,
            )
        } else {
            let buffer = Buffer::argument(context, 1)?;
            (buffer.key, buffer.address, buffer.length)
        };
        let bytes = length(bytes)?;
        let (queue, log_entry) = match self.shared {
            0 => (context.read_u64(self.connections)?, queue::LOG_ENTRY),
            shared => (shared, queue::LOG_SHARED_ENTRY),
        };
        if queue == 0 {
            return Err(Refusal(
                "the RDMA handle has no connection: call doca_rdma_export first".to_owned(),
            ));
        }
        let queue = Receives {
            object: Object::of(context, Kind::Queue, queue)?,
            log_entry,
            completion: self.completion,
        };
        queue.append(context, (key, address, bytes))?;
        queue.commit(context)?;
        Ok(Answer::Value(0))
    }
}

/// A receive queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receives {
    pub(super) object: Object,
    pub(super) log_entry: u32,
    pub(super) completion: u64,
}

impl Receives {
    /// Adds an entry: key, address and bytes of its memory.
    pub(super) fn append(
        self,
        context: &mut Context<'_, '_>,
        (key, address, bytes): (u32, u64, u32),
    ) -> Result<(), Refusal> {
        let object = self.object;
        let entries = 1 << object.word(context, queue::RECEIVE_LOG)?.min(16);
        let posted = object.word(context, queue::RECEIVES)?;
        if posted - object.word(context, queue::RECEIVED)? >= entries {
            super::completions::Completion::of(context, self.completion)?.refresh(context)?;
        }
        if posted - object.word(context, queue::RECEIVED)? >= entries {
            return Err(Refusal(format!(
                "the receive queue has its {entries} operations: wait for a completion"
            )));
        }
        let mut entry = [0; 16];
        entry[..4].copy_from_slice(&bytes.to_be_bytes());
        entry[4..8].copy_from_slice(&key.to_be_bytes());
        entry[8..].copy_from_slice(&address.to_be_bytes());
        let ring = object.word(context, queue::RECEIVE_RING)?;
        // The data segment is the end of the entry.
        let end = ring + (((posted & (entries - 1)) + 1) << self.log_entry);
        context.write_bytes(end - entry.len() as u64, &entry)?;
        object.set(context, queue::RECEIVES, posted + 1)
    }

    /// Gives all entries to the device.
    pub(super) fn commit(self, context: &mut Context<'_, '_>) -> Result<(), Refusal> {
        let posted = self.object.word(context, queue::RECEIVES)?;
        let record = self.object.word(context, queue::DOORBELL)?;
        let counter = u32::try_from(posted & 0xffff).unwrap_or_default();
        context.write_bytes(record, &counter.to_be_bytes())
    }
}
