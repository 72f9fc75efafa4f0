//! UCP's cache of imports, which lies above the operations of memory domains: it gets the limit
//! that it lacks, and says whose a key is that does not say it itself.
//!
//! UCP keeps what was imported, for each exporter in a registration cache of its own, without a limit
//! and until its context ends; so that nothing is ever given back, and every alias stays in use. Its
//! library calls the functions of that cache, and one of its own that reads an exported handle,
//! through slots that the loader fills by name. Here functions of this library are put into these
//! slots, for each copy of UCX others, which pass everything on to that copy's own functions:
//!
//! | slot | what is done with it |
//! |---|---|
//! | `ucs_rcache_create` | a cache of imports gets a limit: UCX itself then gives back what is idle |
//! | `ucs_rcache_destroy` | the cache is forgotten |
//! | `ucp_memh_exported_unpack` | which export of whose is being imported is noted for the thread |
//!
//! And, in a UCX with assertions, one of which does not hold:
//!
//! | slot | what is done with it |
//! |---|---|
//! | `ucs_rcache_get` | of which export a region of a cache of imports is, is noted |
//! | `ucs_pgtable_lookup` | a region of an older export that somebody holds is not found any more |
//!
//! Whatever is not as expected is left alone, with one line that says what remains.

mod calls;
mod hooks;
mod rcache;
mod wire;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use xgvmi_pool::OwnerUuid;

use crate::original::{Module, Object};
use crate::{config, log};
use calls::Slot;
use hooks::{Originals, UnpackFn};
use rcache::Params;

/// Copies of UCX that are looked at: as many as have functions of their own to be called.
const COPIES_MAX: usize = 4;

/// Caches that are kept in mind. Each is an exporter that UCP has memory of; beyond it UCP has used
/// up gigabytes.
const CACHES_MAX: usize = 1 << 16;

/// Exporters of which it is said that there are many: UCP keeps some 150 KiB for each, until the
/// context ends.
const EXPORTERS_TOLD: usize = 256;

/// Bytes of a cache's own structure within which its table of regions is.
const CACHE_BYTES: usize = 256;

/// What UCP's assertion about imports says, in a UCX that has assertions.
const ASSERTION: &[u8] = b"This may indicate that exported memory handle was destroyed";

/// Why UCP's cache of imports is left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("{0} is not called through a slot, or not to be found")]
    NoSlot(&'static str),
    #[error("the slot of {0} leads elsewhere")]
    Taken(&'static str),
    #[error("the parameters of ucs_rcache_create have another form")]
    Params,
    #[error("there are {COPIES_MAX} other copies of UCX")]
    TooMany,
}

/// Puts this library's functions into the slots of the UCP that is above this module, unless it was
/// done before or there is none.
pub(crate) fn look_at(object: &'static Object) {
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for library in calls::objects("libucp") {
        if seen.contains(&library.base) {
            continue;
        }
        let Some(module) = Module::loaded(&library.path) else {
            continue;
        };
        // The libucp of another copy of UCX has another cache.
        let create = module.symbol(CREATE);
        if create.is_none() || create != object.symbol(CREATE) {
            continue;
        }
        seen.push(library.base);
        let path = library.path.to_string_lossy();
        match stand_in(&library, &module) {
            Ok(done) => log::debug!("{path} calls this library for its cache of imports{done}"),
            Err(refusal) => log::diag!("{path} keeps what it imports as it likes: {refusal}"),
        }
    }
}

const CREATE: &CStr = c"ucs_rcache_create";

/// Puts the functions there. Says in words what else was done.
fn stand_in(library: &calls::Object, module: &Module) -> Result<&'static str, Refusal> {
    static COPIES: Mutex<usize> = Mutex::new(0);
    let create = Place::find(library, module, CREATE, "ucs_rcache_create")?;
    let destroy = Place::find(library, module, c"ucs_rcache_destroy", "ucs_rcache_destroy")?;
    let unpack = c"ucp_memh_exported_unpack";
    let unpack = Place::find(library, module, unpack, "ucp_memh_exported_unpack")?;
    let defaults = c"ucs_rcache_set_default_params";
    let defaults = module.symbol(defaults).ok_or(Refusal::Params)?.as_ptr();
    // SAFETY: UCX's function of that name has this type.
    let defaults = unsafe { std::mem::transmute::<*mut c_void, rcache::DefaultsFn>(defaults) };
    if !Params::is_as_expected(defaults) {
        return Err(Refusal::Params);
    }
    let mut asserting = None;
    if library.holds(ASSERTION) {
        let get = Place::find(library, module, c"ucs_rcache_get", "ucs_rcache_get")?;
        let lookup = c"ucs_pgtable_lookup";
        let lookup = Place::find(library, module, lookup, "ucs_pgtable_lookup")?;
        let invalidate = module.symbol(c"ucs_rcache_region_invalidate");
        let invalidate = invalidate.ok_or(Refusal::NoSlot("ucs_rcache_region_invalidate"))?;
        asserting = Some((get, lookup, invalidate.as_ptr()));
    }
    let originals = Originals {
        // SAFETY: UCX's function of that name has this type.
        create: unsafe { std::mem::transmute::<*mut c_void, rcache::CreateFn>(create.original) },
        // SAFETY: as above.
        destroy: unsafe { std::mem::transmute::<*mut c_void, rcache::DestroyFn>(destroy.original) },
        // SAFETY: as above.
        unpack: unsafe { std::mem::transmute::<*mut c_void, UnpackFn>(unpack.original) },
        asserting: asserting.map(|(get, lookup, invalidate)| hooks::Asserting {
            // SAFETY: as above.
            get: unsafe { std::mem::transmute::<*mut c_void, rcache::GetFn>(get.original) },
            // SAFETY: as above.
            lookup: unsafe {
                std::mem::transmute::<*mut c_void, rcache::LookupFn>(lookup.original)
            },
            // SAFETY: as above.
            invalidate: unsafe {
                std::mem::transmute::<*mut c_void, rcache::InvalidateFn>(invalidate)
            },
        }),
    };
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let entries = hooks::take(*copies, originals).ok_or(Refusal::TooMany)?;
    *copies += 1;
    // The one that forgets first, so that nothing is noted that nobody forgets.
    let mut places = vec![
        (destroy.slot, entries.destroy),
        (create.slot, entries.create),
        (unpack.slot, entries.unpack),
    ];
    if let Some((get, lookup, _)) = asserting {
        places.extend([(get.slot, entries.get), (lookup.slot, entries.lookup)]);
    }
    for (slot, entry) in places {
        if !slot.set(entry) {
            // What was put there before works on its own.
            return Err(Refusal::Taken("a function of its own"));
        }
    }
    Ok(match asserting {
        None => "",
        Some(_) => ", and for its assertion about them",
    })
}

