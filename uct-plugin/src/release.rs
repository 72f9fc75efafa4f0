//! `mem_dereg`: invalidates the pool's key before UCX deregisters the memory, and unpins aliases.

use xgvmi_pool::{BoundKey, ReleaseError};

use crate::abi::{
    Completion, MdHandle, MemDeregParams, MemHandle, MemhHead, UcsStatus, memh_flags,
};
use crate::counter_file::Event;
use crate::md::Md;
use crate::memh::IMPORTS;
use crate::registrations::{Exported, REGISTRATIONS};
use crate::rkey::Memory;
use crate::{allocator, domains, hot, log, memh, panic};

/// True if the handle shows the memory that UCX has just registered with it, so that it need not be recorded.
///
/// # Safety
/// `memh` is a live memory handle of `served`.
#[inline(always)]
pub(crate) unsafe fn shows(served: &Md, memh: MemHandle, address: usize, length: usize) -> bool {
    // SAFETY: by the contract of this function.
    let shown = unsafe { served.shown().memory(memh) };
    shown.is_some_and(|memory| memory.address == address && memory.length == length)
}

/// Records memory that a domain has just registered.
///
/// # Safety
/// `memh` is a live memory handle of `served`.
#[cold]
pub(crate) unsafe fn note(served: &Md, memh: MemHandle, address: usize, length: usize) {
    if allocator::is_short() {
        return;
    }
    // SAFETY: by the contract of this function.
    unsafe {
        served
            .shown()
            .search(served.facts(), memh, (address, length));
    };
    // SAFETY: as above.
    if unsafe { shows(served, memh, address, length) } {
        return;
    }
    // SAFETY: every memory handle starts with these fields.
    let lkey = unsafe { (*memh.cast::<MemhHead>()).lkey };
    let memory = Memory {
        address,
        length,
        lkey,
    };
    // An older handle at the same address was freed without this library's knowledge. Its key is
    // released.
    if let Some(key) = REGISTRATIONS.note(served.handle(), memh, memory) {
        give_back(served, key);
    }
}

/// Releases the key of memory that UCX registered and deregisters now.
#[inline(always)]
pub(crate) fn dereg(served: &Md, memh: MemHandle) {
    if let Some(Exported::FromPool(key)) = REGISTRATIONS.forget(memh) {
        take_back(served, key);
    }
}

/// Releases the key of memory. One frame for the whole work of the pool.
#[inline(never)]
fn take_back(served: &Md, key: BoundKey) {
    let back = Back { served, key };
    panic::here("a key is taken back");
    std::mem::forget(back);
    give_back(served, key);
}

/// Releases this library's objects for any memory handle. `None` if UCX's own operation must still
/// deregister it.
///
/// # Safety
/// `md` and `params` must be those of `mem_dereg`, and its memory handle live.
pub(crate) unsafe fn dereg_any(
    md: MdHandle,
    params: &MemDeregParams,
    memh: MemHandle,
) -> Option<UcsStatus> {
    // SAFETY: every memory handle starts with these fields.
    if unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED == 0 {
        // SAFETY: UCX does not close the memory domain during a call for it.
        match unsafe { domains::known(md) } {
            Some(served) => dereg(served, memh),
            // A forked child, where the keys are the parent's.
            None => drop(REGISTRATIONS.forget(memh)),
        }
        return None;
    }
    // SAFETY: by the contract of this function.
    unsafe { dereg_import(md, params, memh) }
}

/// Releases an imported memory handle. `None` if it is not ours: UCX's own operation must deregister
/// it.
///
/// # Safety
/// `md` and `params` must be those of `mem_dereg`, and its memory handle live.
#[inline(never)]
pub(crate) unsafe fn dereg_import(
    md: MdHandle,
    params: &MemDeregParams,
    memh: MemHandle,
) -> Option<UcsStatus> {
    let import = IMPORTS.remove(memh)?;
    // SAFETY: UCX does not close the memory domain during this call.
    if let Some(served) = unsafe { domains::known(md) } {
        served.unpin(import.alias);
        served.count(Event::ImportReleased);
    }
    // SAFETY: it was in the table, so it is one of ours; the caller gives it up.
    unsafe { memh::free(memh) };
    // SAFETY: by the contract of this function.
    unsafe { complete(params) };
    Some(UcsStatus::OK)
}

