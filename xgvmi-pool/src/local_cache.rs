//! A cache: a chunk of free keys that one thread at a time may claim. A claim costs one atomic exchange
//! and its end one store. That is half the cost of a lock, because no thread sleeps until the cache
//! is free.
//!
//! A thread that binds or invalidates a key holds the claim during the request. It counts its requests
//! here, and the pool does not close before it has claimed every cache. Such a request therefore
//! writes no memory that a thread with another cache writes, except for the device's queue.
//!
//! Taken keys leave places behind, and returned keys get these places. A thread that takes and returns
//! keys in turn therefore reads and writes one cache line of keys.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::policy::{CACHE_KEYS_MAX, ReuseOrder};
use crate::slots::SlotId;
use crate::sync::{AtomicBool, Ordering};

/// Places for keys, a power of two: two cache lines.
const PLACES: usize = 32;
const CHUNK_MAX: usize = CACHE_KEYS_MAX as usize;
const _: () = assert!(CHUNK_MAX <= PLACES);

/// The cache. Only the thread that holds the claim accesses the other fields, so their loads and
/// stores need no ordering. They are atomics because safe code cannot share other memory between
/// threads.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LocalCache {
    claimed: AtomicBool,
    /// Number of places in use.
    most: u32,
    /// The next key to take. The keys from here to the last place are *out*.
    next: AtomicU32,
    /// Number of returned keys, at most `next`. They are in the first places.
    back_len: AtomicU32,
    taken: AtomicU64,
    returned: AtomicU64,
    /// Binds that took effect, releases that began, and invalidations that took effect.
    binds: AtomicU64,
    releases: AtomicU64,
    invalidates: AtomicU64,
    _pad: u64,
    keys: [AtomicU32; PLACES],
}

// The fields of each use are one cache line. loom's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(LocalCache, keys) == 64);

/// Requests that threads made while they held a cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) binds: u64,
    pub(crate) releases: u64,
    pub(crate) invalidates: u64,
}

impl Requests {
    /// Bound keys: binds less releases. Below zero if keys were bound elsewhere.
    pub(crate) fn bound(self) -> i64 {
        // 64 bits of requests never wrap.
        self.binds.wrapping_sub(self.releases).cast_signed()
    }
}

/// A cache claimed by the calling thread, until the drop.
#[derive(Debug)]
pub(crate) struct Claimed<'a>(&'a LocalCache);

/// A chunk of keys between a cache and the queue.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    slots: [u32; CHUNK_MAX],
    len: u32,
}

impl LocalCache {
    /// An empty cache for `most` keys.
    pub(crate) fn new(most: u32) -> Self {
        assert!(most <= CACHE_KEYS_MAX, "more keys than places");
        Self {
            claimed: AtomicBool::new(false),
            most,
            next: AtomicU32::new(most),
            back_len: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            binds: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            invalidates: AtomicU64::new(0),
            _pad: 0,
            keys: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Claims the cache, if it is free.
    #[inline]
    pub(crate) fn claim(&self) -> Option<Claimed<'_>> {
        // Not a swap, which writes also if it fails: the models of loom let that write follow the end of
        // the claim.
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let claimed = self.claimed.compare_exchange(false, true, order.0, order.1);
        // Created only with the claim: its drop frees the cache.
        claimed.is_ok().then(|| Claimed(self))
    }

    /// Requests so far. Two numbers may differ by a moment while a thread holds the cache.
    pub(crate) fn requests(&self) -> Requests {
        // Before the binds: a release has a bind before it.
        let releases = self.releases.load(Ordering::Relaxed);
        Requests {
            binds: self.binds.load(Ordering::Relaxed),
            releases,
            invalidates: self.invalidates.load(Ordering::Relaxed),
        }
    }

    /// Keys taken and returned so far. Consistent only for the thread that holds the cache.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (
            self.taken.load(Ordering::Relaxed),
            self.returned.load(Ordering::Relaxed),
        )
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.claimed.store(false, Ordering::Release);
    }
}

