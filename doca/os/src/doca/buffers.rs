//! Memory maps, buffers and copies.

use super::object::{Object, half};
use super::send;
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, async_ops};

/// Most bytes of a copy by the operating system itself.
const COPY_MAX: u64 = 64 << 20;
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 16;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    match number {
        0x050 => {
            let key = half(context, 0)?;
            let address = context.argument(1)?;
            Ok(Answer::Value(context.window(key)?.wrapping_add(address)))
        }
        0x051 => {
            let (to, from) = (half(context, 1)?, half(context, 3)?);
            let (to, from) = ((to, context.argument(2)?), (from, context.argument(4)?));
            let (length, flags) = (context.argument(5)?, half(context, 6)?);
            post(context, to, from, length, flags)
        }
        0x052 => {
            let to = Buffer::argument(context, 1)?;
            let from = Buffer::argument(context, 2)?;
            let flags = half(context, 3)?;
            if from.length > to.length {
                return Err(Refusal(format!(
                    "{} bytes do not fit into a buffer of {}",
                    from.length, to.length
                )));
            }
            let (to, length) = ((to.key, to.address), from.length);
            post(context, to, (from.key, from.address), length, flags)
        }
        0x053 => {
            let length = context.argument(4)?;
            let to = Buffer::argument(context, 0)?.part(context.argument(1)?, length)?;
            let from = Buffer::argument(context, 2)?.part(context.argument(3)?, length)?;
            copy(context, to, from, length)?;
            Ok(Answer::Value(0))
        }
        0x054 => transpose(context),
        // The copies above have ended when their calls return.
        _ => Ok(Answer::Value(0)),
    }
}

/// A `struct doca_dpa_dev_buf`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) key: u32,
}

impl Buffer {
    pub(super) fn argument(context: &mut Context<'_, '_>, n: u8) -> Result<Self, Refusal> {
        let handle = context.argument(n)?;
        if handle == 0 {
            return Err(Refusal("the handle of the buffer is 0".to_owned()));
        }
        Ok(Self {
            address: context.read_u64(handle)?,
            length: context.read_u64(handle.wrapping_add(8))?,
            key: context.read_u32(handle.wrapping_add(16))?,
        })
    }

    /// Key and address of a part.
    pub(super) fn part(self, offset: u64, length: u64) -> Result<(u32, u64), Refusal> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.length) {
            return Err(Refusal(format!(
                "{length} bytes at offset {offset} are not inside the buffer of {} bytes",
                self.length
            )));
        }
        Ok((self.key, self.address.wrapping_add(offset)))
    }
}

/// Copies by the keys of both sides.
fn copy(
    context: &mut Context<'_, '_>,
    to: (u32, u64),
    from: (u32, u64),
    length: u64,
) -> Result<(), Refusal> {
    if length > COPY_MAX {
        return Err(Refusal(format!(
            "a copy of {length} bytes: the limit is {COPY_MAX}"
        )));
    }
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    while done < length {
        let bytes = usize::try_from(length - done).unwrap_or(PIECE).min(PIECE);
        context.key_read(from.0, from.1.wrapping_add(done), &mut piece[..bytes])?;
        context.key_write(to.0, to.1.wrapping_add(done), &piece[..bytes])?;
        done += bytes as u64;
    }
    Ok(())
}

/// Copies at once, and posts a request without data, whose completion the program gets.
fn post(
    context: &mut Context<'_, '_>,
    to: (u32, u64),
    from: (u32, u64),
    length: u64,
    flags: u32,
) -> Result<Answer, Refusal> {
    let ops = Object::argument(context, Kind::AsyncOps, 0)?;
    let queue = ops.word(context, async_ops::QUEUE)?;
    let completion = ops.word(context, async_ops::COMPLETION)?;
    let queue = send::Queue::of(context, queue, completion)?;
    if !queue.has_place(context, 1)? {
        return Ok(Answer::Again);
    }
    copy(context, to, from, length)?;
    queue.post(context, send::Request::nop(), flags)?;
    Ok(Answer::Value(0))
}

fn transpose(context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let [length, size, columns, rows] = [4, 5, 6, 7].map(|n| context.argument(n));
    let (length, size, columns, rows) = (length?, size?, columns?, rows?);
    let matrix = size
        .checked_mul(columns)
        .and_then(|row| row.checked_mul(rows));
    if matrix != Some(length) || length > COPY_MAX {
        return Err(Refusal(format!(
            "{rows} rows of {columns} elements of {size} bytes are not {length} bytes, or more than {COPY_MAX}"
        )));
    }
    if length == 0 {
        return Ok(Answer::Value(0));
    }
    let to = Buffer::argument(context, 0)?.part(context.argument(1)?, length)?;
    let from = Buffer::argument(context, 2)?.part(context.argument(3)?, length)?;
    let too_big = |_| Refusal(format!("a matrix of {length} bytes"));
    let bytes = usize::try_from(length).map_err(too_big)?;
    let size = usize::try_from(size).map_err(too_big)?;
    let columns = usize::try_from(columns).map_err(too_big)?;
    let rows = usize::try_from(rows).map_err(too_big)?;
    let (mut old, mut new) = (vec![0; bytes], vec![0; bytes]);
    context.key_read(from.0, from.1, &mut old)?;
    for row in 0..rows {
        for column in 0..columns {
            let (source, target) = (
                (row * columns + column) * size,
                (column * rows + row) * size,
            );
            new[target..target + size].copy_from_slice(&old[source..source + size]);
        }
    }
    context.key_write(to.0, to.1, &new)?;
    Ok(Answer::Value(0))
}
