//! The part of UCX's binary interface that this library uses: types and offsets, each with its
//! place in UCX's sources. This module contains no logic.
//!
//! Paths are UCX's; line numbers are of tag v1.20.1. Each fact was compared with the tags v1.18.1,
//! v1.19.0, v1.20.0, v1.20.1, v1.21.0 and v1.22.0 and with the sources of 1.23. It holds in all of
//! them unless its comment says otherwise. [`crate::check`] checks the facts that can be checked in
//! the running process.

use std::ffi::c_void;

/// `ucs_status_t`, a packed enumeration of one byte (`src/ucs/type/status.h:45`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct UcsStatus(pub(crate) i8);

impl UcsStatus {
    /// `UCS_OK`.
    pub(crate) const OK: Self = Self(0);
    /// `UCS_ERR_INVALID_PARAM`.
    pub(crate) const ERR_INVALID_PARAM: Self = Self(-5);
    /// `UCS_ERR_ALREADY_EXISTS`.
    pub(crate) const ERR_ALREADY_EXISTS: Self = Self(-18);
    /// `UCS_ERR_UNSUPPORTED`.
    pub(crate) const ERR_UNSUPPORTED: Self = Self(-22);

    /// True for `UCS_OK`.
    pub(crate) const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

/// `uct_md_h`: a pointer to a `uct_md_t`, whose first word is the operations table
/// (`src/uct/base/uct_md.h:151`).
pub(crate) type MdHandle = *mut c_void;
/// `uct_mem_h`: points to a structure that starts as [`MemhHead`].
pub(crate) type MemHandle = *mut c_void;

/// `uct_md_ops_t::close`.
pub(crate) type MdCloseFn = unsafe extern "C" fn(MdHandle);
/// `uct_md_ops_t::query`; the second argument is a `uct_md_attr_v2_t`, see [`md_attr`].
pub(crate) type MdQueryFn = unsafe extern "C" fn(MdHandle, *mut c_void) -> UcsStatus;
/// `uct_md_ops_t::mem_reg`. The library does not read the parameters.
pub(crate) type MemRegFn =
    unsafe extern "C" fn(MdHandle, *mut c_void, usize, *const c_void, *mut MemHandle) -> UcsStatus;
/// `uct_md_ops_t::mem_dereg`.
pub(crate) type MemDeregFn = unsafe extern "C" fn(MdHandle, *const MemDeregParams) -> UcsStatus;
/// `uct_md_ops_t::mkey_pack`.
pub(crate) type MkeyPackFn = unsafe extern "C" fn(
    MdHandle,
    MemHandle,
    *mut c_void,
    usize,
    *const MkeyPackParams,
    *mut c_void,
) -> UcsStatus;
/// `uct_md_ops_t::mem_attach`.
pub(crate) type MemAttachFn = unsafe extern "C" fn(
    MdHandle,
    *const c_void,
    *mut MemAttachParams,
    *mut MemHandle,
) -> UcsStatus;

/// The operations that the library replaces: name of UCX's function, and its index in
/// `uct_md_ops_t` (`src/uct/base/uct_md.h:133`; `src/uct/ib/mlx5/dv/ib_mlx5dv_md.c:3164` fills the
/// table).
pub(crate) mod slot {
    use std::ffi::CStr;

    /// Index and name of one operation.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Slot {
        /// Index in the table, in words.
        pub(crate) index: usize,
        /// UCX's function in that slot.
        pub(crate) name: &'static CStr,
    }

    pub(crate) const MD_CLOSE: Slot = Slot {
        index: 0,
        name: c"uct_ib_mlx5_devx_md_close",
    };
    pub(crate) const MD_QUERY: Slot = Slot {
        index: 1,
        name: c"uct_ib_mlx5_devx_md_query",
    };
    pub(crate) const MEM_REG: Slot = Slot {
        index: 5,
        name: c"uct_ib_mlx5_devx_mem_reg",
    };
    pub(crate) const MEM_DEREG: Slot = Slot {
        index: 6,
        name: c"uct_ib_mlx5_devx_mem_dereg",
    };
    pub(crate) const MKEY_PACK: Slot = Slot {
        index: 8,
        name: c"uct_ib_mlx5_devx_mkey_pack",
    };
    pub(crate) const MEM_ATTACH: Slot = Slot {
        index: 9,
        name: c"uct_ib_mlx5_devx_mem_attach",
    };

    /// Addresses of functions, in the order of [`ALL`].
    pub(crate) type Functions = [*mut std::ffi::c_void; 6];

