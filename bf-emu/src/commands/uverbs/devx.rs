//! DEVX: passes raw device commands to [`crate::commands::devx`] and returns its answers.

use super::abi::devx;
use super::channel;
use super::context::COMP_VECTORS;
use super::ioctl::Ioctl;
use crate::bits::{low32, size};
use crate::commands::call::{Call, Kind};
use crate::commands::devx::{self as commands, CommandError};
use crate::engine::event::DEVICE_TYPE_PORT;
use crate::fabric::objects::{ChannelKind, Subscription};
use crate::fabric::trace::{ENTRY_BYTES, What};
use crate::model::adapter::EQN;
use crate::sys::Errno;

/// Largest answer of a command in bytes.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;

/// A command on the device itself.
pub(super) fn general(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let input = ioctl.input(devx::OTHER_CMD_IN, 0)?;
    trace(call, &input);
    let capacity = capacity(ioctl, devx::OTHER_CMD_OUT)?;
    let result = commands::general(call, &input, capacity);
    answer(ioctl, devx::OTHER_CMD_OUT, result)
}

pub(super) fn query_uar(_call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    // UAR pages are allocated under the device's own numbers.
    let number = ioctl.number32(devx::UAR_USER_IDX)?;
    ioctl.answer(devx::UAR_DEV_IDX, &number.to_ne_bytes())
}

pub(super) fn query_eqn(_call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    if ioctl.number32(devx::EQN_VECTOR)? >= COMP_VECTORS {
        return Err(Errno(libc::ENOENT));
    }
    ioctl.answer(devx::EQN_DEV, &EQN.to_ne_bytes())
}

/// A command that creates an object.
pub(super) fn create(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
    trace(call, &input);
    let capacity = capacity(ioctl, devx::OBJ_CMD_OUT)?;
    match commands::create(call, &input, capacity) {
        Ok((handle, output)) => {
            ioctl.answer_handle(devx::OBJ_HANDLE, u64::from(handle))?;
            ioctl.answer(devx::OBJ_CMD_OUT, &output)
        }
        Err(error) => answer(ioctl, devx::OBJ_CMD_OUT, Err(error)),
    }
}

pub(super) fn destroy(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    commands::destroy(call, ioctl.number32(devx::OBJ_HANDLE)?)
}

/// A command that changes an object.
pub(super) fn modify(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
    trace(call, &input);
    let capacity = capacity(ioctl, devx::OBJ_CMD_OUT)?;
    let result = commands::modify(call, ioctl.number32(devx::OBJ_HANDLE)?, &input, capacity);
    answer(ioctl, devx::OBJ_CMD_OUT, result)
}

/// A command that queries an object.
pub(super) fn query(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
    let capacity = capacity(ioctl, devx::OBJ_CMD_OUT)?;
    let result = commands::query(call, ioctl.number32(devx::OBJ_HANDLE)?, &input, capacity);
    answer(ioctl, devx::OBJ_CMD_OUT, result)
}

/// Like [`query`]. The answer goes into a channel, after the caller's number for it.
pub(super) fn query_async(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    /// Largest answer in one packet of a pipe, without the number.
    const CAPACITY_MAX: usize = 4096 - 8;
    let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
    let capacity = size(ioctl.number(devx::ASYNC_OUT_LEN)?);
    if !(mlx5_prm::cmd::HEADER_BYTES..=CAPACITY_MAX).contains(&capacity) {
        return Err(Errno(libc::EINVAL));
    }
    let fd = ioctl.file(devx::ASYNC_FD)?;
    let mut output =
        match commands::query(call, ioctl.number32(devx::OBJ_HANDLE)?, &input, capacity) {
            Ok(output) => output,
            Err(CommandError::Refused(status, syndrome)) => refusal(status, syndrome).to_vec(),
            Err(CommandError::Kernel(errno)) => return Err(errno),
        };
    output.resize(capacity, 0);
    let mut event = ioctl.number(devx::ASYNC_WR_ID)?.to_ne_bytes().to_vec();
    event.append(&mut output);
    channel::answer(call, fd, &event)
}

