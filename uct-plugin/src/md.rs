//! The served memory domains, and the pool and alias map of each, opened at their first use.

use std::ffi::c_void;
use std::fs::File;
use std::io::Read as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use xgvmi_pool::mlx5::{Form, Mlx5Device};
use xgvmi_pool::{
    AliasRef, AliasStats, Announcement, DpuHooks, HostHooks, MkeyDevice, Observer, OwnerUuid,
    PoolError, PoolEvent, PoolStats, RemoteKey,
};

use crate::abi::MdHandle;
use crate::check::{self, Adapter, KeyForm, MdFacts};
use crate::counter_file::{self, Event};
use crate::memh::IMPORTS;
use crate::numbers::Numbers;
use crate::original::Object;
use crate::registrations::REGISTRATIONS;
use crate::{allocator, chunks, config, import, log, panic, ucp, vfs};

/// Maximum number of memory domains. UCX opens one or two per device and context, which is enough
/// for 16 devices and 8 contexts. UCX handles further ones itself.
pub(crate) const MDS_MAX: usize = 256;

/// A served memory domain.
#[derive(Debug)]
pub(crate) struct Md {
    object: &'static Object,
    facts: MdFacts,
    owner: OwnerUuid,
    chunks: chunks::Place,
    device: OnceLock<Option<Arc<Mlx5Device>>>,
    host: OnceLock<Option<HostHooks<Mlx5Device>>>,
    /// Held while the pool is opened.
    opening: Mutex<()>,
    dpu: OnceLock<Option<DpuHooks<Mlx5Device>>>,
    /// Number of the last announcement.
    announced: AtomicU64,
    counts: counter_file::Counts,
    /// Time of the last search for expired aliases.
    looked: Mutex<Option<Instant>>,
}

// SAFETY: the raw pointers in `facts` are libibverbs objects. Any thread may use them, and UCX
// keeps them until the memory domain is closed.
unsafe impl Send for Md {}
// SAFETY: as above.
unsafe impl Sync for Md {}

impl Md {
    /// A number that is unique among the existing memory domains.
    fn identity(md: &Arc<Self>) -> usize {
        Arc::as_ptr(md).addr()
    }