    /// All operations, in the order of [`crate::original::Originals`].
    pub(crate) const ALL: [Slot; 6] = [
        MD_CLOSE, MD_QUERY, MEM_REG, MEM_DEREG, MKEY_PACK, MEM_ATTACH,
    ];
}

/// The exported `uct_ib_md_ops_devx_entry` (`src/uct/ib/base/ib_md.h:243`): a list link of two
/// words, a name, and the table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MdOpsEntry {
    pub(crate) list: [*mut c_void; 2],
    pub(crate) name: *const std::ffi::c_char,
    pub(crate) ops: *mut *mut c_void,
}

/// The head of `uct_ib_md_t` (`src/uct/ib/base/ib_md.h:144`): `uct_md_t`, then the protection
/// domain, then `uct_ib_device_t`, whose first field is the context
/// (`src/uct/ib/base/ib_device.h:218`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MdHead {
    pub(crate) ops: *const c_void,
    pub(crate) component: *const c_void,
    pub(crate) pd: *mut IbvPdHead,
    pub(crate) context: *mut c_void,
}

/// The head of libibverbs' `struct ibv_pd`. [`crate::check`] verifies with its first field that a
/// pointer refers to a protection domain.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct IbvPdHead {
    pub(crate) context: *mut c_void,
}

/// `uct_ib_mem_t`, the head of every memory handle (`src/uct/ib/base/ib_md.h:119`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemhHead {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) flags: u32,
}

/// Offsets of `uct_ib_mlx5_devx_mem_t::mrs` (`src/uct/ib/mlx5/ib_mlx5.h:284`), the registrations of
/// a memory handle: without and with `HAVE_IBV_DM` from 1.19 on, and with it in 1.18, which had one
/// field more. [`crate::chunks`] determines the offset in the running process.
pub(crate) const MRS_PLACES: [usize; 3] = [96, 104, 88];
/// `atomic_rkey` of a memory handle, in bytes before `mrs` in every version and build.
pub(crate) const ATOMIC_RKEY_BEFORE_MRS: usize = 16;
/// `exported_lkey` of a memory handle, in bytes before `mrs`.
pub(crate) const EXPORTED_LKEY_BEFORE_MRS: usize = 8;

/// Head of `uct_ib_mlx5_devx_ksm_data_t` (`src/uct/ib/mlx5/ib_mlx5.h:271`), the type of the first
/// registration of memory that was registered in chunks. After it follow `mr_num` pointers to
/// libibverbs' registrations.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct KsmData {
    pub(crate) dvmr: *mut c_void,
    pub(crate) mr_num: i32,
    pub(crate) length: usize,
}

/// Bits of [`MemhHead::flags`] (`src/uct/ib/base/ib_md.h:58`).
pub(crate) mod memh_flags {
    /// `UCT_IB_MEM_ACCESS_REMOTE_ATOMIC`: registered for atomics of others.
    pub(crate) const ATOMIC: u32 = 1 << 1;
    /// `UCT_IB_MEM_MULTITHREADED`: registered in chunks, `lkey` belongs to a key over all of them.
    pub(crate) const MULTITHREADED: u32 = 1 << 2;
    /// `UCT_IB_MEM_IMPORTED`: created by `mem_attach`.
    pub(crate) const IMPORTED: u32 = 1 << 3;
    /// `UCT_IB_MEM_FLAG_GVA`: covers the whole address space.
    pub(crate) const GVA: u32 = 1 << 5;
    /// `UCT_IB_MEM_DIRECT_NIC`: registered through a second PCI function (from 1.20.1 on).
    pub(crate) const DIRECT_NIC: u32 = 1 << 6;
    /// `UCT_IB_MEM_FLAG_RELAXED_ORDERING`: PCI may reorder its writes, and a second registration with
    /// strict order serves atomics (from 1.22 on; unused before).
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 7;
    /// All bits that any known version defines.
    pub(crate) const KNOWN: u32 = 0xff;
}

/// `UCT_IB_INVALID_MKEY`: no key (`src/uct/ib/base/ib_device.h:50`).
pub(crate) const INVALID_MKEY: u32 = u32::MAX;

/// `uct_md_mem_reg_params_t` (`src/uct/api/v2/uct_v2.h:454`), as long as in the newest version, whose
/// last field is a memory type; zero is the host's.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MemRegParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: u64,
    pub(crate) dmabuf_fd: i32,
    pub(crate) dmabuf_offset: usize,
    pub(crate) mem_type: u64,
}

