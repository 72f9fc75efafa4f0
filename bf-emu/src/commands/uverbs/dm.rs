//! Device memory: pages of the context's own file, which libmlx5 maps, and regions in them.
//!
//! The allocating process maps the pages a second time for the device, because the device does not
//! learn where libmlx5 maps them. Both mappings show the same memory. So do mappings in a process
//! that receives the context's file.

use super::abi::{alloc_dm, query_dm, reg_dm_mr};
use super::ioctl::Ioctl;
use super::memory::{flag, next_variant, rights};
use crate::bits::size;
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::Function;
use crate::fabric::counters::Command;
use crate::fabric::numbers::key_of;
use crate::fabric::objects::{Mkey, MkeyKind, MkeyOrigin, Umem};
use crate::process::device_memory::{PAGE_BYTES, PAGE_FIRST, PAGES, pages, unmap};
use crate::sys::{self, Errno};

use mlx5_prm::mkey::QPN_ANY;

/// Device memory of one context in bytes: the largest single allocation of a BlueField-3.
pub(super) const BYTES_MAX: u64 = PAGES as u64 * PAGE_BYTES;
/// log2 of the largest alignment: allocations begin at page boundaries.
const LOG_ALIGN_MAX: u32 = 12;

pub(super) fn alloc(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::Other);
    let length = ioctl.number(alloc_dm::LENGTH)?;
    // The device does not advertise memory for steering (every `MLX5_IB_UAPI_DM_TYPE_*` except the
    // first).
    if ioctl.number(alloc_dm::TYPE).unwrap_or(0) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if length == 0 || length > BYTES_MAX || ioctl.number32(alloc_dm::ALIGNMENT)? > LOG_ALIGN_MAX {
        return Err(Errno(libc::EINVAL));
    }
    let owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let page = free_run(function, call.context.number, pages(length));
    let page = page.ok_or(Errno(libc::ENOMEM))?;
    let offset = (PAGE_FIRST + u64::from(page)) * PAGE_BYTES;
    let address = sys::map_shared(call.fd, offset, pages(length) * PAGE_BYTES)?;
    let memory = Umem {
        address,
        length,
        device_page: page + 1,
        of_dpa: false,
        ..Umem::default()
    };
    let slot = function.umems.insert(owner, memory);
    drop(locked);
    let Some(slot) = slot else {
        unmap(&memory);
        return Err(call.full(Full::Umems));
    };
    ioctl.answer_handle(alloc_dm::HANDLE, u64::from(Kind::Dm.handle(slot)))?;
    ioctl.answer(alloc_dm::RESP_START_OFFSET, &0u64.to_ne_bytes())?;
    ioctl.answer(alloc_dm::RESP_PAGE_INDEX, &page.to_ne_bytes())
}

/// The first page of a free run of `wanted` pages in a context.
fn free_run(function: &Function, context: u32, wanted: u64) -> Option<u16> {
    let of_context = function
        .umems
        .iter()
        .filter(|(_, owner, _)| owner.context == context);
    first_free(of_context.map(|(_, _, memory)| memory), wanted)
}

fn first_free<'a>(memories: impl Iterator<Item = &'a Umem>, wanted: u64) -> Option<u16> {
    let mut taken = [false; PAGES];
    for memory in memories {
        if let Some(first) = memory.device_page.checked_sub(1) {
            let run = taken.iter_mut().skip(first.into());
            let run = run.take(size(pages(memory.length)));
            run.for_each(|page| *page = true);
        }
    }
    // A run has at least one page.
    let wanted = usize::try_from(wanted.max(1)).ok()?;
    let first = taken
        .windows(wanted)
        .position(|run| run.iter().all(|page| !page))?;
    u16::try_from(first).ok()
}

/// Device memory of the caller's context.
fn owned<'a>(call: &Call<'_>, function: &'a Function, slot: u32) -> Result<&'a Umem, Errno> {
    function
        .umems
        .owned(slot, call.context.number)
        .filter(|memory| memory.device_page != 0)
        .ok_or(Errno(libc::ENOENT))
}

