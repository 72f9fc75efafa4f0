//! The alias map: one alias per remote key, created once and reused.
//!
//! A lookup of an alias takes no lock: it finds and pins the alias in a table. An index in several shards, each under a
//! lock, says which aliases exist. A thread waits for the device only if it needs the alias that is under creation. No
//! thread holds a lock during a device call.

mod removal;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;

use crate::alias_entry::{AliasPin, AliasRef, Core};
use crate::alias_table::{self, Kind, Table};
use crate::device::{Alias, AliasDevice};
use crate::error::{AliasError, DeviceError};
use crate::expiry::Expiry;
use crate::flight::Flight;
use crate::gate::Gate;
use crate::keeper::{Keeper, LOOKS_PER_AGE, ROUND_MAX, Round};
use crate::key::{AccessKey, OwnerUuid, RemoteKey};
use crate::parallel::parallel;
use crate::policy::AliasPolicy;
use crate::stats::{AliasCounters, AliasStats, Prepared};
use crate::sync::{AtomicU32, Mutex, Ordering, RwLock, read, write};
use crate::unpinned::{Note, Unpinned};
use crate::use_clock::UseClock;

/// Number of shards of the index. A miss or an eviction holds the write lock of one shard during a
/// table insert.
const SHARDS: usize = 16;

/// Failed creations after which a preparation stops. Each takes hundreds of microseconds.
const PREPARE_FAILURES_MAX: u32 = 16;

/// Most evictions for one alias that the device has no space for. More than one, because other
/// processes may take the space.
const EVICTIONS_FOR_SPACE: u32 = 4;

/// Maximum time that closing waits for running device calls. The kernel limits the time of a
/// command. A call that runs longer is stuck in the kernel, and closing leaves its objects alone.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// The alias map of one importer. Clones are cheap and share one map.
pub struct AliasMap<D: AliasDevice> {
    inner: Arc<Inner<D>>,
}

impl<D: AliasDevice> Clone for AliasMap<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

/// A part of the index.
type Shard<D> = RwLock<HashMap<u64, Place<D>>>;

struct Inner<D: AliasDevice> {
    core: Arc<Core<D>>,
    policy: AliasPolicy,
    shards: Box<[Shard<D>]>,
    /// Aliases in the map, including those under creation.
    len: AtomicU32,
    oldest: Mutex<Oldest>,
    expiry: Option<Expiry>,
    keeper: Keeper,
}

/// Result of the last search for aliases to evict.
#[derive(Debug, Default)]
struct Oldest {
    /// Map key and time of use at the search, the oldest last.
    candidates: Vec<Note>,
    /// Start time of the search.
    searched: u64,
    /// A search of a tight map preceded this one.
    is_confirmed: bool,
}

/// The map's entry for a key.
enum Place<D: AliasDevice> {
    /// An alias.
    Ready(alias_table::Place),
    /// A thread creates the alias.
    Making(Arc<Making<D>>),
}

