//! Registrations, keys and releases of memory in slabs: `mem_reg`, `mkey_pack`, `mem_dereg` and
//! `md_close` of handles of the arena.
//!
//! UCX registers a slab once for each memory domain. A handle of the arena has the slab's local key.
//! An export binds a key of the pool to the handle's bytes. Every other key comes from UCX's own
//! registration of the handle's bytes, the *delegate*, which is made when it is first needed.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

use xgvmi_pool::mlx5::Mlx5Device;
use xgvmi_pool::{BoundKey, HostHooks, Region, VirtAddr};

use super::counts;
use super::handles::{Handle, Memory, Wanted};
use super::pages::{SLAB_BYTES, Span};
use super::slab_keys::{Found, Registered};
use super::state::{ARENA, Arena, Table, now_ms, running};
use crate::abi::{
    MdHandle, MemDeregParams, MemHandle, MemRegParams, MemhHead, MkeyPackParams, UcsStatus,
};
use crate::counter_file::Event;
use crate::md::Md;
use crate::original::{Object, Originals};
use crate::registrations::Exported;
use crate::{allocator, check, domains, export, log, panic, release, serve};

/// Time that a registration waits for another thread's registration of the slab.
const WAIT_MS: u64 = 5000;
/// Longest interval of the search for idle slabs.
const UPKEEP_MS: u64 = 1000;
/// Slabs per search. The next search continues.
const UPKEEP_SLABS: usize = 8;

/// The pool of a memory domain.
type Pool = HostHooks<Mlx5Device>;

/// True for a memory handle of the arena.
pub(crate) fn is_ours(memh: MemHandle) -> bool {
    // SAFETY: the arena is never freed.
    let arena = unsafe { ARENA.load(Ordering::Acquire).as_ref() };
    arena.is_some_and(|arena| (arena.handles.0..arena.handles.1).contains(&memh.addr()))
}