/// Records the input of a command, if a trace is on.
fn trace(call: &Call<'_>, input: &[u8]) {
    let trace = call.fabric().trace();
    let Some(opcode) = input.first_chunk().copied().map(u16::from_be_bytes) else {
        return;
    };
    if !trace.is_on() {
        return;
    }
    for (part, chunk) in (0..).zip(input.chunks(ENTRY_BYTES)) {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..chunk.len()].copy_from_slice(chunk);
        let what = What::Mailbox {
            opcode,
            part,
            bytes,
        };
        trace.write(call.function(), what);
    }
}

fn capacity(ioctl: &Ioctl, attr: u16) -> Result<usize, Errno> {
    let capacity = ioctl.capacity(attr);
    if capacity > OUTPUT_BYTES_MAX {
        Err(Errno(libc::EINVAL))
    } else {
        Ok(capacity)
    }
}

/// Answers a command. A bad status returns EREMOTEIO together with the mailbox.
pub(super) fn answer(
    ioctl: &Ioctl,
    attr: u16,
    result: Result<Vec<u8>, CommandError>,
) -> Result<(), Errno> {
    match result {
        Ok(output) => ioctl.answer(attr, &output),
        Err(CommandError::Refused(status, syndrome)) => {
            ioctl.answer(attr, &refusal(status, syndrome))?;
            Err(Errno(libc::EREMOTEIO))
        }
        Err(CommandError::Kernel(errno)) => Err(errno),
    }
}

/// The output mailbox of a refused command.
fn refusal(status: u8, syndrome: u32) -> [u8; mlx5_prm::cmd::HEADER_BYTES] {
    let mut output = [0; mlx5_prm::cmd::HEADER_BYTES];
    output[0] = status;
    output[4..8].copy_from_slice(&syndrome.to_be_bytes());
    output
}

/// `SUBSCRIBE_EVENT`. A device that accepts it must send the events: UCX does not poll an interface without traffic, it arms
/// the completion queue and waits (`uct_rc_mlx5_iface_devx_arm`).
pub(super) fn subscribe(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    if ioctl.has(devx::EVENT_FD_NUM) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let fd = ioctl.file(devx::EVENT_FD_HANDLE)?;
    let number = match channel::find(call, fd, ChannelKind::Devx) {
        0 => return Err(Errno(libc::EBADF)),
        number => number,
    };
    let list = ioctl.input(devx::EVENT_TYPE_LIST, 2)?;
    let types = list
        .as_chunks::<2>()
        .0
        .iter()
        .map(|pair| u32::from(u16::from_ne_bytes(*pair)))
        .filter(|event| *event < 32)
        .fold(0, |types, event| types | 1 << event);
    let cookie = ioctl.number(devx::EVENT_COOKIE).unwrap_or(0);
    let Ok(handle) = ioctl.number(devx::EVENT_OBJ_HANDLE) else {
        return subscribe_to_device(call, number, cookie, types);
    };
    let (kind, slot) = Kind::split(low32(handle))?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let context = call.context.number;
    let wanted = match kind {
        Kind::Cq if function.cqs.owned(slot, context).is_some() => {
            function.cqs.get_mut(slot).map(|cq| &mut cq.devx)
        }
        Kind::Qp if function.qps.owned(slot, context).is_some() => {
            function.qps.get_mut(slot).map(|qp| &mut qp.devx)
        }
        _ => None,
    };
    let wanted = wanted.ok_or(Errno(libc::EINVAL))?;
    let types = if wanted.channel == number {
        wanted.types | types
    } else {
        types
    };
    *wanted = Subscription {
        cookie,
        channel: number,
        types,
    };
    Ok(())
}

/// Subscribes to events of the whole device. These are port changes only (`mlx5/devx.c`,
/// `is_legacy_unaffiliated_event_num`).
fn subscribe_to_device(
    call: &Call<'_>,
    channel: u32,
    cookie: u64,
    types: u32,
) -> Result<(), Errno> {
    if types != 1 << DEVICE_TYPE_PORT {
        return Err(Errno(libc::EINVAL));
    }
    let mut locked = call.lock();
    let channels = &mut locked.function(call.function()).channels;
    let channel = channel
        .checked_sub(1)
        .and_then(|slot| channels.get_mut(slot))
        .ok_or(Errno(libc::EBADF))?;
    channel.device = Subscription {
        cookie,
        types,
        channel: 0,
    };
    Ok(())
}
