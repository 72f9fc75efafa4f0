//! The map of aliases: for each remote key one alias, made once and found again.
//!
//! A lookup takes a read lock on one of several shards and touches nothing else that is shared but
//! the alias itself. Nobody waits for the device but those who want the very alias that is in the
//! making. No lock is held over a call of the device.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;

use crate::device::{Alias, AliasDevice};
use crate::error::AliasError;
use crate::expiry::Expiry;
use crate::flight::Flight;
use crate::gate::Gate;
use crate::keeper::{Keeper, Round};
use crate::key::{Lkey, OwnerUuid, RemoteKey};
use crate::policy::AliasPolicy;
use crate::spread::spread;
use crate::stats::{AliasCounters, AliasStats};
use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, CountedArc, Mutex, Ordering, RwLock, lock, read, write,
};
use crate::unpinned::{Note, Unpinned};
use crate::upkeep::{LOOKS_PER_AGE, ROUND_MAX};

/// Shards of the map. A miss or an eviction holds the write lock of one of them for as long as a
/// table insert lasts; with sixteen a lookup hardly ever meets it.
const SHARDS: usize = 16;

/// Aliases that one search for the least recently used ones picks. The search goes over the whole
/// map; what it finds serves so many evictions.
const EVICTION_BATCH: usize = 64;

/// How long closing waits for calls that are inside the device. Commands are bounded by the kernel;
/// what is still inside after that hangs in the kernel, and its objects are left alone.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// The aliases that one importer has. Cheap to clone; all clones are the same map.
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

/// A part of the map.
type Shard<D> = RwLock<HashMap<u64, Place<D>>>;

struct Inner<D: AliasDevice> {
    core: Arc<Core<D>>,
    policy: AliasPolicy,
    shards: Box<[Shard<D>]>,
    /// Aliases of the map, those in the making included.
    len: AtomicU32,
    oldest: Mutex<Oldest>,
    expiry: Option<Expiry>,
    keeper: Keeper,
}

/// What the last search for aliases to evict came to.
#[derive(Debug, Default)]
struct Oldest {
    /// The oldest last: map key, and time of use when it was picked.
    candidates: Vec<Note>,
    /// The time when it began.
    searched: u64,
    /// It was not the first one of a tight map.
    is_confirmed: bool,
}

/// What an alias needs until its end, which may come after that of its place in the map.
#[derive(Debug)]
struct Core<D> {
    device: Arc<D>,
    gate: Gate,
    /// Grows with every unpin: the time by which aliases are compared.
    clock: AtomicU64,
    unpinned: Unpinned,
    counters: AliasCounters,
}

/// What the map has for a key.
enum Place<D: AliasDevice> {
    /// An alias. The map is one of its owners; every other owner pins it.
    Ready(CountedArc<Entry<D>>),
    /// A thread that makes one.
    Making(Arc<Making<D>>),
}

/// An alias on the device. Destroyed there with its last owner.
struct Entry<D: AliasDevice> {
    core: Arc<Core<D>>,
    key: RemoteKey,
    /// Whose key it is: what the key says, or, where it says nothing, what the first one said that
    /// asked for it by an owner.
    owner: AtomicU64,
    alias: Alias,
    /// When it was made or last unpinned.
    used: AtomicU64,
    /// Destroyed on the device already.
    dead: AtomicBool,
}

/// An alias in use. While one of its references lives the alias is not destroyed.
pub struct AliasRef<D: AliasDevice> {
    /// Empty while it is dropped.
    entry: Option<CountedArc<Entry<D>>>,
}