impl Claimed<'_> {
    /// Takes the next key of those that are out, or by LIFO the last returned key.
    #[inline]
    pub(crate) fn take(&self, order: ReuseOrder) -> Option<SlotId> {
        match order {
            ReuseOrder::Fifo => {}
            // The keys that are out are older than the returned ones.
            ReuseOrder::Lifo => {
                let back = get(&self.0.back_len);
                if back > 0 {
                    set(&self.0.back_len, back - 1);
                    self.count_taken();
                    return Some(self.at(back - 1));
                }
            }
            // This order has no caches.
            ReuseOrder::Affinity => return None,
        }
        let next = get(&self.0.next);
        if next == self.0.most {
            return None;
        }
        set(&self.0.next, next + 1);
        self.count_taken();
        Some(self.at(next))
    }

    /// Returns a key. False if there is no place.
    #[inline]
    pub(crate) fn put(&self, id: SlotId) -> bool {
        let len = get(&self.0.back_len);
        if len == get(&self.0.next) {
            return false;
        }
        set(&self.0.keys[len as usize % PLACES], id.0);
        set(&self.0.back_len, len + 1);
        let _before = next(&self.0.returned);
        true
    }

    /// Counts a bind. Returns the number of binds before it.
    #[inline]
    pub(crate) fn count_bind(&self) -> u64 {
        next(&self.0.binds)
    }

    /// Counts a release. Returns the number of releases before it.
    #[inline]
    pub(crate) fn count_release(&self) -> u64 {
        next(&self.0.releases)
    }

    /// Counts an invalidation.
    #[inline]
    pub(crate) fn count_invalidate(&self) {
        let _before = next(&self.0.invalidates);
    }

    /// Number of binds so far.
    #[inline]
    pub(crate) fn binds(&self) -> u64 {
        self.0.binds.load(Ordering::Relaxed)
    }

    /// Keeps the claim for ever: no thread uses the cache any more.
    pub(crate) fn seal(self) {
        std::mem::forget(self);
    }

    /// True if there are places for the chunk beside the returned keys.
    pub(crate) fn has_places(&self, chunk: &Chunk) -> bool {
        get(&self.0.back_len) + chunk.len <= self.0.most
    }

    /// Puts a chunk out. No key may be out, and there must be places for the chunk.
    pub(crate) fn refill(&self, chunk: &Chunk, order: ReuseOrder) {
        assert!(get(&self.0.next) == self.0.most, "keys are still out");
        assert!(self.has_places(chunk), "no places for a chunk");
        let first = self.0.most - chunk.len;
        for (place, slot) in self.0.keys[first as usize..]
            .iter()
            .zip(chunk.ordered(order))
        {
            set(place, slot);
        }
        set(&self.0.next, first);
    }

    /// Puts the returned keys out, because there are no others. False if there is none.
    pub(crate) fn put_returned_out(&self, order: ReuseOrder) -> bool {
        let returned = self.clear_returned();
        self.refill(&returned, order);
        !returned.is_empty()
    }

    /// Takes all returned keys.
    pub(crate) fn clear_returned(&self) -> Chunk {
        let chunk = self.read(0, get(&self.0.back_len));
        set(&self.0.back_len, 0);
        chunk
    }

    /// Takes the older half of the returned keys.
    pub(crate) fn clear_older(&self) -> Chunk {
        let len = get(&self.0.back_len);
        let (older, rest) = (
            self.read(0, len.div_ceil(2)),
            self.read(len.div_ceil(2), len),
        );
        for (place, slot) in self.0.keys.iter().zip(rest.keys()) {
            set(place, *slot);
        }
        set(&self.0.back_len, rest.len);
        older
    }

    /// Takes all keys that are out, the oldest first.
    pub(crate) fn clear_out(&self, order: ReuseOrder) -> Chunk {
        let mut chunk = self.read(get(&self.0.next), self.0.most);
        if order == ReuseOrder::Lifo {
            let len = chunk.len();
            chunk.slots[..len].reverse();
        }
        set(&self.0.next, self.0.most);
        chunk
    }

    #[inline]
    fn at(&self, number: u32) -> SlotId {
        SlotId(get(&self.0.keys[number as usize % PLACES]))
    }

    fn read(&self, from: u32, to: u32) -> Chunk {
        let mut chunk = Chunk {
            len: to - from,
            ..Chunk::default()
        };
        let places = &self.0.keys[from as usize..to as usize];
        for (slot, place) in chunk.slots.iter_mut().zip(places) {
            *slot = get(place);
        }
        chunk
    }

    #[inline]
    fn count_taken(&self) {
        let _before = next(&self.0.taken);
    }
}

impl Chunk {
    /// A chunk of one key.
    pub(crate) fn of(id: SlotId) -> Self {
        let mut chunk = Self::default();
        chunk.slots[0] = id.0;
        chunk.len = 1;
        chunk
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys, the first one first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.keys().iter().copied().map(SlotId)
    }

