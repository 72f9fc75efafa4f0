//! `CREATE_RMP`: shared receive queues of DEVX.

use mlx5_prm::{cmd, rmp};

use super::mailbox::{BAD_PARAM, BAD_STATE, CommandError, Output, Result, full};
use super::mailbox::{get, get8, in_umem, pd_slot};
use crate::commands::call::{Call, Full, Kind};
use crate::engine::receive::RECEIVE_BYTES_MAX;
use crate::fabric::counters::Command;
use crate::fabric::numbers::number_of;
use crate::fabric::objects::{Ring, Srq};
use crate::sys::Errno;

/// Bytes of a doorbell record.
const DBREC_BYTES: u64 = 8;
/// log2 of the largest number of entries: the counters are 16 bits wide.
const LOG_SIZE_MAX: u32 = 15;

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateSrq);
    let cyclic = match get8(input, rmp::WQ_TYPE) {
        rmp::wq_type::LINKED_LIST => false,
        rmp::wq_type::CYCLIC => true,
        _ => return Err(BAD_PARAM),
    };
    let (log_size, log_stride) = (get(input, rmp::LOG_WQ_SZ), get(input, rmp::LOG_WQ_STRIDE));
    if log_size > LOG_SIZE_MAX || log_stride < 5 || log_stride > RECEIVE_BYTES_MAX.ilog2() {
        return Err(BAD_PARAM);
    }
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let umems = [get(input, rmp::WQ_UMEM_ID), get(input, rmp::DBR_UMEM_ID)];
    let owner = super::dpa::owner_in(call, function, &umems)?;
    let pd = pd_slot(call, function, get(input, rmp::PD))?;
    let ring_bytes = 1u64 << (log_size + log_stride);
    let (umem, offset) = (get(input, rmp::WQ_UMEM_ID), rmp::WQ_UMEM_OFFSET.get(input));
    let base = in_umem(call, function, umem, offset, ring_bytes)?;
    let (umem, offset) = (get(input, rmp::DBR_UMEM_ID), rmp::DBR_ADDR.get(input));
    let dbrec = in_umem(call, function, umem, offset, DBREC_BYTES)?;
    let queue = Srq {
        ring: Ring {
            base,
            count: 1 << log_size,
            log_stride,
        },
        dbrec,
        pd,
        limit: get(input, rmp::LWM),
        cyclic,
        by_command: true,
        ..Srq::default()
    };
    let slot = function
        .srqs
        .insert(owner, queue)
        .ok_or_else(|| full(call, Full::Srqs))?;
    let mut output = Output::new(cmd::HEADER_BYTES, capacity);
    output.set(cmd::OBJECT_NUMBER, u64::from(number_of(slot)));
    Ok((Kind::Srq.handle(slot), output.done()))
}

pub(super) fn destroy(call: &Call<'_>, slot: u32) -> Result<()> {
    call.count(Command::DestroySrq);
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let missing = CommandError::Kernel(Errno(libc::ENOENT));
    let queue = function
        .srqs
        .owned(slot, call.context.number)
        .ok_or(missing)?;
    if !queue.by_command {
        return Err(missing);
    }
    if function.qps.iter().any(|(_, _, qp)| qp.srq == slot + 1) {
        return Err(BAD_STATE);
    }
    function.srqs.remove(slot);
    Ok(())
}
