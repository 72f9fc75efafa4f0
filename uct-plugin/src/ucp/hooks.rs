//! The functions that UCP calls instead of UCX's own. Each copy of UCX has its own set of them,
//! which identifies the caller and the functions to pass the call to.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use super::caches::{self, CACHES, EXPORTER, IMPORT, Import};
use super::copies::Copies;
use super::rcache;
use super::rcache::{CreateFn, DestroyFn, GetFn, InvalidateFn, LookupFn, Params, Region};
use super::wire::Head;
use crate::abi::UcsStatus;
use crate::first::First;
use crate::panic::{self, guard};
use crate::{allocator, forked, log};

/// Maximum number of UCX copies: the number of available function sets.
pub(super) const COPIES_MAX: usize = 4;

/// Range within a cache's structure that contains its table of regions.
const CACHE_BYTES: usize = 256;

/// `ucp_memh_exported_unpack` (`src/ucp/core/ucp_rkey.h:230` of v1.20.1): context, exported handle,
/// and target of its fields, see [`Unpacked`].
pub(super) type UnpackFn =
    unsafe extern "C" fn(*mut c_void, *const c_void, *mut Unpacked) -> UcsStatus;

/// Head of `ucp_unpacked_exported_memh_t` (`src/ucp/core/ucp_rkey.h:147` of v1.20.1).
#[derive(Debug)]
#[repr(C)]
pub(super) struct Unpacked {
    flags: u16,
    domains: u64,
    kind: u32,
    address: u64,
    length: u64,
    context: u64,
    registration: u64,
}

/// The functions of one copy of UCX.
#[derive(Clone, Copy, Debug)]
pub(super) struct Originals {
    pub(super) create: CreateFn,
    pub(super) destroy: DestroyFn,
    /// `None` if it has no slot.
    pub(super) unpack: Option<UnpackFn>,
    /// Present without a slot for `unpack`, and with assertions.
    pub(super) get: Option<GetFn>,
    pub(super) asserting: Option<Asserting>,
}

/// Functions that are only needed in a UCX with assertions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asserting {
    pub(super) lookup: LookupFn,
    pub(super) invalidate: InvalidateFn,
}

/// The functions for the slots of one copy of UCX.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    pub(super) create: *mut c_void,
    pub(super) destroy: *mut c_void,
    pub(super) unpack: *mut c_void,
    pub(super) get: *mut c_void,
    pub(super) lookup: *mut c_void,
}

impl Entries {
    fn of<const COPY: usize>() -> Self {
        Self {
            create: create::<COPY> as *mut c_void,
            destroy: destroy::<COPY> as *mut c_void,
            unpack: unpack::<COPY> as *mut c_void,
            get: get::<COPY> as *mut c_void,
            lookup: lookup::<COPY> as *mut c_void,
        }
    }
}

/// UCX's functions for calls before the first import, which are most: `ucs_rcache_get` ...
const GET: usize = 0;
/// ... and `ucs_pgtable_lookup`.
const LOOKUP: usize = 1;

static COPIES: Copies<Originals, c_void, COPIES_MAX, 2> = Copies::new();

/// UCX's function until the first import.
#[inline(always)]
fn get_before(copy: usize) -> Option<GetFn> {
    let function = COPIES.shortcut(copy, GET);
    // SAFETY: null or the address of such a function; both types have the size of a pointer, and null is `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<GetFn>>(function) }
}

/// The same.
#[inline(always)]
fn lookup_before(copy: usize) -> Option<LookupFn> {
    let function = COPIES.shortcut(copy, LOOKUP);
    // SAFETY: as in `get_before`.
    unsafe { std::mem::transmute::<*mut c_void, Option<LookupFn>>(function) }
}

/// The functions for the copy of UCX with this number, which pass calls to `originals`; `None` if
/// no set of functions is free.
pub(super) fn take(copy: usize, originals: Originals) -> Option<Entries> {
    let get = originals.get.map_or(null_mut(), |get| get as *mut c_void);
    let lookup = originals.asserting.as_ref();
    let lookup = lookup.map_or(null_mut(), |with| with.lookup as *mut c_void);
    if !COPIES.enter(copy, originals, [get, lookup]) {
        return None;
    }
    match copy {
        0 => Some(Entries::of::<0>()),
        1 => Some(Entries::of::<1>()),
        2 => Some(Entries::of::<2>()),
        3 => Some(Entries::of::<3>()),
        _ => None,
    }
}

#[inline]
fn asserting<const COPY: usize>() -> Option<&'static Asserting> {
    COPIES.of(COPY)?.asserting.as_ref()
}

