//! The six operations of UCX's mlx5 memory domains that the library replaces, under UCX's own names.

use std::ffi::{CStr, c_void};

use crate::abi::slot::Functions;
use crate::abi::{
    MdHandle, MemAttachParams, MemDeregParams, MemHandle, MemhHead, MkeyPackParams, UcsStatus,
    memh_flags,
};
use crate::export::Packed;
use crate::first::First;
use crate::md::Md;
use crate::module::Module;
use crate::original::{self, Object, Originals};
use crate::panic::guard;
use crate::{
    allocator, arena, domains, entry_point, export, import, kept, log, memh, release, rkey, serve,
};

/// The copy of UCX that the memory domain belongs to.
///
/// # Safety
/// As [`original::of`].
#[inline]
unsafe fn of(md: MdHandle) -> Option<&'static Object> {
    let open = |module: &Module, originals: &Originals, path: &CStr| {
        entry_point::open(module, originals, path, &entries())
    };
    // SAFETY: by the contract of this function.
    unsafe { original::of(md, open) }
}

/// The functions below, in the order of [`crate::abi::slot::ALL`].
pub(crate) fn entries() -> Functions {
    [
        uct_ib_mlx5_devx_md_close as *mut c_void,
        uct_ib_mlx5_devx_md_query as *mut c_void,
        uct_ib_mlx5_devx_mem_reg as *mut c_void,
        uct_ib_mlx5_devx_mem_dereg as *mut c_void,
        uct_ib_mlx5_devx_mkey_pack as *mut c_void,
        uct_ib_mlx5_devx_mem_attach as *mut c_void,
    ]
}

/// `uct_md_ops_t::mkey_pack` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_mkey_pack(
    md: MdHandle,
    memh: MemHandle,
    address: *mut c_void,
    length: usize,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX passes parameters.
    if unsafe { MkeyPackParams::is_new_export(params) } {
        // SAFETY: the arguments are UCX's.
        return unsafe { export(md, memh, address, length, params, mkey_buffer) };
    }
    // An ordinary rkey is the hot case. The library does not serve it and passes it on after a few
    // loads.
    // SAFETY: UCX passes a live memory handle, which starts with these fields.
    let flags = unsafe { (*memh.cast::<MemhHead>()).flags };
    // SAFETY: UCX passes parameters.
    if !unsafe { MkeyPackParams::is_export(params) }
        && flags & memh_flags::IMPORTED == 0
        && !rkey::may_serve(flags)
        // SAFETY: UCX passes an open memory domain.
        && let Some(mkey_pack) = unsafe { original::mkey_pack_of_first_table(md) }
    {
        // SAFETY: the arguments are UCX's.
        return unsafe { mkey_pack(md, memh, address, length, params, mkey_buffer) };
    }
    // SAFETY: the arguments are UCX's.
    unsafe { pack(md, memh, address, length, params, mkey_buffer) }
}

/// An export, with the arguments of `mkey_pack`.
///
/// # Safety
/// The preconditions of UCX's operation `mkey_pack`; the parameters are those of an export.
#[inline(never)]
unsafe extern "C" fn export(
    md: MdHandle,
    memh: MemHandle,
    address: *mut c_void,
    length: usize,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    if let Some(served) = unsafe { domains::first(md) } {
        // SAFETY: the handle is live, and the buffer is for an exported key.
        let export = || unsafe { export::usual(served, (md, memh), address.addr(), mkey_buffer) };
        if let Some(true) = guard("mkey_pack", export) {
            return UcsStatus::OK;
        }
    }
    // SAFETY: the arguments are UCX's.
    unsafe { pack(md, memh, address, length, params, mkey_buffer) }
}

/// The other cases of `mkey_pack`, with its arguments.
///
/// # Safety
/// The preconditions of UCX's operation `mkey_pack`.
#[inline(never)]
unsafe extern "C" fn pack(
    md: MdHandle,
    memh: MemHandle,
    address: *mut c_void,
    length: usize,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        return lost("mkey_pack");
    };
    // SAFETY: UCX passes a live memory handle, which starts with these fields.
    let flags = unsafe { (*memh.cast::<MemhHead>()).flags };
    // The arena's handles have the flag too.
    if flags & memh_flags::IMPORTED != 0 && arena::is_ours(memh) {
        // SAFETY: the arguments are those of the operation.
        return unsafe { pack_of_arena(object, md, memh, params, mkey_buffer) };
    }
    let range = Some((address.addr(), length));
    let packed = Packed { md, memh, range };
    // SAFETY: the arguments are those of the operation.
    let pack = || unsafe { export::pack(object, packed, params, mkey_buffer) };
    if object.serves()
        && let Some(Some(status)) = guard("mkey_pack", pack)
    {
        return status;
    }
    // SAFETY: UCX passes parameters.
    let is_export = unsafe { MkeyPackParams::is_export(params) };
    if is_export {
        kept::spoil(memh);
    }
    let mkey_pack = object.originals().mkey_pack;
    // SAFETY: the arguments are UCX's.
    let status = unsafe { mkey_pack(md, memh, address, length, params, mkey_buffer) };
    if status.is_ok() || !is_export || guard("mkey_pack", || serve::shed_keys(md)) != Some(true) {
        return status;
    }
    // SAFETY: as above. The refused call has changed nothing.
    unsafe { mkey_pack(md, memh, address, length, params, mkey_buffer) }
}

