//! `libuct_ib_mlx5_xgvmi.so`: stands in front of six operations of UCX's mlx5 memory domains and
//! serves cross-GVMI exports and imports from a pool and an alias map. Entry points only.
//!
//! UCX comes here in one of three ways: by the loader, because the library is preloaded and defines
//! UCX's names; or, if the library is loaded after UCX's module, through UCX's operations table,
//! which the constructor patches, see [`door`]; or, in a UCX that has the patches of `patches/`,
//! through a table made for it, see [`door_table`]. Whatever the library does not serve, it passes on to UCX's
//! own function with the arguments as they came, and with as little between as possible.
//!
//! | operation | what is done with it |
//! |---|---|
//! | `md_query` | a memory domain is looked at, and served from then on |
//! | `mem_reg` | UCX registers; address and length are noted |
//! | `mkey_pack` | exported: a key of the pool; imported: the alias's rkey; else UCX's |
//! | `mem_attach` | pooled keys: an alias from the map; else UCX's |
//! | `mem_dereg` | the pool's key is invalidated, the alias unpinned; then UCX's |
//! | `md_close` | pool and map are closed; then UCX's |
//!
//! Words: *mkey*, a memory key; *export*, a key that another function (DPU) may use; *gvmi* or
//! *vhca_id*, a function; *alias*, a local key for another function's key; *memh*, UCX's memory
//! handle; *MD*, UCX's memory domain; *door*, a way by which calls come here.

mod abi;
mod ahead;
mod api;
mod board;
mod check;
mod chunks;
mod config;
mod door;
mod door_table;
mod export;
mod import;
mod key_file;
mod log;
mod md;
mod memh;
mod memory;
mod numbers;
mod original;
mod panic;
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

/// Runs when the library is loaded, be it as a preload, as a plugin of UCX or by `dlopen`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    #[cfg(debug_assertions)]
    memory::injected::arm();
    let _done = guard("the constructor", door::look_around);
}

/// Runs when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    let _done = guard("the destructor", board::remove);
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
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mkey_pack(
    md: MdHandle,
    memh: MemHandle,
    address: *mut c_void,
    length: usize,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // An ordinary rkey is the hot case, and none of ours: it is passed on at the cost of a few loads.
    // SAFETY: UCX gives parameters.
    if !unsafe { MkeyPackParams::is_export(params) }
        // SAFETY: UCX gives a live memory handle, which starts with these fields.
        && unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED == 0
        // SAFETY: UCX gives an open memory domain.
        && let Some(mkey_pack) = unsafe { original::mkey_pack_of_first_table(md) }
    {
        // SAFETY: the arguments are those that UCX gave.
        return unsafe { mkey_pack(md, memh, address, length, params, mkey_buffer) };
    }
    // SAFETY: the arguments are those that UCX gave.
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
    // SAFETY: UCX gives an open memory domain.
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
    // SAFETY: the arguments are those that UCX gave.
    unsafe { (object.originals().mkey_pack)(md, memh, address, length, params, mkey_buffer) }
}

/// `uct_md_ops_t::mem_attach` of UCX's mlx5.
///
/// # Safety
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_attach(
    md: MdHandle,
    mkey_buffer: *const c_void,
    params: *mut MemAttachParams,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
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
    // SAFETY: the arguments are those that UCX gave.
    unsafe { (object.originals().mem_attach)(md, mkey_buffer, params, memh_p) }
}

/// `uct_md_ops_t::mem_reg` of UCX's mlx5.
///
/// # Safety
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_reg(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("mem_reg");
    };
    // SAFETY: the arguments are those that UCX gave.
    let status = unsafe { (object.originals().mem_reg)(md, address, length, params, memh_p) };
    // SAFETY: the memory domain is of this object.
    if status.is_ok()
        && object.serves()
        && !memory::is_short()
        // SAFETY: as above; the memory domain is of this object.
        && unsafe { md::is_served(object, md) }
    {
        // SAFETY: the operation succeeded, so it has written the handle.
        let memh = unsafe { memh_p.read() };
        let _noted = guard("mem_reg", || memh::note(md, memh, address.addr(), length));
    }
    status
}

/// `uct_md_ops_t::mem_dereg` of UCX's mlx5.
///
/// # Safety
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_mem_dereg(
    md: MdHandle,
    params: *const MemDeregParams,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("mem_dereg");
    };
    // SAFETY: UCX gives parameters.
    let memh = unsafe { MemDeregParams::memh_of(params) };
    if object.serves()
        && let Some(memh) = memh
    {
        // SAFETY: the handle is live.
        let is_ours = unsafe { import::is_ours(memh) };
        // SAFETY: the parameters are those of the operation, and the handle is live.
        let dereg = || unsafe { release::dereg(&*params, memh) };
        match guard("mem_dereg", dereg) {
            Some(Some(status)) => return status,
            Some(None) => {}
            // UCX did not make the handle and cannot free it. At the worst it is left behind.
            None if is_ours => return UcsStatus::OK,
            None => {}
        }
    }
    // SAFETY: the arguments are those that UCX gave.
    unsafe { (object.originals().mem_dereg)(md, params) }
}

/// `uct_md_ops_t::query` of UCX's mlx5.
///
/// # Safety
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_md_query(
    md: MdHandle,
    md_attr: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        return lost("md_query");
    };
    // SAFETY: the arguments are those that UCX gave.
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
/// As UCX's operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_ib_mlx5_devx_md_close(md: MdHandle) {
    // SAFETY: UCX gives a memory domain.
    let Some(object) = (unsafe { original::of(md) }) else {
        lost("md_close");
        return;
    };
    let _closed = guard("md_close", || md::closing(md));
    // SAFETY: the arguments are those that UCX gave.
    unsafe { (object.originals().md_close)(md) };
}

/// UCX called, but its own function is not to be found: there is nobody to pass the call on to.
/// Cannot happen as long as UCX's module exports what it imports.
#[cold]
fn lost(operation: &str) -> UcsStatus {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| log::error!("cannot find UCX's own uct_ib_mlx5_devx_{operation}"));
    UcsStatus::ERR_UNSUPPORTED
}