    /// Format of exported keys.
    pub(crate) fn key_form(&self) -> KeyForm {
        self.facts.key_form
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

    /// The pool, opened at the first call. `None` if the device is not suitable.
    #[inline]
    pub(crate) fn host(&self) -> Option<&HostHooks<Mlx5Device>> {
        match self.host.get() {
            Some(host) => host.as_ref(),
            None => self.open_host(),
        }
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
        self.host.get_or_init(|| host).as_ref()
    }

    /// The alias map, opened at the first call. `None` if the device is not suitable.
    pub(crate) fn dpu(&self) -> Option<&DpuHooks<Mlx5Device>> {
        let open = || match DpuHooks::open(Arc::clone(self.device()?), config::get().alias_policy())
        {
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
    pub(crate) fn alias_there(&self, key: &RemoteKey) -> Option<AliasRef<Mlx5Device>> {
        self.dpu.get()?.as_ref()?.aliases().find(key)
    }

    fn device(&self) -> Option<&Arc<Mlx5Device>> {
        let open = || {
            let verbs = self.object.verbs()?;
            let MdFacts { context, pd, .. } = self.facts;
            // SAFETY: the context and the domain are of the libraries that UCX's module uses, UCX
            // opens every mlx5 context with DEVX, and it closes both after `shut`.
            let device = unsafe {
                Mlx5Device::open(verbs, context.cast(), pd.cast(), config::get().device())
            };
            match device {
                Ok(device) => Some(device),
                Err(error) => {
                    log::warning!("device not used, everything is left to UCX: {error}");
                    None
                }
            }
        };
        self.device.get_or_init(open).as_ref()
    }

    /// Opens the pool and its work queue and verifies the device's binds before the first export.
    fn get_ready(&self) {
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
        {
            let _proved = device.prove(Form::Stock, mkey);
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
        let there = u32::try_from(pool.stats().keys).unwrap_or(u32::MAX);
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

    /// Counts so far, and current values.
    fn numbers(&self) -> Numbers {
        let pool = self.host.get().and_then(Option::as_ref);
        let aliases = self.dpu.get().and_then(Option::as_ref);
        let pool: PoolStats = pool.map(HostHooks::stats).unwrap_or_default();
        let aliases: AliasStats = aliases.map(DpuHooks::stats).unwrap_or_default();
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
            exporters: 0,
        }
    }

    /// Counts an event and updates the other counters in the counter file from time to time.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        if self.counts.count(event) {
            self.renew();
        }
    }

    #[cold]
    fn renew(&self) {
        let device = self.device.get().and_then(Option::as_ref);
        let gvmi = device.map(|device| device.gvmi().get());
        let (host, dpu) = (self.host.get(), self.dpu.get());
        let pool = || host.map(|host| host.as_ref().map(HostHooks::stats));
        let aliases = || dpu.map(|dpu| dpu.as_ref().map(DpuHooks::stats));
        self.counts.renew(
            gvmi,
            || pool().flatten().unwrap_or_default(),
            || aliases().flatten().unwrap_or_default(),
        );
    }

    fn shut(&self) {
        let numbers = self.numbers().of_closed();
        let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
        *closed = closed.plus(numbers);
        drop(closed);
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
        if let Some(Some(device)) = self.device.get()
            && !device.close()
        {
            log::warning!("objects remain on the device");
        }
    }
}

/// Logs events of a pool that no return value reports.
fn tell(event: &PoolEvent) {
    static FULL: Once = Once::new();
    match event {
        // Each export beyond the cap reports it at a lower level.
        PoolEvent::CapLowered { cap, error } => FULL.call_once(|| {
            log::warning!(
                "the pool stops at {cap} memory keys, UCX handles further exports: {error}"
            );
        }),
        PoolEvent::Lost { mkey, error } => {
            log::error!(
                "{mkey:?} could not be invalidated or destroyed and is out of use: {error}"
            );
        }
        other => log::info!("{other:?}"),
    }
}

/// A slot for a known memory domain, served or not.
struct Place {
    /// Address of the memory domain; [`NEVER_USED`] or [`EMPTY`] if there is none. Changed only
    /// under `CHANGES`, like the other fields.
    address: AtomicUsize,
    /// The content of `md`, for UCX's operations on the memory domain. Null if it is not served, or
    /// if this process is a forked child of the process that opened it.
    served: AtomicPtr<Md>,
    /// Held by callers outside UCX's operations. Closing waits for them.
    md: RwLock<Option<Arc<Md>>>,
}

/// Never used: neither this slot nor a later one has a memory domain.
const NEVER_USED: usize = 0;
/// Empty now.
const EMPTY: usize = 1;

static PLACES: [Place; MDS_MAX] = [const {
    Place {
        address: AtomicUsize::new(NEVER_USED),
        served: AtomicPtr::new(null_mut()),
        md: RwLock::new(None),
    }
}; MDS_MAX];

/// True while all slots are in use, to avoid repeated checks of memory domains.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Held while a memory domain is added or removed.
static CHANGES: Mutex<()> = Mutex::new(());

/// Counts of closed memory domains.
static CLOSED: Mutex<Numbers> = Mutex::new(Numbers::NONE);

/// Calls a function for each served memory domain. None of them can close meanwhile: UCX's call to
/// close it waits.
pub(crate) fn each(mut visit: impl FnMut(&Md)) {
    if panic::is_broken() {
        return;
    }
    for place in &PLACES {
        if place.address.load(Ordering::Acquire) == NEVER_USED {
            return;
        }
        let md = place.md.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(md) = md.as_ref() {
            visit(md);
        }
    }
}

/// The counters of the memory domain with this identity. Never waits: returns `None` also while the
/// domain is added or removed.
pub(crate) fn numbers_of(identity: usize) -> Option<Numbers> {
    let used = |place: &&Place| place.address.load(Ordering::Acquire) != NEVER_USED;
    PLACES.iter().take_while(used).find_map(|place| {
        let md = place.md.try_read().ok()?;
        let md = md.as_ref()?;
        (Md::identity(md) == identity).then(|| Numbers {
            exporters: ucp::exporters(),
            ..md.numbers()
        })
    })
}

/// The counters of all memory domains, including closed ones.
pub(crate) fn numbers() -> Numbers {
    let mut numbers = *CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    each(|md| numbers = numbers.plus(md.numbers()));
    numbers.exporters = ucp::exporters();
    numbers
}

/// True if the memory domain is served. Takes no lock for a known one.
///
/// # Safety
/// `md` must be an open memory domain of the object.
#[inline]
pub(crate) unsafe fn is_served(object: &'static Object, md: MdHandle) -> bool {
    match place_of(md.addr()) {
        Some(place) => !place.served.load(Ordering::Relaxed).is_null(),
        // SAFETY: by the contract of this function.
        None => unsafe { look_at(object, md) },
    }
}

/// The memory domain, if it is served and the library works.
///
/// # Safety
/// `md` must be an open memory domain of the object. The caller drops the result before the end of
/// the operation on it: UCX closes no memory domain while an operation on it runs.
#[inline]
pub(crate) unsafe fn get<'a>(object: &'static Object, md: MdHandle) -> Option<&'a Md> {
    // SAFETY: by the contract of this function.
    if panic::is_broken() || !unsafe { is_served(object, md) } {
        return None;
    }
    // SAFETY: by the contract of this function.
    unsafe { known(md) }
}