    fn keys(&self) -> &[u32] {
        &self.slots[..self.len()]
    }

    /// Takes the first key.
    pub(crate) fn take_first(&mut self) -> Option<SlotId> {
        let first = *self.keys().first()?;
        let len = self.len();
        self.slots.copy_within(1..len, 0);
        self.len -= 1;
        Some(SlotId(first))
    }

    /// The keys in the order in which they are taken.
    fn ordered(&self, order: ReuseOrder) -> impl Iterator<Item = u32> + '_ {
        let last = self.len().wrapping_sub(1);
        (0..self.len()).map(move |at| match order {
            ReuseOrder::Lifo => self.slots[last - at],
            ReuseOrder::Fifo | ReuseOrder::Affinity => self.slots[at],
        })
    }
}

/// Adds one to a counter that only the holder of the claim writes. Returns the count before.
#[inline]
fn next(counter: &AtomicU64) -> u64 {
    let count = counter.load(Ordering::Relaxed);
    counter.store(count + 1, Ordering::Relaxed);
    count
}

#[inline]
fn get(place: &AtomicU32) -> u32 {
    place.load(Ordering::Relaxed)
}

#[inline]
fn set(place: &AtomicU32, value: u32) {
    place.store(value, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIFO: ReuseOrder = ReuseOrder::Fifo;
    const LIFO: ReuseOrder = ReuseOrder::Lifo;

    fn chunk(keys: std::ops::Range<u32>) -> Chunk {
        let mut chunk = Chunk::default();
        for key in keys {
            chunk.slots[chunk.len()] = key;
            chunk.len += 1;
        }
        chunk
    }

    #[test]
    fn a_cache_has_one_owner_at_a_time() {
        let cache = LocalCache::new(4);
        let claimed = cache.claim().expect("nobody has it");
        for _ in 0..3 {
            assert!(cache.claim().is_none(), "and asking does not free it");
        }
        drop(claimed);
        assert!(cache.claim().is_some());
    }

    #[test]
    fn returned_keys_get_the_places_of_taken_ones_and_wait_for_their_turn() {
        let cache = LocalCache::new(3);
        let cache = cache.claim().expect("nobody has it");
        assert_eq!(cache.take(FIFO), None, "empty");
        cache.refill(&chunk(0..3), FIFO);
        assert!(!cache.put(SlotId(7)), "all places are in use");
        for id in 0..3 {
            assert_eq!(cache.take(FIFO), Some(SlotId(id)));
            assert!(cache.put(SlotId(10 + id)));
        }
        assert_eq!(cache.take(FIFO), None, "none is out");
        assert!(!cache.put(SlotId(7)) && !cache.has_places(&chunk(0..1)));
        assert!(cache.put_returned_out(FIFO));
        assert_eq!(cache.take(FIFO), Some(SlotId(10)));
        assert!(cache.put(SlotId(20)) && !cache.put(SlotId(21)));
        assert_eq!(cache.clear_returned().keys(), [20]);
        assert_eq!(cache.clear_out(FIFO).keys(), [11, 12]);
        assert!(!cache.put_returned_out(FIFO));
        assert_eq!(cache.0.traffic(), (4, 4));
    }

    #[test]
    fn by_lifo_the_last_key_is_the_next() {
        let cache = LocalCache::new(4);
        let cache = cache.claim().expect("nobody has it");
        cache.refill(&chunk(0..3), LIFO);
        assert_eq!(cache.take(LIFO), Some(SlotId(2)));
        for id in [5, 6] {
            assert!(
                cache.put(SlotId(id)),
                "a place of the cache and one of a taken key"
            );
        }
        assert!(!cache.put(SlotId(7)));
        assert_eq!(cache.take(LIFO), Some(SlotId(6)));
        assert_eq!(cache.clear_out(LIFO).keys(), [0, 1], "the oldest first");
        for id in [6, 7, 8] {
            assert!(cache.put(SlotId(id)));
        }
        assert_eq!(cache.clear_older().keys(), [5, 6]);
        assert_eq!(cache.clear_returned().keys(), [7, 8]);
    }

    #[test]
    fn a_chunk_is_used_from_the_front() {
        let mut chunk = Chunk::of(SlotId(7));
        assert_eq!(
            (chunk.take_first(), chunk.take_first()),
            (Some(SlotId(7)), None)
        );
        assert!(chunk.is_empty());
    }
}
