//! The memory domains that are served, and for each the pool and the alias map, which are opened
//! when they are first needed.

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
use crate::board::{self, Event};
use crate::check::{self, Adapter, KeyForm, MdFacts};
use crate::memh::IMPORTS;
use crate::numbers::Numbers;
use crate::original::Object;
use crate::registrations::REGISTRATIONS;
use crate::{chunks, config, import, log, memory, panic, ucp, vfs};

/// Memory domains that are looked at and kept in mind at a time. UCX opens one or two per device and context; a process
/// of 16 devices and 8 contexts stays within. Any further one is left to UCX.
pub(crate) const MDS_MAX: usize = 256;

/// A memory domain that is served.
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
    counts: board::Counts,
    /// When aliases that rest for long were looked for last.
    looked: Mutex<Option<Instant>>,
}

// SAFETY: the raw pointers in `facts` are libibverbs objects, which may be used from any thread and
// which UCX keeps until the memory domain is closed.
unsafe impl Send for Md {}
// SAFETY: as above.
unsafe impl Sync for Md {}

impl Md {
    /// A number that no other memory domain has, as long as this one is there.
    fn identity(md: &Arc<Self>) -> usize {
        Arc::as_ptr(md).addr()
    }

    /// How exported keys look.
    pub(crate) fn key_form(&self) -> KeyForm {
        self.facts.key_form
    }

    /// The number that marks the keys exported here.
    pub(crate) fn owner(&self) -> OwnerUuid {
        self.owner
    }

    /// Which adapter it is of.
    pub(crate) fn adapter(&self) -> Adapter {
        self.facts.adapter
    }

    /// What is known of the device.
    pub(crate) fn facts(&self) -> &MdFacts {
        &self.facts
    }

    /// Where memory handles keep the chunks of their memory.
    pub(crate) fn chunks(&self) -> &chunks::Place {
        &self.chunks
    }

    /// The pool, opened at the first call; `None` if the device cannot be used so.
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
            // Another time there may be.
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

    /// The alias map, opened at the first call; `None` if the device cannot be used so.
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

    /// Destroys aliases that have rested for too long, if it is time to look for them and no thread
    /// does.
    pub(crate) fn expire_aliases(&self) {
        let Some(every) = config::get().alias_upkeep() else {
            return;
        };
        let Some(map) = self.dpu.get().and_then(Option::as_ref) else {
            return;
        };
        {
            // Whoever finds it taken, finds somebody else at it.
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

    /// The alias of a key, pinned, if there is one already. Opens nothing and makes none.
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

    /// Opens the pool and its work queue and proves what the device does, so that the first export finds
    /// all of it.
    fn get_ready(&self) {
        if self.host().is_some()
            && let Some(device) = self.device()
        {
            // An empty chain makes the queue. If it cannot be made, the first export tries again.
            let _made = device.run(&[]);
            self.prove();
        }
    }

    /// Proves the usual form of binds with a key of the pool, if it has a free one. If that fails, the
    /// first export says so.
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

    /// All keys of the pool, for importers to make their aliases ahead of time; `None` if it has
    /// none. Before, keys are created until the pool has `keys_min` of them, in use or not.
    pub(crate) fn announcement(&self, keys_min: u32) -> Option<Announcement> {
        self.get_ready();
        let pool = self.host()?.pool();
        if !MkeyDevice::is_ours(&**self.device()?) {
            // A forked child: the keys are its parent's.
            return None;
        }
        let there = u32::try_from(pool.stats().keys).unwrap_or(u32::MAX);
        let missing = keys_min.saturating_sub(there);
        if missing > 0 {
            // What the device does not give is not announced.
            let _created = pool.prefill(pool.levels().free.saturating_add(missing));
        }
        self.prove();
        // Numbers begin at one.
        let sequence = self.announced.fetch_add(1, Ordering::Relaxed) + 1;
        let announcement = pool.announce(self.owner, sequence);
        let is_empty = announcement.keys().next().is_none();
        (!is_empty).then_some(announcement)
    }

    /// Makes aliases of keys that will be imported. Returns how many there are now.
    pub(crate) fn make_aliases(&self, keys: &[RemoteKey]) -> usize {
        let Some(map) = self.dpu() else {
            return 0;
        };
        let prepared = map.aliases().prepare(keys);
        log::debug!("aliases ahead of their use: {prepared:?}");
        prepared.ready
    }

    /// What has been done here so far, and what there is.
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

    /// Counts an event, and now and then renews the other numbers on the board.
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
                log::warning!("memory keys are left behind on the device");
            }
        }
        if let Some(Some(hooks)) = self.dpu.get() {
            log::debug!("alias map: {:?}", hooks.stats());
            if !hooks.close() {
                log::warning!("aliases are left behind on the device");
            }
        }
        if let Some(Some(device)) = self.device.get()
            && !device.close()
        {
            log::warning!("objects are left behind on the device");
        }
    }
}