impl<D: AliasDevice> AliasMap<D> {
    /// An empty map over the device.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open(device: Arc<D>, policy: AliasPolicy) -> Result<Self, AliasError> {
        let policy = policy.checked()?;
        let core = Core {
            device,
            gate: Gate::new(),
            clock: AtomicU64::new(0),
            unpinned: Unpinned::new(),
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
            // Where the system gives no thread, upkeep is the caller's.
            let _started = inner.keeper.start(ttl / LOOKS_PER_AGE, move || {
                // Held for one round only: the map ends with its last handle.
                match map.upgrade().map(|map| map.expire()) {
                    None => Round::Over,
                    Some(expired) if expired == ROUND_MAX as usize => Round::More,
                    Some(_) => Round::Done,
                }
            });
        }
        Ok(Self { inner })
    }

    /// The alias of a remote key: the one of the map, or a new one. An alias that the map has for
    /// the same key of another owner is stale: it is replaced, and destroyed once nobody uses it. One
    /// whose owner is [unknown](OwnerUuid::UNKNOWN) is from now on this owner's.
    ///
    /// # Errors
    /// If the device cannot make the alias; if all aliases that the map may hold are in use; if
    /// another thread's attempt at the same alias failed or takes too long.
    pub fn attach(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        if !self.inner.core.device.is_ours() {
            return Err(AliasError::Forked);
        }
        match self.inner.find(&key) {
            Some(found) => Ok(found),
            None => self.inner.find_or_make(key, Room::Evict),
        }
    }

    /// An alias of its own for a remote key, which the map does not keep: it is destroyed with its
    /// last reference. For when the map is full of aliases in use.
    ///
    /// # Errors
    /// If the device cannot make the alias.
    pub fn attach_alone(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        let core = &self.inner.core;
        if !core.device.is_ours() {
            return Err(AliasError::Forked);
        }
        let _inside = core.gate.enter().ok_or(AliasError::Closed)?;
        self.inner.create(key)
    }

    /// The alias of a remote key, if the map has it. Makes none and waits for none.
    #[must_use]
    pub fn find(&self, key: &RemoteKey) -> Option<AliasRef<D>> {
        if !self.inner.core.device.is_ours() {
            return None;
        }
        self.inner.find(key)
    }

    /// The aliases of many remote keys, in their order: as [`AliasMap::attach`] for each of them,
    /// with those that have to be made spread over [`AliasPolicy::threads`] threads.
    pub fn attach_many(&self, keys: &[RemoteKey]) -> Vec<Result<AliasRef<D>, AliasError>> {
        spread(keys, self.inner.policy.threads, |key| self.attach(*key))
    }

    /// Makes the aliases of keys that will be needed, spread over [`AliasPolicy::threads`] threads.
    /// Puts no other alias out: keys that there is no room for are left out.
    pub fn prepare(&self, keys: &[RemoteKey]) -> Prepared {
        let mut prepared = Prepared::default();
        let prepare = |key: &RemoteKey| {
            if !self.inner.core.device.is_ours() {
                return Err(AliasError::Forked);
            }
            // Of a key that does not say whose it is, any alias that is there will do.
            let is_there = match key.owner {
                OwnerUuid::UNKNOWN => self.inner.has(key),
                _ => self.inner.find(key).is_some(),
            };
            match is_there {
                true => Ok(()),
                false => self.inner.find_or_make(*key, Room::Keep).map(drop),
            }
        };
        for result in spread(keys, self.inner.policy.threads, prepare) {
            match result {
                Ok(()) => prepared.ready += 1,
                Err(AliasError::Full { .. }) => prepared.left_out += 1,
                Err(error) => {
                    prepared.failed += 1;
                    prepared.error.get_or_insert(error);
                }
            }
        }
        prepared
    }

    /// Puts out all aliases of an owner that is known to be dead. Those in use are destroyed once
    /// they are not. Returns how many were put out.
    pub fn reap_owner(&self, owner: OwnerUuid) -> usize {
        if self.inner.core.device.is_ours() {
            self.inner.reap(owner)
        } else {
            0
        }
    }

    /// One round of upkeep: puts out aliases that nobody has used for the policy's
    /// [`ttl`](AliasPolicy::ttl), 64 of them at most, at hundreds of microseconds each. Returns how
    /// many. A rest is measured from one call to another, so it takes more than one to end it: call
    /// it four times in a `ttl`, or let the map have a thread.
    pub fn upkeep(&self) -> usize {
        self.inner.expire()
    }

    /// Aliases that the map has, those in the making included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len.load(Ordering::Relaxed) as usize
    }

    /// True if the map has no alias.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> AliasStats {
        AliasStats {
            aliases: self.len() as u64,
            ..self.inner.core.counters.snapshot()
        }
    }

    /// Destroys the aliases of the map, those that are still in use as well. The device stays open.
    /// True if nothing is left behind.
    pub fn close(&self) -> bool {
        self.inner.close()
    }
}

