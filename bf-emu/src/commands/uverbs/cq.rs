//! Completion queues of verbs.

use super::abi::{UHW_IN, UHW_OUT, create_cq};
use super::channel;
use super::context::COMP_VECTORS;
use super::ioctl::{Answer, Fields, Ioctl};
use crate::commands::call::{Call, Full, Kind};
use crate::engine::{self, polling};
use crate::fabric::counters::Command;
use crate::fabric::numbers::number_of;
use crate::fabric::objects::{ChannelKind, Cq, Moderation, Ring, Srq};
use crate::sys::Errno;

/// Largest number of entries of a completion queue, as the device advertises it.
pub(crate) const CQES_MAX: u32 = (1 << 22) - 1;

/// Flag of creation: `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`. Every completion has a time stamp.
const TIMESTAMPS: u32 = 1 << 0;
/// Flag of creation: `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 1 << 1;

/// Flag of the driver that requests padded entries of 128 bytes
/// (`MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD`). Entries are always padded here.
const DRIVER_PAD: u16 = 1 << 0;
/// Flag of the driver that names the UAR page (`MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`). The
/// device does not advertise real-time time stamps, which another flag requests.
const DRIVER_UAR_PAGE_INDEX: u16 = 1 << 1;

/// Attributes of destruction.
const DESTROY_HANDLE: u16 = 0;
const DESTROY_RESP: u16 = 1;
/// Bytes of `struct ib_uverbs_destroy_cq_resp`.
pub(super) const DESTROYED_BYTES: u16 = 8;

pub(super) fn create(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::CreateCq);
    call.process.close_uars(call.context)?;
    let flags = ioctl.flags(create_cq::FLAGS, TIMESTAMPS | IGNORE_OVERRUN)?;
    let cqe = ioctl.number32(create_cq::CQE)?;
    // struct mlx5_ib_create_cq
    let driver = ioctl.input(UHW_IN, 32)?;
    let driver = Fields(&driver);
    let (buffer, dbrec, cqe_size) = (driver.u64(0), driver.u64(8), driver.u32(16));
    if cqe == 0 || cqe > CQES_MAX || !matches!(cqe_size, 64 | 128) || driver.u8(20) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let asked = driver.u16(22);
    if !dbrec.is_multiple_of(8) || asked & !(DRIVER_PAD | DRIVER_UAR_PAGE_INDEX) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if asked & DRIVER_PAD != 0 && cqe_size != 128 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if ioctl.number32(create_cq::COMP_VECTOR).unwrap_or(0) >= COMP_VECTORS {
        return Err(Errno(libc::EINVAL));
    }
    // One extra entry distinguishes a full queue from an empty one.
    let count = (cqe + 1).next_power_of_two();
    let channel = match ioctl.file(create_cq::COMP_CHANNEL) {
        Ok(fd) => match channel::find(call, fd, ChannelKind::Completion) {
            0 => return Err(Errno(libc::EBADF)),
            channel => channel,
        },
        Err(_) => 0,
    };
    let cq = Cq {
        ring: Ring {
            base: buffer,
            count,
            log_stride: cqe_size.ilog2(),
        },
        dbrec,
        user_handle: ioctl.number(create_cq::USER_HANDLE)?,
        channel,
        ignore_overrun: flags & IGNORE_OVERRUN != 0,
        event_channel: channel::event_channel(call, ioctl, create_cq::EVENT_FD),
        ..Cq::default()
    };
    polling::forget_armed(dbrec);
    let owner = call.owner()?;
    let slot = call.lock().function(call.function()).cqs.insert(owner, cq);
    let slot = slot.ok_or_else(|| call.full(Full::Cqs))?;
    ioctl.answer_handle(create_cq::HANDLE, u64::from(Kind::Cq.handle(slot)))?;
    ioctl.answer(create_cq::RESP_CQE, &(count - 1).to_ne_bytes())?;
    ioctl.answer(UHW_OUT, Answer::new(8).u32(0, number_of(slot)).as_slice())
}