impl<D: AliasDevice> AliasMap<D> {
    /// Opens an empty map on the device.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open(device: Arc<D>, policy: AliasPolicy) -> Result<Self, AliasError> {
        let policy = policy.checked()?;
        static MAPS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let core = Core {
            map: MAPS.fetch_add(1, Ordering::Relaxed),
            table: Table::new(policy.aliases_max).ok_or(AliasError::NoMemory)?,
            clock: UseClock::new(),
            unpinned: Unpinned::new(),
            device,
            gate: Gate::new(),
            counters: AliasCounters::default(),
        };
        let shards = (0..SHARDS).map(|_| RwLock::new(HashMap::new())).collect();
        let inner = Arc::new(Inner {
            core: Arc::new(core),
            shards,
            len: AtomicU32::new(0),
            oldest: Mutex::new(Oldest::default()),
            expiry: policy.ttl.map(Expiry::new),
            keeper: Keeper::new(),
            policy,
        });
        if inner.policy.keeper
            && let Some(ttl) = inner.policy.ttl
        {
            let map = Arc::downgrade(&inner);
            // If the system starts no thread, the caller must run upkeep.
            let _started = inner.keeper.start(ttl / LOOKS_PER_AGE, move || {
                // The thread holds the map for one round only, so the map ends with its last
                // handle.
                match map.upgrade().map(|map| map.expire()) {
                    None => Round::Over,
                    Some(expired) if expired == ROUND_MAX as usize => Round::More,
                    Some(_) => Round::Done,
                }
            });
        }
        Ok(Self { inner })
    }

    /// Returns the alias of a remote key and pins it. Creates the alias if the map has none. An
    /// alias of the same key with another owner is stale: the map replaces it, and destroys it
    /// after its last use. A key with an [unknown](OwnerUuid::UNKNOWN) owner matches any alias. An
    /// alias that was [prepared](AliasMap::prepare) for an unknown owner becomes an alias of the
    /// first owner.
    ///
    /// # Errors
    /// If the device cannot create the alias; if all aliases of a full map are in use; if another
    /// thread's attempt to create the same alias failed or takes too long.
    pub fn attach(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        self.attach_with(key, &self.inner.policy.access_key)
    }

    /// Like [`AliasMap::attach`], with the access key of this exporter instead of the policy's. The
    /// map finds an alias by its owner: it must be that of the access key ([`AccessKey::owner`]).
    ///
    /// # Errors
    /// The errors of [`AliasMap::attach`].
    pub fn attach_with(
        &self,
        key: RemoteKey,
        access: &AccessKey,
    ) -> Result<AliasRef<D>, AliasError> {
        self.pin_with(key, access).map(|pin| self.inner.refer(pin))
    }

    /// Like [`AliasMap::attach`]. The caller passes the pin to [`AliasMap::unpin`].
    ///
    /// # Errors
    /// The errors of [`AliasMap::attach`].
    #[inline]
    pub fn pin(&self, key: RemoteKey) -> Result<AliasPin, AliasError> {
        self.pin_with(key, &self.inner.policy.access_key)
    }

    #[inline]
    fn pin_with(&self, key: RemoteKey, access: &AccessKey) -> Result<AliasPin, AliasError> {
        if !self.inner.core.device.is_ours() {
            return Err(AliasError::Forked);
        }
        match self.inner.find_unlocked(&key) {
            Some(pin) => Ok(pin),
            None => self.inner.find_or_make(key, access, WhenFull::Evict),
        }
    }

    /// Creates an alias outside the map, and pins it. Its unpin destroys it. Use it when the map is full of pinned aliases.
    /// There may be as many of them as the map has aliases at most.
    ///
    /// # Errors
    /// If the device cannot create the alias, or if there are too many.
    pub fn pin_alone(&self, key: RemoteKey) -> Result<AliasPin, AliasError> {
        let core = &self.inner.core;
        if !core.device.is_ours() {
            return Err(AliasError::Forked);
        }
        let _inside = core.gate.enter().ok_or(AliasError::Closed)?;
        let access = &self.inner.policy.access_key;
        self.inner.create(key, access, Kind::Alone)
    }

    /// Pins the alias of a remote key if the map has it. Creates no alias and does not wait.
    pub fn pin_existing(&self, key: &RemoteKey) -> Option<AliasPin> {
        if !self.inner.core.device.is_ours() {
            return None;
        }
        self.inner.find(key)
    }

    /// Ends a pin of this map. A pin of another map has no effect.
    #[inline]
    pub fn unpin(&self, pin: AliasPin) {
        if pin.map == self.inner.core.map {
            self.inner.core.unpin(pin.at);
        }
    }

    /// Returns the alias of a remote key if the map has it. Creates no alias and does not wait.
    #[must_use]
    pub fn find(&self, key: &RemoteKey) -> Option<AliasRef<D>> {
        self.pin_existing(key).map(|pin| self.inner.refer(pin))
    }

    /// Returns the aliases of many remote keys, in their order, like [`AliasMap::attach`] for each
    /// key. The map creates missing aliases with [`AliasPolicy::threads`] threads.
    pub fn attach_many(&self, keys: &[RemoteKey]) -> Vec<Result<AliasRef<D>, AliasError>> {
        parallel(keys, self.inner.policy.threads, |key| self.attach(*key))
    }

    /// Creates the aliases of keys in advance, with [`AliasPolicy::threads`] threads. It evicts no
    /// alias: if the map is full, or after 16 failed creations, it skips the remaining keys.
    pub fn prepare(&self, keys: &[RemoteKey]) -> Prepared {
        self.prepare_with(keys, &self.inner.policy.access_key)
    }

    /// Like [`AliasMap::prepare`], with the access key of these keys' exporter instead of the
    /// policy's. See [`AliasMap::attach_with`].
    pub fn prepare_with(&self, keys: &[RemoteKey], access: &AccessKey) -> Prepared {
        let mut prepared = Prepared::default();
        let failures = AtomicU32::new(0);
        let prepare = |key: &RemoteKey| {
            if !self.inner.core.device.is_ours() {
                return Some(Err(AliasError::Forked));
            }
            // A key without an owner matches any present alias of the key.
            let is_there = match key.owner {
                OwnerUuid::UNKNOWN => self.inner.has(key),
                _ => self.find(key).is_some(),
            };
            if is_there {
                return Some(Ok(()));
            }
            if failures.load(Ordering::Relaxed) >= PREPARE_FAILURES_MAX {
                return None;
            }
            let made = self.inner.find_or_make(*key, access, WhenFull::Keep);
            if matches!(made, Err(AliasError::Create { .. })) {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            Some(made.map(|pin| self.unpin(pin)))
        };
        for result in parallel(keys, self.inner.policy.threads, prepare) {
            match result {
                Some(Ok(())) => prepared.ready += 1,
                None | Some(Err(AliasError::Full { .. })) => prepared.left_out += 1,
                Some(Err(error)) => {
                    prepared.failed += 1;
                    prepared.error.get_or_insert(error);
                }
            }
        }
        prepared
    }

    /// Removes all aliases of an owner that is known to be dead. The map destroys pinned ones after
    /// their last use. Returns the number of removed aliases.
    pub fn reap_owner(&self, owner: OwnerUuid) -> usize {
        if self.inner.core.device.is_ours() {
            self.inner.reap(owner)
        } else {
            0
        }
    }

    /// Runs one round of upkeep: evicts aliases that were idle for the policy's
    /// [`ttl`](AliasPolicy::ttl), at most 64 of them, at hundreds of microseconds each. Returns
    /// their number. Upkeep measures idle time between its calls, so an eviction takes more than
    /// one call. Call it four times per `ttl`, or let the map run a thread.
    pub fn upkeep(&self) -> usize {
        self.inner.expire()
    }

    /// Number of aliases in the map, including those under creation.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len.load(Ordering::Relaxed) as usize
    }

    /// True if the map has no alias.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A snapshot of the counters. The sum of the hits takes a step for each alias.
    #[must_use]
    pub fn stats(&self) -> AliasStats {
        let counted = self.stats_without_hits();
        AliasStats {
            hits: counted.hits + self.inner.hits(),
            ..counted
        }
    }

    /// As [`AliasMap::stats`], but `hits` has those of destroyed aliases only. Its time does not depend on the
    /// number of aliases.
    #[must_use]
    pub fn stats_without_hits(&self) -> AliasStats {
        AliasStats {
            aliases: self.len() as u64,
            ..self.inner.core.counters.snapshot()
        }
    }

    /// Destroys all aliases of the map, including pinned ones. The device stays open. Returns
    /// false if the device could not destroy an alias.
    pub fn close(&self) -> bool {
        self.inner.close()
    }
}