impl<D: AliasDevice> AliasRef<D> {
    /// The key to use for the remote memory in local work requests, and to hand out as rkey.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.entry().alias.lkey
    }

    /// What the alias stands for.
    #[must_use]
    pub fn remote(&self) -> RemoteKey {
        RemoteKey {
            owner: self.entry().owner(),
            ..self.entry().key
        }
    }

    #[inline]
    fn new(entry: CountedArc<Entry<D>>) -> Self {
        Self { entry: Some(entry) }
    }

    #[inline]
    fn entry(&self) -> &CountedArc<Entry<D>> {
        // Dropping alone empties it.
        self.entry.as_ref().expect("an alias that is not dropped")
    }
}

impl<D: AliasDevice> Clone for AliasRef<D> {
    fn clone(&self) -> Self {
        Self::new(CountedArc::clone(self.entry()))
    }
}

impl<D: AliasDevice> Drop for AliasRef<D> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else {
            return;
        };
        // Before the count goes down: an eviction that finds the alias unpinned must see the time.
        let used = entry.core.tick();
        entry.used.store(used, Ordering::Relaxed);
        if entry.core.unpinned.is_tight() {
            let core = Arc::clone(&entry.core);
            let map_key = entry.key.map_key();
            // After the count went down: what is noted can be evicted.
            drop(entry);
            core.unpinned.note((map_key, used));
        }
    }
}

impl<D: AliasDevice> Inner<D> {
    /// The hit path.
    fn find(&self, key: &RemoteKey) -> Option<AliasRef<D>> {
        let shard = read(self.shard(key.map_key()));
        match shard.get(&key.map_key()) {
            Some(Place::Ready(entry)) if entry.is_of(key.owner) => {
                self.core.counters.hits.one();
                Some(AliasRef::new(CountedArc::clone(entry)))
            }
            _ => None,
        }
    }

    /// True if there is an alias of the key, whoever its owner is.
    fn has(&self, key: &RemoteKey) -> bool {
        let shard = read(self.shard(key.map_key()));
        matches!(shard.get(&key.map_key()), Some(Place::Ready(_)))
    }

