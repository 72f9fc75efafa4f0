//! The arena's memory handles: UCX's head, then the arena's own fields. They lie in one mapping, so
//! their addresses identify them.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use xgvmi_pool::{BoundKey, Lkey};

use super::pages::Span;
use crate::abi::{INVALID_MKEY, MemHandle, MemhHead, memh_flags};
use crate::registrations::Exported;

/// Largest number of handles.
pub(super) const HANDLES: usize = 1 << 14;
/// Bytes that UCX may read: more than its own structure has in any version. Those after the head are
/// zero.
const UCX_BYTES: usize = 256;

/// The parameters of a registration that a later one of the same memory repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) field_mask: u64,
    pub(super) flags: u64,
}

/// Registered memory inside a slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) md: usize,
    pub(super) address: usize,
    pub(super) length: usize,
    pub(super) slab: usize,
    pub(super) span: Span,
    pub(super) wanted: Wanted,
}

/// A memory handle.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Handle {
    head: MemhHead,
    zeros: [u8; UCX_BYTES - size_of::<MemhHead>()],
    /// The fields of [`Memory`]; they belong to the handle's user from its registration to its
    /// release.
    memory: Option<Memory>,
    /// Address of the memory domain, zero if the handle is free.
    md: AtomicUsize,
    /// Local key of the slab.
    lkey: u32,
    exported: AtomicU64,
    /// UCX's own handle of the same memory, registered when it is first needed.
    delegate: AtomicPtr<std::ffi::c_void>,
    /// Index of the next free handle.
    next: u32,
}

impl Handle {
    /// Fills a free handle.
    pub(super) fn fill(&mut self, lkey: Lkey, slab_flags: u32, memory: Memory) {
        self.head = MemhHead {
            lkey: lkey.raw(),
            // A remote key of a slab would open all of its ranges.
            rkey: INVALID_MKEY,
            // UCX's own operations never get the handle; the flag brings it to this library's.
            flags: slab_flags | memh_flags::IMPORTED,
        };
        self.lkey = lkey.raw();
        self.memory = Some(memory);
        *self.exported.get_mut() = Exported::No.bits();
        *self.delegate.get_mut() = null_mut();
        self.md.store(memory.md, Ordering::Release);
    }

    /// The memory. `None` for a free handle.
    pub(super) fn memory(&self) -> Option<Memory> {
        self.memory
    }

    /// The slab's local key.
    pub(super) fn lkey(&self) -> Lkey {
        Lkey::from_raw(self.lkey)
    }

    /// Takes the handle from its user. False if another thread did: its own release, or that of its
    /// domain.
    pub(super) fn close(&self, md: usize) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.md.compare_exchange(md, 0, order.0, order.1).is_ok()
    }

    pub(super) fn exported(&self) -> Exported {
        Exported::of(self.exported.load(Ordering::Acquire))
    }

    /// Decides the kind of export, unless it was decided before.
    ///
    /// # Errors
    /// The earlier decision.
    pub(super) fn decide(&self, key: Option<BoundKey>) -> Result<(), Exported> {
        let bits = key.map_or(Exported::Natively, Exported::FromPool).bits();
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.exported
            .compare_exchange(Exported::No.bits(), bits, order.0, order.1)
            .map(drop)
            .map_err(Exported::of)
    }

    /// UCX's own handle of the memory, if there is one.
    pub(super) fn delegate(&self) -> Option<MemHandle> {
        let delegate = self.delegate.load(Ordering::Acquire);
        (!delegate.is_null()).then_some(delegate)
    }

    /// Keeps UCX's own handle.
    ///
    /// # Errors
    /// Another thread's handle that is there already.
    pub(super) fn keep(&self, delegate: MemHandle) -> Result<(), MemHandle> {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.delegate
            .compare_exchange(null_mut(), delegate, order.0, order.1)
            .map(drop)
    }
}

/// The free handles, as a list through their `next`.
#[derive(Debug)]
pub(super) struct Handles {
    first: NonNull<Handle>,
    /// Number of handles that were ever used; those behind it are zero.
    touched: u32,
    /// The first free one of those, plus one; zero if there is none.
    free: u32,
}

// SAFETY: the handles are accessed under the arena's lock or by the handle's user.
unsafe impl Send for Handles {}

