//! The free list: a bounded queue for all threads, and in front of it one cache per group of
//! threads. Most leases and returns then touch no memory that another thread writes.
//!
//! Keys leave in the order of their return. The queue holds chunks of keys: a cache without keys to take
//! gets the first chunk, and the keys that were returned to a cache become the last one. A released key
//! therefore idles until the keys before it have been used, to within one chunk. [`ReuseOrder::Lifo`] reverses this: a thread
//! takes the key that it returned last, and the chunks form a stack. Caches belong to the pool and
//! not to threads, so a thread that ends holds no keys. Its keys in a cache serve the next thread of
//! that cache, and any thread that finds the queue and its own cache empty. No thread waits for a
//! cache: if another thread holds it, the thread uses the next one.

use std::collections::VecDeque;
use std::hint;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::affinity::IdleKeys;
use crate::key::VirtAddr;
use crate::local_cache::{Chunk, Claimed, LocalCache, Requests};
use crate::policy::{CACHE_KEYS_MAX, ReuseOrder};
use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, Queue, lock, yield_now};

/// Maximum number of caches. With more threads, several share a cache.
const CACHES_MAX: usize = 64;

/// Minimum number of keys of a cache, if the pool has more than one cache.
const SHARE_MIN: usize = 8;

/// Number of passes over the caches while other threads hold all of them, before the thread uses the
/// queue directly. A thread holds a cache for some nanoseconds, unless the scheduler preempts it.
#[cfg(not(loom))]
const ROUNDS_MAX: u32 = 64;
/// One pass is enough to test the code behind it.
#[cfg(loom)]
const ROUNDS_MAX: u32 = 1;

/// All free keys of a pool.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FreeList {
    /// A power of two of them.
    caches: Box<[CachePadded<LocalCache>]>,
    /// Keys of a cache; zero if there are no caches.
    cache_keys: u32,
    order: ReuseOrder,
    /// Apart from the fields that every lease reads and no thread writes, like the marks.
    queue: Box<Chunks>,
    marks: Box<CachePadded<Marks>>,
}

/// Chunks, in the order of their use.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a pool, and it is read on every lease"
)]
#[derive(Debug)]
enum Chunks {
    Fifo(Queue<Chunk>),
    /// The most recent chunk at the end. The lock covers a push or pop of one chunk.
    Lifo(Mutex<VecDeque<Chunk>>),
    /// Single keys with their last addresses. The lock covers one key.
    Affinity(Mutex<IdleKeys>),
}

/// Fill level of the queue, and its minimum.
#[derive(Debug)]
struct Marks {
    /// Keys in the queue.
    queued: AtomicUsize,
    /// Minimum number of keys in the queue since the last query. These keys were never needed.
    idle_min: AtomicUsize,
    /// Keys taken and returned without a cache.
    taken: AtomicUsize,
    returned: AtomicUsize,
}

/// Number of keys taken and returned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) taken: u64,
    pub(crate) returned: u64,
}

impl FreeList {
    /// A free list for up to `capacity` keys, with `caches` caches of `cache_keys` keys. All caches together take at most a quarter of the keys. Otherwise threads would
    /// find no key while other caches are full. A small pool has fewer caches, so that each has at
    /// least [`SHARE_MIN`] keys.
    pub(crate) fn new(capacity: u32, cache_keys: u32, caches: usize, order: ReuseOrder) -> Self {
        let caches = caches.clamp(1, CACHES_MAX).next_power_of_two();
        let fitting = capacity as usize / 4 / SHARE_MIN;
        let caches = fitting
            .checked_ilog2()
            .map_or(caches, |log| caches.min(1 << log));
        let share = capacity as usize / 4 / caches;
        let share = match u32::try_from(share).expect("a part of `capacity`") {
            // In so small a pool the order of reuse is exact.
            0..2 => 0,
            share => share,
        };
        let cache_keys = match order {
            ReuseOrder::Fifo | ReuseOrder::Lifo => cache_keys.min(CACHE_KEYS_MAX).min(share),
            // A lookup by address does not find a key in a cache.
            ReuseOrder::Affinity => 0,
        };
        let cache = |_| CachePadded::new(LocalCache::new(cache_keys));
        Self {
            queue: Box::new(match order {
                // In the worst case each chunk has one key.
                ReuseOrder::Fifo => Chunks::Fifo(Queue::new(capacity as usize)),
                ReuseOrder::Lifo => Chunks::Lifo(Mutex::default()),
                ReuseOrder::Affinity => Chunks::Affinity(Mutex::new(IdleKeys::new(capacity))),
            }),
            marks: Box::new(CachePadded::new(Marks {
                queued: AtomicUsize::new(0),
                idle_min: AtomicUsize::new(usize::MAX),
                taken: AtomicUsize::new(0),
                returned: AtomicUsize::new(0),
            })),
            caches: (0..caches).map(cache).collect(),
            cache_keys,
            order,
        }
    }

