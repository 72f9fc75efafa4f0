//! UCP's import caches that this library knows, and the import that each thread is executing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use xgvmi_pool::OwnerUuid;

use super::wire::Head;
use crate::first::First;
use crate::{config, forked, log};

/// Maximum number of caches. Each belongs to one exporter. With more, UCP itself uses gigabytes of
/// memory.
const CACHES_MAX: usize = 1 << 16;

/// Number of exporters at which the library logs a line: UCP keeps about 150 KiB for each until the
/// context ends.
const EXPORTERS_TOLD: usize = 256;

/// The current or the last import of this thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    /// Address of the exported handle.
    pub(super) buffer: usize,
    pub(super) head: Head,
    /// Whether UCP has searched its cache for it.
    pub(super) is_looked_up: bool,
}

thread_local! {
    pub(super) static IMPORT: Cell<Option<Import>> = const { Cell::new(None) };
    /// The exporter of the import cache in which this thread got its last region. `None` if the last
    /// region was of another cache. Set only if the current import is not known.
    pub(super) static EXPORTER: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The exporter of the import cache at this address.
pub(super) fn exporter_of_cache(cache: usize) -> Option<u64> {
    let caches = forked::lock(&CACHES)?;
    caches.get(&cache).map(|cache| cache.exporter)
}

/// The exporter of the key at this address, if the key is in the handle that this thread is
/// importing.
pub(crate) fn exporter_of(key: *const c_void) -> Option<OwnerUuid> {
    let Some(import) = IMPORT.get() else {
        let exporter = EXPORTER.get().filter(|&exporter| exporter != 0);
        return exporter.map(OwnerUuid::new);
    };
    let offset = key.addr().checked_sub(import.buffer)?;
    let is_within = offset < import.head.bytes;
    (is_within && import.head.context != 0).then(|| OwnerUuid::new(import.head.context))
}

/// UCP's import caches, by address.
pub(super) static CACHES: Mutex<BTreeMap<usize, Cache>> = Mutex::new(BTreeMap::new());

/// An import cache.
#[derive(Debug)]
pub(super) struct Cache {
    /// Number of the exporter's UCP context.
    pub(super) exporter: u64,
    /// Addresses of regions, each with the number of the registration of its last import. A new
    /// region at the address of a released one replaces its entry.
    pub(super) regions: BTreeMap<usize, u64>,
}

/// Records a new cache.
pub(super) fn created(cache: usize, exporter: u64) {
    let Some(mut caches) = forked::lock(&CACHES) else {
        return;
    };
    if caches.len() == CACHES_MAX {
        return;
    }
    let regions = BTreeMap::new();
    caches.insert(cache, Cache { exporter, regions });
    let count = caches.len();
    EXPORTERS.store(count as u64, Ordering::Relaxed);
    drop(caches);
    static ONCE: First = First::new();
    if count >= EXPORTERS_TOLD && ONCE.is_this() {
        log::warning!(
            "memory of {count} exporters was imported: UCP keeps a cache of some 150 KiB for \
                 each, the dead ones as well, until its context ends"
        );
    }
}

/// Removes a cache.
pub(super) fn destroyed(cache: usize) {
    if let Some(mut caches) = forked::lock(&CACHES) {
        caches.remove(&cache);
        EXPORTERS.store(caches.len() as u64, Ordering::Relaxed);
    }
}

/// Known caches.
static EXPORTERS: AtomicU64 = AtomicU64::new(0);

/// Exporters with an import cache in UCP now. Never waits.
pub(crate) fn exporters() -> u64 {
    EXPORTERS.load(Ordering::Relaxed)
}

/// Maximum number of regions of an import cache.
pub(super) fn regions_max() -> usize {
    config::get().imports_max() as usize
}
