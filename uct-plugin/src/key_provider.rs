//! The third way of redirecting calls: a UCX with the patches of `patches/` has a table in which a
//! key provider registers its operations. This overwrites nothing of UCX. UCX executes a call
//! itself if the operation requests it.

use std::ffi::c_void;

use crate::abi::{MdHandle, MemAttachParams, MemDeregParams, MemHandle, MkeyPackParams, UcsStatus};
use crate::module::Module;
use crate::original::{self, Object};
use crate::panic::guard;
use crate::{domains, export, import, kept, log, release, serve};

/// `UCT_IB_MLX5_XGVMI_ABI_VERSION` of the patch.
const ABI_VERSION: u32 = 1;

/// `uct_ib_mlx5_xgvmi_ops_t` of the patch (`src/uct/ib/mlx5/dv/ib_mlx5_xgvmi.h`).
#[derive(Debug)]
#[repr(C)]
struct Operations {
    abi_version: u32,
    size: u32,
    md_query: unsafe extern "C" fn(MdHandle, *const c_void),
    md_close: unsafe extern "C" fn(MdHandle),
    mem_reg: unsafe extern "C" fn(MdHandle, MemHandle, *mut c_void, usize),
    mem_dereg: unsafe extern "C" fn(MdHandle, *const MemDeregParams) -> UcsStatus,
    mkey_pack:
        unsafe extern "C" fn(MdHandle, MemHandle, *const MkeyPackParams, *mut c_void) -> UcsStatus,
    mem_attach: unsafe extern "C" fn(
        MdHandle,
        *const c_void,
        *mut MemAttachParams,
        *mut MemHandle,
    ) -> UcsStatus,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion below is about its size"
)]
static OPERATIONS: Operations = Operations {
    abi_version: ABI_VERSION,
    size: size_of::<Operations>() as u32,
    md_query,
    md_close,
    mem_reg,
    mem_dereg,
    mkey_pack,
    mem_attach,
};

const _: () = assert!(size_of::<Operations>() == 8 + 6 * size_of::<*const c_void>());

/// `uct_ib_mlx5_xgvmi_register` of the patch.
type RegisterFn = unsafe extern "C" fn(*const Operations) -> UcsStatus;

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    /// UCX calls this library from now on.
    Done,
    /// Another provider is registered. This library stays inactive.
    Taken,
    /// This UCX has no such table, or another version of it.
    Unknown,
}

/// Registers this library's operations, if the module has a table for them.
pub(crate) fn register(module: &Module) -> Registration {
    let Some(function) = module.symbol(c"uct_ib_mlx5_xgvmi_register") else {
        return Registration::Unknown;
    };
    // SAFETY: the function of that name in UCX's module has this type in every version of the
    // patch. The function checks the version and size of the table.
    let register = unsafe { std::mem::transmute::<*mut c_void, RegisterFn>(function.as_ptr()) };
    // SAFETY: the table is static.
    match unsafe { register(&raw const OPERATIONS) } {
        UcsStatus::OK => Registration::Done,
        UcsStatus::ERR_ALREADY_EXISTS => Registration::Taken,
        UcsStatus(status) => {
            log::debug!("UCX refuses operations of version {ABI_VERSION} with status {status}");
            Registration::Unknown
        }
    }
}

/// The copy of UCX, if it is served.
///
/// # Safety
/// `md` must be an open memory domain of UCX's mlx5 module.
unsafe fn served(md: MdHandle) -> Option<&'static Object> {
    // SAFETY: by the contract of this function.
    let object = unsafe { original::known(md) };
    object.filter(|object| object.serves())
}

/// The answer to UCX: the status, or the request to execute the call itself.
fn answer(status: Option<Option<UcsStatus>>) -> UcsStatus {
    status.flatten().unwrap_or(UcsStatus::ERR_UNSUPPORTED)
}

/// # Safety
/// The preconditions of the table: `md` is open, and UCX has just filled `attr`.
unsafe extern "C" fn md_query(md: MdHandle, attr: *const c_void) {
    // SAFETY: UCX gives an open memory domain.
    if let Some(object) = unsafe { served(md) } {
        // SAFETY: the memory domain is of this object, and its attributes have just been filled.
        let looked = guard("md_query", || unsafe { serve::opened(object, md, attr) });
        if looked.is_some() {
            kept::cannot_start();
        }
    }
}

/// # Safety
/// The preconditions of the table: `md` is open, and no other call for it is running.
unsafe extern "C" fn md_close(md: MdHandle) {
    let _closed = guard("md_close", || serve::closing(md));
}

/// # Safety
/// The preconditions of the table: `md` is open, and UCX has just registered `memh` with it.
unsafe extern "C" fn mem_reg(md: MdHandle, memh: MemHandle, address: *mut c_void, length: usize) {
    // SAFETY: UCX gives an open memory domain.
    if let Some(object) = unsafe { served(md) }
        // SAFETY: the memory domain is of this object.
        && unsafe { serve::is_served(object, md) }
        // SAFETY: UCX does not close the memory domain during this call.
        && let Some(served) = unsafe { domains::known(md) }
    {
        // SAFETY: UCX has just registered the handle.
        let note = || unsafe { release::note(served, memh, address.addr(), length) };
        let _noted = guard("mem_reg", note);
    }
}

/// # Safety
/// The preconditions of the table: `md` is open, `params` is complete, and its handle is live and belongs to `md`.
unsafe extern "C" fn mem_dereg(md: MdHandle, params: *const MemDeregParams) -> UcsStatus {
    // SAFETY: UCX gives parameters.
    let memh = unsafe { MemDeregParams::memh_of(params) };
    // SAFETY: UCX gives an open memory domain.
    let (Some(memh), Some(_)) = (memh, unsafe { served(md) }) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    // SAFETY: the parameters are those of the operation, and the handle is live.
    answer(guard("mem_dereg", || unsafe {
        release::dereg_any(md, &*params, memh)
    }))
}

/// # Safety
/// The preconditions of the table: `md` is open, `memh` is live and belongs to it, and the buffer has room for a packed key.
unsafe extern "C" fn mkey_pack(
    md: MdHandle,
    memh: MemHandle,
    params: *const MkeyPackParams,
    mkey_buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
    let Some(object) = (unsafe { served(md) }) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    let packed = export::Packed {
        md,
        memh,
        range: None,
    };
    // SAFETY: the arguments are those of the operation.
    let pack = || unsafe { export::pack(object, packed, params, mkey_buffer) };
    answer(guard("mkey_pack", pack))
}

/// # Safety
/// The preconditions of the table: `md` is open, the buffer has a packed key, and the handle's address is writable.
unsafe extern "C" fn mem_attach(
    md: MdHandle,
    mkey_buffer: *const c_void,
    params: *mut MemAttachParams,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX gives an open memory domain.
    let Some(object) = (unsafe { served(md) }) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    // SAFETY: the arguments are those of the operation.
    let attach = || unsafe { import::attach(object, md, mkey_buffer, params, memh_p) };
    answer(guard("mem_attach", attach))
}
