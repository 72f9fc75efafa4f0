//! RDMA of version 2.0: one connection, buffers and offsets.

use super::buffers::Buffer;
use super::object::Object;
use super::posts::{Rdma, atomic, length, signal};
use super::send::{FLUSH, NO_REPORT, Request};
use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::{Kind, element};
use mlx5_prm::wqe::opcode;

/// First type of completions of failed operations.
const ERRORS: u64 = 0xd;

pub(super) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let handle = context.argument(0)?;
    let rdma = Rdma::of(context, handle)?;
    if number == 0x0a5 {
        return synchronize(context, &rdma);
    }
    let request = match number {
        0x0a0 | 0x0a1 => {
            let bytes = context.argument(5)?;
            let to = Buffer::argument(context, 1)?.part(context.argument(2)?, bytes)?;
            let from = Buffer::argument(context, 3)?.part(context.argument(4)?, bytes)?;
            let bytes = length(bytes)?;
            if number == 0x0a0 {
                Request::transfer(opcode::RDMA_READ, from, to, bytes)
            } else {
                Request::transfer(opcode::RDMA_WRITE, to, from, bytes)
            }
        }
        0x0a2 => {
            let to = Buffer::argument(context, 1)?.part(context.argument(2)?, 8)?;
            let value = context.argument(3)?;
            atomic(to, value, &rdma)?
        }
        _ => {
            let event = Object::argument(context, Kind::RemoteEvent, 1)?;
            signal(context, event, &rdma, number == 0x0a3, 2)?
        }
    };
    rdma.post(context, 0, request, FLUSH | NO_REPORT)
}

/// Waits until the device has executed all operations. An operation that failed is a fault.
fn synchronize(context: &mut Context<'_, '_>, rdma: &Rdma) -> Result<Answer, Refusal> {
    let queue = rdma.queue(context, 0)?;
    while let Some(element) = queue.completion.take(context)? {
        let element = Object::of(context, Kind::Element, element)?;
        queue.completion.give(context, 1)?;
        if element.word(context, element::TYPE)? >= ERRORS {
            return Err(Refusal("an operation has failed".to_owned()));
        }
    }
    if queue.is_idle(context)? {
        return Ok(Answer::Value(0));
    }
    if !queue.is_reported(context)? && queue.has_place(context, 1)? {
        queue.post_report(context)?;
    }
    Ok(Answer::Again)
}