/// `mkey_pack` of a handle of the arena.
///
/// # Safety
/// The preconditions of UCX's operation `mkey_pack`; the handle is the arena's.
#[inline(never)]
unsafe fn pack_of_arena(
    object: &'static Object,
    md: MdHandle,
    memh: MemHandle,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: by the contract of this function.
    let pack = || unsafe { arena::mkey_pack(object, md, memh, params, mkey_buffer) };
    guard("mkey_pack", pack).unwrap_or(UcsStatus::ERR_UNSUPPORTED)
}

/// `uct_md_ops_t::mem_attach` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_mem_attach(
    md: MdHandle,
    mkey_buffer: *const c_void,
    params: *mut MemAttachParams,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        return lost("mem_attach");
    };
    // SAFETY: the arguments are those of the operation.
    let attach = || unsafe { import::attach(object, md, mkey_buffer, params, memh_p) };
    if object.serves()
        && let Some(Some(status)) = guard("mem_attach", attach)
    {
        return status;
    }
    // SAFETY: the arguments are UCX's.
    unsafe { (object.originals().mem_attach)(md, mkey_buffer, params, memh_p) }
}

/// `uct_md_ops_t::mem_reg` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_mem_reg(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    if let Some(served) = unsafe { domains::first(md) }
        && !arena::exists()
    {
        // SAFETY: the arguments are UCX's.
        let status = unsafe { (served.mem_reg)(md, address, length, params, memh_p) };
        if status.is_ok() {
            // SAFETY: the operation succeeded, so it has written the handle.
            if !unsafe { release::shows(served, memh_p.read(), address.addr(), length) } {
                // SAFETY: as above.
                unsafe { note(served, memh_p.read(), address.addr(), length) };
            }
            return status;
        }
        // The domain's own handle is the argument, which would take a register until here.
        // SAFETY: the arguments are UCX's.
        return unsafe { reg_again(status, served.handle(), address, length, params, memh_p) };
    }
    // SAFETY: the arguments are UCX's.
    unsafe { reg(md, address, length, params, memh_p) }
}

/// True if the library had registrations of unused memory or free keys, in any memory domain, and has ended some of them:
/// after a refusal, UCX may try again. Free keys go only if the system has no memory or the device no space.
#[cold]
fn is_relieved(md: MdHandle) -> bool {
    let refused = std::io::Error::last_os_error().raw_os_error();
    let is_full = matches!(refused, Some(libc::ENOMEM | libc::EAGAIN));
    let relieve = || arena::relieve() > 0 || is_full && serve::shed_keys(md);
    guard("mem_reg", relieve).unwrap_or(false)
}

/// `mem_reg` after a refusal, with its arguments.
///
/// # Safety
/// The preconditions of UCX's operation `mem_reg`.
#[cold]
#[inline(never)]
unsafe fn reg_again(
    refused: UcsStatus,
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    if !is_relieved(md) {
        return refused;
    }
    // SAFETY: the arguments are UCX's.
    unsafe { reg(md, address, length, params, memh_p) }
}

/// The other cases of `mem_reg`, with its arguments.
///
/// # Safety
/// The preconditions of UCX's operation `mem_reg`.
#[inline(never)]
unsafe fn reg(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        return lost("mem_reg");
    };
    let is_in_arena = arena::overlaps(address.addr(), length);
    if is_in_arena
        // SAFETY: the arguments are those of the operation.
        && let Some(status) = unsafe { reg_in_arena(object, md, address, length, params, memh_p) }
    {
        return status;
    }
    // SAFETY: UCX does not close the memory domain during this call.
    let mem_reg = match unsafe { domains::known(md) } {
        Some(served) if !is_in_arena => served.mem_reg,
        Some(_) | None => object.originals().mem_reg,
    };
    // SAFETY: the arguments are UCX's.
    let mut status = unsafe { mem_reg(md, address, length, params, memh_p) };
    if !status.is_ok() && is_relieved(md) {
        // SAFETY: as above.
        status = unsafe { mem_reg(md, address, length, params, memh_p) };
    }
    if status.is_ok()
        && object.serves()
        && !allocator::is_short()
        // SAFETY: the memory domain is of this object.
        && unsafe { serve::is_served(object, md) }
        // SAFETY: UCX does not close the memory domain during this call.
        && let Some(served) = unsafe { domains::known(md) }
    {
        // SAFETY: the operation succeeded, so it has written the handle.
        unsafe { note(served, memh_p.read(), address.addr(), length) };
    }
    status
}

/// Records memory that UCX has just registered, unless its handle shows it.
///
/// # Safety
/// `memh` is a live memory handle of `served`.
#[cold]
unsafe fn note(served: &Md, memh: MemHandle, address: usize, length: usize) {
    // SAFETY: by the contract of this function.
    let note = || unsafe { release::note(served, memh, address, length) };
    let _noted = guard("mem_reg", note);
}