pub(super) fn destroy(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DestroyCq);
    let slot = Kind::Cq.slot(ioctl.number32(DESTROY_HANDLE)?)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let cq = *function
        .cqs
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let used = |qp: &crate::fabric::objects::Qp| qp.send_cq == slot || qp.recv_cq == slot;
    let shared = |srq: &Srq| srq.xrc_domain != 0 && srq.cq == slot;
    if function.qps.iter().any(|(_, _, qp)| used(qp))
        || function.srqs.iter().any(|(_, _, srq)| shared(srq))
    {
        return Err(Errno(libc::EBUSY));
    }
    let unread = |channel| channel::forget(&locked, call.function(), channel, cq.user_handle);
    let (completions, others) = (unread(cq.channel), unread(cq.event_channel));
    locked.function(call.function()).cqs.remove(slot);
    drop(locked);
    // The caller waits until it has acknowledged all reported events.
    let reported =
        |most, unsure, at| channel::reported(most, unsure, cq.user_handle.wrapping_add(at));
    let mut answer = Answer::new(DESTROYED_BYTES.into());
    let most = cq.events_sent.wrapping_sub(completions);
    answer.u32(0, reported(most, cq.events_unsure, channel::CQ_COMPLETIONS));
    let most = cq.async_events_sent.wrapping_sub(others);
    answer.u32(
        4,
        reported(most, cq.async_events_unsure, channel::CQ_OTHERS),
    );
    ioctl.answer(DESTROY_RESP, answer.as_slice())
}

/// `EX_MODIFY_CQ`: sets the moderation of events (`ib_uverbs_ex_modify_cq`, `mlx5_ib_modify_cq`).
pub(super) fn modify(call: &Call<'_>, input: Fields<'_>) -> Result<(), Errno> {
    /// The only attribute that can change (`IB_CQ_MODERATE`).
    const MODERATE: u32 = 1 << 0;
    call.count(Command::ModifyCq);
    // struct ib_uverbs_ex_modify_cq
    let slot = Kind::Cq.slot(input.u32(0))?;
    let (mask, count, period_us) = (input.u32(4), input.u16(8), input.u16(10));
    if mask == 0 || input.u32(12) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if mask > MODERATE {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if period_us > Moderation::PERIOD_US_MAX {
        return Err(Errno(libc::EINVAL));
    }
    // The owner's thread sends delayed events.
    call.process.start_tick()?;
    let mut locked = call.lock();
    let cqs = &locked.peek(call.function()).cqs;
    let cq = cqs
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let moderation = Moderation {
        count,
        period_us,
        ..cq.moderation
    };
    engine::moderation::set(&mut locked, call.function(), slot, moderation);
    Ok(())
}

/// `RESIZE_CQ`: from the next completion on, entries are in another ring. The last entry of the old
/// ring reports the resize. The owner copies unread entries from the old ring.
pub(super) fn resize(
    call: &Call<'_>,
    input: Fields<'_>,
    driver: Fields<'_>,
) -> Result<Answer, Errno> {
    call.count(Command::ResizeCq);
    // struct ib_uverbs_resize_cq
    let slot = Kind::Cq.slot(input.u32(8))?;
    let cqe = input.u32(12);
    let (buffer, cqe_size) = (driver.u64(0), u32::from(driver.u16(8)));
    if cqe == 0 || cqe > CQES_MAX {
        return Err(Errno(libc::EINVAL));
    }
    let mut locked = call.lock();
    let cqs = &locked.peek(call.function()).cqs;
    let cq = cqs
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    // The driver keeps the entry size.
    if cqe_size != 1 << cq.ring.log_stride {
        return Err(Errno(libc::EINVAL));
    }
    let ring = Ring {
        base: buffer,
        count: (cqe + 1).next_power_of_two(),
        log_stride: cq.ring.log_stride,
    };
    if !engine::complete::resize(&mut locked, call.function(), slot, ring) {
        return Err(Errno(libc::EINVAL));
    }
    let mut answer = Answer::new(8);
    answer.u32(0, ring.count - 1);
    Ok(answer)
}
