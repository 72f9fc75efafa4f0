//! A cache: a chunk of free keys that one thread at a time may claim. A claim costs one atomic exchange
//! and its end one store. That is half the cost of a lock, because no thread sleeps until the cache
//! is free.
//!
//! A thread that binds or invalidates a key holds the claim during the request. It counts its requests
//! here, and the pool does not close before it has claimed every cache. Such a request therefore
//! writes no memory that a thread with another cache writes, except for the device's queue.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::policy::{CACHE_KEYS_MAX, ReuseOrder};
use crate::slots::SlotId;
use crate::sync::{AtomicBool, Ordering};

const KEYS_MAX: usize = CACHE_KEYS_MAX as usize;

/// The cache. Only the thread that holds the claim accesses the other fields, so their loads and
/// stores need no ordering. They are atomics because safe code cannot share other memory between
/// threads.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct LocalCache {
    claimed: AtomicBool,
    /// The next key on the `out` side, and the number of keys there at the refill.
    next: AtomicU32,
    out_len: AtomicU32,
    back_len: AtomicU32,
    taken: AtomicU64,
    returned: AtomicU64,
    /// Binds that took effect, releases that began, and invalidations that took effect.
    binds: AtomicU64,
    releases: AtomicU64,
    invalidates: AtomicU64,
    _pad: u64,
    out: [AtomicU32; KEYS_MAX],
    back: [AtomicU32; KEYS_MAX],
}

// The fields of each use are one cache line, and so is each side. loom's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(LocalCache, out) == 64);

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
    slots: [u32; KEYS_MAX],
    len: u32,
}

impl LocalCache {
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
    /// Takes the first key of the `out` side, or by LIFO the last returned key.
    #[inline]
    pub(crate) fn take(&self, order: ReuseOrder) -> Option<SlotId> {
        match order {
            ReuseOrder::Fifo => {
                let next = get(&self.0.next);
                if next == get(&self.0.out_len) {
                    return None;
                }
                set(&self.0.next, next + 1);
                self.count_taken();
                Some(at(&self.0.out, next))
            }
            // The keys of `out` are older than those of `back`.
            ReuseOrder::Lifo => self.take_last(),
            // This order has no caches.
            ReuseOrder::Affinity => None,
        }
    }

    #[inline]
    fn take_last(&self) -> Option<SlotId> {
        let back = get(&self.0.back_len);
        if back > 0 {
            set(&self.0.back_len, back - 1);
            self.count_taken();
            return Some(at(&self.0.back, back - 1));
        }
        let len = get(&self.0.out_len);
        if len == get(&self.0.next) {
            return None;
        }
        set(&self.0.out_len, len - 1);
        self.count_taken();
        Some(at(&self.0.out, len - 1))
    }

    /// Takes the first returned key ahead of its turn, because there is no other.
    pub(crate) fn take_returned(&self) -> Option<SlotId> {
        let mut back = self.clear_returned();
        let found = back.take_first()?;
        for (place, slot) in self.0.back.iter().zip(back.keys()) {
            set(place, *slot);
        }
        set(&self.0.back_len, back.len);
        self.count_taken();
        Some(found)
    }

    /// Returns a key. False if the side already holds `most` keys.
    #[inline]
    pub(crate) fn put(&self, id: SlotId, most: u32) -> bool {
        let len = get(&self.0.back_len);
        if len >= most {
            return false;
        }
        debug_assert!(most <= CACHE_KEYS_MAX);
        set(&self.0.back[len as usize % KEYS_MAX], id.0);
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

    /// Fills the `out` side, which must be empty.
    pub(crate) fn refill(&self, chunk: &Chunk) {
        assert!(
            get(&self.0.next) == get(&self.0.out_len),
            "keys are still out"
        );
        for (place, slot) in self.0.out.iter().zip(chunk.keys()) {
            set(place, *slot);
        }
        set(&self.0.next, 0);
        set(&self.0.out_len, chunk.len);
    }

    /// Takes all keys of the `back` side.
    pub(crate) fn clear_returned(&self) -> Chunk {
        let chunk = Chunk::read(&self.0.back, 0, get(&self.0.back_len));
        set(&self.0.back_len, 0);
        chunk
    }

    /// Takes all keys of the `out` side.
    pub(crate) fn clear_out(&self) -> Chunk {
        let chunk = Chunk::read(&self.0.out, get(&self.0.next), get(&self.0.out_len));
        set(&self.0.next, 0);
        set(&self.0.out_len, 0);
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

    fn read(places: &[AtomicU32; KEYS_MAX], from: u32, to: u32) -> Self {
        let mut chunk = Self {
            len: to - from,
            ..Self::default()
        };
        let places = &places[from as usize..to as usize];
        for (slot, place) in chunk.slots.iter_mut().zip(places) {
            *slot = get(place);
        }
        chunk
    }
}

#[inline]
fn at(places: &[AtomicU32; KEYS_MAX], number: u32) -> SlotId {
    SlotId(get(&places[number as usize % KEYS_MAX]))
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

    #[test]
    fn a_cache_has_one_owner_at_a_time() {
        let cache = LocalCache::default();
        let claimed = cache.claim().expect("nobody has it");
        for _ in 0..3 {
            assert!(cache.claim().is_none(), "and asking does not free it");
        }
        drop(claimed);
        assert!(cache.claim().is_some());
    }

    #[test]
    fn keys_that_came_back_wait_for_their_turn() {
        let cache = LocalCache::default();
        let cache = cache.claim().expect("nobody has it");
        for id in 0..3 {
            assert!(cache.put(SlotId(id), 3));
        }
        assert!(!cache.put(SlotId(3), 3), "full");
        assert_eq!(cache.take(ReuseOrder::Fifo), None, "none is out");
        assert_eq!(cache.take_returned(), Some(SlotId(0)));
        let chunk = cache.clear_returned();
        assert_eq!(chunk.keys(), [1, 2]);
        cache.refill(&chunk);
        assert!(cache.put(SlotId(4), 3));
        assert_eq!(cache.take(ReuseOrder::Fifo), Some(SlotId(1)));
        assert_eq!(cache.take(ReuseOrder::Lifo), Some(SlotId(4)));
        assert_eq!(cache.take(ReuseOrder::Lifo), Some(SlotId(2)));
        assert_eq!(cache.take(ReuseOrder::Lifo), None);
        assert_eq!(cache.0.traffic(), (4, 4));
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
