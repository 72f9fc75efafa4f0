//! `CREATE_CQ` and its destruction.

use mlx5_prm::{cmd, cq};

use super::{BAD_PARAM, BAD_STATE, CommandError, Output, Result, full, get, in_umem};
use crate::engine::polling;
use crate::fabric::objects::{Cq, Ring};
use crate::stats::Command;
use crate::sys::Errno;
use crate::uverbs::{Call, Full, Kind, number_of};

/// Bytes of a doorbell record.
const DBREC_BYTES: u64 = 8;
/// log2 of the most entries.
const LOG_SIZE_MAX: u32 = 22;

pub(super) fn create(call: &Call<'_>, input: &[u8], room: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateCq);
    call.process.close_uars()?;
    let log_size = get(input, cq::LOG_CQ_SIZE);
    let log_stride = match get(input, cq::CQE_SZ) {
        0 => 6,
        1 => 7,
        _ => return Err(BAD_PARAM),
    };
    if log_size > LOG_SIZE_MAX || cq::COLLAPSED.is_set(input) {
        return Err(BAD_PARAM);
    }
    let owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let ring_bytes = 1u64 << (log_size + log_stride);
    let (umem, offset) = (get(input, cq::UMEM_ID), cq::UMEM_OFFSET.get(input));
    let base = in_umem(call, function, umem, offset, ring_bytes)?;
    let (umem, offset) = (get(input, cq::DBR_UMEM_ID), cq::DBR_ADDR.get(input));
    let dbrec = in_umem(call, function, umem, offset, DBREC_BYTES)?;
    polling::forget_armed(dbrec);
    let queue = Cq {
        ring: Ring {
            base,
            count: 1 << log_size,
            log_stride,
        },
        dbrec,
        ignore_overrun: cq::OVERRUN_IGNORE.is_set(input),
        by_command: true,
        ..Cq::default()
    };
    let slot = function
        .cqs
        .insert(owner, queue)
        .ok_or_else(|| full(call, Full::Cqs))?;
    let mut output = Output::new(cmd::HEADER_BYTES, room);
    output.set(cmd::OBJECT_NUMBER, u64::from(number_of(slot)));
    Ok((Kind::Cq.handle(slot), output.done()))
}

pub(super) fn destroy(call: &Call<'_>, slot: u32) -> Result<()> {
    call.count(Command::DestroyCq);
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let missing = CommandError::Kernel(Errno(libc::ENOENT));
    let queue = function
        .cqs
        .owned(slot, call.context.number)
        .ok_or(missing)?;
    if !queue.by_command {
        return Err(missing);
    }
    if function
        .qps
        .iter()
        .any(|(_, _, qp)| qp.send_cq == slot || qp.recv_cq == slot)
    {
        return Err(BAD_STATE);
    }
    function.cqs.remove(slot);
    Ok(())
}