impl MemRegParams {
    /// `UCT_MD_MEM_REG_FIELD_FLAGS`.
    const FIELD_FLAGS: u64 = 1 << 0;
    /// `UCT_MD_MEM_REG_FIELD_DMABUF_FD`.
    const FIELD_DMABUF_FD: u64 = 1 << 1;
    /// `UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET`.
    const FIELD_DMABUF_OFFSET: u64 = 1 << 2;
    /// `UCT_MD_MEM_REG_FIELD_MEM_TYPE` (after 1.22).
    const FIELD_MEM_TYPE: u64 = 1 << 3;
    /// `UCT_DMABUF_FD_INVALID`.
    const NO_FD: i32 = -1;
    /// `UCT_MD_MEM_FLAG_LOCK`.
    const LOCK: u64 = 1 << 2;
    /// `UCT_MD_MEM_FLAG_HIDE_ERRORS`.
    pub(crate) const HIDE_ERRORS: u64 = 1 << 3;
    /// `UCT_MD_MEM_ACCESS_*`.
    pub(crate) const ACCESS: u64 = 0x1f << 5;
    /// `UCT_MD_MEM_ACCESS_REMOTE_PUT` and `..._LOCAL_WRITE`.
    pub(crate) const WRITE_ACCESS: u64 = 1 << 5 | 1 << 9;

    /// Parameters with these fields of [`MemRegParams::plain`].
    pub(crate) const fn of(field_mask: u64, flags: u64) -> Self {
        Self {
            field_mask: field_mask & (Self::FIELD_FLAGS | Self::FIELD_MEM_TYPE),
            flags,
            dmabuf_fd: Self::NO_FD,
            dmabuf_offset: 0,
            mem_type: 0,
        }
    }

    /// Mask and flags of a registration of plain memory: at once, at any address, without a dma-buf,
    /// with ordinary keys. `None` for any other registration, and for unknown fields and flags.
    ///
    /// # Safety
    /// `params` must point to parameters.
    pub(crate) unsafe fn plain(params: *const Self) -> Option<(u64, u64)> {
        const KNOWN: u64 = MemRegParams::FIELD_FLAGS
            | MemRegParams::FIELD_DMABUF_FD
            | MemRegParams::FIELD_DMABUF_OFFSET
            | MemRegParams::FIELD_MEM_TYPE;
        // SAFETY: by the contract of this function. Only fields in the mask exist.
        let (field_mask, flags) = unsafe { ((*params).field_mask, (*params).flags) };
        if field_mask & !KNOWN != 0 || field_mask & Self::FIELD_FLAGS == 0 {
            return None;
        }
        // SAFETY: as above.
        let has_file = field_mask & Self::FIELD_DMABUF_FD != 0
            && unsafe { (*params).dmabuf_fd } != Self::NO_FD;
        // The type is an enumeration of four bytes.
        // SAFETY: as above.
        let has_type = field_mask & Self::FIELD_MEM_TYPE != 0
            && unsafe { (&raw const (*params).mem_type).cast::<u32>().read() } != 0;
        let is_plain = flags & !(Self::LOCK | Self::HIDE_ERRORS | Self::ACCESS) == 0;
        (is_plain && !has_file && !has_type).then_some((field_mask, flags))
    }
}

/// `uct_md_mkey_pack_params_t` (`src/uct/api/v2/uct_v2.h:527`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MkeyPackParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: u32,
}

impl MkeyPackParams {
    /// `UCT_MD_MKEY_PACK_FIELD_FLAGS`.
    pub(crate) const FIELD_FLAGS: u64 = 1 << 0;
    /// `UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA` and `..._AMO`: the key can be invalidated later.
    pub(crate) const FLAGS_INVALIDATE: u32 = 1 << 0 | 1 << 1;
    /// `UCT_MD_MKEY_PACK_FLAG_EXPORT`: for another process on the same adapter.
    pub(crate) const FLAG_EXPORT: u32 = 1 << 2;

    /// True if the key is for another process on the same adapter.
    ///
    /// # Safety
    /// `params` must point to parameters.
    #[inline]
    pub(crate) unsafe fn is_export(params: *const Self) -> bool {
        // SAFETY: by the contract of this function.
        let params = unsafe { &*params };
        params.field_mask & Self::FIELD_FLAGS != 0 && params.flags & Self::FLAG_EXPORT != 0
    }

    /// True for an export without conditions.
    ///
    /// # Safety
    /// `params` must point to parameters.
    #[inline(always)]
    pub(crate) unsafe fn is_new_export(params: *const Self) -> bool {
        // SAFETY: by the contract of this function.
        let flags = unsafe { Self::flags_of(params) };
        flags & (Self::FLAG_EXPORT | Self::FLAGS_INVALIDATE) == Self::FLAG_EXPORT
    }

