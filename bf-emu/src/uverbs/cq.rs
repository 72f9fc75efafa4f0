//! Completion queues of verbs.

use super::abi::{UHW_IN, UHW_OUT, create_cq};
use super::ioctl::{Answer, Fields, Ioctl};
use super::{Call, Kind, channel, number_of};
use crate::fabric::objects::{ChannelKind, Cq, Ring};
use crate::stats::Command;
use crate::sys::{self, Errno};

/// Most entries of a completion queue, as the device tells its users.
pub(crate) const CQES_MAX: u32 = (1 << 22) - 1;

/// Flag of creation: `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 1 << 1;

/// Attributes of destruction.
const DESTROY_HANDLE: u16 = 0;
const DESTROY_RESP: u16 = 1;

pub(super) fn create(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::CreateCq);
    call.process.close_uars()?;
    ioctl.expect_only(&[
        create_cq::HANDLE,
        create_cq::CQE,
        create_cq::USER_HANDLE,
        create_cq::COMP_CHANNEL,
        create_cq::COMP_VECTOR,
        create_cq::FLAGS,
        create_cq::RESP_CQE,
        create_cq::EVENT_FD,
        UHW_IN,
        UHW_OUT,
    ])?;
    let cqe = ioctl.number32(create_cq::CQE)?;
    // struct mlx5_ib_create_cq
    let driver = ioctl.input(UHW_IN, 32)?;
    let driver = Fields(&driver);
    let (buffer, dbrec, cqe_size) = (driver.u64(0), driver.u64(8), driver.u32(16));
    if cqe == 0 || cqe > CQES_MAX || !matches!(cqe_size, 64 | 128) || driver.u8(20) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if !dbrec.is_multiple_of(8) {
        return Err(Errno(libc::EINVAL));
    }
    // One entry more than asked for tells a full queue from an empty one.
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
        ignore_overrun: ioctl.number32(create_cq::FLAGS).unwrap_or(0) & IGNORE_OVERRUN != 0,
        event_channel: channel::event_channel(call, ioctl, create_cq::EVENT_FD),
        ..Cq::default()
    };
    let owner = call.owner()?;
    let slot = call.lock().function(call.function()).cqs.insert(owner, cq);
    let slot = slot.ok_or_else(|| call.full())?;
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
    if function.qps.iter().any(|(_, _, qp)| used(qp)) {
        return Err(Errno(libc::EBUSY));
    }
    let pending = pending_events(&locked, call.function(), &cq);
    locked.function(call.function()).cqs.remove(slot);
    drop(locked);
    // The caller waits until it has acknowledged as many events as were reported to it.
    let mut answer = Answer::new(8);
    answer
        .u32(0, cq.events_sent.wrapping_sub(pending))
        .u32(4, cq.async_events_sent);
    ioctl.answer(DESTROY_RESP, answer.as_slice())
}

/// Completion events of a queue that its owner has not read yet. They are taken out of the channel,
/// as the kernel forgets the events of a queue that goes; those of other queues are put back.
fn pending_events(locked: &crate::fabric::Locked<'_>, function: usize, cq: &Cq) -> u32 {
    /// Events that a channel is searched for; a pipe holds no more.
    const EVENTS_MAX: usize = 8192;
    let Some(slot) = cq.channel.checked_sub(1) else {
        return 0;
    };
    let channels = &locked.peek(function).channels;
    let Some(channel) = channels.get(slot) else {
        return 0;
    };
    let owner = channels
        .owner(slot)
        .and_then(|owner| locked.pid(owner.process));
    if owner != Some(sys::pid()) {
        return 0;
    }
    let waiting = sys::waiting_bytes(channel.read_fd).unwrap_or(0) / 8;
    let mut pending = 0;
    for _ in 0..waiting.min(EVENTS_MAX) {
        let mut event = [0; 8];
        if sys::read(channel.read_fd, &mut event) != Ok(event.len()) {
            break;
        }
        if u64::from_ne_bytes(event) == cq.user_handle {
            pending += 1;
        } else {
            // Cannot block: as many bytes were taken out just now.
            let _ = sys::write(channel.write_fd, &event);
        }
    }
    pending
}