/// Releases a key when dropped, also after a panic.
#[derive(Debug)]
pub(crate) struct Back<'a> {
    pub(crate) served: &'a Md,
    pub(crate) key: BoundKey,
}

impl Drop for Back<'_> {
    #[cold]
    fn drop(&mut self) {
        give_back(self.served, self.key);
    }
}

/// Releases a key to the pool of its memory domain.
#[inline(always)]
fn give_back(served: &Md, key: BoundKey) {
    let Some(host) = served.host() else {
        return;
    };
    let thread = hot::thread();
    let is_done = match host.unbind_in(thread, key) {
        Ok(()) => true,
        Err(error) => {
            failed(&error);
            false
        }
    };
    served.count_in(Event::of_release(is_done), thread);
}

#[cold]
fn failed(error: &ReleaseError) {
    log::error!("{error}");
}

/// Tells the caller that requested the invalidation that the handle is unusable now.
///
/// # Safety
/// `params` must be those of `mem_dereg`.
pub(crate) unsafe fn complete(params: &MemDeregParams) {
    let wanted = MemDeregParams::FIELD_FLAGS | MemDeregParams::FIELD_COMPLETION;
    if params.field_mask & wanted != wanted
        || params.flags & MemDeregParams::FLAG_INVALIDATE == 0
        || params.comp.is_null()
    {
        return;
    }
    // SAFETY: the parameters contain a completion, and this operation must decrement it.
    let comp: &mut Completion = unsafe { &mut *params.comp };
    // Like uct_invoke_completion of UCX (`src/uct/api/uct.h`) with success.
    comp.count -= 1;
    if comp.count == 0
        && let Some(func) = comp.func
    {
        // SAFETY: the completion's own function.
        unsafe { func(params.comp) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null_mut, without_provenance_mut};

    /// # Safety
    /// `comp` is a live completion that nothing else accesses.
    unsafe extern "C" fn mark(comp: *mut Completion) {
        // SAFETY: the test's completion is alive.
        unsafe { (*comp).count = 100 };
    }

    #[track_caller]
    fn check(field_mask: u64, flags: u32, count: i32, expect: i32) {
        let mut comp = Completion {
            func: Some(mark),
            count,
            status: UcsStatus::OK,
        };
        let memh = without_provenance_mut(16);
        let params = MemDeregParams {
            field_mask,
            flags,
            memh,
            comp: &raw mut comp,
        };
        // SAFETY: the completion is alive.
        unsafe { complete(&params) };
        assert_eq!(comp.count, expect);
    }

    #[test]
    fn an_invalidation_is_completed_once() {
        let all = MemDeregParams::FIELD_MEMH
            | MemDeregParams::FIELD_FLAGS
            | MemDeregParams::FIELD_COMPLETION;
        check(all, MemDeregParams::FLAG_INVALIDATE, 1, 100);
        check(all, MemDeregParams::FLAG_INVALIDATE, 2, 1);
        check(all, 0, 1, 1);
        check(
            all & !MemDeregParams::FIELD_FLAGS,
            MemDeregParams::FLAG_INVALIDATE,
            1,
            1,
        );
        check(
            all & !MemDeregParams::FIELD_COMPLETION,
            MemDeregParams::FLAG_INVALIDATE,
            1,
            1,
        );
        let params = MemDeregParams {
            field_mask: all,
            flags: 1,
            memh: null_mut(),
            comp: null_mut(),
        };
        // SAFETY: there is no completion to access.
        unsafe { complete(&params) };
    }
}
