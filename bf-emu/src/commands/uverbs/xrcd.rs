//! XRC domains. All contexts that open the same file share one.

use super::ioctl::{Answer, Fields, Ioctl};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::objects::Pd;
use crate::sys::{self, Errno};

/// `OPEN_XRCD`.
pub(super) fn open(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    call.count(Command::Other);
    // struct ib_uverbs_open_xrcd
    let (file, flags) = (input.u32(8).cast_signed(), input.u32(12).cast_signed());
    let xrc_domain = match file {
        // A private domain. No file has such a number.
        -1 => u64::MAX << 32 | u64::from(call.fabric().next_context()),
        file => {
            let id = sys::file_id(file)?;
            // The file's device and inode number. The highest bit avoids 0, which means no domain.
            id.device.rotate_left(32) ^ id.inode | 1 << 63
        }
    };
    let owner = call.owner()?;
    let mut locked = call.lock();
    let pds = &mut locked.function(call.function()).pds;
    let known = pds.iter().any(|(_, _, pd)| pd.xrc_domain == xrc_domain);
    // uverbs_cmd.c, ib_uverbs_open_xrcd
    if known && flags & libc::O_EXCL != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if !known && file != -1 && flags & libc::O_CREAT == 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let slot = pds.insert(owner, Pd { xrc_domain });
    let slot = slot.ok_or_else(|| call.full(Full::Pds))?;
    let mut answer = Answer::new(4);
    answer.u32(0, Kind::Xrcd.handle(slot));
    Ok(answer)
}

pub(super) fn close(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let slot = Kind::Xrcd.slot(ioctl.number32(0)?)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let context = call.context.number;
    let domain = function
        .pds
        .owned(slot, context)
        .ok_or(Errno(libc::ENOENT))?
        .xrc_domain;
    // Queues of this process in the domain must be destroyed first.
    let queues = function
        .qps
        .iter()
        .any(|(_, owner, qp)| qp.xrc_domain == domain && owner.context == context);
    let shared = function
        .srqs
        .iter()
        .any(|(_, owner, srq)| srq.xrc_domain == domain && owner.context == context);
    if queues || shared {
        return Err(Errno(libc::EBUSY));
    }
    function.pds.remove(slot);
    Ok(())
}

/// The domain behind a handle of the caller.
pub(super) fn domain(call: &Call<'_>, handle: u32) -> Result<u64, Errno> {
    let slot = Kind::Xrcd.slot(handle)?;
    let locked = call.lock();
    let pds = &locked.peek(call.function()).pds;
    pds.owned(slot, call.context.number)
        .map(|pd| pd.xrc_domain)
        .ok_or(Errno(libc::ENOENT))
}
