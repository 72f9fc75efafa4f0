//! A served memory domain: its pool and alias map, opened at their first use, and its counters.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use xgvmi_pool::mlx5::{Form, Mlx5Device};
use xgvmi_pool::{
    AliasPin, AliasStats, Announcement, DeviceError, DpuHooks, HostHooks, MkeyDevice, Observer,
    OwnerUuid, PoolError, PoolEvent, PoolStats, RemoteKey,
};

use crate::abi::{MdHandle, MemDeregFn, MemRegFn};
use crate::check::{Adapter, KeyForm, MdFacts};
use crate::counter_file::{self, Event};
use crate::first::First;
use crate::numbers::Numbers;
use crate::opened::{Opened, Refused};
use crate::original::Object;
use crate::{chunks, config, hot, kept, log, rkey};

/// A served memory domain. An export and its release read the first cache line only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Md {
    /// The content of `host`; null if there is none.
    hooks: AtomicPtr<HostHooks<Mlx5Device>>,
    host: OnceLock<Option<HostHooks<Mlx5Device>>>,
    /// UCX's own operations of the hot path, or those of [`kept`].
    pub(crate) mem_reg: MemRegFn,
    pub(crate) mem_dereg: MemDeregFn,
    /// The words of `counts`; null before the first event.
    words: AtomicPtr<AtomicU64>,
    owner: OwnerUuid,
    shown: rkey::Shown,
    key_form: KeyForm,
    counts: counter_file::Counts,
    /// UCX's memory domain.
    handle: MdHandle,
    object: &'static Object,
    facts: MdFacts,
    chunks: chunks::Place,
    keys: rkey::Place,
    device: Opened<Arc<Mlx5Device>>,
    /// Held while the pool is opened.
    opening: Mutex<()>,
    dpu: OnceLock<Option<DpuHooks<Mlx5Device>>>,
    /// Number of the last announcement.
    announced: AtomicU64,
    /// Time of the last search for expired aliases.
    looked: Mutex<Option<Instant>>,
}

const _: () = assert!(std::mem::offset_of!(Md, counts) == 64);

// SAFETY: the raw pointers in `facts` are libibverbs objects. Any thread may use them, and UCX
// keeps them until the memory domain is closed.
unsafe impl Send for Md {}
// SAFETY: as above.
unsafe impl Sync for Md {}

impl Md {
    /// A memory domain of the object, with nothing open.
    pub(crate) fn new(
        object: &'static Object,
        handle: MdHandle,
        facts: MdFacts,
        owner: OwnerUuid,
    ) -> Self {
        let originals = object.originals();
        let (mem_reg, mem_dereg): (MemRegFn, MemDeregFn) = match kept::is_on() {
            true => (kept::mem_reg, kept::mem_dereg),
            false => (originals.mem_reg, originals.mem_dereg),
        };
        Self {
            handle,
            object,
            mem_reg,
            mem_dereg,
            shown: rkey::Shown::default(),
            words: AtomicPtr::default(),
            key_form: facts.key_form,
            facts,
            owner,
            chunks: chunks::Place::default(),
            keys: rkey::Place::default(),
            device: Opened::default(),
            hooks: AtomicPtr::default(),
            host: OnceLock::new(),
            opening: Mutex::new(()),
            dpu: OnceLock::new(),
            announced: AtomicU64::new(0),
            looked: Mutex::new(None),
            counts: counter_file::Counts::default(),
        }
    }

    /// A number that is unique among the existing memory domains.
    pub(crate) fn identity(md: &Arc<Self>) -> usize {
        Arc::as_ptr(md).addr()
    }

    /// UCX's memory domain. Valid until UCX closes it.
    pub(crate) fn handle(&self) -> MdHandle {
        self.handle
    }

