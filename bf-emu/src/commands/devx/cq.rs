//! `CREATE_CQ`, `MODIFY_CQ`, `QUERY_CQ` and `DESTROY_CQ`.

use mlx5_prm::{cmd, cq};

use super::dpa;
use super::mailbox::{
    BAD_PARAM, BAD_STATE, CommandError, Output, Result, full, get, get16, in_umem,
};
use crate::commands::call::{Call, Full, Kind};
use crate::engine::{complete, moderation, polling};
use crate::fabric::Function;
use crate::fabric::counters::Command;
use crate::fabric::numbers::number_of;
use crate::fabric::objects::{Armed, Cq, Moderation, Ring};
use crate::model::adapter::EQN;
use crate::sys::Errno;

/// Bytes of a doorbell record.
const DBREC_BYTES: u64 = 8;
/// The caller has no such queue.
const MISSING: CommandError = CommandError::Kernel(Errno(libc::ENOENT));
/// log2 of the largest number of entries.
const LOG_SIZE_MAX: u32 = 22;

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateCq);
    call.process.close_uars(call.context)?;
    let log_size = get(input, cq::LOG_CQ_SIZE);
    let log_stride = match get(input, cq::CQE_SZ) {
        0 => 6,
        1 => 7,
        _ => return Err(BAD_PARAM),
    };
    // The device does not advertise a moderation period that starts at each completion.
    if log_size > LOG_SIZE_MAX || cq::COLLAPSED.is_set(input) || cq::CQ_PERIOD_MODE.is_set(input) {
        return Err(BAD_PARAM);
    }
    call.process.start_tick()?;
    let moderation = Moderation {
        count: get16(input, cq::CQ_MAX_COUNT),
        period_us: get16(input, cq::CQ_PERIOD),
        solicited_breaks: cq::SCQE_BREAK_MODERATION_EN.is_set(input),
    };
    let (channel, user_handle) = dpa::events(call, input)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let umems = [get(input, cq::UMEM_ID), get(input, cq::DBR_UMEM_ID)];
    let owner = dpa::owner_in(call, function, &umems)?;
    let ring = ring(call, function, (log_size, log_stride), input)?;
    let (umem, offset) = (get(input, cq::DBR_UMEM_ID), cq::DBR_ADDR.get(input));
    let dbrec = in_umem(call, function, umem, offset, DBREC_BYTES)?;
    polling::forget_armed(dbrec);
    let queue = Cq {
        ring,
        dbrec,
        ignore_overrun: cq::OVERRUN_IGNORE.is_set(input),
        by_command: true,
        channel,
        user_handle,
        ..Cq::default()
    };
    let slot = function
        .cqs
        .insert(owner, queue)
        .ok_or_else(|| full(call, Full::Cqs))?;
    if user_handle != 0
        && let Some(queue) = function.cqs.get_mut(slot)
    {
        queue.user_handle |= u64::from(number_of(slot)) << 32;
    }
    moderation::set(&mut locked, call.function(), slot, moderation);
    let mut output = Output::new(cmd::HEADER_BYTES, capacity);
    output.set(cmd::OBJECT_NUMBER, u64::from(number_of(slot)));
    Ok((Kind::Cq.handle(slot), output.done()))
}

/// The ring that a command names.
fn ring(
    call: &Call<'_>,
    function: &Function,
    (log_size, log_stride): (u32, u32),
    input: &[u8],
) -> Result<Ring> {
    let bytes = 1u64 << (log_size + log_stride);
    let (umem, offset) = (get(input, cq::UMEM_ID), cq::UMEM_OFFSET.get(input));
    Ok(Ring {
        base: in_umem(call, function, umem, offset, bytes)?,
        count: 1 << log_size,
        log_stride,
    })
}

