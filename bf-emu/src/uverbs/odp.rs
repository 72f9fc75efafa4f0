//! Paging on demand: what is advertised of it, which registrations ask for it, and advice.
//!
//! The device follows addresses when it uses them, for every region; so a region on demand is one that
//! need not be mapped when it is registered. A page that is not there when it is used is an error of the
//! request, as on hardware when the kernel cannot bring it.

use super::abi::advise_mr;
use super::ioctl::{Fields, Ioctl};
use super::{Call, Kind};
use crate::engine::access::slot_of;
use crate::fabric::objects::{Mkey, MkeyOrigin};
use crate::stats::Command;
use crate::sys::Errno;
use mlx5_prm::umr::access;

/// `enum ib_odp_general_cap_bits`: there is such a thing, and all of memory as one region.
pub(super) const GENERAL_CAPS: u64 = 1 << 0 | 1 << 1;
/// `enum ib_odp_transport_cap_bits`: send, receive, write, read, atomic, receive by a shared queue.
pub(super) const RELIABLE_CAPS: u32 = 0x3f;
/// Of datagrams the device can only wait for what it sends.
pub(super) const DATAGRAM_CAPS: u32 = 1 << 0;

/// Bytes of a region that stands for all memory of its process: all addresses that user space has.
pub(super) const ALL_BYTES: u64 = 1 << 47;

/// Bytes of `struct ib_uverbs_sge`.
pub(super) const ENTRY_BYTES: u16 = 16;

/// `enum ib_uverbs_advise_mr_advice` ends with the prefetch that brings no pages.
const ADVICE_MAX: u64 = 2;
const PREFETCH_WRITE: u64 = 1;
/// Wait until it is done.
const FLUSH: u32 = 1 << 0;

/// Whether a registration on demand is for all memory (`ib_umem_odp_alloc_implicit`).
pub(super) fn is_everything(start: u64, length: u64) -> bool {
    start == 0 && length == u64::MAX
}

/// `ADVISE_MR`: checked as the driver does, and then there is nothing to do, as every page is brought
/// when it is used.
pub(super) fn advise(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::Other);
    let pd = Kind::Pd.slot(ioctl.number32(advise_mr::PD_HANDLE)?)?;
    let advice = ioctl.number(advise_mr::ADVICE)?;
    ioctl.flags(advise_mr::FLAGS, FLUSH)?;
    let list = ioctl.input(advise_mr::SGE_LIST, 0)?;
    if advice > ADVICE_MAX {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let locked = call.lock();
    let function = locked.peek(call.function());
    function
        .pds
        .owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let entries = list.chunks_exact(usize::from(ENTRY_BYTES));
    if !entries.remainder().is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    for entry in entries {
        let entry = Fields(entry);
        let (address, length, lkey) = (entry.u64(0), entry.u32(8), entry.u32(12));
        let [variant, ..] = lkey.to_le_bytes();
        let mkey = slot_of(lkey)
            .and_then(|slot| function.mkeys.get(slot))
            .filter(|mkey| mkey.origin == MkeyOrigin::Region && mkey.on_demand)
            .filter(|mkey| mkey.pd == pd && mkey.variant == variant)
            .ok_or(Errno(libc::EINVAL))?;
        if advice == PREFETCH_WRITE && mkey.access & access::LOCAL_WRITE == 0 {
            return Err(Errno(libc::EPERM));
        }
        if !covers(mkey, address, u64::from(length)) {
            return Err(Errno(libc::EFAULT));
        }
    }
    Ok(())
}

fn covers(mkey: &Mkey, address: u64, length: u64) -> bool {
    // Neither sum can be wrong unnoticed: ranges of keys were checked when they were made.
    address.checked_sub(mkey.start).is_some_and(|from| {
        from.checked_add(length)
            .is_some_and(|behind| behind <= mkey.len)
    })
}