/// Logs what no return value of a pool says.
fn tell(event: &PoolEvent) {
    static FULL: Once = Once::new();
    match event {
        // Each export beyond the cap says so at a lower level.
        PoolEvent::CapLowered { cap, error } => FULL.call_once(|| {
            log::warning!(
                "the pool makes do with {cap} memory keys, further exports are left to UCX: {error}"
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

/// A place for a memory domain that was looked at, be it served or not.
struct Place {
    /// Address of the memory domain; [`NEVER_USED`] or [`EMPTY`] if there is none. Changed only
    /// under `CHANGES`, as all of this.
    address: AtomicUsize,
    /// What `md` holds, for UCX's operations on the memory domain; null if it is not served, or if
    /// this process is a forked child of the one that opened it.
    served: AtomicPtr<Md>,
    /// For those who come without an operation of UCX's: closing waits for them.
    md: RwLock<Option<Arc<Md>>>,
}

/// No memory domain was here, nor is there one behind.
const NEVER_USED: usize = 0;
/// No memory domain is here now.
const EMPTY: usize = 1;

static PLACES: [Place; MDS_MAX] = [const {
    Place {
        address: AtomicUsize::new(NEVER_USED),
        served: AtomicPtr::new(null_mut()),
        md: RwLock::new(None),
    }
}; MDS_MAX];

/// True while there is no place left, so that nobody looks at a memory domain again and again.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Held while a memory domain comes or goes.
static CHANGES: Mutex<()> = Mutex::new(());

/// What memory domains have done that are closed.
static CLOSED: Mutex<Numbers> = Mutex::new(Numbers::NONE);

/// Does something with each memory domain that is served. None of them is closed meanwhile: UCX's
/// call to close it waits.
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

/// The numbers of the memory domain with this identity. Waits for nobody: `None` as well while it comes
/// or goes.
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

/// The numbers of all memory domains, the closed ones as well.
pub(crate) fn numbers() -> Numbers {
    let mut numbers = *CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    each(|md| numbers = numbers.plus(md.numbers()));
    numbers.exporters = ucp::exporters();
    numbers
}

/// True if the memory domain is served. Takes no lock for one that was looked at.
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

/// The memory domain, if it is served and nothing is broken.
///
/// # Safety
/// `md` must be an open memory domain of the object, and the result is not kept beyond the operation
/// on it: UCX closes no memory domain while an operation on it runs.
#[inline]
pub(crate) unsafe fn get<'a>(object: &'static Object, md: MdHandle) -> Option<&'a Md> {
    // SAFETY: by the contract of this function.
    if panic::is_broken() || !unsafe { is_served(object, md) } {
        return None;
    }
    // SAFETY: by the contract of this function.
    unsafe { known(md) }
}

/// The memory domain, if it was looked at and is served. What is broken is still given back.
///
/// # Safety
/// As [`get`].
#[inline]
pub(crate) unsafe fn known<'a>(md: MdHandle) -> Option<&'a Md> {
    let served = place_of(md.addr())?.served.load(Ordering::Acquire);
    // SAFETY: it was published by `opened`, and its place keeps it until UCX closes the memory domain.
    unsafe { served.as_ref() }
}

/// Leaves everything to UCX in a forked child, as keys, aliases and numbers are its parent's.
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

/// Looks at a memory domain that was opened before this library was loaded.
///
/// # Safety
/// As [`is_served`].
#[cold]
unsafe fn look_at(object: &'static Object, md: MdHandle) -> bool {
    if IS_FULL.load(Ordering::Relaxed) {
        return false;
    }
    // Several times the size of the attributes in any version, and zero, as UCX gives them, but for
    // the mask of the fields that are asked for.
    let mut attr = [0_u64; 512];
    attr[0] = u64::MAX;
    let attr = attr.as_mut_ptr().cast::<c_void>();
    // SAFETY: by the contract of this function; the attributes have room.
    let status = unsafe { (object.originals().md_query)(md, attr) };
    if status.is_ok() {
        // SAFETY: by the contract of this function; the attributes have just been filled.
        unsafe { opened(object, md, attr) };
    }
    // SAFETY: by the contract of this function.
    unsafe { known(md) }.is_some()
}

/// Looks at a memory domain that UCX has just opened, and serves it from now on if it can.
///
/// # Safety
/// `md` must be an open memory domain of the object, and `attr` the attributes that its `md_query`
/// has just filled.
pub(crate) unsafe fn opened(object: &'static Object, md: MdHandle, attr: *const c_void) {
    // Without memory it is looked at again when there is some, at the next registration.
    if place_of(md.addr()).is_some() || memory::is_short() {
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
            counts: board::Counts::default(),
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
        log::info!("memory domain not served: {MDS_MAX} are there");
        IS_FULL.store(true, Ordering::Relaxed);
        return;
    };
    static CHILDREN: Once = Once::new();
    CHILDREN.call_once(|| {
        // SAFETY: the handler only stores to atomics. Where it cannot be registered, the pool and the
        // map know a child by themselves.
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
        // SAFETY: by the contract of this function. No lock is held, because UCX holds one of its own
        // while it asks for numbers.
        unsafe { vfs::show(object, md, identity) };
    }
}

/// Lets go of everything that belongs to a memory domain, which UCX is about to close.
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
        // What cannot be invalidated is destroyed with the pool.
        let _lost = host.map(|host| host.unbind(key));
    });
    let mut imports = 0_usize;
    IMPORTS.take(
        |import| import.md == address,
        |memh, import| {
            imports += 1;
            drop(import);
            // SAFETY: whatever was in the table was allocated by `import`, and it is there no more.
            unsafe { import::free(std::ptr::with_exposed_provenance_mut(memh)) };
        },
    );
    if exports + imports > 0 {
        log::debug!("{exports} exports and {imports} imports were still there");
    }
    if let Some(md) = taken {
        vfs::remove(md.object, Md::identity(&md));
        md.shut();
    }
}

/// A number that no other exporter has.
fn draw_owner() -> Option<OwnerUuid> {
    let mut bytes = [0_u8; 8];
    File::open("/dev/urandom")
        .ok()?
        .read_exact(&mut bytes)
        .ok()?;
    let uuid = u64::from_ne_bytes(bytes);
    // Zero stands for "unknown" on the wire.
    Some(OwnerUuid::new(uuid.max(1)))
}
