//! Protection domains, memory regions, memory windows and umems.

use mlx5_prm::mkey::QPN_ANY;
use mlx5_prm::umr::access;

use super::abi::{query_mr, query_pd, umem};
use super::ioctl::{Answer, Fields, Ioctl};
use super::odp;
use super::pinning::{check_limit, check_mapped};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::Locked;
use crate::fabric::counters::Command;
use crate::fabric::numbers::{key_of, number_of};
use crate::fabric::objects::{Mkey, MkeyKind, MkeyOrigin, Pd, Umem};
use crate::memory::pins::{self, Pin};
use crate::model::profile::CostKind;
use crate::sys::Errno;

/// Largest region in bytes.
pub(crate) const REGION_BYTES_MAX: u64 = 1 << 46;

/// Access flags of verbs (`enum ib_uverbs_access_flags`).
pub(super) mod flag {
    pub(in crate::commands::uverbs) const LOCAL_WRITE: u32 = 1 << 0;
    pub(in crate::commands::uverbs) const REMOTE_WRITE: u32 = 1 << 1;
    pub(in crate::commands::uverbs) const REMOTE_READ: u32 = 1 << 2;
    pub(in crate::commands::uverbs) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(in crate::commands::uverbs) const MW_BIND: u32 = 1 << 4;
    pub(in crate::commands::uverbs) const ZERO_BASED: u32 = 1 << 5;
    pub(in crate::commands::uverbs) const ON_DEMAND: u32 = 1 << 6;
    pub(in crate::commands::uverbs) const HUGETLB: u32 = 1 << 7;
    /// Hints that a device may ignore.
    pub(in crate::commands::uverbs) const OPTIONAL: u32 = 0x3ff0_0000;
    /// The hint of relaxed ordering.
    pub(in crate::commands::uverbs) const RELAXED_ORDERING: u32 = 1 << 20;
}

