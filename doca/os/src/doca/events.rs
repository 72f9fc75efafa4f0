//! Sync events.

use super::object::Object;
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, event};
use rv64::Atomic;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    match number {
        0x060 => {
            let value = Event::argument(context, 0, event::READS)?.value(context)?;
            let place = context.argument(1)?;
            context.write_u64(place, value)?;
            Ok(Answer::Value(0))
        }
        0x061 | 0x062 => {
            let event = Event::argument(context, 0, event::WRITES)?;
            let operation = if number == 0x061 {
                Atomic::Add
            } else {
                Atomic::Swap
            };
            let operand = context.argument(1)?;
            event.change(context, operation, operand)?;
            Ok(Answer::Value(0))
        }
        0x063 => {
            let event = Event::argument(context, 0, event::READS)?;
            let (above, mask) = (context.argument(1)?, context.argument(2)?);
            let value = event.value(context)?;
            if value & mask > above {
                Ok(Answer::Value(0))
            } else {
                Ok(Answer::Again)
            }
        }
        _ => Err(Refusal(
            "not supported: let the thread wait with doca_dpa_dev_sync_event_wait_gt".to_owned(),
        )),
    }
}

/// An event: where its counter is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    key: u64,
    address: u64,
}

impl Event {
    fn argument(context: &mut Context<'_, '_>, n: u8, right: u64) -> Result<Self, Refusal> {
        let object = Object::argument(context, Kind::Event, n)?;
        if object.word(context, event::RIGHTS)? & right == 0 {
            let role = if right == event::READS {
                "subscriber"
            } else {
                "publisher"
            };
            return Err(Refusal(format!(
                "the DPA is no {role} of this event: add the location before its start"
            )));
        }
        Ok(Self {
            key: object.word(context, event::KEY)?,
            address: object.word(context, event::ADDRESS)?,
        })
    }

    /// The key, if the counter is not in the memory of the process.
    fn key(self) -> Option<u32> {
        u32::try_from(self.key).ok().filter(|key| *key != 0)
    }

    fn value(self, context: &mut Context<'_, '_>) -> Result<u64, Refusal> {
        let mut word = [0; 8];
        match self.key() {
            Some(key) => context.key_read(key, self.address, &mut word)?,
            None => context.read_bytes(self.address, &mut word)?,
        }
        Ok(u64::from_le_bytes(word))
    }

    fn change(
        self,
        context: &mut Context<'_, '_>,
        operation: Atomic,
        operand: u64,
    ) -> Result<(), Refusal> {
        match self.key() {
            Some(key) => context.key_atomic((key, self.address), 8, operation, operand),
            None => context.atomic(self.address, 8, operation, operand),
        }?;
        Ok(())
    }
}