/// `ucs_rcache_create`: limits a cache of imports.
///
/// # Safety
/// The preconditions of `ucs_rcache_create`: `params` and `name` are valid, the others are those of UCX's function.
unsafe extern "C" fn create<const COPY: usize>(
    params: *const Params,
    name: *const c_char,
    stats: *mut c_void,
    cache: *mut *mut c_void,
) -> UcsStatus {
    let Some(originals) = COPIES.of(COPY) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    let limit = || {
        // SAFETY: UCX passes a name.
        let exporter = rcache::exporter_of(unsafe { CStr::from_ptr(name) })?;
        // SAFETY: UCX passes parameters, whose format was checked.
        let params = unsafe { &*params };
        Some((params.limited(caches::regions_max())?, exporter))
    };
    let limited = match panic::is_broken() || allocator::is_short() {
        false => guard("ucs_rcache_create", limit).flatten(),
        true => None,
    };
    let Some((limited, exporter)) = limited else {
        // SAFETY: the arguments are UCX's.
        return unsafe { (originals.create)(params, name, stats, cache) };
    };
    // SAFETY: the arguments are UCX's, except for the limit; UCX copies the parameters.
    let status = unsafe { (originals.create)(&raw const limited, name, stats, cache) };
    if status.is_ok() {
        // SAFETY: the function succeeded, so it has written the cache.
        let cache = unsafe { cache.read() };
        let _noted = guard("ucs_rcache_create", || {
            caches::created(cache.addr(), exporter)
        });
        // No lookup of UCP belongs to an import before the creation of its cache.
        COPIES.imports_begin();
    }
    status
}

/// `ucs_rcache_destroy`: removes the record of the cache.
///
/// # Safety
/// The preconditions of `ucs_rcache_destroy`: `cache` is live, and no other call uses it.
unsafe extern "C" fn destroy<const COPY: usize>(cache: *mut c_void) {
    let Some(originals) = COPIES.of(COPY) else {
        return;
    };
    let _forgotten = guard("ucs_rcache_destroy", || caches::destroyed(cache.addr()));
    // SAFETY: the argument is UCX's.
    unsafe { (originals.destroy)(cache) };
}

/// `ucp_memh_exported_unpack`: records the current import.
///
/// # Safety
/// The preconditions of `ucp_memh_exported_unpack`: `buffer` has an exported handle of UCX.
unsafe extern "C" fn unpack<const COPY: usize>(
    context: *mut c_void,
    buffer: *const c_void,
    unpacked: *mut Unpacked,
) -> UcsStatus {
    let Some(original) = COPIES.of(COPY).and_then(|copy| copy.unpack) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { original(context, buffer, unpacked) };
    IMPORT.set(None);
    if !status.is_ok() || panic::is_broken() {
        return status;
    }
    let note = || {
        // SAFETY: UCP has just parsed it as an exported handle.
        let head = unsafe { Head::read(buffer) };
        // SAFETY: UCP has just written its fields, which include these.
        let unpacked = unsafe { &*unpacked };
        let seen = [head.address, head.length, head.context, head.registration];
        let said = [
            unpacked.address,
            unpacked.length,
            unpacked.context,
            unpacked.registration,
        ];
        if seen != said {
            static ONCE: First = First::new();
            if ONCE.is_this() {
                log::diag!("an exported handle has an unknown format");
            }
            return;
        }
        COPIES.imports_begin();
        IMPORT.set(Some(Import {
            buffer: buffer.addr(),
            head,
            is_looked_up: false,
        }));
    };
    let _noted = guard("ucp_memh_exported_unpack", note);
    status
}

/// `ucs_rcache_get`: records the export of a region in an import cache, or the cache's exporter if
/// the current import is not known. Before the first import it only jumps to UCX's function.
///
/// # Safety
/// The preconditions of `ucs_rcache_get`: `cache` is live, and `region` is writable.
unsafe extern "C" fn get<const COPY: usize>(
    cache: *mut c_void,
    address: *mut c_void,
    length: usize,
    alignment: usize,
    prot: c_int,
    argument: *mut c_void,
    region: *mut *mut Region,
) -> UcsStatus {
    let function = match get_before(COPY) {
        Some(original) => original,
        None => noted_get::<COPY>,
    };
    // SAFETY: the arguments are UCX's.
    unsafe { function(cache, address, length, alignment, prot, argument, region) }
}

