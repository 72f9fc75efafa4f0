//! UCX's memory events (`libucm`): the functions that this library uses, and the layout of an event.
//! The facts hold in UCX 1.18 to 1.23 (`src/ucm/api/ucm.h`).
//!
//! UCX calls the handlers of an event in the order of their priorities. Its own handler has
//! priority 0 and calls the kernel only if no handler before it has set a result
//! (`src/ucm/event/event.c`).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::UcsStatus;
use crate::module::{self, file_of};

/// `UCM_EVENT_MMAP`.
pub(crate) const MMAP: c_int = 1 << 0;
/// `UCM_EVENT_MUNMAP`.
pub(crate) const MUNMAP: c_int = 1 << 1;
/// `UCM_EVENT_MREMAP`.
pub(crate) const MREMAP: c_int = 1 << 2;
/// `UCM_EVENT_MADVISE`.
pub(crate) const MADVISE: c_int = 1 << 6;
/// `UCM_EVENT_SHMAT`.
pub(crate) const SHMAT: c_int = 1 << 3;
/// `UCM_EVENT_VM_UNMAPPED`: memory is unmapped in any way, before that happens.
pub(crate) const VM_UNMAPPED: c_int = 1 << 17;
/// The events that the arena handles.
pub(crate) const OF_ARENA: c_int = MMAP | MUNMAP | MREMAP | MADVISE;
/// Before UCX's own handler, and before those of its test of the events.
const PRIORITY: c_int = -1000;

/// `ucm_event_t::mmap`. A result other than `MAP_FAILED` keeps UCX from calling the kernel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mmap {
    pub(crate) result: *mut c_void,
    pub(crate) address: *mut c_void,
    pub(crate) size: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: c_int,
    pub(crate) offset: i64,
}

/// `ucm_event_t::munmap`. A result other than -1 keeps UCX from calling the kernel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Munmap {
    pub(crate) result: c_int,
    pub(crate) address: *mut c_void,
    pub(crate) size: usize,
}

/// `ucm_event_t::mremap`. As for [`Mmap`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mremap {
    pub(crate) result: *mut c_void,
    pub(crate) address: *mut c_void,
    pub(crate) old_size: usize,
    pub(crate) new_size: usize,
    pub(crate) flags: c_int,
    pub(crate) new_address: *mut c_void,
}

/// `ucm_event_t::madvise`. As for [`Munmap`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Madvise {
    pub(crate) result: c_int,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) advice: c_int,
}

/// `ucm_event_t::shmat`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shmat {
    pub(crate) result: *mut c_void,
    pub(crate) id: c_int,
    pub(crate) address: *const c_void,
    pub(crate) flags: c_int,
}

/// `ucm_event_t::vm_unmapped`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Unmapped {
    pub(crate) address: *mut c_void,
    pub(crate) size: usize,
}

/// Advice after which each address has the page that it had before. libibverbs gives some of it.
pub(crate) const HARMLESS_ADVICE: [c_int; 10] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
];

/// `ucm_event_callback_t`.
pub(crate) type Handler = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void);
type SetHandlerFn = unsafe extern "C" fn(c_int, c_int, Handler, *mut c_void) -> UcsStatus;
type UnsetHandlerFn = unsafe extern "C" fn(c_int, Handler, *mut c_void);
type TestEventsFn = unsafe extern "C" fn(c_int) -> UcsStatus;
type MmapFn = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type MunmapFn = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type MadviseFn = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// UCX's functions. Those with `orig` call the kernel and cause no event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ucm {
    set_handler: SetHandlerFn,
    unset_handler: UnsetHandlerFn,
    test_events: TestEventsFn,
    mmap: MmapFn,
    munmap: MunmapFn,
    madvise: MadviseFn,
}