/// The memory domain, if it is known and served. After an internal error its objects are still
/// released.
///
/// # Safety
/// See [`get`].
#[inline]
pub(crate) unsafe fn known<'a>(md: MdHandle) -> Option<&'a Md> {
    let served = place_of(md.addr())?.served.load(Ordering::Acquire);
    // SAFETY: `opened` published it, and its slot keeps it until UCX closes the memory domain.
    unsafe { served.as_ref() }
}

/// In a forked child UCX handles everything, because keys, aliases and counters belong to the
/// parent.
extern "C" fn in_child() {
    for place in &PLACES {
        place.served.store(null_mut(), Ordering::Relaxed);
    }
}

#[inline]
fn place_of(address: usize) -> Option<&'static Place> {
    for place in &PLACES {
        match place.address.load(Ordering::Acquire) {
            NEVER_USED => return None,
            found if found == address => return Some(place),
            _ => {}
        }
    }
    None
}

/// Checks a memory domain that was opened before this library was loaded.
///
/// # Safety
/// See [`is_served`].
#[cold]
unsafe fn look_at(object: &'static Object, md: MdHandle) -> bool {
    if IS_FULL.load(Ordering::Relaxed) {
        return false;
    }
    // Several times the size of the attributes in any version. All zero, like UCX's own arguments,
    // except for the mask of the requested fields.
    let mut attr = [0_u64; 512];
    attr[0] = u64::MAX;
    let attr = attr.as_mut_ptr().cast::<c_void>();
    // SAFETY: by the contract of this function; the buffer is large enough for the attributes.
    let status = unsafe { (object.originals().md_query)(md, attr) };
    if status.is_ok() {
        // SAFETY: by the contract of this function; the attributes have just been filled.
        unsafe { opened(object, md, attr) };
    }
    // SAFETY: by the contract of this function.
    unsafe { known(md) }.is_some()
}

