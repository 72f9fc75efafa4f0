//! DEVX: raw device commands, passed on to [`crate::devx`] and answered by it.

use super::abi::devx;
use super::ioctl::Ioctl;
use super::{Call, Kind, channel, low32};
use crate::devx::{self as device_commands, CommandError};
use crate::fabric::objects::{ChannelKind, Subscription};
use crate::sys::Errno;

/// Number of the one event queue.
const EQN: u32 = 1;
/// Longest answer of a command.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;

/// Methods of the device itself.
pub(super) fn device(call: &Call<'_>, ioctl: &Ioctl, method: u16) -> Result<(), Errno> {
    match method {
        devx::OTHER => {
            let input = ioctl.input(devx::OTHER_CMD_IN, 0)?;
            let room = room(ioctl, devx::OTHER_CMD_OUT)?;
            let result = device_commands::general(call, &input, room);
            answer(ioctl, devx::OTHER_CMD_OUT, result)
        }
        devx::QUERY_UAR => {
            let number = ioctl.number32(devx::UAR_USER_IDX)?;
            ioctl.answer(devx::UAR_DEV_IDX, &number.to_ne_bytes())
        }
        devx::QUERY_EQN => ioctl.answer(devx::EQN_DEV, &EQN.to_ne_bytes()),
        devx::SUBSCRIBE_EVENT => subscribe(call, ioctl),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// Methods of an object.
pub(super) fn object(call: &Call<'_>, ioctl: &Ioctl, method: u16) -> Result<(), Errno> {
    if method == devx::OBJ_CREATE {
        let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
        let room = room(ioctl, devx::OBJ_CMD_OUT)?;
        return match device_commands::create(call, &input, room) {
            Ok((handle, output)) => {
                ioctl.answer_handle(devx::OBJ_HANDLE, u64::from(handle))?;
                ioctl.answer(devx::OBJ_CMD_OUT, &output)
            }
            Err(error) => answer(ioctl, devx::OBJ_CMD_OUT, Err(error)),
        };
    }
    let handle = ioctl.number32(devx::OBJ_HANDLE)?;
    match method {
        devx::OBJ_DESTROY => device_commands::destroy(call, handle),
        devx::OBJ_MODIFY | devx::OBJ_QUERY => {
            let input = ioctl.input(devx::OBJ_CMD_IN, 0)?;
            let room = room(ioctl, devx::OBJ_CMD_OUT)?;
            let result = device_commands::change(call, handle, &input, room);
            answer(ioctl, devx::OBJ_CMD_OUT, result)
        }
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

fn room(ioctl: &Ioctl, attr: u16) -> Result<usize, Errno> {
    let room = ioctl.room(attr);
    if room > OUTPUT_BYTES_MAX {
        Err(Errno(libc::EINVAL))
    } else {
        Ok(room)
    }
}

/// Answers a command; a bad status goes out with the mailbox, as EREMOTEIO.
pub(super) fn answer(
    ioctl: &Ioctl,
    attr: u16,
    result: Result<Vec<u8>, CommandError>,
) -> Result<(), Errno> {
    match result {
        Ok(output) => ioctl.answer(attr, &output),
        Err(CommandError::Refused(status, syndrome)) => {
            let mut output = [0; mlx5_prm::cmd::HEADER_BYTES];
            output[0] = status;
            output[4..8].copy_from_slice(&syndrome.to_be_bytes());
            ioctl.answer(attr, &output)?;
            Err(Errno(libc::EREMOTEIO))
        }
        Err(CommandError::Kernel(errno)) => Err(errno),
    }
}

fn subscribe(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
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
    // Events of the device as a whole do not happen here: the port never goes down.
    let Ok(handle) = ioctl.number(devx::EVENT_OBJ_HANDLE) else {
        return Ok(());
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