    /// Takes the next key in the order of reuse, to within a chunk; by affinity, the key last bound
    /// to `place`. `thread` is the number of the calling thread.
    #[inline(always)]
    pub(crate) fn take(&self, thread: usize, place: Option<VirtAddr>) -> Option<SlotId> {
        if self.cache_keys == 0 {
            return self.take_at(place);
        }
        let own = self.own_cache(thread);
        if let Some(cache) = self.caches[own].claim()
            && let Some(found) = cache.take(self.order)
        {
            return Some(found);
        }
        self.refill_and_take(own)
    }

    /// Returns a key. `thread` is the number of the calling thread.
    #[inline(always)]
    pub(crate) fn put(&self, thread: usize, id: SlotId) {
        if self.cache_keys == 0 {
            return self.put_without_cache(id);
        }
        let own = self.own_cache(thread);
        if let Some(cache) = self.caches[own].claim()
            && cache.put(id)
        {
            return;
        }
        self.flush_and_put(own, id);
    }

    /// True if keys go through caches.
    pub(crate) fn has_caches(&self) -> bool {
        self.cache_keys > 0
    }

    /// Claims the cache of the calling thread, if it is free. Only if there are caches.
    #[inline(always)]
    pub(crate) fn claim_own(&self, thread: usize) -> Option<Claimed<'_>> {
        self.caches[self.own_cache(thread)].claim()
    }

    /// Takes a key for the holder of a cache, as [`FreeList::take`] does. `None` also if only another
    /// cache has keys.
    #[inline(always)]
    pub(crate) fn take_claimed(&self, cache: &Claimed<'_>) -> Option<SlotId> {
        match cache.take(self.order) {
            Some(found) => Some(found),
            None => self.refill(cache),
        }
    }

    /// Returns a key for the holder of a cache, as [`FreeList::put`] does.
    #[inline(always)]
    pub(crate) fn put_claimed(&self, cache: &Claimed<'_>, id: SlotId) {
        if !cache.put(id) {
            self.flush(cache, id);
        }
    }

    /// Claims every cache for ever, so that no thread holds one any more. False if that takes longer
    /// than `limit`.
    pub(crate) fn seal(&self, limit: Duration) -> bool {
        let start = Instant::now();
        for cache in &self.caches {
            loop {
                if let Some(claimed) = cache.claim() {
                    claimed.seal();
                    break;
                }
                if start.elapsed() > limit {
                    return false;
                }
                yield_now();
            }
        }
        true
    }

    /// Requests that were made by holders of the caches.
    pub(crate) fn requests(&self) -> Requests {
        let requests = self.caches.iter().map(|cache| cache.requests());
        requests.fold(Requests::default(), |sum, of| Requests {
            binds: sum.binds + of.binds,
            releases: sum.releases + of.releases,
            invalidates: sum.invalidates + of.invalidates,
        })
    }

    /// Refills an empty cache with a chunk of the queue, or with the keys that were returned to it, and
    /// takes a key.
    #[cold]
    fn refill(&self, cache: &Claimed<'_>) -> Option<SlotId> {
        match self.next() {
            Some(chunk) => {
                if !cache.has_places(&chunk) {
                    self.push(cache.clear_returned());
                }
                cache.refill(&chunk, self.order);
                self.note_idle();
            }
            None => {
                self.note_idle();
                if !cache.put_returned_out(self.order) {
                    return None;
                }
            }
        }
        cache.take(self.order)
    }

    /// Takes a key if the thread's own cache is empty or held.
    #[cold]
    fn refill_and_take(&self, own: usize) -> Option<SlotId> {
        let Some(cache) = self.claim_any(own) else {
            return self.take_without_cache();
        };
        if let Some(found) = self.take_claimed(&cache) {
            return Some(found);
        }
        drop(cache);
        // Take a key from another cache.
        for step in 1..=self.caches.len() {
            let other = (own + step) & (self.caches.len() - 1);
            if let Some(cache) = self.claim(other)
                && let Some(found) = self.take_claimed(&cache)
            {
                return Some(found);
            }
        }
        // The keys of an empty cache may have moved to the queue meanwhile.
        self.take_without_cache()
    }

    #[cold]
    fn take_at(&self, place: Option<VirtAddr>) -> Option<SlotId> {
        let Chunks::Affinity(idle_keys) = &*self.queue else {
            return self.take_without_cache();
        };
        let found = lock(idle_keys).take(place)?;
        self.marks.queued.fetch_sub(1, Ordering::Relaxed);
        self.note_idle();
        self.marks.taken.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Records the address of a bound key, if the order of reuse needs it.
    #[inline]
    pub(crate) fn remember(&self, id: SlotId, place: VirtAddr) {
        if self.order == ReuseOrder::Affinity
            && let Chunks::Affinity(idle_keys) = &*self.queue
        {
            lock(idle_keys).remember(id, place);
        }
    }

    #[cold]
    fn take_without_cache(&self) -> Option<SlotId> {
        let mut chunk = self.next()?;
        self.note_idle();
        let found = chunk.take_first();
        if !chunk.is_empty() {
            self.count_in(&chunk);
            self.queue.put_back(chunk);
        }
        self.marks.taken.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Returns a key if the thread's own cache is full or held.
    #[cold]
    fn flush_and_put(&self, own: usize, id: SlotId) {
        match self.claim_any(own) {
            Some(cache) => self.put_claimed(&cache, id),
            None => self.put_without_cache(id),
        }
    }

    /// Moves keys of a full cache to the queue and returns the key.
    #[cold]
    fn flush(&self, cache: &Claimed<'_>, id: SlotId) {
        let older = match self.order {
            ReuseOrder::Fifo | ReuseOrder::Affinity => cache.clear_returned(),
            ReuseOrder::Lifo => {
                let out = cache.clear_out(self.order);
                match out.is_empty() {
                    true => cache.clear_older(),
                    false => out,
                }
            }
        };
        // All keys of the cache may be out.
        if older.is_empty() {
            return self.put_without_cache(id);
        }
        self.push(older);
        let has_place = cache.put(id);
        assert!(has_place, "a key left its place");
    }

    #[cold]
    fn put_without_cache(&self, id: SlotId) {
        self.marks.returned.fetch_add(1, Ordering::Relaxed);
        self.add(id);
    }

    /// Claims the cache if it becomes free within a short time.
    fn claim(&self, number: usize) -> Option<Claimed<'_>> {
        for _ in 0..ROUNDS_MAX {
            if let Some(cache) = self.caches[number].claim() {
                return Some(cache);
            }
            hint::spin_loop();
            yield_now();
        }
        None
    }

    /// Claims the thread's own cache, or else any free cache.
    fn claim_any(&self, own: usize) -> Option<Claimed<'_>> {
        for _ in 0..ROUNDS_MAX {
            for step in 0..self.caches.len() {
                let number = (own + step) & (self.caches.len() - 1);
                if let Some(cache) = self.caches[number].claim() {
                    return Some(cache);
                }
            }
            hint::spin_loop();
            yield_now();
        }
        None
    }

    fn next(&self) -> Option<Chunk> {
        let chunk = self.queue.next()?;
        self.count_out(&chunk);
        Some(chunk)
    }

    /// Lowers the minimum of the queue's fill level.
    fn note_idle(&self) {
        let queued = self.queued();
        // The minimum is usually lower already, and then a load is enough.
        if self.marks.idle_min.load(Ordering::Relaxed) > queued {
            self.marks.idle_min.fetch_min(queued, Ordering::Relaxed);
        }
    }

    fn count_out(&self, chunk: &Chunk) {
        self.marks.queued.fetch_sub(chunk.len(), Ordering::Relaxed);
    }

    fn count_in(&self, chunk: &Chunk) {
        // Before the push, so that the count never falls below zero.
        self.marks.queued.fetch_add(chunk.len(), Ordering::Relaxed);
    }

    fn push(&self, chunk: Chunk) {
        self.count_in(&chunk);
        self.queue.push(chunk);
    }

    /// Adds a key that was never used.
    pub(crate) fn add(&self, id: SlotId) {
        self.push(Chunk::of(id));
    }

    /// Moves the keys of all caches to the queue.
    pub(crate) fn collect(&self) {
        for number in 0..self.caches.len() {
            if let Some(cache) = self.claim(number) {
                for chunk in [cache.clear_out(self.order), cache.clear_returned()] {
                    if !chunk.is_empty() {
                        self.push(chunk);
                    }
                }
            }
        }
    }

    /// Takes the longest idle key from the queue, not from a cache, to destroy it.
    pub(crate) fn retire(&self) -> Option<SlotId> {
        let mut chunk = self.queue.oldest()?;
        self.count_out(&chunk);
        let found = chunk.take_first();
        if !chunk.is_empty() {
            self.count_in(&chunk);
            self.queue.put_back_oldest(chunk);
        }
        found
    }

    /// Keys in the queue, without those on caches: the low mark concerns keys that all threads can
    /// take.
    pub(crate) fn queued(&self) -> usize {
        self.marks.queued.load(Ordering::Relaxed)
    }

    /// Keys in the queue that no thread needed since the last call.
    pub(crate) fn idle(&self) -> usize {
        self.marks
            .idle_min
            .swap(usize::MAX, Ordering::Relaxed)
            .min(self.queued())
    }

    /// Number of keys taken and returned, for all caches at one moment. A transfer that bypasses the
    /// caches meanwhile may be counted on one side only.
    pub(crate) fn traffic(&self) -> Traffic {
        let claimed: Vec<_> = (0..self.caches.len())
            .map(|number| self.claim(number))
            .collect();
        let sum = self.caches.iter().fold((0, 0), |sum, cache| {
            let (taken, returned) = cache.traffic();
            (sum.0 + taken, sum.1 + returned)
        });
        drop(claimed);
        // Read returns first: returns then never exceed takes.
        let returned = sum.1 + self.marks.returned.load(Ordering::Relaxed) as u64;
        let taken = sum.0 + self.marks.taken.load(Ordering::Relaxed) as u64;
        Traffic { taken, returned }
    }

    #[inline]
    fn own_cache(&self, thread: usize) -> usize {
        thread & (self.caches.len() - 1)
    }
}