    /// The flags, if the parameters contain them.
    ///
    /// # Safety
    /// `params` must point to parameters.
    #[inline]
    pub(crate) unsafe fn flags_of(params: *const Self) -> u32 {
        // SAFETY: by the contract of this function.
        let params = unsafe { &*params };
        if params.field_mask & Self::FIELD_FLAGS != 0 {
            params.flags
        } else {
            0
        }
    }
}

/// `uct_md_mem_attach_params_t` (`src/uct/api/v2/uct_v2.h:547`). UCX 1.18 has no `mkey_size` and
/// never sets its bit in `field_mask`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MemAttachParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: u64,
    pub(crate) mkey_size: usize,
}

impl MemAttachParams {
    /// `UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE`.
    pub(crate) const FIELD_MKEY_SIZE: u64 = 1 << 1;
}

/// `uct_md_mem_dereg_params_t` (`src/uct/api/v2/uct_v2.h:500`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MemDeregParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: u32,
    pub(crate) memh: MemHandle,
    pub(crate) comp: *mut Completion,
}

impl MemDeregParams {
    /// `UCT_MD_MEM_DEREG_FIELD_MEMH`.
    pub(crate) const FIELD_MEMH: u64 = 1 << 0;
    /// `UCT_MD_MEM_DEREG_FIELD_FLAGS`.
    pub(crate) const FIELD_FLAGS: u64 = 1 << 1;
    /// `UCT_MD_MEM_DEREG_FIELD_COMPLETION`.
    pub(crate) const FIELD_COMPLETION: u64 = 1 << 2;
    /// `UCT_MD_MEM_DEREG_FLAG_INVALIDATE`.
    pub(crate) const FLAG_INVALIDATE: u32 = 1 << 0;

    /// The memory handle, if the parameters contain one.
    ///
    /// # Safety
    /// `params` must point to parameters.
    #[inline]
    pub(crate) unsafe fn memh_of(params: *const Self) -> Option<MemHandle> {
        // SAFETY: by the contract of this function.
        let params = unsafe { &*params };
        let has_memh = params.field_mask & Self::FIELD_MEMH != 0 && !params.memh.is_null();
        has_memh.then_some(params.memh)
    }

    /// True if the handle's keys must be invalid afterwards.
    ///
    /// # Safety
    /// `params` must point to parameters.
    pub(crate) unsafe fn invalidates(params: *const Self) -> bool {
        // SAFETY: by the contract of this function.
        let params = unsafe { &*params };
        params.field_mask & Self::FIELD_FLAGS != 0 && params.flags & Self::FLAG_INVALIDATE != 0
    }
}

/// `uct_completion_t` (`src/uct/api/uct.h:1752`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) func: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) count: i32,
    pub(crate) status: UcsStatus,
}

/// The fields of `uct_md_attr_v2_t` (`src/uct/api/v2/uct_v2.h:886`) that the library reads.
pub(crate) mod md_attr {
    /// Offset of `flags`, a `uint64_t`.
    pub(crate) const FLAGS_OFFSET: usize = 24;
    /// Offset of `exported_mkey_packed_size`, a `size_t`.
    pub(crate) const EXPORTED_MKEY_PACKED_SIZE_OFFSET: usize = 264;
    /// Offset of `global_id`, an array of `char` padded with zeros.
    pub(crate) const GLOBAL_ID_OFFSET: usize = 272;
    /// `UCT_MD_GLOBAL_ID_MAX`, the array's length (`src/uct/api/uct_def.h:19`).
    pub(crate) const GLOBAL_ID_BYTES: usize = 256;
    /// `UCT_MD_FLAG_EXPORTED_MKEY` (`src/uct/api/uct.h:765`).
    pub(crate) const FLAG_EXPORTED_MKEY: u64 = 1 << 9;
}

const _: () = {
    assert!(size_of::<UcsStatus>() == 1);
    assert!(std::mem::offset_of!(MdHead, pd) == 16);
    assert!(std::mem::offset_of!(MdHead, context) == 24);
    assert!(std::mem::offset_of!(MdOpsEntry, ops) == 24);
    assert!(std::mem::offset_of!(MemhHead, flags) == 8);
    assert!(std::mem::offset_of!(MemRegParams, dmabuf_offset) == 24);
    assert!(std::mem::offset_of!(MemRegParams, mem_type) == 32);
    assert!(std::mem::offset_of!(MkeyPackParams, flags) == 8);
    assert!(std::mem::offset_of!(MemAttachParams, mkey_size) == 16);
    assert!(std::mem::offset_of!(MemDeregParams, memh) == 16);
    assert!(std::mem::offset_of!(MemDeregParams, comp) == 24);
    assert!(std::mem::offset_of!(Completion, count) == 8);
    assert!(std::mem::offset_of!(Completion, status) == 12);
};