impl<D: AliasDevice> Inner<D> {
    /// The path of a hit.
    #[inline]
    fn find_unlocked(&self, key: &RemoteKey) -> Option<AliasPin> {
        let found = self.core.table.find(key)?;
        Some(AliasPin::new(self.core.map, found))
    }

    /// Pins the alias of a key, if there is one.
    fn find(&self, key: &RemoteKey) -> Option<AliasPin> {
        if let Some(pin) = self.find_unlocked(key) {
            return Some(pin);
        }
        let shard = read(self.shard(key.map_key()));
        match shard.get(&key.map_key()) {
            Some(Place::Ready(at)) if self.core.table.is_of(*at, key.owner) => self.pin(*at, key),
            _ => None,
        }
    }

    /// Pins an alias, under its shard's lock. `None` if it has too many pins.
    fn pin(&self, at: alias_table::Place, key: &RemoteKey) -> Option<AliasPin> {
        let lkey = self.core.table.pin(at, key)?;
        Some(AliasPin::new(self.core.map, (at, lkey)))
    }

    /// A reference instead of a pin.
    fn refer(&self, pin: AliasPin) -> AliasRef<D> {
        AliasRef::new(&self.core, pin)
    }

    /// Lookups that the present aliases have served.
    fn hits(&self) -> u64 {
        let ready = |place: &Place<D>| match place {
            Place::Ready(at) => self.core.table.hits(*at),
            Place::Making(_) => 0,
        };
        let of = |shard: &Shard<D>| read(shard).values().map(ready).sum::<u64>();
        self.shards.iter().map(of).sum()
    }

