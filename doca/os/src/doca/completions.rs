//! Completion queues.
//!
//! Some completions are for this module alone: the requests that a program posts without a report ask for one now and then,
//! so that their blocks of the send ring become free. The program does not see these.

use super::object::Object;
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, WORD, completion, element, queue};
use mlx5_prm::cqe::{CQE_BYTES, Cqe, OWNER_AT, opcode};

/// [`element::TYPE`] of a completion that the program does not see.
const HIDDEN: u64 = 0xff;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    match number {
        0x040 => {
            let completion = Completion::argument(context, 0)?;
            let Some(element) = completion.take(context)? else {
                // A program that polls lets the others run.
                return Ok(Answer::Yield(0));
            };
            let place = context.argument(1)?;
            context.write_u64(place, element)?;
            Ok(Answer::Value(1))
        }
        0x044 => {
            let completion = Completion::argument(context, 0)?;
            let count = context.argument(1)?;
            completion.give(context, count)?;
            Ok(Answer::Value(0))
        }
        0x045 => {
            Completion::argument(context, 0)?.arm(context)?;
            Ok(Answer::Value(0))
        }
        _ => {
            let index = match number {
                0x041 => element::TYPE,
                0x042 => element::USER_DATA,
                0x043 => element::IMMEDIATE,
                0x046 => element::TIMESTAMP,
                _ => element::COUNTER,
            };
            let element = Object::argument(context, Kind::Element, 0)?;
            Ok(Answer::Value(element.word(context, index)?))
        }
    }
}

/// A completion queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    object: Object,
    log_entries: u64,
    ring: u64,
    elements: u64,
}

impl Completion {
    fn argument(context: &mut Context<'_, '_>, n: u8) -> Result<Self, Refusal> {
        let handle = context.argument(n)?;
        Self::of(context, handle)
    }

    pub(super) fn of(context: &mut Context<'_, '_>, handle: u64) -> Result<Self, Refusal> {
        let object = Object::of(context, Kind::Completion, handle)?;
        Ok(Self {
            object,
            log_entries: object.word(context, completion::LOG_ENTRIES)?.min(24),
            ring: object.word(context, completion::RING)?,
            elements: object.word(context, completion::ELEMENTS)?,
        })
    }

    fn slot(self, index: u64) -> u64 {
        index & ((1 << self.log_entries) - 1)
    }

    fn element(self, index: u64) -> Object {
        Object(self.elements + self.slot(index) * WORD * element::WORDS as u64)
    }

    /// The entry with this index, if the device has written it.
    fn entry(self, context: &mut Context<'_, '_>, index: u64) -> Result<Option<Cqe>, Refusal> {
        let at = self.ring + self.slot(index) * CQE_BYTES as u64;
        let bytes: [u8; CQE_BYTES] = context.read(at)?;
        let owner = u64::from(bytes[OWNER_AT] & 1);
        let is_valid =
            bytes[OWNER_AT] >> 4 != opcode::INVALID && owner == index >> self.log_entries & 1;
        Ok(is_valid.then(|| Cqe::parse(&bytes)))
    }