    fn find_or_make(&self, key: RemoteKey, room: Room) -> Result<AliasRef<D>, AliasError> {
        let _inside = self.core.gate.enter().ok_or(AliasError::Closed)?;
        let deadline = Instant::now() + self.policy.create_wait;
        loop {
            match self.claim(&key) {
                Claim::Found(found) => return Ok(found),
                Claim::Make { flight, stale } => {
                    // Destroys the stale alias here, unless somebody still uses it.
                    drop(stale);
                    return self.make(key, &flight);
                }
                Claim::Join(flight) => {
                    self.core.counters.joins.one();
                    let limit = deadline.saturating_duration_since(Instant::now());
                    match flight.wait(limit) {
                        // The other thread may have made it for another owner of the same key.
                        Some(Ok(made)) if made.entry().is_of(key.owner) => return Ok(made),
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(error),
                        None => return Err(self.waited_too_long(&key)),
                    }
                }
                Claim::NoMemory => return Err(AliasError::NoMemory),
                Claim::Full => {
                    if room == Room::Keep || !self.evict() {
                        self.core.counters.refusals.one();
                        let aliases_max = self.policy.aliases_max;
                        return Err(AliasError::Full { aliases_max });
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(self.waited_too_long(&key));
            }
        }
    }

    /// Decides, in one step for all threads, who makes the alias.
    fn claim(&self, key: &RemoteKey) -> Claim<D> {
        let mut shard = write(self.shard(key.map_key()));
        // The table may be large, and grows here.
        if shard.try_reserve(1).is_err() {
            return Claim::NoMemory;
        }
        match shard.entry(key.map_key()) {
            MapEntry::Occupied(mut place) => match place.get() {
                Place::Ready(entry) if entry.is_of(key.owner) => {
                    self.core.counters.hits.one();
                    Claim::Found(AliasRef::new(CountedArc::clone(entry)))
                }
                Place::Making(flight) => Claim::Join(Arc::clone(flight)),
                Place::Ready(_) => {
                    // The new alias takes the place over, so the length stays as it is.
                    let flight = Arc::new(Flight::new());
                    let stale = place.insert(Place::Making(Arc::clone(&flight)));
                    self.core.counters.stale.one();
                    Claim::Make {
                        flight,
                        stale: Some(stale),
                    }
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

    /// Makes the alias that this thread has claimed, and tells those who wait for it.
    fn make(&self, key: RemoteKey, flight: &Arc<Making<D>>) -> Result<AliasRef<D>, AliasError> {
        let result = self.create(key);
        let mut shard = write(self.shard(key.map_key()));
        // Only the claimer ends a claim, so the place is still there and still ours.
        match &result {
            Ok(made) => {
                shard.insert(key.map_key(), Place::Ready(CountedArc::clone(made.entry())));
            }
            Err(_) => {
                shard.remove(&key.map_key());
                self.shrink(1);
            }
        }
        drop(shard);
        flight.land(result.clone());
        result
    }

    /// Makes an alias on the device. It is in no map yet.
    fn create(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        self.core.counters.misses.one();
        match self.core.device.create_alias(&key, &self.policy.access_key) {
            Ok(alias) => {
                self.core.counters.creates.one();
                let entry = Entry {
                    core: Arc::clone(&self.core),
                    key,
                    owner: AtomicU64::new(key.owner.get()),
                    alias,
                    used: AtomicU64::new(self.core.tick()),
                    dead: AtomicBool::new(false),
                };
                Ok(AliasRef::new(CountedArc::new(entry)))
            }
            Err(source) => {
                self.core.counters.create_failures.one();
                Err(AliasError::Create {
                    gvmi: key.gvmi,
                    mkey: key.mkey,
                    source,
                })
            }
        }
    }

    fn waited_too_long(&self, key: &RemoteKey) -> AliasError {
        let RemoteKey { gvmi, mkey, .. } = *key;
        AliasError::WaitedTooLong {
            gvmi,
            mkey,
            limit: self.policy.create_wait,
        }
    }

    /// Puts out the alias that was unpinned longest ago. False if all are in use. Whatever is pinned, it
    /// takes as long as the uses since the last call were, and not as long as the map is.
    fn evict(&self) -> bool {
        let mut oldest = lock(&self.oldest);
        loop {
            let noted = || self.core.unpinned.pop();
            while let Some((map_key, used)) = oldest.candidates.pop().or_else(noted) {
                if let Some(evicted) = self.take_unused(map_key, used) {
                    drop(oldest);
                    self.core.counters.evictions.one();
                    drop(evicted);
                    return true;
                }
            }
            if !self.may_search(&oldest) {
                return false;
            }
            self.core.counters.searches.one();
            oldest.is_confirmed = self.core.unpinned.is_tight();
            self.core.unpinned.tighten();
            oldest.searched = self.core.clock.load(Ordering::SeqCst);
            oldest.candidates = self.search_oldest();
            if oldest.candidates.len() == EVICTION_BATCH {
                self.core.unpinned.loosen();
            }
        }
    }

    /// True if a search may find what neither the last one nor the notes have.
    fn may_search(&self, oldest: &Oldest) -> bool {
        let unpinned = &self.core.unpinned;
        let since = self.core.clock.load(Ordering::SeqCst) - oldest.searched;
        // Aliases that were unpinned while the map became tight are in neither.
        let confirms = !oldest.is_confirmed;
        let is_due = since >= u64::from(self.len.load(Ordering::Relaxed)).max(1);
        !unpinned.is_tight() || confirms || is_due || unpinned.has_overflowed()
    }

    /// Takes an alias out of the map if nobody has used it since `used`. All that were unpinned
    /// later than the last search are younger than all it picked, so the order holds.
    fn take_unused(&self, map_key: u64, used: u64) -> Option<Place<D>> {
        let mut shard = write(self.shard(map_key));
        let Some(Place::Ready(entry)) = shard.get(&map_key) else {
            return None;
        };
        // Nobody can pin it meanwhile: a pin is taken under the lock, or from another pin.
        if !Entry::is_unpinned(entry) || entry.used.load(Ordering::Relaxed) != used {
            return None;
        }
        let taken = shard.remove(&map_key);
        self.shrink(1);
        taken
    }

    /// Puts out what has rested for too long, as much as a round may.
    fn expire(&self) -> usize {
        let Some(expiry) = &self.expiry else {
            return 0;
        };
        if !self.core.device.is_ours() || self.core.gate.is_shut() {
            return 0;
        }
        let ticks = self.core.clock.load(Ordering::Relaxed);
        let Some(last) = expiry.last_expired(Instant::now(), ticks) else {
            return 0;
        };
        let mut expired = 0;
        for (map_key, used) in self.search_unpinned(last) {
            if expired == ROUND_MAX as usize {
                break;
            }
            if let Some(out) = self.take_unused(map_key, used) {
                self.core.counters.expired.one();
                expired += 1;
                drop(out);
            }
        }
        expired
    }

    /// Unpinned aliases that were last used no later than `last`.
    fn search_unpinned(&self, last: u64) -> Vec<Note> {
        let mut unpinned = Vec::new();
        for shard in &self.shards {
            for (map_key, place) in read(shard).iter() {
                if let Place::Ready(entry) = place
                    && Entry::is_unpinned(entry)
                {
                    let used = entry.used.load(Ordering::Relaxed);
                    if used <= last {
                        if unpinned.try_reserve(1).is_err() {
                            // Those that were found will do.
                            return unpinned;
                        }
                        unpinned.push((*map_key, used));
                    }
                }
            }
        }
        unpinned
    }

    fn search_oldest(&self) -> Vec<Note> {
        let mut unpinned = self.search_unpinned(u64::MAX);
        let by_use = |candidate: &Note| candidate.1;
        if unpinned.len() > EVICTION_BATCH {
            unpinned.select_nth_unstable_by_key(EVICTION_BATCH, by_use);
            unpinned.truncate(EVICTION_BATCH);
        }
        unpinned.sort_unstable_by_key(|candidate| std::cmp::Reverse(by_use(candidate)));
        unpinned
    }

    fn reap(&self, owner: OwnerUuid) -> usize {
        let mut out = Vec::new();
        for shard in &self.shards {
            let gone = |_: &u64, place: &mut Place<D>| matches!(place, Place::Ready(entry) if entry.owner() == owner);
            out.extend(write(shard).extract_if(gone).map(|(_, place)| place));
        }
        self.shrink(out.len());
        self.core.counters.reaped.add(out.len() as u64);
        out.len()
    }

    fn close(&self) -> bool {
        if !self.core.device.is_ours() || !self.core.gate.shut() {
            return true;
        }
        self.keeper.stop();
        if !self.core.gate.wait_empty(CLOSE_WAIT) {
            // Somebody hangs inside the device; taking it away under them would be worse.
            return false;
        }
        let mut clean = true;
        for shard in &self.shards {
            let places = std::mem::take(&mut *write(shard));
            self.shrink(places.len());
            for place in places.values() {
                if let Place::Ready(entry) = place {
                    clean &= entry.destroy();
                }
            }
        }
        clean
    }

    fn shard(&self, map_key: u64) -> &Shard<D> {
        // The multiplier of Fibonacci hashing; the top bits depend on all bits of the key.
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

    fn shrink(&self, count: usize) {
        // Cannot be lost: the map never has more than `aliases_max`, which is u32.
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let before = self.len.fetch_sub(count, Ordering::Relaxed);
        assert!(
            before >= count,
            "{count} aliases taken out of a map of {before}"
        );
    }
}

/// What preparing aliases came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Keys that have an alias now.
    pub ready: usize,
    /// Keys that there was no room for.
    pub left_out: usize,
    /// Keys that no alias could be made of.
    pub failed: usize,
    /// Why not, of the first of them.
    pub error: Option<AliasError>,
}

/// Where the room for a new alias may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// An alias that nobody uses may be put out.
    Evict,
    /// The aliases that there are stay.
    Keep,
}

/// What those who want an alias in the making wait for.
type Making<D> = Flight<Result<AliasRef<D>, AliasError>>;

/// Who makes the alias.
enum Claim<D: AliasDevice> {
    /// Nobody: there is one.
    Found(AliasRef<D>),
    /// This thread.
    Make {
        flight: Arc<Making<D>>,
        stale: Option<Place<D>>,
    },
    /// Another thread.
    Join(Arc<Making<D>>),
    /// Nobody, until there is room.
    Full,
    /// Nobody, until there is memory.
    NoMemory,
}

impl<D> Core<D> {
    fn tick(&self) -> u64 {
        // Cannot wrap: at one tick a nanosecond it lasts for five centuries.
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl<D: AliasDevice> Entry<D> {
    fn owner(&self) -> OwnerUuid {
        OwnerUuid::new(self.owner.load(Ordering::Relaxed))
    }

    /// True if it is the owner's, as far as anybody can know: an alias whose owner is not known yet
    /// becomes that of the first one who asks for it.
    fn is_of(&self, owner: OwnerUuid) -> bool {
        let unknown = OwnerUuid::UNKNOWN.get();
        let (found, owner) = (self.owner.load(Ordering::Relaxed), owner.get());
        if found == owner {
            return true;
        }
        let take = |owner| {
            let (from, to) = (Ordering::Relaxed, Ordering::Relaxed);
            self.owner.compare_exchange(unknown, owner, from, to)
        };
        // Another thread may have been faster, for the same owner.
        found == unknown && take(owner).map_or_else(|now| now == owner, |_unknown| true)
    }

    /// Meaningful only under the lock of the shard that holds the entry.
    fn is_unpinned(entry: &CountedArc<Self>) -> bool {
        CountedArc::strong_count(entry) == 1
    }

    /// Destroys the alias on the device, once.
    fn destroy(&self) -> bool {
        if self.dead.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.core.device.destroy_alias(self.alias.index) {
            Ok(()) => {
                self.core.counters.destroys.one();
                true
            }
            Err(_) => {
                self.core.counters.destroy_failures.one();
                false
            }
        }
    }
}

impl<D: AliasDevice> Drop for Entry<D> {
    fn drop(&mut self) {
        // An orphan that outlives the map is destroyed with the device; a child's copy is not the
        // child's.
        if self.core.device.is_ours()
            && let Some(_inside) = self.core.gate.enter()
        {
            self.destroy();
        }
    }
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

impl<D: AliasDevice> fmt::Debug for AliasRef<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AliasRef")
            .field("remote", &self.entry().key)
            .field("lkey", &self.lkey())
            .finish_non_exhaustive()
    }
}
