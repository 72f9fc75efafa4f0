//! Send queues: requests in the format of mlx5.

use super::completions::Completion;
use super::object::Object;
use crate::context::{Context, Refusal};
use dpa_dev::objects::{Kind, queue};
use mlx5_prm::wqe::{Ctrl, OCTOWORD_BYTES, RemoteAddress, WQEBB_BYTES, flag, opcode};

/// `DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH`.
pub(super) const FLUSH: u32 = 1;
/// `DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS`: no completion, if the request succeeds.
pub(super) const NO_REPORT: u32 = 2;

/// A request, which always fits into one block.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Request {
    opcode: u8,
    immediate: u32,
    segments: [[u8; OCTOWORD_BYTES]; 3],
    count: u8,
    /// More flags of the control segment.
    flags: u8,
}

impl Request {
    /// No operation.
    pub(super) fn nop() -> Self {
        Self {
            opcode: opcode::NOP,
            ..Self::default()
        }
    }

    fn with(mut self, segment: [u8; OCTOWORD_BYTES]) -> Self {
        if let Some(place) = self.segments.get_mut(usize::from(self.count)) {
            *place = segment;
            self.count += 1;
        }
        self
    }

    fn data(self, key: u32, address: u64, length: u32) -> Self {
        let mut segment = [0; OCTOWORD_BYTES];
        segment[..4].copy_from_slice(&length.to_be_bytes());
        segment[4..8].copy_from_slice(&key.to_be_bytes());
        segment[8..].copy_from_slice(&address.to_be_bytes());
        self.with(segment)
    }

    fn remote(opcode: u8, (rkey, address): (u32, u64)) -> Self {
        Self {
            opcode,
            ..Self::default()
        }
        .with(RemoteAddress { address, rkey }.to_bytes())
    }

    /// A read or write of the other node's memory.
    pub(super) fn transfer(
        opcode: u8,
        remote: (u32, u64),
        (key, address): (u32, u64),
        length: u32,
    ) -> Self {
        let request = Self::remote(opcode, remote);
        if length == 0 {
            return request;
        }
        request.data(key, address, length)
    }

    /// A message.
    pub(super) fn send(opcode: u8, (key, address): (u32, u64), length: u32) -> Self {
        let request = Self {
            opcode,
            ..Self::default()
        };
        if length == 0 {
            return request;
        }
        request.data(key, address, length)
    }

    pub(super) fn immediate(self, immediate: u32) -> Self {
        Self { immediate, ..self }
    }

    /// With flags of the control segment, see [`flag`].
    pub(super) fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    /// Sets a word of the other node, in little-endian order.
    pub(super) fn set(remote: (u32, u64), value: u64) -> Self {
        let mut segment = [0; OCTOWORD_BYTES];
        segment[..4].copy_from_slice(&(0x8000_0000_u32 | 8).to_be_bytes());
        segment[4..12].copy_from_slice(&value.to_le_bytes());
        Self::remote(opcode::RDMA_WRITE, remote).with(segment)
    }

    /// Adds to a word of the other node. The old value goes to `scratch`.
    pub(super) fn add(remote: (u32, u64), value: u64, scratch: (u32, u64)) -> Self {
        let mut segment = [0; OCTOWORD_BYTES];
        segment[..8].copy_from_slice(&value.to_be_bytes());
        Self::remote(opcode::ATOMIC_FA, remote)
            .with(segment)
            .data(scratch.0, scratch.1, 8)
    }
}

/// A queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    pub(super) object: Object,
    pub(super) completion: Completion,
}

impl Queue {
    pub(super) fn of(
        context: &mut Context<'_, '_>,
        queue: u64,
        completion: u64,
    ) -> Result<Self, Refusal> {
        let object = Object::of(context, Kind::Queue, queue)?;
        if object.word(context, queue::CONNECTED)? == 0 {
            return Err(Refusal(
                "the connection has no other node yet: call doca_rdma_connect first".to_owned(),
            ));
        }
        Ok(Self {
            object,
            completion: Completion::of(context, completion)?,
        })
    }

    fn blocks(self, context: &mut Context<'_, '_>) -> Result<u64, Refusal> {
        Ok(1 << self.object.word(context, queue::SEND_LOG)?.min(16))
    }