/// Registers memory that overlaps the arena. `None` if UCX's own operation must do it.
///
/// # Safety
/// The arguments must be those of `mem_reg` on an open memory domain of the object.
pub(crate) unsafe fn mem_reg(
    object: &'static Object,
    md: MdHandle,
    (address, length): (usize, usize),
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> Option<UcsStatus> {
    let arena = running()?;
    // SAFETY: by the contract of this function.
    let wanted = unsafe { MemRegParams::plain(params.cast()) };
    let handle = wanted.and_then(|(field_mask, flags)| {
        let (slab, span) = arena.part(address, length)?;
        let wanted = Wanted { field_mask, flags };
        let memory = Memory {
            md: md.addr(),
            address,
            length,
            slab,
            span,
            wanted,
        };
        // SAFETY: by the contract of this function.
        unsafe { arena.register(object, md, memory) }
    });
    let Some(handle) = handle else {
        // UCX's registration is not counted as a pin, so the pages are not given out again.
        arena.retire(address, length);
        counts::LEFT.add(1);
        return None;
    };
    counts::REGISTRATIONS.add(1);
    // SAFETY: UCX passes the target for the handle.
    unsafe { memh_p.write(handle.as_ptr().cast()) };
    Some(UcsStatus::OK)
}

/// Ends the registrations of idle slabs in all memory domains, after the system has refused a registration: they may have
/// taken the memory that it permits. Returns their number.
pub(crate) fn relieve() -> usize {
    let Some(arena) = running() else {
        return 0;
    };
    {
        let Some(mut table) = arena.table.take() else {
            return 0;
        };
        if table.is_upkeep_running || table.slabs.let_go(now_ms(), 0) == 0 {
            return 0;
        }
        table.is_upkeep_running = true;
    }
    let mut ended = 0;
    // No domain closes while it is visited.
    domains::each(|served| {
        let md = served.handle();
        for slab in 0..arena.bytes / SLAB_BYTES {
            let take = |table: &mut Table| match table.slabs.is_going(slab) {
                true => table.keys[slab].take(md.addr()),
                false => None,
            };
            while let Some(key) = arena.table.take().and_then(|mut table| take(&mut table)) {
                // SAFETY: the registration is this open domain's, and no handle has the slab. UCX registers memory with
                // one domain on several threads.
                unsafe { dereg(served.object().originals(), md, key.memh) };
                ended += 1;
            }
        }
    });
    arena.return_memory();
    ended
}

/// Packs a key of a handle of the arena.
///
/// # Safety
/// The arguments must be those of `mkey_pack` on a live handle of the arena.
pub(crate) unsafe fn mkey_pack(
    object: &'static Object,
    md: MdHandle,
    memh: MemHandle,
    params: *const MkeyPackParams,
    buffer: *mut c_void,
) -> UcsStatus {
    // SAFETY: by the contract of this function.
    let handle = unsafe { &*memh.cast::<Handle>() };
    let Some(memory) = handle.memory().filter(|_| running().is_some()) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    // SAFETY: UCX passes parameters.
    let flags = unsafe { MkeyPackParams::flags_of(params) };
    let is_plain_export =
        flags & MkeyPackParams::FLAG_EXPORT != 0 && flags & MkeyPackParams::FLAGS_INVALIDATE == 0;
    if is_plain_export
        // SAFETY: by the contract of this function.
        && let Some(status) = unsafe { export(object, md, handle, &memory, buffer) }
    {
        return status;
    }
    // SAFETY: by the contract of this function.
    let delegate = match unsafe { delegate(object.originals(), md, handle, &memory) } {
        Ok(delegate) => delegate,
        Err(status) => return status,
    };
    let address = std::ptr::with_exposed_provenance_mut(memory.address);
    let pack = object.originals().mkey_pack;
    // SAFETY: the delegate is UCX's handle of this memory; the other arguments are UCX's.
    unsafe { pack(md, delegate, address, memory.length, params, buffer) }
}

/// Releases a handle of the arena.
///
/// # Safety
/// The arguments must be those of `mem_dereg`, with a handle of the arena.
pub(crate) unsafe fn mem_dereg(
    object: &'static Object,
    md: MdHandle,
    params: &MemDeregParams,
    memh: MemHandle,
) -> UcsStatus {
    let Some(arena) = running() else {
        // In a forked child. The handle is the parent's.
        return UcsStatus::OK;
    };
    let handle = NonNull::new(memh.cast::<Handle>()).filter(|handle| {
        // SAFETY: by the contract of this function.
        unsafe { handle.as_ref() }.close(md.addr())
    });
    let Some(handle) = handle else {
        return UcsStatus::OK;
    };
    // SAFETY: UCX does not close the memory domain during this call.
    let served = unsafe { domains::known(md) };
    // SAFETY: this call has closed the handle.
    let status = unsafe { arena.release(object.originals(), md, served, handle, Some(params)) };
    // SAFETY: the memory domain is open.
    unsafe { arena.upkeep(object.originals(), md) };
    status
}

/// Ends all handles and registrations of a memory domain that UCX is about to close.
///
/// # Safety
/// `md` must be a memory domain of the object that no other thread uses.
pub(crate) unsafe fn closing(object: &'static Object, md: MdHandle) {
    let Some(arena) = running() else {
        return;
    };
    // SAFETY: UCX does not close the memory domain before this call ends.
    let served = unsafe { domains::known(md) };
    let handles = arena.table.take().map(|table| table.handles.touched());
    for handle in handles.into_iter().flatten() {
        // SAFETY: a touched handle is initialised.
        if unsafe { handle.as_ref() }.close(md.addr()) {
            // SAFETY: this call has closed the handle.
            unsafe { arena.release(object.originals(), md, served, handle, None) };
        }
    }
    for slab in 0..arena.bytes / SLAB_BYTES {
        while let Some(key) = arena
            .table
            .take()
            .and_then(|mut table| table.keys[slab].take(md.addr()))
        {
            // SAFETY: the slab's registration belongs to this memory domain, and nothing uses it.
            unsafe { dereg(object.originals(), md, key.memh) };
        }
    }
}

/// Packs a key of the pool. `None` if UCX must export the memory.
///
/// # Safety
/// As [`mkey_pack`].
unsafe fn export(
    object: &'static Object,
    md: MdHandle,
    handle: &Handle,
    memory: &Memory,
    buffer: *mut c_void,
) -> Option<UcsStatus> {
    // SAFETY: by the contract of this function.
    let served = unsafe { serve::get(object, md) }?;
    let bound = match handle.exported() {
        Exported::FromPool(bound) => bound,
        Exported::Natively => return None,
        Exported::No => first_export(served, handle, memory)?,
    };
    let gvmi = served.host()?.gvmi();
    // SAFETY: by the contract of this function.
    unsafe { export::write((served, gvmi), bound, buffer) };
    Some(UcsStatus::OK)
}

/// Exports a handle for the first time and decides how.
fn first_export(served: &Md, handle: &Handle, memory: &Memory) -> Option<BoundKey> {
    let region = Region::new(
        VirtAddr::new(memory.address as u64),
        memory.length as u64,
        handle.lkey(),
    );
    let host = served.host()?;
    let drawn = match region {
        Ok(region) if !allocator::is_short() => match host.bind(region) {
            Ok(bound) => Some(bound),
            Err(error) => export::left(&error),
        },
        _ => None,
    };
    served.count(match drawn {
        Some(_) => Event::Export,
        None => Event::ExportLeft,
    });
    match handle.decide(drawn) {
        Ok(()) => drawn,
        // Another thread was faster. Its decision holds.
        Err(earlier) => {
            if let Some(key) = drawn {
                let _is_clean = unbind(Some((served, host)), key);
            }
            match earlier {
                Exported::FromPool(bound) => Some(bound),
                Exported::No | Exported::Natively => None,
            }
        }
    }
}

/// Releases a key to its pool. False if it may still work.
fn unbind(pool: Option<(&Md, &Pool)>, key: BoundKey) -> bool {
    let Some((served, host)) = pool else {
        return false;
    };
    let released = host.unbind(key);
    if let Err(error) = &released {
        log::error!("{error}");
    }
    served.count(Event::of_release(released.is_ok()));
    released.is_ok()
}

/// UCX's own handle of the memory.
///
/// # Safety
/// `md` must be open, and the handle live.
unsafe fn delegate(
    originals: &Originals,
    md: MdHandle,
    handle: &Handle,
    memory: &Memory,
) -> Result<MemHandle, UcsStatus> {
    if let Some(delegate) = handle.delegate() {
        return Ok(delegate);
    }
    let params = MemRegParams::of(memory.wanted.field_mask, memory.wanted.flags);
    // SAFETY: the memory is the program's, which has registered it with this library.
    let made = unsafe { reg(originals, md, memory.address, memory.length, &params) }?;
    match handle.keep(made) {
        Ok(()) => Ok(made),
        Err(other) => {
            // SAFETY: nothing has used the second registration.
            unsafe { dereg(originals, md, made.addr()) };
            Ok(other)
        }
    }
}

/// UCX's own `mem_reg`.
///
/// # Safety
/// `md` must be open, and the memory mapped.
unsafe fn reg(
    originals: &Originals,
    md: MdHandle,
    address: usize,
    length: usize,
    params: &MemRegParams,
) -> Result<MemHandle, UcsStatus> {
    let address = std::ptr::with_exposed_provenance_mut(address);
    let mut memh: MemHandle = null_mut();
    let params = std::ptr::from_ref(params).cast();
    // SAFETY: by the contract of this function.
    let status = unsafe { (originals.mem_reg)(md, address, length, params, &raw mut memh) };
    if status.is_ok() {
        let _address = memh.expose_provenance();
        Ok(memh)
    } else {
        Err(status)
    }
}

/// UCX's own `mem_dereg`.
///
/// # Safety
/// `memh` must be a handle of UCX's own, and nothing may use it any more.
unsafe fn dereg(originals: &Originals, md: MdHandle, memh: usize) {
    let params = MemDeregParams {
        field_mask: MemDeregParams::FIELD_MEMH,
        flags: 0,
        memh: std::ptr::with_exposed_provenance_mut(memh),
        comp: null_mut(),
    };
    // SAFETY: by the contract of this function.
    let status = unsafe { (originals.mem_dereg)(md, &raw const params) };
    if !status.is_ok() {
        log::error!(
            "UCX cannot deregister memory of the arena: status {}",
            status.0
        );
    }
}

impl Arena {
    /// A handle for memory in a slab, whose pages it pins.
    ///
    /// # Safety
    /// `md` must be an open memory domain of the object.
    unsafe fn register(
        &self,
        object: &'static Object,
        md: MdHandle,
        memory: Memory,
    ) -> Option<NonNull<Handle>> {
        if panic::is_broken() || allocator::is_short() {
            return None;
        }
        // SAFETY: by the contract of this function.
        if !unsafe { serve::is_served(object, md) } {
            return None;
        }
        let (slab, span) = (memory.slab, memory.span);
        if !self.table.take()?.slabs.pin(slab, span) {
            return None;
        }
        // SAFETY: as above; the slab is pinned.
        let handle = unsafe { self.handle(object.originals(), md, memory) };
        if handle.is_none()
            && let Some(mut table) = self.table.take()
        {
            table.slabs.unpin(slab, span, true, now_ms());
        }
        handle
    }

    /// A filled handle, after the registration of its slab.
    ///
    /// # Safety
    /// `md` must be open, and the slab pinned.
    unsafe fn handle(
        &self,
        originals: &Originals,
        md: MdHandle,
        memory: Memory,
    ) -> Option<NonNull<Handle>> {
        let access = memory.wanted.flags & MemRegParams::ACCESS;
        let start_ms = now_ms();
        loop {
            let mut table = self.table.take()?;
            match table.keys[memory.slab].find(md.addr(), access) {
                Found::Ready(key) => {
                    let mut handle = table.handles.take()?;
                    drop(table);
                    // SAFETY: it was just taken, so nothing else uses it.
                    unsafe { handle.as_mut() }.fill(key.lkey(), key.flags, memory);
                    return Some(handle);
                }
                // A slab with retired pages is not one mapping any more.
                Found::New(at) if table.slabs.has_retired(memory.slab) => {
                    table.keys[memory.slab].done(at, None);
                    table.slabs.end(memory.slab);
                    return None;
                }
                Found::New(at) => {
                    drop(table);
                    // SAFETY: by the contract of this function.
                    let mut key = unsafe { self.register_slab(originals, md, &memory) };
                    if key.is_none() && relieve() > 0 {
                        // SAFETY: as above.
                        key = unsafe { self.register_slab(originals, md, &memory) };
                    }
                    let mut table = self.table.take()?;
                    table.keys[memory.slab].done(at, key);
                    if key.is_none() {
                        table.slabs.refuse(memory.slab);
                        drop(table);
                        log::warning!(
                            "UCX_XGVMI_ARENA gets no further slab: one of 32 MiB cannot be \
                             registered (see ulimit -l)"
                        );
                        return None;
                    }
                }
                Found::Wait if now_ms().saturating_sub(start_ms) < WAIT_MS => {
                    drop(table);
                    std::thread::yield_now();
                }
                Found::Wait | Found::Refused => return None,
            }
        }
    }

    /// Registers a whole slab.
    ///
    /// # Safety
    /// As [`Arena::handle`].
    unsafe fn register_slab(
        &self,
        originals: &Originals,
        md: MdHandle,
        memory: &Memory,
    ) -> Option<Registered> {
        let flags = memory.wanted.flags | MemRegParams::HIDE_ERRORS;
        let params = MemRegParams::of(memory.wanted.field_mask, flags);
        let address = self.address(memory.slab, Span::ALL);
        // SAFETY: by the contract of this function; a pinned slab has memory.
        let memh = unsafe { reg(originals, md, address, SLAB_BYTES, &params) }.ok()?;
        // SAFETY: every memory handle starts with these fields.
        let head = unsafe { memh.cast::<MemhHead>().read() };
        match check::lkey(head.lkey, head.rkey) {
            Ok(lkey) if export::is_plain(head.flags) => {
                Some(Registered::new(lkey, head.flags, memh.addr()))
            }
            _ => {
                // SAFETY: nothing has used the registration.
                unsafe { dereg(originals, md, memh.addr()) };
                None
            }
        }
    }

    /// Ends a closed handle: its keys, UCX's own registration, and its pins.
    ///
    /// # Safety
    /// `md` is open, and the caller has closed the handle.
    unsafe fn release(
        &self,
        originals: &Originals,
        md: MdHandle,
        served: Option<&Md>,
        handle: NonNull<Handle>,
        params: Option<&MemDeregParams>,
    ) -> UcsStatus {
        // SAFETY: by the contract of this function.
        let closed = unsafe { handle.as_ref() };
        let pool = served.and_then(|served| Some((served, served.opened_host()?)));
        let mut is_clean = match closed.exported() {
            Exported::FromPool(key) => unbind(pool, key),
            Exported::No | Exported::Natively => true,
        };
        let mut status = UcsStatus::OK;
        match (closed.delegate(), params) {
            (Some(memh), Some(params)) => {
                // UCX's own registration completes the caller's invalidation.
                let params = MemDeregParams { memh, ..*params };
                // SAFETY: the handle is UCX's own, and its last user releases it.
                status = unsafe { (originals.mem_dereg)(md, &raw const params) };
                is_clean &= status.is_ok();
            }
            // SAFETY: as above.
            (Some(memh), None) => unsafe { dereg(originals, md, memh.addr()) },
            // SAFETY: the parameters are those of `mem_dereg`.
            (None, Some(params)) => unsafe { release::complete(params) },
            (None, None) => {}
        }
        let memory = closed.memory();
        if let (Some(mut table), Some(memory)) = (self.table.take(), memory) {
            table
                .slabs
                .unpin(memory.slab, memory.span, is_clean, now_ms());
            // SAFETY: by the contract of this function.
            unsafe { table.handles.free(handle) };
        }
        status
    }

    /// Returns idle slabs: ends their registrations for this memory domain, and their memory after
    /// the last registration.
    ///
    /// # Safety
    /// `md` must be open.
    unsafe fn upkeep(&self, originals: &Originals, md: MdHandle) {
        let now = now_ms();
        let mut keys = [None; UPKEEP_SLABS];
        {
            let Some(mut table) = self.table.take() else {
                return;
            };
            let interval = self.age_ms.min(UPKEEP_MS);
            if table.is_upkeep_running || now.saturating_sub(table.upkeep_ms) < interval {
                return;
            }
            table.upkeep_ms = now;
            table.slabs.let_go(now, self.age_ms);
            let mut places = keys.iter_mut();
            for slab in 0..table.slabs.len() {
                while table.slabs.is_going(slab)
                    && let Some(place) = places.next()
                {
                    *place = table.keys[slab].take(md.addr());
                    if place.is_none() {
                        break;
                    }
                }
            }
            table.is_upkeep_running = true;
        }
        for key in keys.into_iter().flatten() {
            // SAFETY: the registration is this memory domain's, and no handle has the slab.
            unsafe { dereg(originals, md, key.memh) };
        }
        self.return_memory();
    }

    /// Takes the memory of idle slabs without registrations away.
    fn return_memory(&self) {
        for slab in 0..self.bytes / SLAB_BYTES {
            let is_over = |table: &Table| table.slabs.is_going(slab) && table.keys[slab].is_empty();
            if self.table.take().is_some_and(|table| is_over(&table)) {
                self.place.unmake(&self.ucm, self.address(slab, Span::ALL));
                if let Some(mut table) = self.table.take() {
                    table.slabs.gone(slab);
                }
            }
        }
        if let Some(mut table) = self.table.take() {
            table.is_upkeep_running = false;
        }
    }
}