/// The mkey rights for verbs' access flags.
pub(super) fn rights(flags: u32) -> u8 {
    [
        (flag::LOCAL_WRITE, access::LOCAL_WRITE),
        (flag::REMOTE_WRITE, access::REMOTE_WRITE),
        (flag::REMOTE_READ, access::REMOTE_READ),
        (flag::REMOTE_ATOMIC, access::ATOMIC),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .fold(access::LOCAL_READ, |rights, (_, right)| rights | right)
}

pub(super) fn check_flags(flags: u32) -> Result<(), Errno> {
    let known = flag::LOCAL_WRITE
        | flag::REMOTE_WRITE
        | flag::REMOTE_READ
        | flag::REMOTE_ATOMIC
        | flag::MW_BIND
        | flag::ZERO_BASED
        | flag::ON_DEMAND
        | flag::HUGETLB
        | flag::OPTIONAL;
    let remote_change = flags & (flag::REMOTE_WRITE | flag::REMOTE_ATOMIC) != 0;
    // Remote write access requires local write access (ib_check_mr_access).
    if flags & !known != 0 || remote_change && flags & flag::LOCAL_WRITE == 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// True if the device may write to a region with these flags (`ib_access_writable`).
fn lets_write(flags: u32) -> bool {
    let writes = flag::LOCAL_WRITE | flag::REMOTE_WRITE | flag::REMOTE_ATOMIC | flag::MW_BIND;
    flags & writes != 0
}

/// Checks that the firmware makes a key with these flags: the kernel passes them on.
fn check_ordering(call: &Call<'_>, flags: u32) -> Result<(), Errno> {
    match call.fabric().profile().is_relaxed_ordering_only() && flags & flag::RELAXED_ORDERING == 0
    {
        true => Err(Errno(libc::EINVAL)),
        false => Ok(()),
    }
}

fn check_range(start: u64, length: u64) -> Result<(), Errno> {
    if length > REGION_BYTES_MAX || start.checked_add(length).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

pub(super) fn alloc_pd(call: &Call<'_>) -> Result<(Answer, Answer), Errno> {
    call.count(Command::AllocPd);
    let owner = call.owner()?;
    let slot = call
        .lock()
        .function(call.function())
        .pds
        .insert(owner, Pd::default());
    let slot = slot.ok_or_else(|| call.full(Full::Pds))?;
    let mut answer = Answer::new(4);
    answer.u32(0, Kind::Pd.handle(slot));
    let mut driver = Answer::new(4);
    driver.u32(0, number_of(slot));
    Ok((answer, driver))
}

pub(super) fn dealloc_pd(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DeallocPd);
    let slot = Kind::Pd.slot(ioctl.number32(0)?)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    function
        .pds
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    // The kernel counts its own objects only. An mkey of a command does not keep the domain.
    let regions = function
        .mkeys
        .iter()
        .any(|(_, _, mkey)| mkey.pd == slot && is_kernels(mkey));
    let queues = function
        .qps
        .iter()
        .any(|(_, _, qp)| qp.pd == slot && !qp.by_command)
        || function
            .srqs
            .iter()
            .any(|(_, _, srq)| srq.pd == slot && !srq.by_command);
    if regions || queues {
        return Err(Errno(libc::EBUSY));
    }
    function.pds.remove(slot);
    Ok(())
}

fn is_kernels(mkey: &Mkey) -> bool {
    matches!(mkey.origin, MkeyOrigin::Region | MkeyOrigin::Window)
}

/// Variant of the kernel's next key.
pub(super) fn next_variant(locked: &mut Locked<'_>, function: usize) -> u8 {
    let variant = &mut locked.function(function).next_variant;
    *variant = variant.wrapping_add(1);
    *variant
}

/// `REG_MR`.
pub(super) fn reg_mr(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    call.count(Command::RegMr);
    // struct ib_uverbs_reg_mr
    let (start, mut length, iova) = (input.u64(8), input.u64(16), input.u64(24));
    let pd = Kind::Pd.slot(input.u32(32))?;
    let flags = input.u32(36);
    let on_demand = flags & flag::ON_DEMAND != 0;
    check_flags(flags)?;
    check_ordering(call, flags)?;
    if on_demand && odp::is_everything(start, length) && iova == 0 {
        // `ib_umem_odp_alloc_implicit`
        if flags & flag::HUGETLB != 0 {
            return Err(Errno(libc::EINVAL));
        }
        length = odp::ALL_BYTES;
    } else {
        check_range(start, length)?;
        check_range(iova, length)?;
    }
    if (start ^ iova) & 0xfff != 0 && flags & flag::ZERO_BASED == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if on_demand {
        // The registration pins no page, so it costs as much as a small one.
        call.costs(CostKind::RegMr, 0);
    } else {
        check_mapped(start, length, lets_write(flags))?;
        call.costs(CostKind::RegMr, length);
    }
    let owner = call.owner()?;
    let mut locked = call.lock_used();
    locked
        .peek(call.function())
        .pds
        .owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let mut pin = Pin::default();
    if !on_demand {
        check_limit(call, &locked, (start, length))?;
        pin = pins::pin(call.function(), start, length);
    }
    let variant = next_variant(&mut locked, call.function());
    let mkey = Mkey {
        start: iova,
        len: length,
        host: start,
        pd,
        qpn: QPN_ANY,
        access: rights(flags),
        variant,
        kind: MkeyKind::Direct,
        origin: MkeyOrigin::Region,
        window_bind: flags & flag::MW_BIND != 0,
        relaxed: flags & flag::RELAXED_ORDERING != 0,
        on_demand,
        pin,
        ..Mkey::default()
    };
    let slot = call.insert_mkey(locked.function(call.function()), owner, mkey);
    drop(locked);
    let slot = slot.ok_or_else(|| {
        pins::unpin(pin);
        call.full(Full::Mkeys)
    })?;
    let key = key_of(slot, variant);
    let mut answer = Answer::new(12);
    answer
        .u32(0, Kind::Mkey.handle(slot))
        .u32(4, key)
        .u32(8, key);
    Ok(answer)
}

/// `REREG_MR`: the key keeps its value, as if the kernel changes the mkey by a UMR
/// (`mlx5r_umr_rereg_pd_access`, `umr_rereg_pas`).
pub(super) fn rereg_mr(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    const TRANSLATION: u32 = 1;
    const PD: u32 = 2;
    const ACCESS: u32 = 4;
    call.count(Command::ReregMr);
    // struct ib_uverbs_rereg_mr
    let slot = Kind::Mkey.slot(input.u32(8))?;
    let what = input.u32(12);
    let (start, length, iova) = (input.u64(16), input.u64(24), input.u64(32));
    let (pd, flags) = (input.u32(40), input.u32(44));
    if what == 0 || what & !(TRANSLATION | PD | ACCESS) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if what & TRANSLATION != 0 {
        check_range(start, length)?;
        check_range(iova, length)?;
        call.costs(CostKind::RegMr, length);
    }
    if what & ACCESS != 0 {
        check_flags(flags)?;
        check_ordering(call, flags)?;
        // A pinned region cannot become an on-demand region (`mlx5_ib_rereg_user_mr`).
        if flags & flag::ON_DEMAND != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
    }
    let mut locked = call.lock_used();
    let found = locked
        .peek(call.function())
        .mkeys
        .owned(slot, call.context.number);
    let old = *found.ok_or(Errno(libc::ENOENT))?;
    if old.origin != MkeyOrigin::Region || old.device_memory {
        return Err(Errno(libc::EINVAL));
    }
    // The kernel pins the pages again, before it releases the old ones.
    let range = match what & TRANSLATION {
        0 => (old.host, old.len),
        _ => (start, length),
    };
    if !old.on_demand {
        let writes = match what & ACCESS {
            0 => old.access & access::LOCAL_WRITE != 0 || old.window_bind,
            _ => lets_write(flags),
        };
        check_mapped(range.0, range.1, writes)?;
    }
    if what & TRANSLATION != 0 {
        check_limit(call, &locked, range)?;
    }
    let number = call.function();
    let function = locked.function(number);
    let pd = match what & PD {
        0 => None,
        _ => {
            let pd = Kind::Pd.slot(pd)?;
            function
                .pds
                .owned(pd, call.context.number)
                .ok_or(Errno(libc::ENOENT))?;
            Some(pd)
        }
    };
    let mkey = function.mkeys.get_mut(slot).ok_or(Errno(libc::ENOENT))?;
    if what & TRANSLATION != 0 {
        (mkey.start, mkey.len, mkey.host) = (iova, length, start);
        if !mkey.on_demand {
            pins::unpin(std::mem::replace(
                &mut mkey.pin,
                pins::pin(number, start, length),
            ));
        }
    }
    if what & ACCESS != 0 {
        mkey.access = rights(flags);
        mkey.window_bind = flags & flag::MW_BIND != 0;
    }
    mkey.pd = pd.unwrap_or(mkey.pd);
    let key = key_of(slot, mkey.variant);
    let mut answer = Answer::new(8);
    answer.u32(0, key).u32(4, key);
    Ok(answer)
}

pub(super) fn dereg_mr(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DeregMr);
    let slot = Kind::Mkey.slot(ioctl.number32(0)?)?;
    remove_mkey(call, slot, MkeyOrigin::Region, Some(CostKind::DeregMr))
}

/// Number of a protection domain, for a process that imported its context.
pub(super) fn query_pd(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let slot = Kind::Pd.slot(ioctl.number32(query_pd::HANDLE)?)?;
    let locked = call.lock();
    let pds = &locked.peek(call.function()).pds;
    pds.owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    ioctl.answer(query_pd::RESP_PDN, &number_of(slot).to_ne_bytes())
}

/// Keys and range of a region, for a process that imported its context.
pub(super) fn query_mr(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let slot = Kind::Mkey.slot(ioctl.number32(query_mr::HANDLE)?)?;
    let mkey = *call
        .lock()
        .peek(call.function())
        .mkeys
        .owned(slot, call.context.number)
        .filter(|mkey| mkey.origin == MkeyOrigin::Region)
        .ok_or(Errno(libc::ENOENT))?;
    let key = key_of(slot, mkey.variant);
    ioctl.answer(query_mr::RESP_LKEY, &key.to_ne_bytes())?;
    ioctl.answer(query_mr::RESP_RKEY, &key.to_ne_bytes())?;
    ioctl.answer(query_mr::RESP_LENGTH, &mkey.len.to_ne_bytes())?;
    ioctl.answer(query_mr::RESP_IOVA, &mkey.start.to_ne_bytes())
}

/// `ALLOC_MW`.
pub(super) fn alloc_mw(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    const TYPE_1: u8 = 1;
    const TYPE_2: u8 = 2;
    call.count(Command::AllocMw);
    // struct ib_uverbs_alloc_mw
    let (pd, kind) = (Kind::Pd.slot(input.u32(8))?, input.u8(12));
    if !matches!(kind, TYPE_1 | TYPE_2) {
        return Err(Errno(libc::EINVAL));
    }
    let owner = call.owner()?;
    let mut locked = call.lock();
    locked
        .peek(call.function())
        .pds
        .owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let variant = next_variant(&mut locked, call.function());
    let list = locked
        .function(call.function())
        .klms
        .take(1)
        .ok_or_else(|| call.full(Full::Translations))?;
    let mkey = Mkey {
        list,
        pd,
        qpn: QPN_ANY,
        access: access::LOCAL_READ,
        variant,
        kind: MkeyKind::Klm,
        origin: MkeyOrigin::Window,
        free: true,
        umr_enabled: true,
        window_type_2: kind == TYPE_2,
        ..Mkey::default()
    };
    let function = locked.function(call.function());
    let Some(slot) = call.insert_mkey(function, owner, mkey) else {
        function.klms.give_back(list);
        return Err(call.full(Full::Mkeys));
    };
    let mut answer = Answer::new(8);
    answer
        .u32(0, Kind::Mkey.handle(slot))
        .u32(4, key_of(slot, variant));
    Ok(answer)
}

pub(super) fn dealloc_mw(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DeallocMw);
    let slot = Kind::Mkey.slot(ioctl.number32(0)?)?;
    remove_mkey(call, slot, MkeyOrigin::Window, None)
}