impl Chunks {
    fn push(&self, chunk: Chunk) {
        match self {
            Self::Fifo(queue) => queue.push(chunk),
            Self::Lifo(stack) => lock(stack).push_back(chunk),
            Self::Affinity(idle_keys) => {
                let mut idle_keys = lock(idle_keys);
                chunk.ids().for_each(|id| idle_keys.put(id));
            }
        }
    }

    /// The next chunk in the order of reuse.
    fn next(&self) -> Option<Chunk> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_back(),
            Self::Affinity(idle_keys) => lock(idle_keys).take(None).map(Chunk::of),
        }
    }

    /// Returns the rest of a next chunk. A queue accepts it at its end only.
    fn put_back(&self, chunk: Chunk) {
        self.push(chunk);
    }

    /// The longest idle chunk.
    fn oldest(&self) -> Option<Chunk> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_front(),
            Self::Affinity(_) => self.next(),
        }
    }

    /// Returns the rest of the oldest chunk. A queue accepts it at its end only.
    fn put_back_oldest(&self, chunk: Chunk) {
        match self {
            Self::Fifo(queue) => queue.push(chunk),
            Self::Lifo(stack) => lock(stack).push_front(chunk),
            Self::Affinity(_) => self.push(chunk),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::sync::thread_number;

    fn take(free_list: &FreeList) -> Option<SlotId> {
        free_list.take(thread_number(None), None)
    }

    fn put(free_list: &FreeList, id: SlotId) {
        free_list.put(thread_number(None), id);
    }

    #[test]
    fn a_small_pool_has_fewer_caches_instead_of_none() {
        for (capacity, caches, expect) in [
            (256, 64, (8, 8)),
            (4096, 64, (64, 16)),
            (4096, 1, (1, 24)),
            (100, 64, (2, 12)),
            // Too few keys for any cache.
            (31, 64, (64, 0)),
        ] {
            let free_list = FreeList::new(capacity, 24, caches, ReuseOrder::Fifo);
            let found = (free_list.caches.len(), free_list.cache_keys);
            assert_eq!(found, expect, "{capacity} keys, {caches} processors");
        }
    }

    #[test]
    fn keys_leave_in_the_order_in_which_they_came_to_within_a_cache() {
        let free_list = FreeList::new(256, 8, 1, ReuseOrder::Fifo);
        (0..40).for_each(|id| free_list.add(SlotId(id)));
        let mut last_used = [None; 40];
        for round in 0..1000u32 {
            let id = take(&free_list).expect("forty keys");
            if let Some(last) = last_used[id.0 as usize].replace(round) {
                assert!(
                    round - last >= 40 - 8,
                    "key {} rested for {}",
                    id.0,
                    round - last
                );
            }
            put(&free_list, id);
        }
    }

    #[test]
    fn without_caches_the_order_is_exact() {
        let free_list = FreeList::new(4, 8, 1, ReuseOrder::Fifo);
        assert_eq!(free_list.cache_keys, 0, "four keys are too few for caches");
        (0..4).for_each(|id| free_list.add(SlotId(id)));
        for round in 0..20 {
            let id = take(&free_list).expect("four keys");
            assert_eq!(id.0, round % 4);
            put(&free_list, id);
        }
    }

    /// The last returned key is the first taken, over caches and stack, and the oldest retires
    /// first.
    #[track_caller]
    fn check_lifo(capacity: u32, keys: u32) {
        let free_list = FreeList::new(capacity, 8, 1, ReuseOrder::Lifo);
        (0..keys).for_each(|id| free_list.add(SlotId(id)));
        let mut model: Vec<u32> = (0..keys).collect();
        let mut held = Vec::new();
        // Empty it and fill it again, in steps of different lengths.
        for step in [1, 3, 20, 7, 30, 40] {
            for _ in 0..step {
                let id = take(&free_list).map(|id| id.0);
                assert_eq!(id, model.pop());
                held.extend(id);
            }
            for id in held.drain(..) {
                put(&free_list, SlotId(id));
                model.push(id);
            }
        }
        assert!(free_list.retire().is_some_and(|id| id.0 == model[0]));
    }

    #[test]
    fn by_lifo_the_last_key_is_the_next() {
        check_lifo(256, 40);
        check_lifo(4, 4);
    }

    #[test]
    fn what_another_thread_left_is_found() {
        let free_list = FreeList::new(1024, 8, 16, ReuseOrder::Fifo);
        (0..8).for_each(|id| free_list.add(SlotId(id)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ids: Vec<_> = (0..8).map(|_| take(&free_list).expect("a key")).collect();
                ids.into_iter().for_each(|id| put(&free_list, id));
            });
        });
        let found: HashSet<_> = std::iter::from_fn(|| take(&free_list))
            .map(|id| id.0)
            .collect();
        assert_eq!(found, (0..8).collect());
        let Traffic { taken, returned } = free_list.traffic();
        assert_eq!((taken, returned), (16, 8));
    }
}