/// `MODIFY_CQ`, for queues of commands and of verbs: another ring, or attributes.
pub(super) fn modify(call: &Call<'_>, slot: u32, input: &[u8], capacity: usize) -> Result {
    let resizes = match get16(input, cmd::OP_MOD) {
        0 => false,
        cq::OP_MOD_RESIZE => true,
        _ => return Err(BAD_PARAM),
    };
    call.count(if resizes {
        Command::ResizeCq
    } else {
        Command::ModifyCq
    });
    // The owner's thread sends delayed events.
    call.process.start_tick()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let queue = *function
        .cqs
        .owned(slot, call.context.number)
        .ok_or(MISSING)?;
    if resizes {
        let log_size = get(input, cq::LOG_CQ_SIZE);
        if log_size > LOG_SIZE_MAX {
            return Err(BAD_PARAM);
        }
        // The size of an entry does not change.
        let shape = (log_size, queue.ring.log_stride);
        let ring = ring(call, function, shape, input)?;
        if !complete::resize(&mut locked, call.function(), slot, ring) {
            return Err(BAD_STATE);
        }
    } else {
        let select = get(input, cq::MODIFY_FIELD_SELECT);
        if select & !(cq::select::PERIOD | cq::select::COUNT | cq::select::OVERRUN) != 0 {
            return Err(BAD_PARAM);
        }
        let mut moderation = queue.moderation;
        if select & cq::select::PERIOD != 0 {
            moderation.period_us = get16(input, cq::CQ_PERIOD);
        }
        if select & cq::select::COUNT != 0 {
            moderation.count = get16(input, cq::CQ_MAX_COUNT);
        }
        if let Some(queue) = function.cqs.get_mut(slot)
            && select & cq::select::OVERRUN != 0
        {
            queue.ignore_overrun = cq::OVERRUN_IGNORE.is_set(input);
        }
        moderation::set(&mut locked, call.function(), slot, moderation);
    }
    Ok(Output::new(cmd::HEADER_BYTES, capacity).done())
}

/// `QUERY_CQ`, for queues of commands and of verbs.
pub(super) fn query(call: &Call<'_>, slot: u32, capacity: usize) -> Result {
    call.count(Command::Other);
    let locked = call.lock();
    let cqs = &locked.peek(call.function()).cqs;
    let queue = cqs.owned(slot, call.context.number).ok_or(MISSING)?;
    let armed = match queue.armed {
        Armed::No => cq::notification::FIRED,
        Armed::Next => cq::notification::ARMED,
        Armed::Solicited => cq::notification::ARMED_SOLICITED,
    };
    let status = if queue.overrun {
        cq::STATUS_OVERFLOW
    } else {
        0
    };
    let moderation = queue.moderation;
    let fields = [
        (cq::STATUS, u64::from(status)),
        (cq::CQE_SZ, u64::from(queue.ring.log_stride == 7)),
        (
            cq::SCQE_BREAK_MODERATION_EN,
            u64::from(moderation.solicited_breaks),
        ),
        (cq::OVERRUN_IGNORE, u64::from(queue.ignore_overrun)),
        (cq::ST, u64::from(armed)),
        (cq::LOG_CQ_SIZE, u64::from(queue.ring.count.max(1).ilog2())),
        (cq::CQ_PERIOD, u64::from(moderation.period_us)),
        (cq::CQ_MAX_COUNT, u64::from(moderation.count)),
        (cq::EQN, u64::from(EQN)),
        (cq::CONSUMER_COUNTER, u64::from(queue.consumed)),
        (cq::PRODUCER_COUNTER, u64::from(queue.produced)),
    ];
    let mut output = Output::new(cq::QUERY_OUT_BYTES, capacity);
    for (field, value) in fields {
        output.set(field, value);
    }
    Ok(output.done())
}

pub(super) fn destroy(call: &Call<'_>, slot: u32) -> Result<()> {
    call.count(Command::DestroyCq);
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let queue = function
        .cqs
        .owned(slot, call.context.number)
        .ok_or(MISSING)?;
    if !queue.by_command {
        return Err(MISSING);
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