/// `mem_reg` of memory of the arena. `None` if UCX must register it.
///
/// # Safety
/// The preconditions of UCX's operation `mem_reg`.
#[inline(never)]
unsafe fn reg_in_arena(
    object: &'static Object,
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> Option<UcsStatus> {
    // SAFETY: by the contract of this function.
    let reg = || unsafe { arena::mem_reg(object, md, (address.addr(), length), params, memh_p) };
    object.serves().then(|| guard("mem_reg", reg))??
}

/// `uct_md_ops_t::mem_dereg` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_mem_dereg(
    md: MdHandle,
    params: *const MemDeregParams,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain and parameters.
    let (served, memh) = unsafe { (domains::first(md), MemDeregParams::memh_of(params)) };
    if let (Some(served), Some(memh)) = (served, memh)
        // SAFETY: the handle is live, and every memory handle starts with these fields.
        && unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED == 0
    {
        let _released = guard("mem_dereg", || release::dereg(served, memh));
        // SAFETY: the arguments are UCX's.
        return unsafe { (served.mem_dereg)(md, params) };
    }
    // SAFETY: the arguments are UCX's.
    unsafe { dereg(md, params) }
}

/// The other cases of `mem_dereg`, with its arguments.
///
/// # Safety
/// The preconditions of UCX's operation `mem_dereg`.
#[inline(never)]
unsafe fn dereg(md: MdHandle, params: *const MemDeregParams) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        return lost("mem_dereg");
    };
    // SAFETY: UCX passes parameters.
    let memh = unsafe { MemDeregParams::memh_of(params) };
    if object.serves()
        && let Some(memh) = memh
    {
        // SAFETY: the handle is live, and every memory handle starts with these fields.
        if unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED == 0 {
            // SAFETY: the parameters are those of the operation, and the handle is live.
            let dereg = || unsafe { release::dereg_any(md, &*params, memh) };
            let _released = guard("mem_dereg", dereg);
        // SAFETY: the parameters are those of the operation, and the handle is live.
        } else if let Some(status) = unsafe { dereg_other(object, md, params, memh) } {
            return status;
        }
    }
    // SAFETY: UCX does not close the memory domain during this call.
    let served = unsafe { domains::known(md) };
    let mem_dereg = served.map_or(object.originals().mem_dereg, |served| served.mem_dereg);
    // SAFETY: the arguments are UCX's.
    unsafe { mem_dereg(md, params) }
}

/// The part of `mem_dereg` for a handle that is imported or the arena's. `None` if UCX's own operation must deregister it.
///
/// # Safety
/// The parameters are those of `mem_dereg`, and the handle is live.
#[inline(never)]
unsafe fn dereg_other(
    object: &'static Object,
    md: MdHandle,
    params: *const MemDeregParams,
    memh: MemHandle,
) -> Option<UcsStatus> {
    if arena::is_ours(memh) {
        // SAFETY: by the contract of this function; the handle is the arena's.
        let dereg = || unsafe { arena::mem_dereg(object, md, &*params, memh) };
        return Some(guard("mem_dereg", dereg).unwrap_or(UcsStatus::OK));
    }
    // SAFETY: the handle is live.
    let is_ours = unsafe { memh::is_ours(memh) };
    // SAFETY: the parameters are those of the operation, and the handle is live.
    let dereg = || unsafe { release::dereg_import(md, &*params, memh) };
    // UCX did not create a handle of this library and cannot free it. In the worst case it is leaked.
    let leaked = is_ours.then_some(UcsStatus::OK);
    guard("mem_dereg", dereg).flatten().or(leaked)
}

/// `uct_md_ops_t::query` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_md_query(
    md: MdHandle,
    md_attr: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        return lost("md_query");
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { (object.originals().md_query)(md, md_attr) };
    if status.is_ok() && object.serves() {
        let _served = guard("md_query", || {
            // SAFETY: the attributes have just been filled, and the domain is of this object.
            unsafe { serve::opened(object, md, md_attr) };
            arena::opened(object, md);
        });
    }
    status
}

/// `uct_md_ops_t::close` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_ib_mlx5_devx_md_close(md: MdHandle) {
    // SAFETY: UCX passes a memory domain.
    let Some(object) = (unsafe { of(md) }) else {
        lost("md_close");
        return;
    };
    let _closed = guard("md_close", || {
        // SAFETY: UCX closes the memory domain, so no other thread uses it.
        unsafe { arena::closing(object, md) };
        serve::closing(md);
        // SAFETY: as above.
        unsafe { kept::closing(object, md) };
    });
    // SAFETY: the arguments are UCX's.
    unsafe { (object.originals().md_close)(md) };
}

/// The result if UCX's own function is missing and the call cannot be passed on. This cannot happen
/// while UCX's module exports its operations.
#[cold]
pub(crate) fn lost(operation: &str) -> UcsStatus {
    static ONCE: First = First::new();
    if ONCE.is_this() {
        log::error!("cannot find UCX's own function for {operation}");
    }
    UcsStatus::ERR_UNSUPPORTED
}