    /// True if the map has an alias of the key, with any owner.
    fn has(&self, key: &RemoteKey) -> bool {
        let shard = read(self.shard(key.map_key()));
        matches!(shard.get(&key.map_key()), Some(Place::Ready(_)))
    }

    fn find_or_make(
        &self,
        key: RemoteKey,
        access: &AccessKey,
        when_full: WhenFull,
    ) -> Result<AliasPin, AliasError> {
        let _inside = self.core.gate.enter().ok_or(AliasError::Closed)?;
        let deadline = Instant::now() + self.policy.create_wait;
        loop {
            match self.claim(&key) {
                Claim::Found(found) => return Ok(found),
                Claim::Make { flight, stale } => {
                    if let Some(stale) = stale {
                        self.core.end(stale);
                    }
                    return self.make(key, access, &flight, when_full);
                }
                Claim::Join(flight) => {
                    self.core.counters.joins.one();
                    let limit = deadline.saturating_duration_since(Instant::now());
                    match flight.wait(limit) {
                        // The other thread may have created it for another owner of the same key.
                        Some(Ok(made)) if self.core.table.is_of(made.at(), key.owner) => {
                            return Ok(made.pin_again());
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(error),
                        None => return Err(self.waited_too_long(&key)),
                    }
                }
                Claim::NoMemory => return Err(AliasError::NoMemory),
                Claim::TooManyPins => return Err(self.full()),
                Claim::Full => {
                    // A reap may have ended all aliases since the claim: then none is left to evict.
                    if when_full == WhenFull::Keep || !(self.evict() || self.has_space()) {
                        return Err(self.full());
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(self.waited_too_long(&key));
            }
        }
    }

    /// Decides under the shard's lock which thread creates the alias.
    fn claim(&self, key: &RemoteKey) -> Claim<D> {
        let mut shard = write(self.shard(key.map_key()));
        // The table may be large, and it grows here.
        if shard.try_reserve(1).is_err() {
            return Claim::NoMemory;
        }
        match shard.entry(key.map_key()) {
            MapEntry::Occupied(mut place) => match place.get() {
                Place::Ready(at) if self.core.table.is_of(*at, key.owner) => {
                    let pinned = self.pin(*at, key);
                    pinned.map_or(Claim::TooManyPins, Claim::Found)
                }
                Place::Making(flight) => Claim::Join(Arc::clone(flight)),
                Place::Ready(at) => {
                    // The new alias replaces the stale one, so the length does not change.
                    let stale = self.remove(*at);
                    let flight = Arc::new(Flight::new());
                    place.insert(Place::Making(Arc::clone(&flight)));
                    self.core.counters.stale.one();
                    Claim::Make { flight, stale }
                }
            },
            MapEntry::Vacant(place) => {
                if !self.grow() {
                    return Claim::Full;
                }
                let flight = Arc::new(Flight::new());
                place.insert(Place::Making(Arc::clone(&flight)));
                Claim::Make {
                    flight,
                    stale: None,
                }
            }
        }
    }

    /// Creates the alias that this thread has claimed, and wakes the threads that wait for it.
    fn make(
        &self,
        key: RemoteKey,
        access: &AccessKey,
        flight: &Arc<Making<D>>,
        when_full: WhenFull,
    ) -> Result<AliasPin, AliasError> {
        let is_prepared = when_full == WhenFull::Keep;
        let created = self.create(key, access, Kind::InMap { is_prepared });
        let result = created.map(|pin| self.refer(pin));
        let mut shard = write(self.shard(key.map_key()));
        // Only the claiming thread ends a claim, so the entry still exists and still belongs to
        // this thread.
        match &result {
            Ok(made) => {
                shard.insert(key.map_key(), Place::Ready(made.at()));
            }
            Err(_) => {
                shard.remove(&key.map_key());
                self.shrink(1);
            }
        }
        drop(shard);
        flight.complete(result.clone());
        result.map(|made| made.pin_again())
    }

    /// Creates an alias on the device, and pins it. The index does not have it yet.
    fn create(
        &self,
        key: RemoteKey,
        access: &AccessKey,
        kind: Kind,
    ) -> Result<AliasPin, AliasError> {
        self.core.counters.misses.one();
        let table = &self.core.table;
        let at = table.claim(&key).ok_or_else(|| self.full())?;
        // Aliases that were used before get earlier times.
        let used = self.core.clock.advance();
        match self.on_device(&key, access, kind) {
            Ok(alias) => {
                self.core.counters.creates.one();
                if !matches!(kind, Kind::InMap { is_prepared: true }) {
                    self.core.counters.made.one();
                }
                table.fill(at, &key, alias, used, kind);
                Ok(AliasPin::new(self.core.map, (at, alias.lkey)))
            }
            Err(source) => {
                table.free(at);
                self.core.counters.create_failures.one();
                Err(AliasError::Create {
                    gvmi: key.gvmi,
                    mkey: key.mkey,
                    source,
                })
            }
        }
    }

    /// The device's part of [`Self::create`]. A full device gets the places of evicted aliases,
    /// unless the new one is prepared.
    fn on_device(
        &self,
        key: &RemoteKey,
        access: &AccessKey,
        kind: Kind,
    ) -> Result<Alias, DeviceError> {
        let mut evictions = match kind {
            Kind::InMap { is_prepared: true } => 0,
            _ => EVICTIONS_FOR_SPACE,
        };
        loop {
            let destroyed = self.core.counters.destroys.get();
            let created = self.core.device.create_alias(key, access);
            // A reap may have ended all aliases since the refusal: then none is left to evict.
            let gives_space = || self.evict() || self.core.counters.destroys.get() != destroyed;
            match &created {
                Err(error) if error.is_limit() && evictions > 0 && gives_space() => evictions -= 1,
                _ => return created,
            }
        }
    }

    fn full(&self) -> AliasError {
        self.core.counters.refusals.one();
        let aliases_max = self.policy.aliases_max;
        AliasError::Full { aliases_max }
    }

    fn waited_too_long(&self, key: &RemoteKey) -> AliasError {
        let (gvmi, mkey, limit) = (key.gvmi, key.mkey, self.policy.create_wait);
        AliasError::WaitedTooLong { gvmi, mkey, limit }
    }

    fn close(&self) -> bool {
        if !self.core.device.is_ours() || !self.core.gate.shut() {
            return true;
        }
        self.keeper.stop();
        if !self.core.gate.wait_empty(CLOSE_WAIT) {
            // A device call is stuck. It would be worse to destroy its objects under it.
            return false;
        }
        let mut clean = true;
        for shard in &self.shards {
            let places = std::mem::take(&mut *write(shard));
            self.shrink(places.len());
            for place in places.values() {
                let Place::Ready(at) = place else {
                    continue;
                };
                // Before the removal: the last unpin then frees the slot.
                let alias = self.core.table.alias(*at);
                let removed = self.core.table.remove(*at, true);
                self.core.counters.hits.add(removed.hits);
                clean &= self.core.destroy(alias);
                if removed.is_unpinned {
                    self.core.table.free(*at);
                }
            }
        }
        clean
    }

    fn shard(&self, map_key: u64) -> &Shard<D> {
        // The multiplier of Fibonacci hashing. The top bits depend on all bits of the key.
        let mixed = map_key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }

    fn grow(&self) -> bool {
        let max = self.policy.aliases_max;
        let more = |len: u32| (len < max).then_some(len + 1);
        self.len
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    fn has_space(&self) -> bool {
        self.len.load(Ordering::Relaxed) < self.policy.aliases_max
    }

    fn shrink(&self, count: usize) {
        let count = u32::try_from(count).expect("the map holds at most `aliases_max`");
        let before = self.len.fetch_sub(count, Ordering::Relaxed);
        assert!(before >= count, "{count} aliases taken out of {before}");
    }
}

/// Behaviour of a creation in a full map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    /// Evict an unpinned alias.
    Evict,
    /// Evict none.
    Keep,
}

/// The result that threads wait for while another thread creates the alias.
type Making<D> = Flight<Result<AliasRef<D>, AliasError>>;

/// Result of a claim.
enum Claim<D: AliasDevice> {
    /// The alias exists.
    Found(AliasPin),
    /// This thread creates it.
    Make {
        flight: Arc<Making<D>>,
        /// An unpinned alias of another owner, which this thread ends.
        stale: Option<alias_table::Place>,
    },
    /// Another thread creates it.
    Join(Arc<Making<D>>),
    /// The map is full.
    Full,
    /// The alias has as many pins as the table counts.
    TooManyPins,
    /// There is no memory for a table entry.
    NoMemory,
}

impl<D: AliasDevice> Drop for Inner<D> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<D: AliasDevice> fmt::Debug for AliasMap<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AliasMap")
            .field("device", &self.inner.core.device)
            .field("policy", &self.inner.policy)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