fn remove_mkey(
    call: &Call<'_>,
    slot: u32,
    origin: MkeyOrigin,
    cost: Option<CostKind>,
) -> Result<(), Errno> {
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let mkey = *function
        .mkeys
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    if mkey.origin != origin {
        return Err(Errno(libc::ENOENT));
    }
    function.remove_mkey(slot);
    if let Some(cost) = cost {
        call.costs(cost, mkey.len);
    }
    Ok(())
}

pub(super) fn reg_umem(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::UmemReg);
    if ioctl.has(umem::DMABUF_FD) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let (address, length) = (ioctl.number(umem::ADDR)?, ioctl.number(umem::LEN)?);
    check_range(address, length)?;
    if length == 0 {
        return Err(Errno(libc::EINVAL));
    }
    // The device of the kernel's driver takes no other flags.
    let known = flag::LOCAL_WRITE | flag::REMOTE_WRITE | flag::REMOTE_READ | flag::RELAXED_ORDERING;
    let flags = ioctl.flags(umem::ACCESS, known)?;
    check_flags(flags)?;
    check_mapped(address, length, lets_write(flags))?;
    call.costs(CostKind::UmemReg, length);
    let owner = call.owner()?;
    let mut locked = call.lock_used();
    check_limit(call, &locked, (address, length))?;
    let pin = pins::pin(call.function(), address, length);
    let umem = Umem {
        address,
        length,
        pin,
        ..Umem::default()
    };
    let slot = locked.function(call.function()).umems.insert(owner, umem);
    drop(locked);
    let slot = slot.ok_or_else(|| {
        pins::unpin(pin);
        call.full(Full::Umems)
    })?;
    ioctl.answer_handle(umem::HANDLE, u64::from(Kind::Umem.handle(slot)))?;
    ioctl.answer(umem::OUT_ID, &number_of(slot).to_ne_bytes())
}

pub(super) fn dereg_umem(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::UmemDereg);
    let slot = Kind::Umem.slot(ioctl.number32(umem::HANDLE)?)?;
    let mut locked = call.lock();
    let umems = &mut locked.function(call.function()).umems;
    let umem = *umems
        .owned(slot, call.context.number)
        .filter(|umem| umem.device_page == 0 && !umem.of_dpa)
        .ok_or(Errno(libc::ENOENT))?;
    umems.remove(slot);
    pins::unpin(umem.pin);
    call.costs(CostKind::UmemDereg, umem.length);
    Ok(())
}