impl Ucm {
    /// Looks the functions up. `None` if one is missing.
    pub(crate) fn find(symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Option<Self> {
        let symbol = |name| symbol(name).map(NonNull::as_ptr);
        let set_handler = symbol(c"ucm_set_event_handler")?;
        let unset_handler = symbol(c"ucm_unset_event_handler")?;
        let test_events = symbol(c"ucm_test_events")?;
        let mmap = symbol(c"ucm_orig_mmap")?;
        let munmap = symbol(c"ucm_orig_munmap")?;
        let madvise = symbol(c"ucm_orig_madvise")?;
        Some(Self {
            // SAFETY: UCX's function of that name has this type.
            set_handler: unsafe { std::mem::transmute::<*mut c_void, SetHandlerFn>(set_handler) },
            // SAFETY: as above.
            unset_handler: unsafe {
                std::mem::transmute::<*mut c_void, UnsetHandlerFn>(unset_handler)
            },
            // SAFETY: as above.
            test_events: unsafe { std::mem::transmute::<*mut c_void, TestEventsFn>(test_events) },
            // SAFETY: as above.
            mmap: unsafe { std::mem::transmute::<*mut c_void, MmapFn>(mmap) },
            // SAFETY: as above.
            munmap: unsafe { std::mem::transmute::<*mut c_void, MunmapFn>(munmap) },
            // SAFETY: as above.
            madvise: unsafe { std::mem::transmute::<*mut c_void, MadviseFn>(madvise) },
        })
    }

    /// Adds the handler to the events. It is called at once from any thread.
    ///
    /// # Safety
    /// The handler must accept each of these events.
    pub(crate) unsafe fn add(&self, events: c_int, handler: Handler) -> UcsStatus {
        // SAFETY: by the contract of this function.
        unsafe { (self.set_handler)(events, PRIORITY, handler, std::ptr::null_mut()) }
    }

    /// Removes the handler.
    pub(crate) fn remove(&self, events: c_int, handler: Handler) {
        // SAFETY: UCX compares the handler and the argument with those that it has.
        unsafe { (self.unset_handler)(events, handler, std::ptr::null_mut()) };
    }

    /// Whether the calls of this program cause the events.
    pub(crate) fn test(&self, events: c_int) -> UcsStatus {
        // SAFETY: UCX maps and unmaps memory of its own.
        unsafe { (self.test_events)(events) }
    }

    /// The kernel's `mmap` of anonymous private memory. `None` if it refuses.
    ///
    /// # Safety
    /// With `MAP_FIXED` in `flags`, nothing else may use the range at `address`.
    pub(crate) unsafe fn map(
        &self,
        address: usize,
        bytes: usize,
        prot: c_int,
        flags: c_int,
    ) -> Option<usize> {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: by the contract of this function.
        let mapped = unsafe { (self.mmap)(address, bytes, prot, flags, -1, 0) };
        (mapped != libc::MAP_FAILED).then(|| mapped.expose_provenance())
    }

    /// The kernel's `munmap`.
    ///
    /// # Safety
    /// Nothing may use the range.
    pub(crate) unsafe fn unmap(&self, address: usize, bytes: usize) -> c_int {
        // SAFETY: by the contract of this function.
        unsafe { (self.munmap)(std::ptr::with_exposed_provenance_mut(address), bytes) }
    }

    /// The kernel's `madvise`.
    ///
    /// # Safety
    /// The program or the arena's rules permit the advice for the range.
    pub(crate) unsafe fn advise(&self, address: usize, bytes: usize, advice: c_int) -> c_int {
        // SAFETY: by the contract of this function.
        unsafe {
            (self.madvise)(
                std::ptr::with_exposed_provenance_mut(address),
                bytes,
                advice,
            )
        }
    }
}

/// True if `malloc` is glibc's. Others may release memory with system calls of their own, which cause
/// no events.
pub(crate) fn is_allocator_known() -> bool {
    let file = |name| module::global(name).and_then(|symbol| file_of(symbol.as_ptr()));
    match (file(c"malloc"), file(c"gnu_get_libc_version")) {
        (Some((malloc, _)), Some((libc, _))) => malloc == libc,
        _ => false,
    }
}