impl Handles {
    /// All handles are free.
    ///
    /// # Safety
    /// The memory is zeroed, has space for [`HANDLES`] handles, and is never freed.
    pub(super) const unsafe fn new(first: NonNull<Handle>) -> Self {
        Self {
            first,
            touched: 0,
            free: 0,
        }
    }

    /// A free handle, with a value in each field.
    pub(super) fn take(&mut self) -> Option<NonNull<Handle>> {
        if let Some(at) = self.free.checked_sub(1) {
            let handle = self.at(at);
            // SAFETY: the handle is in the list, so nothing else uses it.
            self.free = unsafe { (*handle.as_ptr()).next };
            return Some(handle);
        }
        if self.touched as usize >= HANDLES {
            return None;
        }
        let handle = self.at(self.touched);
        self.touched += 1;
        let value = Handle {
            head: MemhHead {
                lkey: INVALID_MKEY,
                rkey: INVALID_MKEY,
                flags: memh_flags::IMPORTED,
            },
            zeros: [0; UCX_BYTES - size_of::<MemhHead>()],
            memory: None,
            md: AtomicUsize::new(0),
            lkey: INVALID_MKEY,
            exported: AtomicU64::new(Exported::No.bits()),
            delegate: AtomicPtr::new(null_mut()),
            next: 0,
        };
        // SAFETY: the memory has space for it, and nothing else uses it.
        unsafe { handle.as_ptr().write(value) };
        Some(handle)
    }

    /// Frees a handle.
    ///
    /// # Safety
    /// It comes from [`Handles::take`], and nothing uses it any more.
    pub(super) unsafe fn free(&mut self, handle: NonNull<Handle>) {
        let at = (handle.addr().get() - self.first.addr().get()) / size_of::<Handle>();
        let at = u32::try_from(at).unwrap_or(0);
        // SAFETY: by the contract of this function.
        unsafe { (*handle.as_ptr()).memory = None };
        // SAFETY: as above.
        unsafe { (*handle.as_ptr()).next = self.free };
        self.free = at + 1;
    }

    /// The handles that were ever used.
    pub(super) fn touched(&self) -> impl Iterator<Item = NonNull<Handle>> + use<> {
        let first = self.first;
        (0..self.touched as usize)
            // SAFETY: the memory has space for all of them.
            .map(move |at| unsafe { first.add(at) })
    }

    fn at(&self, at: u32) -> NonNull<Handle> {
        // SAFETY: the memory has space for all handles, and `at` is one of them.
        unsafe { self.first.add(at as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_has_one_user_and_all_come_back() {
        let bytes = HANDLES * size_of::<Handle>();
        let layout = std::alloc::Layout::from_size_align(bytes, align_of::<Handle>()).unwrap();
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let first = NonNull::new(memory.cast::<Handle>()).expect("memory");
        // SAFETY: the memory is zeroed, large enough, and outlives the handles.
        let mut handles = unsafe { Handles::new(first) };
        for _ in 0..2 {
            let mut taken: Vec<_> = std::iter::from_fn(|| handles.take()).collect();
            assert_eq!(taken.len(), HANDLES);
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), HANDLES);
            for handle in taken {
                // SAFETY: it was just taken.
                unsafe { handles.free(handle) };
            }
        }
        assert_eq!(handles.touched().count(), HANDLES);
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(memory, layout) };
    }

    #[test]
    fn no_remote_key_is_in_the_head() {
        let mut handle = Handle {
            head: MemhHead {
                lkey: 0,
                rkey: 0,
                flags: 0,
            },
            zeros: [0; UCX_BYTES - size_of::<MemhHead>()],
            memory: None,
            md: AtomicUsize::new(0),
            lkey: 0,
            exported: AtomicU64::new(0),
            delegate: AtomicPtr::new(null_mut()),
            next: 0,
        };
        let memory = Memory {
            md: 64,
            address: 0x1000,
            length: 100,
            slab: 0,
            span: Span::new(0, 1),
            wanted: Wanted {
                field_mask: 1,
                flags: 0,
            },
        };
        handle.fill(Lkey::from_raw(0x4100), memh_flags::ATOMIC, memory);
        assert_eq!((handle.head.lkey, handle.head.rkey), (0x4100, INVALID_MKEY));
        assert_eq!(handle.head.flags, memh_flags::ATOMIC | memh_flags::IMPORTED);
        assert_eq!(std::mem::offset_of!(Handle, memory), UCX_BYTES);
        assert!(!handle.close(65) && handle.close(64) && !handle.close(64));
    }
}