    /// Whether so many more requests fit.
    pub(super) fn has_place(
        self,
        context: &mut Context<'_, '_>,
        requests: u64,
    ) -> Result<bool, Refusal> {
        let blocks = self.blocks(context)?;
        let sent = self.object.word(context, queue::SENT)?;
        let free = |done: u64| blocks.saturating_sub(sent.saturating_sub(done)) >= requests;
        if free(self.object.word(context, queue::DONE)?) {
            return Ok(true);
        }
        self.completion.refresh(context)?;
        Ok(free(self.object.word(context, queue::DONE)?))
    }

    /// Whether the device has executed all requests.
    pub(super) fn is_idle(self, context: &mut Context<'_, '_>) -> Result<bool, Refusal> {
        self.completion.refresh(context)?;
        let sent = self.object.word(context, queue::SENT)?;
        Ok(self.object.word(context, queue::DONE)? == sent)
    }

    /// Whether the last request asked for a completion.
    pub(super) fn is_reported(self, context: &mut Context<'_, '_>) -> Result<bool, Refusal> {
        let sent = self.object.word(context, queue::SENT)?;
        Ok(self.object.word(context, queue::REPORTED)? == sent)
    }

    /// Posts a request. There is place.
    pub(super) fn post(
        self,
        context: &mut Context<'_, '_>,
        request: Request,
        flags: u32,
    ) -> Result<(), Refusal> {
        let blocks = self.blocks(context)?;
        let index = self.object.word(context, queue::SENT)?;
        let reported = self.object.word(context, queue::REPORTED)?;
        let is_due = index + 1 - reported >= (blocks / 4).max(1);
        self.append(context, request, flags, is_due)
    }

    /// Posts a request without effect, whose completion the program does not see: it reports all before it.
    pub(super) fn post_report(self, context: &mut Context<'_, '_>) -> Result<(), Refusal> {
        self.append(context, Request::nop(), FLUSH | NO_REPORT, true)
    }

    fn append(
        self,
        context: &mut Context<'_, '_>,
        request: Request,
        flags: u32,
        is_due: bool,
    ) -> Result<(), Refusal> {
        let blocks = self.blocks(context)?;
        let index = self.object.word(context, queue::SENT)?;
        let is_hidden = flags & NO_REPORT != 0;
        let is_signaled = !is_hidden || is_due;
        self.write(context, request, index, is_signaled)?;
        let mark = self.object.word(context, queue::MARKS)? + (index & (blocks - 1));
        context.write_bytes(mark, &[u8::from(is_hidden)])?;
        if is_signaled {
            self.object.set(context, queue::REPORTED, index + 1)?;
        }
        self.object.set(context, queue::SENT, index + 1)?;
        if flags & FLUSH != 0 {
            self.flush(context)?;
        }
        Ok(())
    }

    fn write(
        self,
        context: &mut Context<'_, '_>,
        request: Request,
        index: u64,
        is_signaled: bool,
    ) -> Result<(), Refusal> {
        let blocks = self.blocks(context)?;
        let number = self.object.word(context, queue::NUMBER)?;
        let control = Ctrl {
            opcode: request.opcode,
            index: (index & 0xffff) as u16,
            qpn: u32::try_from(number & 0x00ff_ffff).unwrap_or_default(),
            ds: 1 + request.count,
            flags: request.flags | if is_signaled { flag::CE_ALWAYS } else { 0 },
            imm: request.immediate,
            ..Ctrl::default()
        };
        let mut block = [0; WQEBB_BYTES];
        block[..OCTOWORD_BYTES].copy_from_slice(&control.to_bytes());
        for (at, segment) in (1..).zip(&request.segments[..usize::from(request.count)]) {
            block[at * OCTOWORD_BYTES..][..OCTOWORD_BYTES].copy_from_slice(segment);
        }
        let ring = self.object.word(context, queue::SEND_RING)?;
        context.write_bytes(ring + (index & (blocks - 1)) * WQEBB_BYTES as u64, &block)
    }

    /// Lets the device begin with all posted requests.
    pub(super) fn flush(self, context: &mut Context<'_, '_>) -> Result<(), Refusal> {
        let sent = self.object.word(context, queue::SENT)?;
        let record = self.object.word(context, queue::DOORBELL)?;
        let counter = u32::try_from(sent & 0xffff).unwrap_or_default();
        context.write_bytes(record + 4, &counter.to_be_bytes())?;
        let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
        let uar = half(self.object.word(context, queue::UAR)?);
        let number = half(self.object.word(context, queue::NUMBER)?);
        context.ring_send(uar, number, (sent & 0xffff) as u16)
    }
}