/// A slot, and the function that belongs there.
#[derive(Clone, Copy)]
struct Place {
    slot: Slot,
    original: *mut c_void,
}

impl Place {
    fn find(
        library: &calls::Object,
        module: &Module,
        symbol: &CStr,
        name: &'static str,
    ) -> Result<Self, Refusal> {
        let original = module.symbol(symbol).ok_or(Refusal::NoSlot(name))?.as_ptr();
        let slot = library.slot(symbol).ok_or(Refusal::NoSlot(name))?;
        // Before its first call, the slot leads to a piece of the library itself.
        let found = slot.get();
        if found != original && !library.contains(found.addr()) {
            return Err(Refusal::Taken(name));
        }
        Ok(Self { slot, original })
    }
}

/// An import that is under way in this thread, or was the last one.
#[derive(Clone, Copy, Debug)]
struct Import {
    /// Where the exported handle is.
    buffer: usize,
    head: wire::Head,
    /// Whether UCP has looked into its cache for it.
    is_looked_up: bool,
}

thread_local! {
    static IMPORT: Cell<Option<Import>> = const { Cell::new(None) };
}

/// Who exported the key at this address, if it is in the handle that this thread is importing.
pub(crate) fn exporter_of(key: *const c_void) -> Option<OwnerUuid> {
    let import = IMPORT.get()?;
    let offset = key.addr().checked_sub(import.buffer)?;
    let is_within = offset < import.head.bytes;
    (is_within && import.head.context != 0).then(|| OwnerUuid::new(import.head.context))
}

/// UCP's caches of imports, by their addresses.
static CACHES: Mutex<BTreeMap<usize, Cache>> = Mutex::new(BTreeMap::new());

/// A cache of imports.
#[derive(Debug)]
struct Cache {
    /// Number of the exporter's UCP context.
    exporter: u64,
    /// Addresses of regions, each with the number of the registration that it was last imported of.
    /// Of those that are gone, UCX's next one there takes the place.
    regions: BTreeMap<usize, u64>,
}

/// Notes a new cache.
fn created(cache: usize, exporter: u64) {
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    if caches.len() == CACHES_MAX {
        return;
    }
    let regions = BTreeMap::new();
    caches.insert(cache, Cache { exporter, regions });
    let count = caches.len();
    EXPORTERS.store(count as u64, Ordering::Relaxed);
    drop(caches);
    static ONCE: Once = Once::new();
    if count >= EXPORTERS_TOLD {
        ONCE.call_once(|| {
            log::warning!(
                "memory of {count} exporters was imported: UCP keeps a cache of some 150 KiB for \
                 each, the dead ones as well, until its context ends"
            );
        });
    }
}

/// Forgets a cache.
fn destroyed(cache: usize) {
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    caches.remove(&cache);
    EXPORTERS.store(caches.len() as u64, Ordering::Relaxed);
}

/// Caches that are noted.
static EXPORTERS: AtomicU64 = AtomicU64::new(0);

/// Exporters that UCP has a cache of now. Waits for nobody.
pub(crate) fn exporters() -> u64 {
    EXPORTERS.load(Ordering::Relaxed)
}

/// Regions that a cache of imports may have.
fn regions_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| config::get().imports_max() as usize)
}