    /// The attached queue with this number.
    fn queue(self, context: &mut Context<'_, '_>, number: u32) -> Result<Option<Object>, Refusal> {
        let list = self.object.word(context, completion::QUEUES)?;
        let count = self.object.word(context, completion::QUEUE_COUNT)?;
        for at in 0..count.min(completion::QUEUES_MAX) {
            let address = context.read_u64(list + at * WORD)?;
            if address == 0 {
                continue;
            }
            let queue = Object::of(context, Kind::Queue, address)?;
            if queue.word(context, queue::NUMBER)? == u64::from(number) {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }

    /// Takes all entries into account that the device has written, from index `from` on, and returns the index after them.
    /// Each has an element then.
    fn look(self, context: &mut Context<'_, '_>, from: u64) -> Result<u64, Refusal> {
        let given = self.object.word(context, completion::GIVEN)?;
        let mut index = from;
        while index - given < 1 << self.log_entries {
            let Some(entry) = self.entry(context, index)? else {
                break;
            };
            let element = self.element(index);
            let queue = self.queue(context, entry.qpn)?;
            let mut user_data = 0;
            let mut kind = match entry.opcode {
                opcode::REQ => 0x0,
                opcode::RESP_WR_IMM => 0x1,
                opcode::RESP_SEND => 0x2,
                opcode::RESP_SEND_IMM => 0x3,
                opcode::REQ_ERR => 0xd,
                _ => 0xe,
            };
            if let Some(queue) = queue {
                user_data = queue.word(context, queue::USER_DATA)?;
                if matches!(kind, 0x0 | 0xd) {
                    let mark = sent(context, queue, entry.wqe_counter)?;
                    if kind == 0 && mark {
                        kind = HIDDEN;
                    }
                } else if element.word(context, element::WORDS - 1)? != index + 1 {
                    let queue = match queue.word(context, queue::SHARED)? {
                        0 => queue,
                        shared => Object::of(context, Kind::Queue, shared)?,
                    };
                    let received = queue.word(context, queue::RECEIVED)?;
                    queue.set(context, queue::RECEIVED, received + 1)?;
                }
            }
            for (at, word) in [
                (0, Kind::Element as u64),
                (element::TYPE, kind),
                (element::USER_DATA, user_data),
                (element::IMMEDIATE, u64::from(entry.imm)),
                (element::TIMESTAMP, entry.timestamp),
                (element::COUNTER, u64::from(entry.wqe_counter)),
                // The index plus 1: this entry was counted.
                (element::WORDS - 1, index + 1),
            ] {
                element.set(context, at, word)?;
            }
            index += 1;
        }
        Ok(index)
    }

    /// Whether [`look`](Self::look) has seen the entry with this index. The device may have written a later one since.
    fn is_known(self, context: &mut Context<'_, '_>, index: u64) -> Result<bool, Refusal> {
        Ok(self.element(index).word(context, element::WORDS - 1)? == index + 1)
    }

    /// Takes note of all completions so far, without taking one from the program.
    pub(super) fn refresh(self, context: &mut Context<'_, '_>) -> Result<(), Refusal> {
        let taken = self.object.word(context, completion::TAKEN)?;
        self.look(context, taken)?;
        self.skip(context)?;
        self.give(context, 0)
    }

    /// Takes hidden completions at the front.
    fn skip(self, context: &mut Context<'_, '_>) -> Result<u64, Refusal> {
        let mut taken = self.object.word(context, completion::TAKEN)?;
        let given = self.object.word(context, completion::GIVEN)?;
        while taken - given < 1 << self.log_entries && self.is_known(context, taken)? {
            if self.element(taken).word(context, element::TYPE)? != HIDDEN {
                break;
            }
            taken += 1;
        }
        self.object.set(context, completion::TAKEN, taken)?;
        Ok(taken)
    }

    /// The next completion that the program sees.
    pub(super) fn take(self, context: &mut Context<'_, '_>) -> Result<Option<u64>, Refusal> {
        self.refresh(context)?;
        let taken = self.object.word(context, completion::TAKEN)?;
        let given = self.object.word(context, completion::GIVEN)?;
        let is_full = taken - given >= 1 << self.log_entries;
        if is_full || !self.is_known(context, taken)? {
            return Ok(None);
        }
        self.object.set(context, completion::TAKEN, taken + 1)?;
        Ok(Some(self.element(taken).0))
    }

    /// Gives so many of the program's completions back, and the hidden ones between and after them.
    pub(super) fn give(self, context: &mut Context<'_, '_>, count: u64) -> Result<(), Refusal> {
        let taken = self.object.word(context, completion::TAKEN)?;
        let before = self.object.word(context, completion::GIVEN)?;
        let (mut given, mut left) = (before, count);
        while given < taken {
            if self.element(given).word(context, element::TYPE)? != HIDDEN {
                if left == 0 {
                    break;
                }
                left -= 1;
            }
            given += 1;
        }
        if left > 0 {
            return Err(Refusal(format!(
                "{count} completions to give back, and only {} were taken",
                count - left
            )));
        }
        if given != before {
            self.object.set(context, completion::GIVEN, given)?;
            let doorbell = self.object.word(context, completion::DOORBELL)?;
            // The record has 24 bits, in big-endian order.
            let bytes = (given & 0x00ff_ffff).to_be_bytes();
            context.write_bytes(doorbell, &bytes[4..])?;
        }
        Ok(())
    }

    fn arm(self, context: &mut Context<'_, '_>) -> Result<(), Refusal> {
        let word = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
        let uar = word(self.object.word(context, completion::UAR)?);
        let number = word(self.object.word(context, completion::NUMBER)?);
        let taken = self.object.word(context, completion::TAKEN)?;
        context.arm(uar, number, word(taken & 0x00ff_ffff))
    }
}

/// The device has executed the send queue up to the block with this counter. Returns whether its completion is hidden.
fn sent(context: &mut Context<'_, '_>, queue: Object, counter: u16) -> Result<bool, Refusal> {
    let sent = queue.word(context, queue::SENT)?;
    // The last index below `sent` with these lower bits.
    let back = (sent.wrapping_sub(1)).wrapping_sub(u64::from(counter)) & 0xffff;
    let Some(index) = sent.checked_sub(1 + back) else {
        return Ok(false);
    };
    let done = queue.word(context, queue::DONE)?;
    if index >= done {
        queue.set(context, queue::DONE, index + 1)?;
    }
    let log = queue.word(context, queue::SEND_LOG)?.min(16);
    let mark = queue.word(context, queue::MARKS)? + (index & ((1 << log) - 1));
    let [mark] = context.read(mark)?;
    Ok(mark == 1)
}