/// Checks a memory domain that UCX has just opened, and serves it from now on if possible.
///
/// # Safety
/// `md` must be an open memory domain of the object, and `attr` the attributes that its `md_query`
/// has just filled.
pub(crate) unsafe fn opened(object: &'static Object, md: MdHandle, attr: *const c_void) {
    // Without memory the check is repeated at the next registration.
    if place_of(md.addr()).is_some() || allocator::is_short() {
        return;
    }
    // SAFETY: by the contract of this function.
    let facts = unsafe { check::md(md, attr) };
    let new = match (facts, draw_owner()) {
        (Ok(Some(facts)), Some(owner)) => Some(Arc::new(Md {
            object,
            facts,
            owner,
            chunks: chunks::Place::default(),
            device: OnceLock::new(),
            host: OnceLock::new(),
            opening: Mutex::new(()),
            dpu: OnceLock::new(),
            announced: AtomicU64::new(0),
            looked: Mutex::new(None),
            counts: counter_file::Counts::default(),
        })),
        // A device that cannot export keys.
        (Ok(None), _) => None,
        (Ok(Some(_)), None) => {
            log::warning!("memory domain not served: no random numbers");
            None
        }
        (Err(refusal), _) => {
            log::warning!("memory domain not served: {refusal}");
            None
        }
    };
    if new.is_some() {
        ucp::look_at(object);
    }
    if let Some(new) = &new
        && config::get().pool_init() > 0
    {
        new.get_ready();
    }
    let changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    if place_of(md.addr()).is_some() {
        return;
    }
    let free = |place: &&Place| place.address.load(Ordering::Relaxed) <= EMPTY;
    let Some(place) = PLACES.iter().find(free) else {
        log::info!("memory domain not served: the limit of {MDS_MAX} is reached");
        IS_FULL.store(true, Ordering::Relaxed);
        return;
    };
    static CHILDREN: Once = Once::new();
    CHILDREN.call_once(|| {
        // SAFETY: the handler only stores to atomics. Without it, the pool and the map detect a
        // child themselves.
        let _registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let identity = new.as_ref().map(Md::identity);
    let served = new
        .as_ref()
        .map_or(null_mut(), |md| Arc::as_ptr(md).cast_mut());
    place.served.store(served, Ordering::Release);
    *place.md.write().unwrap_or_else(PoisonError::into_inner) = new;
    place.address.store(md.addr(), Ordering::Release);
    drop(changes);
    if let Some(identity) = identity
        && config::get().stats
    {
        // SAFETY: by the contract of this function. No lock is held here, because UCX holds one of
        // its own while it reads counters.
        unsafe { vfs::show(object, md, identity) };
    }
}

/// Releases everything of a memory domain that UCX is about to close.
pub(crate) fn closing(md: MdHandle) {
    let taken = {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = place_of(md.addr()) else {
            return;
        };
        place.address.store(EMPTY, Ordering::Release);
        place.served.store(null_mut(), Ordering::Relaxed);
        IS_FULL.store(false, Ordering::Relaxed);
        place
            .md
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    };
    let address = md.addr();
    let mut exports = 0_usize;
    let host = taken.as_ref().and_then(|md| md.host.get()?.as_ref());
    REGISTRATIONS.forget_all(address, |key| {
        exports += 1;
        // The pool destroys keys that cannot be invalidated.
        let _lost = host.map(|host| host.unbind(key));
    });
    let mut imports = 0_usize;
    IMPORTS.take(
        |import| import.md == address,
        |memh, import| {
            imports += 1;
            drop(import);
            // SAFETY: `import` allocated the value in the table, and it is no longer in the table.
            unsafe { import::free(std::ptr::with_exposed_provenance_mut(memh)) };
        },
    );
    if exports + imports > 0 {
        log::debug!("{exports} exports and {imports} imports were still in use");
    }
    if let Some(md) = taken {
        vfs::remove(md.object, Md::identity(&md));
        md.shut();
    }
}

/// A number that is unique among exporters.
fn draw_owner() -> Option<OwnerUuid> {
    let mut bytes = [0_u8; 8];
    File::open("/dev/urandom")
        .ok()?
        .read_exact(&mut bytes)
        .ok()?;
    let uuid = u64::from_ne_bytes(bytes);
    // Zero means "unknown" on the wire.
    Some(OwnerUuid::new(uuid.max(1)))
}