pub(super) fn free(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::Other);
    let slot = Kind::Dm.slot(ioctl.number32(0)?)?;
    let process = call.process.number()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let memory = *owned(call, function, slot)?;
    let inside = |mkey: &Mkey| {
        mkey.device_memory && (memory.address..memory.address + memory.length).contains(&mkey.host)
    };
    if function.mkeys.iter().any(|(_, _, mkey)| inside(mkey)) {
        return Err(Errno(libc::EBUSY));
    }
    let maker = function.umems.owner(slot).map(|owner| owner.process);
    function.umems.remove(slot);
    drop(locked);
    // Only the allocating process unmaps: another process may use the address for something else.
    if maker == Some(process) {
        unmap(&memory);
    }
    Ok(())
}

/// The location of device memory, for a process that imports it.
pub(super) fn query(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::Other);
    let slot = Kind::Dm.slot(ioctl.number32(query_dm::HANDLE)?)?;
    let locked = call.lock();
    let memory = *owned(call, locked.peek(call.function()), slot)?;
    drop(locked);
    let page = memory.device_page - 1;
    ioctl.answer(query_dm::RESP_START_OFFSET, &0u64.to_ne_bytes())?;
    ioctl.answer(query_dm::RESP_PAGE_INDEX, &page.to_ne_bytes())?;
    ioctl.answer(query_dm::RESP_LENGTH, &memory.length.to_ne_bytes())
}

/// Registers a region in device memory. Its addresses count from zero.
pub(super) fn reg_mr(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::RegMr);
    let (offset, length) = (
        ioctl.number(reg_dm_mr::OFFSET)?,
        ioctl.number(reg_dm_mr::LENGTH)?,
    );
    let flags = ioctl.number32(reg_dm_mr::ACCESS_FLAGS)?;
    let known = flag::LOCAL_WRITE
        | flag::REMOTE_WRITE
        | flag::REMOTE_READ
        | flag::REMOTE_ATOMIC
        | flag::ZERO_BASED
        | flag::OPTIONAL;
    if flags & !known != 0 || flags & flag::ZERO_BASED == 0 {
        return Err(Errno(libc::EINVAL));
    }
    super::memory::check_flags(flags)?;
    let pd = Kind::Pd.slot(ioctl.number32(reg_dm_mr::PD_HANDLE)?)?;
    let memory = Kind::Dm.slot(ioctl.number32(reg_dm_mr::DM_HANDLE)?)?;
    let owner = call.owner()?;
    let mut locked = call.lock();
    let variant = next_variant(&mut locked, call.function());
    let function = locked.function(call.function());
    function
        .pds
        .owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let memory = *owned(call, function, memory)?;
    if length > memory.length || offset > memory.length - length {
        return Err(Errno(libc::EINVAL));
    }
    let mkey = Mkey {
        start: 0,
        len: length,
        host: memory.address + offset,
        pd,
        qpn: QPN_ANY,
        access: rights(flags),
        variant,
        kind: MkeyKind::Direct,
        origin: MkeyOrigin::Region,
        device_memory: true,
        ..Mkey::default()
    };
    let slot = call.insert_mkey(function, owner, mkey);
    drop(locked);
    let slot = slot.ok_or_else(|| call.full(Full::Mkeys))?;
    let key = key_of(slot, variant).to_ne_bytes();
    ioctl.answer_handle(reg_dm_mr::HANDLE, u64::from(Kind::Mkey.handle(slot)))?;
    ioctl.answer(reg_dm_mr::RESP_LKEY, &key)?;
    ioctl.answer(reg_dm_mr::RESP_RKEY, &key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_out_once() {
        let memory = |device_page: u16, length: u64| Umem {
            address: 0,
            length,
            device_page,
            of_dpa: false,
            ..Umem::default()
        };
        // Pages 1 and 2, page 5, and memory that is not device memory.
        let there = [memory(2, 4097), memory(6, 1), memory(0, BYTES_MAX)];
        for (wanted, expect) in [
            (1, Some(0)),
            (2, Some(3)),
            (3, Some(6)),
            (26, Some(6)),
            (27, None),
            (u64::MAX, None),
        ] {
            assert_eq!(first_free(there.iter(), wanted), expect, "{wanted}");
        }
        assert_eq!(first_free([].iter(), PAGES as u64), Some(0));
    }
}
