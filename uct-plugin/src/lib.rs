//! `libuct_ib_mlx5_xgvmi.so`: replaces six operations of UCX's mlx5 memory domains and serves
//! cross-GVMI exports and imports from a key pool and an alias map. This file contains the entry
//! points only.
//!
//! UCX calls the library in one of three ways. With a preload, the library defines UCX's symbol
//! names and the dynamic loader selects them. As a plugin, the library loads after UCX's module,
//! and its constructor patches UCX's operations table (`entry_point`). In a UCX with the patches of
//! `patches/`, the library registers a table of operations (`key_provider`). If the library does not
//! serve a call, it passes the call with its original arguments to UCX's own function.
//!
//! | operation | action |
//! |---|---|
//! | `md_query` | inspect a memory domain, serve it from then on |
//! | `mem_reg` | UCX registers; record address and length |
//! | `mkey_pack` | export: a key of the pool; import: the alias's rkey; otherwise UCX's function |
//! | `mem_attach` | pooled key: an alias from the map; otherwise UCX's function |
//! | `mem_dereg` | invalidate the pool's key or unpin the alias; then UCX's function |
//! | `md_close` | close pool and map; then UCX's function |
//!
//! Programs can also call the library's own C interface (`include/xgvmi.h`):
//!
//! ```
//! # extern crate uct_ib_mlx5_xgvmi;
//! unsafe extern "C" {
//!     fn xgvmi_version() -> *const std::ffi::c_char;
//! }
//! // SAFETY: the function has no preconditions and returns a constant string.
//! let version = unsafe { std::ffi::CStr::from_ptr(xgvmi_version()) };
//! assert!(version.to_str().is_ok());
//! ```
//!
//! Terms: *mkey*, a memory key; *export*, a key that another function (DPU) may use; *gvmi* or
//! *vhca_id*, a function; *alias*, a local key for another function's key; *memh*, UCX's memory
//! handle; *MD*, UCX's memory domain.

mod abi;
mod allocator;
mod announce;
mod api;
mod check;
mod chunks;
mod config;
mod counter_file;
mod entry_point;
mod export;
mod import;
mod key_file;
mod key_provider;
mod log;
mod md;
mod memh;
mod numbers;
mod original;
mod panic;
mod registrations;
mod release;
mod ucp;
mod ucs_config;
mod vfs;

use std::ffi::c_void;
use std::sync::Once;

use abi::{
    MdHandle, MemAttachParams, MemDeregParams, MemHandle, MemhHead, MkeyPackParams, UcsStatus,
    memh_flags,
};
use panic::guard;

/// Runs when the library is loaded: as a preload, as a plugin of UCX or by `dlopen`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    #[cfg(debug_assertions)]
    allocator::injected::arm();
    let _done = guard("the constructor", entry_point::look_around);
}

/// Runs when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    let _done = guard("the destructor", counter_file::remove);
}

/// The functions below, in the order of [`abi::slot::ALL`].
fn entries() -> [*mut c_void; 6] {
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
pub unsafe extern "C" fn uct_ib_mlx5_devx_mkey_pack(
    md: MdHandle,
    memh: MemHandle,
    address: *mut c_void,
    length: usize,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // An ordinary rkey is the hot case. The library does not serve it and passes it on after a few
    // loads.
    // SAFETY: UCX passes parameters.
    if !unsafe { MkeyPackParams::is_export(params) }
        // SAFETY: UCX passes a live memory handle, which starts with these fields.
        && unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED == 0
        // SAFETY: UCX passes an open memory domain.
        && let Some(mkey_pack) = unsafe { original::mkey_pack_of_first_table(md) }
    {
        // SAFETY: the arguments are UCX's.
        return unsafe { mkey_pack(md, memh, address, length, params, mkey_buffer) };
    }
    // SAFETY: the arguments are UCX's.
    unsafe { pack(md, memh, address, length, params, mkey_buffer) }
}

/// The other cases of `mkey_pack`, with its arguments.
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
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("mkey_pack");
    };
    // SAFETY: the arguments are those of the operation.
    let pack = || unsafe { export::pack(object, md, memh, params, mkey_buffer) };
    if object.serves()
        && let Some(Some(status)) = guard("mkey_pack", pack)
    {
        return status;
    }
    // SAFETY: the arguments are UCX's.
    unsafe { (object.originals().mkey_pack)(md, memh, address, length, params, mkey_buffer) }
}

/// `uct_md_ops_t::mem_attach` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_attach(
    md: MdHandle,
    mkey_buffer: *const c_void,
    params: *mut MemAttachParams,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
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
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_reg(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("mem_reg");
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { (object.originals().mem_reg)(md, address, length, params, memh_p) };
    // SAFETY: the memory domain is of this object.
    if status.is_ok()
        && object.serves()
        && !allocator::is_short()
        // SAFETY: as above; the memory domain is of this object.
        && unsafe { md::is_served(object, md) }
    {
        // SAFETY: the operation succeeded, so it has written the handle.
        let memh = unsafe { memh_p.read() };
        let _noted = guard("mem_reg", || {
            release::note(md, memh, address.addr(), length)
        });
    }
    status
}

/// `uct_md_ops_t::mem_dereg` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_dereg(
    md: MdHandle,
    params: *const MemDeregParams,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("mem_dereg");
    };
    // SAFETY: UCX passes parameters.
    let memh = unsafe { MemDeregParams::memh_of(params) };
    if object.serves()
        && let Some(memh) = memh
    {
        // SAFETY: the handle is live.
        let is_ours = unsafe { import::is_ours(memh) };
        // SAFETY: the parameters are those of the operation, and the handle is live.
        let dereg = || unsafe { release::dereg(md, &*params, memh) };
        match guard("mem_dereg", dereg) {
            Some(Some(status)) => return status,
            Some(None) => {}
            // UCX did not create the handle and cannot free it. In the worst case it is leaked.
            None if is_ours => return UcsStatus::OK,
            None => {}
        }
    }
    // SAFETY: the arguments are UCX's.
    unsafe { (object.originals().mem_dereg)(md, params) }
}

/// `uct_md_ops_t::query` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_md_query(
    md: MdHandle,
    md_attr: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("md_query");
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { (object.originals().md_query)(md, md_attr) };
    if status.is_ok() && object.serves() {
        // SAFETY: the memory domain is of this object, and its attributes have just been filled.
        let _served = guard("md_query", || unsafe { md::opened(object, md, md_attr) });
    }
    status
}

/// `uct_md_ops_t::close` of UCX's mlx5.
///
/// # Safety
/// The preconditions of UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_md_close(md: MdHandle) {
    // SAFETY: UCX passes a memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        lost("md_close");
        return;
    };
    let _closed = guard("md_close", || md::closing(md));
    // SAFETY: the arguments are UCX's.
    unsafe { (object.originals().md_close)(md) };
}

/// The result if UCX's own function is missing and the call cannot be passed on. This cannot happen
/// while UCX's module exports its operations.
#[cold]
fn lost(operation: &str) -> UcsStatus {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| log::error!("cannot find UCX's own uct_ib_mlx5_devx_{operation}"));
    UcsStatus::ERR_UNSUPPORTED
}