/// # Safety
/// The preconditions of `ucs_rcache_get`: `cache` is live, and `region` is writable.
#[inline(never)]
unsafe extern "C" fn noted_get<const COPY: usize>(
    cache: *mut c_void,
    address: *mut c_void,
    length: usize,
    alignment: usize,
    prot: c_int,
    argument: *mut c_void,
    region: *mut *mut Region,
) -> UcsStatus {
    let Some((originals, original)) = COPIES.of(COPY).and_then(|copy| Some((copy, copy.get?)))
    else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { original(cache, address, length, alignment, prot, argument, region) };
    if originals.unpack.is_none() {
        let _noted = guard("ucs_rcache_get", || {
            EXPORTER.set(caches::exporter_of_cache(cache.addr()));
        });
        return status;
    }
    if !status.is_ok() || allocator::is_short() || panic::is_broken() {
        return status;
    }
    let note = || {
        let import = IMPORT.get()?;
        let mut caches = forked::lock(&CACHES)?;
        let found = caches.get_mut(&cache.addr())?;
        // SAFETY: the function succeeded, so it has written the region, which the caller holds.
        let region = unsafe { &*region.read() };
        let is_this = found.exporter == import.head.context
            && import.head.address == address.addr() as u64
            && region.is_of(address.addr(), length);
        if is_this {
            if found.regions.len() > 2 * caches::regions_max() {
                // Most of them no longer exist. UCX handles regions without a record.
                found.regions.clear();
            }
            let at = std::ptr::from_ref(region).addr();
            found.regions.insert(at, import.head.registration);
        }
        Some(())
    };
    let _noted = guard("ucs_rcache_get", note);
    status
}

/// `ucs_pgtable_lookup`: hides regions that UCP must not find during an import. UCP holds its own
/// lock meanwhile, as when it removes such a region from the cache itself. Before the first import
/// it only jumps to UCX's function.
///
/// # Safety
/// The preconditions of `ucs_pgtable_lookup`: `table` is live, and its owner's lock is held.
unsafe extern "C" fn lookup<const COPY: usize>(
    table: *const c_void,
    address: usize,
) -> *mut Region {
    let function = match lookup_before(COPY) {
        Some(original) => original,
        None => filtered_lookup::<COPY>,
    };
    // SAFETY: the arguments are UCX's.
    unsafe { function(table, address) }
}

/// # Safety
/// The preconditions of `ucs_pgtable_lookup`: `table` is live, and its owner's lock is held.
#[inline(never)]
unsafe extern "C" fn filtered_lookup<const COPY: usize>(
    table: *const c_void,
    address: usize,
) -> *mut Region {
    let Some(originals) = asserting::<COPY>() else {
        return std::ptr::null_mut();
    };
    // SAFETY: the arguments are UCX's.
    let region = unsafe { (originals.lookup)(table, address) };
    if region.is_null() || panic::is_broken() {
        return region;
    }
    let import = match COPIES.of(COPY).is_some_and(|copy| copy.unpack.is_some()) {
        true => Current::Known(IMPORT.get()),
        false => Current::Unknown,
    };
    // SAFETY: the table contains it, so it is live, and UCP's lock keeps it alive.
    let is_held = unsafe { &*region }.is_held();
    let older = || {
        let cache = hidden(table, address, (region, is_held), import)?;
        Some(std::ptr::with_exposed_provenance_mut::<c_void>(cache))
    };
    let Some(Some(cache)) = guard("ucs_pgtable_lookup", older) else {
        return region;
    };
    // SAFETY: the region is of this cache and in its table. Its holders keep it, and the last of
    // them releases it, as when UCP itself invalidates it.
    unsafe { (originals.invalidate)(cache, region, Some(released), std::ptr::null_mut()) };
    log::debug!(
        "an import of the same memory is still in use, the new one is imported in addition"
    );
    std::ptr::null_mut()
}

/// The import that UCP is executing, or `Unknown` if its parser of handles has no slot.
#[derive(Clone, Copy)]
enum Current {
    Known(Option<Import>),
    Unknown,
}

/// The import cache from which UCP must not get a region that it has found: the region is in use and
/// of an older export. If the current import is not known, any region in use counts as older: UCP
/// then imports the memory again instead of sharing the region.
fn hidden(
    table: *const c_void,
    address: usize,
    (region, is_held): (*mut Region, bool),
    current: Current,
) -> Option<usize> {
    if let Current::Known(import) = current {
        let import = import?;
        if import.is_looked_up || import.head.address != address as u64 {
            return None;
        }
    }
    let mut caches = forked::lock(&CACHES)?;
    let (&at, cache) = caches.range_mut(..=table.addr()).next_back()?;
    if table.addr() - at >= CACHE_BYTES {
        return None;
    }
    let is_older = match current {
        Current::Unknown => is_held,
        Current::Known(import) => {
            let import = import.filter(|import| import.head.context == cache.exporter)?;
            IMPORT.set(Some(Import {
                is_looked_up: true,
                ..import
            }));
            let registration = *cache.regions.get(&region.addr())?;
            is_held && registration != import.head.registration
        }
    };
    if !is_older {
        return None;
    }
    cache.regions.remove(&region.addr());
    Some(at)
}

/// No caller waits for the end of such a region.
///
/// # Safety
/// None: it ignores its argument.
unsafe extern "C" fn released(_argument: *mut c_void) {}
