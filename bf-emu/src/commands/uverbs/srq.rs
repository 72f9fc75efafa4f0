//! Shared receive queues of verbs.

use super::abi::{UHW_IN, UHW_OUT, create_srq};
use super::ioctl::{Answer, Fields, Ioctl};
use super::{channel, xrcd};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::numbers::number_of;
use crate::fabric::objects::{Ring, Srq};
use crate::sys::Errno;

/// Largest number of entries of a shared receive queue, as the device advertises it.
pub(crate) const SRQ_WRS_MAX: u32 = 32767;
/// Largest number of scatter entries in one entry.
pub(crate) const SRQ_SGES_MAX: u32 = 31;
/// Type: a basic queue (`IB_UVERBS_SRQT_BASIC`).
const TYPE_BASIC: u64 = 0;
/// Type: a queue of an XRC domain, with its own completion queue (`IB_UVERBS_SRQT_XRC`).
const TYPE_XRC: u64 = 1;

/// Attributes of destruction.
const DESTROY_HANDLE: u16 = 0;
const DESTROY_RESP: u16 = 1;

pub(super) fn create(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::CreateSrq);
    let (xrc_domain, cq) = match ioctl.number(create_srq::TYPE)? {
        TYPE_BASIC => (0, None),
        TYPE_XRC => (
            xrcd::domain(call, ioctl.number32(create_srq::XRCD_HANDLE)?)?,
            Some(Kind::Cq.slot(ioctl.number32(create_srq::CQ_HANDLE)?)?),
        ),
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    let (max_wr, max_sge) = (
        ioctl.number32(create_srq::MAX_WR)?,
        ioctl.number32(create_srq::MAX_SGE)?,
    );
    if max_wr > SRQ_WRS_MAX || max_sge > SRQ_SGES_MAX {
        return Err(Errno(libc::EINVAL));
    }
    // struct mlx5_ib_create_srq
    let driver = ioctl.input(UHW_IN, 32)?;
    let driver = Fields(&driver);
    let pd = Kind::Pd.slot(ioctl.number32(create_srq::PD_HANDLE)?)?;
    // The driver's computation (`providers/mlx5/srq.c`, mlx5_alloc_srq_buf): a link segment and the
    // scatter entries, rounded up to a power of two of at least 32 bytes.
    let stride = (16 + 16 * max_sge).next_power_of_two().max(32);
    let count = (max_wr + 1).next_power_of_two();
    let srq = Srq {
        ring: Ring {
            base: driver.u64(0),
            count,
            log_stride: stride.ilog2(),
        },
        dbrec: driver.u64(8),
        user_handle: ioctl.number(create_srq::USER_HANDLE)?,
        pd,
        user_index: driver.u32(24),
        limit: ioctl.number32(create_srq::LIMIT).unwrap_or(0),
        event_channel: channel::event_channel(call, ioctl, create_srq::EVENT_FD),
        sge_max: max_sge,
        xrc_domain,
        cq: cq.unwrap_or(0),
        ..Srq::default()
    };
    let owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    function
        .pds
        .owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    if cq.is_some_and(|cq| function.cqs.owned(cq, call.context.number).is_none()) {
        return Err(Errno(libc::ENOENT));
    }
    let slot = function.srqs.insert(owner, srq);
    drop(locked);
    let slot = slot.ok_or_else(|| call.full(Full::Srqs))?;
    ioctl.answer_handle(create_srq::HANDLE, u64::from(Kind::Srq.handle(slot)))?;
    ioctl.answer(create_srq::RESP_MAX_WR, &(count - 1).to_ne_bytes())?;
    ioctl.answer(create_srq::RESP_MAX_SGE, &max_sge.to_ne_bytes())?;
    ioctl.answer(create_srq::RESP_SRQ_NUM, &number_of(slot).to_ne_bytes())?;
    ioctl.answer(UHW_OUT, Answer::new(8).u32(0, number_of(slot)).as_slice())
}

pub(super) fn destroy(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DestroySrq);
    let slot = Kind::Srq.slot(ioctl.number32(DESTROY_HANDLE)?)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let srq = *function
        .srqs
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    if function.qps.iter().any(|(_, _, qp)| qp.srq == slot + 1) {
        return Err(Errno(libc::EBUSY));
    }
    let unread = channel::forget(&locked, call.function(), srq.event_channel, srq.user_handle);
    locked.function(call.function()).srqs.remove(slot);
    drop(locked);
    let most = srq.events_sent.wrapping_sub(unread);
    let counter = srq.user_handle.wrapping_add(channel::SRQ_EVENTS);
    let reported = channel::reported(most, srq.events_unsure, counter);
    ioctl.answer(DESTROY_RESP, &reported.to_ne_bytes())
}

/// `MODIFY_SRQ`: sets the limit. The size cannot change.
pub(super) fn modify(call: &Call<'_>, input: Fields<'_>) -> Result<(), Errno> {
    const MASK_MAX_WR: u32 = 1;
    const MASK_LIMIT: u32 = 2;
    // struct ib_uverbs_modify_srq
    let slot = Kind::Srq.slot(input.u32(0))?;
    let mask = input.u32(4);
    if mask & MASK_MAX_WR != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut locked = call.lock();
    let srqs = &mut locked.function(call.function()).srqs;
    srqs.owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    if let Some(srq) = srqs.get_mut(slot)
        && mask & MASK_LIMIT != 0
    {
        srq.limit = input.u32(12);
    }
    Ok(())
}

/// `QUERY_SRQ`.
pub(super) fn query(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    // struct ib_uverbs_query_srq, its response
    let slot = Kind::Srq.slot(input.u32(8))?;
    let locked = call.lock();
    let srqs = &locked.peek(call.function()).srqs;
    let srq = srqs
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let mut answer = Answer::new(16);
    answer
        .u32(0, srq.ring.count - 1)
        .u32(4, srq.sge_max)
        .u32(8, srq.limit);
    Ok(answer)
}
