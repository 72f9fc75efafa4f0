//! Hash tables.

use super::object::{Object, half};
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, WORD, table};

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let table = Object::argument(context, Kind::Table, 0)?;
    let slots = Slots {
        base: table.word(context, table::SLOTS)?,
        count: table.word(context, table::COUNT)?,
    };
    let key = half(context, 1)?;
    let used = table.word(context, table::USED_COUNT)?;
    let place = slots.search(context, key)?;
    match number {
        0x030 => {
            let value = context.argument(2)?;
            if let Some(at) = place.found {
                context.write_u64(at + WORD, value)?;
                return Ok(Answer::Value(0));
            }
            let entries = table.word(context, table::ENTRIES)?;
            let Some(at) = place.free.filter(|_| used < entries) else {
                return Err(Refusal(format!("the table has its {entries} entries")));
            };
            context.write_u64(at, table::USED | u64::from(key))?;
            context.write_u64(at + WORD, value)?;
            table.set(context, table::USED_COUNT, used + 1)?;
            Ok(Answer::Value(0))
        }
        0x031 => {
            if let Some(at) = place.found {
                context.write_u64(at, table::GONE)?;
                table.set(context, table::USED_COUNT, used.saturating_sub(1))?;
            }
            Ok(Answer::Value(0))
        }
        _ => match place.found {
            Some(at) => {
                let value = context.read_u64(at + WORD)?;
                let to = context.argument(2)?;
                context.write_u64(to, value)?;
                Ok(Answer::Value(1))
            }
            None => Ok(Answer::Value(0)),
        },
    }
}

struct Slots {
    base: u64,
    count: u64,
}

/// Addresses of slots.
struct Place {
    /// The slot of the key.
    found: Option<u64>,
    /// The first slot that the key could have.
    free: Option<u64>,
}

impl Slots {
    fn search(&self, context: &mut Context<'_, '_>, key: u32) -> Result<Place, Refusal> {
        // Fibonacci hashing; the count is a power of two.
        let first = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut place = Place {
            found: None,
            free: None,
        };
        for step in 0..self.count {
            let index = first.wrapping_add(step) & self.count.wrapping_sub(1);
            let at = self.base.wrapping_add(index * 2 * WORD);
            let slot = context.read_u64(at)?;
            if slot == table::USED | u64::from(key) {
                place.found = Some(at);
                return Ok(place);
            }
            if slot == table::EMPTY || slot == table::GONE {
                place.free.get_or_insert(at);
            }
            if slot == table::EMPTY {
                break;
            }
        }
        Ok(place)
    }
}