    /// The copy of UCX that the memory domain belongs to.
    pub(crate) fn object(&self) -> &'static Object {
        self.object
    }

    /// Format of exported keys.
    pub(crate) fn key_form(&self) -> KeyForm {
        self.key_form
    }

    /// The number in the keys that this memory domain exports.
    pub(crate) fn owner(&self) -> OwnerUuid {
        self.owner
    }

    /// The adapter.
    pub(crate) fn adapter(&self) -> Adapter {
        self.facts.adapter
    }

    /// Parameters of the device.
    pub(crate) fn facts(&self) -> &MdFacts {
        &self.facts
    }

    /// Offset of the chunks in memory handles.
    pub(crate) fn chunks(&self) -> &chunks::Place {
        &self.chunks
    }

    /// Offset of the registration in memory handles that show their memory.
    #[inline(always)]
    pub(crate) fn shown(&self) -> &rkey::Shown {
        &self.shown
    }

    /// Offset of UCX's keys in memory handles.
    pub(crate) fn keys(&self) -> &rkey::Place {
        &self.keys
    }

    /// The pool, opened at the first call. `None` if the device is not suitable.
    #[inline(always)]
    pub(crate) fn host(&self) -> Option<&HostHooks<Mlx5Device>> {
        // SAFETY: the content of `host`, which is written once and lives as long as this value.
        match unsafe { self.hooks.load(Ordering::Acquire).as_ref() } {
            None => self.open_host(),
            hooks => hooks,
        }
    }

    /// The pool, if it is open.
    pub(crate) fn opened_host(&self) -> Option<&HostHooks<Mlx5Device>> {
        self.host.get()?.as_ref()
    }

    #[cold]
    fn open_host(&self) -> Option<&HostHooks<Mlx5Device>> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = self.host.get() {
            return host.as_ref();
        }
        let device = Arc::clone(self.device()?);
        let (policy, observer) = (config::get().pool_policy(), Observer::new(tell));
        let host = match HostHooks::open_observed(device, policy, observer) {
            Ok(hooks) => Some(hooks),
            // A later attempt may succeed.
            Err(error @ PoolError::NoMemory { .. }) => {
                log::diag!("no memory key pool yet, exports are left to UCX: {error}");
                return None;
            }
            Err(error) => {
                log::warning!("no memory key pool, exports are left to UCX: {error}");
                None
            }
        };
        let hooks = self.host.get_or_init(|| host).as_ref()?;
        self.hooks
            .store(std::ptr::from_ref(hooks).cast_mut(), Ordering::Release);
        Some(hooks)
    }

    /// The alias map, opened at the first call. `None` if the device is not suitable.
    pub(crate) fn dpu(&self) -> Option<&DpuHooks<Mlx5Device>> {
        if let Some(dpu) = self.dpu.get() {
            return dpu.as_ref();
        }
        let device = Arc::clone(self.device()?);
        let open = || match DpuHooks::open(device, config::get().alias_policy()) {
            Ok(hooks) => Some(hooks),
            Err(error) => {
                log::warning!("no alias map, imports are left to UCX: {error}");
                None
            }
        };
        self.dpu.get_or_init(open).as_ref()
    }

    /// Destroys expired aliases if it is time for it and no thread does it.
    pub(crate) fn expire_aliases(&self) {
        let Some(every) = config::get().alias_upkeep() else {
            return;
        };
        let Some(map) = self.dpu.get().and_then(Option::as_ref) else {
            return;
        };
        {
            // If the lock is taken, another thread does it.
            let Ok(mut looked) = self.looked.try_lock() else {
                return;
            };
            if looked.is_some_and(|at| at.elapsed() < every) {
                return;
            }
            *looked = Some(Instant::now());
        }
        let _expired = map.aliases().upkeep();
    }

    /// The pinned alias of a key, if it exists. Opens nothing and creates nothing.
    pub(crate) fn alias_there(&self, key: &RemoteKey) -> Option<AliasPin> {
        self.dpu.get()?.as_ref()?.aliases().pin_existing(key)
    }

    /// Ends a pin of this domain's map.
    pub(crate) fn unpin(&self, alias: AliasPin) {
        if let Some(map) = self.dpu.get().and_then(Option::as_ref) {
            map.unpin(alias);
        }
    }

    fn device(&self) -> Option<&Arc<Mlx5Device>> {
        self.device.get_or_open(|| {
            let verbs = self.object.verbs().ok_or(Refused::Forever)?;
            let MdFacts { context, pd, .. } = self.facts;
            // SAFETY: the context and the domain are of the libraries that UCX's module uses, UCX
            // opens every mlx5 context with DEVX, and it closes both after `shut`.
            let device = unsafe {
                Mlx5Device::open(verbs, context.cast(), pd.cast(), config::get().device())
            };
            device.map_err(|error| match error {
                DeviceError::Unsupported { .. } => {
                    log::warning!("device not used, everything is left to UCX: {error}");
                    Refused::Forever
                }
                error => {
                    static ONCE: First = First::new();
                    if ONCE.is_this() {
                        log::warning!(
                            "device not used yet, everything is left to UCX until a later attempt \
                             succeeds: {error}"
                        );
                    }
                    Refused::Now
                }
            })
        })
    }

    /// Opens the pool and its work queue and verifies the device's binds before the first export.
    pub(crate) fn get_ready(&self) {
        if self.host().is_some()
            && let Some(device) = self.device()
        {
            // An empty chain creates the queue. After a failure the first export tries again.
            let _made = device.run(&[]);
            self.prove();
        }
    }

    /// Verifies the usual form of binds with a key of the pool, if it has a free one. After a
    /// failure the first export reports it.
    fn prove(&self) {
        let (Some(host), Some(device)) = (self.host(), self.device()) else {
            return;
        };
        let pool = host.pool();
        if pool.levels().free > 0
            && let Ok(lease) = pool.lease()
            && let Some(mkey) = lease.mkey()
            && device.prove(Form::Stock, mkey).is_err()
        {
            // The pool reports a key that it loses.
            let _lost = lease.return_unsure();
        }
    }

    /// All keys of the pool, for importers that create their aliases in advance. `None` without a
    /// pool. First creates keys until the pool has `keys_min`, in use or not.
    pub(crate) fn announcement(&self, keys_min: u32) -> Option<Announcement> {
        self.get_ready();
        let pool = self.host()?.pool();
        if !MkeyDevice::is_ours(&**self.device()?) {
            // In a forked child the keys belong to the parent.
            return None;
        }
        let there = u32::try_from(pool.stats().keys).expect("at most POOL_MAX keys");
        let missing = keys_min.saturating_sub(there);
        if missing > 0 {
            // Keys that the device cannot create are not announced.
            let _created = pool.prefill(pool.levels().free.saturating_add(missing));
        }
        self.prove();
        // Numbers start at one.
        let sequence = self.announced.fetch_add(1, Ordering::Relaxed) + 1;
        let announcement = pool.announce(self.owner, sequence);
        let is_empty = announcement.keys().next().is_none();
        (!is_empty).then_some(announcement)
    }

    /// Creates aliases of keys that will be imported. Returns the number of existing ones.
    pub(crate) fn make_aliases(&self, keys: &[RemoteKey]) -> usize {
        let Some(map) = self.dpu() else {
            return 0;
        };
        let prepared = map.aliases().prepare(keys);
        log::debug!("aliases ahead of their use: {prepared:?}");
        prepared.ready
    }

    /// Destroys up to `most` free keys of the pool. Returns their number.
    pub(crate) fn shed_keys(&self, most: u32) -> u32 {
        self.opened_host().map_or(0, |host| host.pool().shed(most))
    }

    /// Counts so far, and current values.
    pub(crate) fn numbers(&self) -> Numbers {
        let pool = self.host.get().and_then(Option::as_ref);
        let pool: PoolStats = pool.map(HostHooks::stats).unwrap_or_default();
        let aliases = self.alias_stats();
        let count = |event: Event| self.counts.get(event);
        Numbers {
            pool_hits: pool.hits,
            pool_misses: pool.misses,
            pool_keys: pool.keys,
            pool_in_use: pool.in_use,
            exports: count(Event::Export),
            exports_left: count(Event::ExportLeft),
            releases: count(Event::Release) + count(Event::ReleaseFailed),
            releases_failed: count(Event::ReleaseFailed),
            alias_hits: aliases.hits,
            alias_misses: aliases.misses,
            alias_stale: aliases.stale,
            aliases: aliases.aliases,
            imports: count(Event::Import),
            imports_left: count(Event::ImportLeft),
            imports_released: count(Event::ImportReleased),
            ..Numbers::NONE
        }
    }

    /// The counters of the alias map. A service process reads them in each call, and the counter file takes them while keys
    /// are imported, so their time may not grow with the aliases: hits are the imports that made no alias.
    fn alias_stats(&self) -> AliasStats {
        let Some(hooks) = self.dpu.get().and_then(Option::as_ref) else {
            return AliasStats::default();
        };
        let mut stats = hooks.aliases().stats_without_hits();
        stats.hits = self.counts.get(Event::Import).saturating_sub(stats.made);
        stats
    }

    /// Counts an event and updates the other counters in the counter file from time to time.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.count_in(event, hot::thread());
    }

    /// Like [`Md::count`], in the thread with this number.
    #[inline(always)]
    pub(crate) fn count_in(&self, event: Event, thread: usize) {
        let words = self.words.load(Ordering::Acquire);
        if words.is_null() || self.counts.count(words, event, thread) {
            self.renew(event, thread, words);
        }
    }

    #[cold]
    fn renew(&self, event: Event, thread: usize, words: *mut AtomicU64) {
        if words.is_null() {
            let words = self.counts.words();
            self.words.store(words, Ordering::Release);
            let _due = self.counts.count(words, event, thread);
        }
        // The first export of a process is among the events that come here.
        if let Event::Export = event {
            rkey::exported();
        }
        let device = self.device.get();
        let gvmi = device.map(|device| device.gvmi().get());
        let host = self.host.get().and_then(Option::as_ref);
        let pool = || host.map(HostHooks::stats).unwrap_or_default();
        self.counts.renew(gvmi, pool, || self.alias_stats());
    }

    /// Closes the pool, the alias map and the device.
    pub(crate) fn shut(&self) {
        if let Some(Some(hooks)) = self.host.get() {
            log::debug!("pool: {:?}", hooks.stats());
            if !hooks.close() {
                log::warning!("memory keys remain on the device");
            }
        }
        if let Some(Some(hooks)) = self.dpu.get() {
            log::debug!("alias map: {:?}", hooks.stats());
            if !hooks.close() {
                log::warning!("aliases remain on the device");
            }
        }
        if let Some(device) = self.device.get()
            && !device.close()
        {
            log::warning!("objects remain on the device");
        }
    }
}

/// Logs events of a pool that no return value reports.
fn tell(event: &PoolEvent) {
    static FULL: First = First::new();
    match event {
        // Each export beyond the cap reports it at a lower level.
        PoolEvent::CapLowered { cap, error } => {
            if FULL.is_this() {
                log::warning!(
                    "the pool stops at {cap} memory keys, UCX handles further exports: {error}"
                );
            }
        }
        PoolEvent::Lost { mkey, error } => {
            log::error!(
                "{mkey:?} could not be invalidated or destroyed and is out of use: {error}"
            );
        }
        other => log::info!("{other:?}"),
    }
}
