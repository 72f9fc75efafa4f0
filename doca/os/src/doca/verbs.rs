//! Work requests on queue pairs of doca_verbs: `doca_dpa_dev_verbs.h`.

use super::object::Object;
use super::posts::{Receives, length};
use super::send::{NO_REPORT, Queue, Request};
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, queue, verbs};
use mlx5_prm::wqe::{flag, opcode};

/// `DOCA_DPA_DEV_VERBS_SEND_WR_FLAGS_*`.
const SIGNALED: u32 = 1 << 0;
const SOLICITED: u32 = 1 << 1;

/// Bytes of `struct doca_dpa_dev_verbs_send_wr`, `_recv_wr` and `_sge`.
const SEND_BYTES: usize = 32;
const RECEIVE_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let handle = Object::argument(context, Kind::Verbs, 0)?;
    let at = handle.word(context, verbs::QUEUE)?;
    let completion = handle.word(context, verbs::COMPLETION)?;
    let receives = Receives {
        object: Object::of(context, Kind::Queue, at)?,
        log_entry: queue::LOG_ENTRY,
        completion,
    };
    match number {
        0x090 => {
            let queue = Queue::of(context, at, completion)?;
            if !queue.has_place(context, 1)? {
                return Ok(Answer::Again);
            }
            let place = context.argument(1)?;
            let (request, flags) = request(context, place)?;
            queue.post(context, request, flags)?;
        }
        0x091 => Queue::of(context, at, completion)?.flush(context)?,
        0x092 => {
            let place = context.argument(1)?;
            let bytes: [u8; RECEIVE_BYTES] = context.read(place)?;
            let element = element(context, word(&bytes, 0), half_word(&bytes, 8))?;
            receives.append(context, element)?;
        }
        0x093 => receives.commit(context)?,
        _ => return Err(Refusal(format!("no call {number:#x}"))),
    }
    Ok(Answer::Value(0))
}

/// A send request, and how it reports.
fn request(context: &mut Context<'_, '_>, place: u64) -> Result<(Request, u32), Refusal> {
    let bytes: [u8; SEND_BYTES] = context.read(place)?;
    let (flags, remote) = (
        half_word(&bytes, 12),
        (half_word(&bytes, 24), word(&bytes, 16)),
    );
    let (kind, fence) = (bytes[28], bytes[30]);
    if bytes[29] != 0 || bytes[31] != 0 || fence > 1 || flags & !(SIGNALED | SOLICITED) != 0 {
        return Err(Refusal(format!(
            "the flags {flags:#x} or the fence {fence} are not known: set all fields of the request"
        )));
    }
    let (key, address, length) = element(context, word(&bytes, 0), half_word(&bytes, 8))?;
    let local = (key, address);
    let request = match kind {
        opcode::RDMA_WRITE | opcode::RDMA_READ => Request::transfer(kind, remote, local, length),
        opcode::SEND => Request::send(kind, local, length),
        _ => {
            return Err(Refusal(format!(
                "the opcode {kind:#x} is none of WRITE, READ and SEND, which this device serves"
            )));
        }
    };
    let mut control = 0;
    if flags & SOLICITED != 0 {
        control |= flag::SOLICITED;
    }
    if fence == 1 {
        control |= flag::FENCE_FULL;
    }
    let report = if flags & SIGNALED == 0 { NO_REPORT } else { 0 };
    Ok((request.flags(control), report))
}

/// Key, address and bytes of the one element of a list, or of none.
fn element(
    context: &mut Context<'_, '_>,
    list: u64,
    count: u32,
) -> Result<(u32, u64, u32), Refusal> {
    match count {
        0 => Ok((0, 0, 0)),
        1 => {
            let bytes: [u8; ELEMENT_BYTES] = context.read(list)?;
            let bytes_of = length(u64::from(half_word(&bytes, 8)))?;
            Ok((half_word(&bytes, 12), word(&bytes, 0), bytes_of))
        }
        _ => Err(Refusal(format!(
            "{count} elements: a request of this device has at most 1"
        ))),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(<[u8]>::first_chunk);
    part.copied().map_or(0, u64::from_le_bytes)
}

fn half_word(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(<[u8]>::first_chunk);
    part.copied().map_or(0, u32::from_le_bytes)
}
