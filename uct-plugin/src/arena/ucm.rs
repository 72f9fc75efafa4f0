//! UCX's memory events (`libucm`): the functions that the arena uses, and the layout of an event.
//! The facts hold in UCX 1.18 to 1.23 (`src/ucm/api/ucm.h`).
//!
//! UCX calls the handlers of an event in the order of their priorities. Its own handler has
//! priority 0 and calls the kernel only if no handler before it has set a result
//! (`src/ucm/event/event.c`).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::UcsStatus;

/// `UCM_EVENT_MMAP`.
pub(super) const MMAP: c_int = 1 << 0;
/// `UCM_EVENT_MUNMAP`.
pub(super) const MUNMAP: c_int = 1 << 1;
/// `UCM_EVENT_MREMAP`.
pub(super) const MREMAP: c_int = 1 << 2;
/// `UCM_EVENT_MADVISE`.
pub(super) const MADVISE: c_int = 1 << 6;
/// The events that the arena handles.
pub(super) const EVENTS: c_int = MMAP | MUNMAP | MREMAP | MADVISE;
/// Before UCX's own handler, and before those of its test of the events.
pub(super) const PRIORITY: c_int = -1000;

/// `ucm_event_t::mmap`. A result other than `MAP_FAILED` keeps UCX from calling the kernel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Mmap {
    pub(super) result: *mut c_void,
    pub(super) address: *mut c_void,
    pub(super) size: usize,
    pub(super) prot: c_int,
    pub(super) flags: c_int,
    pub(super) fd: c_int,
    pub(super) offset: i64,
}

/// `ucm_event_t::munmap`. A result other than -1 keeps UCX from calling the kernel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Munmap {
    pub(super) result: c_int,
    pub(super) address: *mut c_void,
    pub(super) size: usize,
}

/// `ucm_event_t::mremap`. As for [`Mmap`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct Mremap {
    pub(super) result: *mut c_void,
    pub(super) address: *mut c_void,
    pub(super) old_size: usize,
    pub(super) new_size: usize,
    pub(super) flags: c_int,
    pub(super) new_address: *mut c_void,
}

/// `ucm_event_t::madvise`. As for [`Munmap`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct Madvise {
    pub(super) result: c_int,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    pub(super) advice: c_int,
}

/// `ucm_event_callback_t`.
pub(super) type Handler = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void);
type SetHandlerFn = unsafe extern "C" fn(c_int, c_int, Handler, *mut c_void) -> UcsStatus;
type UnsetHandlerFn = unsafe extern "C" fn(c_int, Handler, *mut c_void);
type TestEventsFn = unsafe extern "C" fn(c_int) -> UcsStatus;
type MmapFn = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type MunmapFn = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type MadviseFn = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// UCX's functions. Those with `orig` call the kernel and cause no event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ucm {
    set_handler: SetHandlerFn,
    unset_handler: UnsetHandlerFn,
    test_events: TestEventsFn,
    mmap: MmapFn,
    munmap: MunmapFn,
    madvise: MadviseFn,
}

impl Ucm {
    /// Looks the functions up. `None` if one is missing.
    pub(super) fn find(symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Option<Self> {
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
    /// The handler must accept every event of [`EVENTS`].
    pub(super) unsafe fn add(&self, handler: Handler) -> UcsStatus {
        // SAFETY: by the contract of this function.
        unsafe { (self.set_handler)(EVENTS, PRIORITY, handler, std::ptr::null_mut()) }
    }

    /// Removes the handler.
    pub(super) fn remove(&self, handler: Handler) {
        // SAFETY: UCX compares the handler and the argument with those that it has.
        unsafe { (self.unset_handler)(EVENTS, handler, std::ptr::null_mut()) };
    }

    /// Whether the calls of this program cause the events.
    pub(super) fn test(&self) -> UcsStatus {
        // SAFETY: UCX maps and unmaps memory of its own.
        unsafe { (self.test_events)(EVENTS) }
    }

    /// The kernel's `mmap` of anonymous private memory. `None` if it refuses.
    ///
    /// # Safety
    /// With `MAP_FIXED` in `flags`, nothing else may use the range at `address`.
    pub(super) unsafe fn map(
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
    pub(super) unsafe fn unmap(&self, address: usize, bytes: usize) -> c_int {
        // SAFETY: by the contract of this function.
        unsafe { (self.munmap)(std::ptr::with_exposed_provenance_mut(address), bytes) }
    }

    /// The kernel's `madvise`.
    ///
    /// # Safety
    /// The program or the arena's rules permit the advice for the range.
    pub(super) unsafe fn advise(&self, address: usize, bytes: usize, advice: c_int) -> c_int {
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
