//! The free list: a bounded queue for all threads, and in front of it one tray per group of
//! threads. Most leases and returns then touch no memory that another thread writes.
//!
//! Keys leave in the order of their return. A thread takes from the `out` side of its tray and
//! returns to the `back` side. The queue holds chunks of keys: an empty `out` takes the first
//! chunk, and a full `back` becomes the last one. A released key therefore idles until the keys
//! before it have been used, to within one chunk. [`ReuseOrder::Lifo`] reverses this: a thread
//! takes the key that it returned last, and the chunks form a stack. Trays belong to the pool and
//! not to threads, so a thread that ends holds no keys. Its keys on a tray serve the next thread of
//! that tray, and any thread that finds the queue and its own tray empty. No thread waits for a
//! tray: if another thread holds it, the thread uses the next one.

use std::collections::VecDeque;
use std::hint;

use crossbeam_utils::CachePadded;

use crate::affinity::Resting;
use crate::key::VirtAddr;
use crate::policy::ReuseOrder;
use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, Queue, lock, thread_number, yield_now};
use crate::tray::{Few, Tray};

pub(crate) use crate::tray::TRAY_KEYS_MAX;

/// Maximum number of trays. With more threads, several share a tray.
const TRAYS_MAX: usize = 64;

/// Number of passes over the trays while other threads hold all of them, before the thread uses the
/// queue directly. A thread holds a tray for some nanoseconds, unless the scheduler preempts it.
#[cfg(not(loom))]
const ROUNDS_MAX: u32 = 64;
/// One pass is enough to test the code behind it.
#[cfg(loom)]
const ROUNDS_MAX: u32 = 1;

/// All free keys of a pool.
#[derive(Debug)]
pub(crate) struct Shelf {
    queue: Handfuls,
    /// Apart from the fields that every lease reads and no thread writes.
    marks: CachePadded<Marks>,
    /// A power of two of them.
    trays: Box<[CachePadded<Tray>]>,
    /// Keys on one side of a tray; zero if there are no trays.
    tray_keys: u32,
    order: ReuseOrder,
}

/// Chunks, in the order of their use.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a pool, and it is read on every lease"
)]
#[derive(Debug)]
enum Handfuls {
    Fifo(Queue<Few>),
    /// The most recent chunk at the end. The lock covers a push or pop of one chunk.
    Lifo(Mutex<VecDeque<Few>>),
    /// Single keys with their last addresses. The lock covers one key.
    Affinity(Mutex<Resting>),
}

/// Fill level of the queue, and its minimum.
#[derive(Debug)]
struct Marks {
    /// Keys in the queue.
    queued: AtomicUsize,
    /// Minimum number of keys in the queue since the last query. These keys were never needed.
    idle_min: AtomicUsize,
    /// Keys taken and returned without a tray.
    taken: AtomicUsize,
    returned: AtomicUsize,
}

/// Number of keys taken and returned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) taken: u64,
    pub(crate) returned: u64,
}

impl Shelf {
    /// A free list for up to `capacity` keys, with `trays` trays and `tray_keys` keys on each side
    /// of a tray. All trays together take at most a quarter of the keys. Otherwise threads would
    /// find no key while other trays are full.
    pub(crate) fn new(capacity: u32, tray_keys: u32, trays: usize, order: ReuseOrder) -> Self {
        let trays = trays.clamp(1, TRAYS_MAX).next_power_of_two();
        let share = capacity as usize / 4 / (2 * trays);
        let share = u32::try_from(share).unwrap_or(TRAY_KEYS_MAX);
        Self {
            queue: match order {
                // In the worst case each chunk has one key.
                ReuseOrder::Fifo => Handfuls::Fifo(Queue::new(capacity as usize)),
                ReuseOrder::Lifo => Handfuls::Lifo(Mutex::default()),
                ReuseOrder::Affinity => Handfuls::Affinity(Mutex::new(Resting::new(capacity))),
            },
            marks: CachePadded::new(Marks {
                queued: AtomicUsize::new(0),
                idle_min: AtomicUsize::new(usize::MAX),
                taken: AtomicUsize::new(0),
                returned: AtomicUsize::new(0),
            }),
            trays: (0..trays).map(|_| CachePadded::default()).collect(),
            tray_keys: match order {
                ReuseOrder::Fifo | ReuseOrder::Lifo => tray_keys.min(TRAY_KEYS_MAX).min(share),
                // A lookup by address does not find a key on a tray.
                ReuseOrder::Affinity => 0,
            },
            order,
        }
    }

    /// Takes the next key in the order of reuse, to within a chunk; by affinity, the key last bound
    /// to `place`.
    #[inline]
    pub(crate) fn take(&self, place: Option<VirtAddr>) -> Option<SlotId> {
        if self.tray_keys == 0 {
            return self.take_at(place);
        }
        let own = self.own_tray();
        if let Some(tray) = self.trays[own].claim()
            && let Some(found) = tray.take(self.order)
        {
            return Some(found);
        }
        self.refill_and_take(own)
    }

    /// Returns a key.
    #[inline]
    pub(crate) fn put(&self, id: SlotId) {
        if self.tray_keys == 0 {
            return self.put_without_tray(id);
        }
        if let Some(tray) = self.trays[self.own_tray()].claim()
            && tray.put(id, self.tray_keys)
        {
            return;
        }
        self.make_room_and_put(id);
    }

    /// Refills an empty tray with a chunk of the queue and takes a key.
    #[cold]
    fn refill_and_take(&self, own: usize) -> Option<SlotId> {
        let Some(tray) = self.claim_any(own) else {
            return self.take_without_tray();
        };
        if let Some(found) = tray.take(self.order) {
            return Some(found);
        }
        if let Some(few) = self.next() {
            tray.refill(&few);
            self.marks
                .idle_min
                .fetch_min(self.queued(), Ordering::Relaxed);
            return tray.take(self.order);
        }
        if let Some(found) = tray.take_returned() {
            return Some(found);
        }
        drop(tray);
        // Take a key from another tray.
        for step in 1..=self.trays.len() {
            let other = (own + step) & (self.trays.len() - 1);
            if let Some(tray) = self.claim(other)
                && let Some(found) = tray.take(self.order).or_else(|| tray.take_returned())
            {
                return Some(found);
            }
        }
        // The keys of an empty tray may have moved to the queue meanwhile.
        self.take_without_tray()
    }

    #[cold]
    fn take_at(&self, place: Option<VirtAddr>) -> Option<SlotId> {
        let Handfuls::Affinity(resting) = &self.queue else {
            return self.take_without_tray();
        };
        let found = lock(resting).take(place)?;
        self.marks.queued.fetch_sub(1, Ordering::Relaxed);
        self.marks
            .idle_min
            .fetch_min(self.queued(), Ordering::Relaxed);
        self.marks.taken.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Records the address of a bound key, if the order of reuse needs it.
    #[inline]
    pub(crate) fn remember(&self, id: SlotId, place: VirtAddr) {
        if let Handfuls::Affinity(resting) = &self.queue {
            lock(resting).remember(id, place);
        }
    }

    #[cold]
    fn take_without_tray(&self) -> Option<SlotId> {
        let mut few = self.next()?;
        self.marks
            .idle_min
            .fetch_min(self.queued(), Ordering::Relaxed);
        let found = few.take_first();
        if !few.is_empty() {
            self.count_in(&few);
            self.queue.put_back(few);
        }
        self.marks.taken.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Moves the chunk of a full tray to the queue and returns the key.
    #[cold]
    fn make_room_and_put(&self, id: SlotId) {
        let Some(tray) = self.claim_any(self.own_tray()) else {
            return self.put_without_tray(id);
        };
        if tray.put(id, self.tray_keys) {
            return;
        }
        let full = tray.clear_returned();
        match self.order {
            ReuseOrder::Fifo | ReuseOrder::Affinity => self.push(full),
            ReuseOrder::Lifo => {
                let older = tray.clear_out();
                tray.refill(&full);
                if !older.is_empty() {
                    self.push(older);
                }
            }
        }
        let has_room = tray.put(id, self.tray_keys);
        assert!(has_room, "an empty tray takes a key");
    }

    #[cold]
    fn put_without_tray(&self, id: SlotId) {
        self.marks.returned.fetch_add(1, Ordering::Relaxed);
        self.add(id);
    }

    /// Claims the tray if it becomes free within a short time.
    fn claim(&self, number: usize) -> Option<crate::tray::Claimed<'_>> {
        for _ in 0..ROUNDS_MAX {
            if let Some(tray) = self.trays[number].claim() {
                return Some(tray);
            }
            hint::spin_loop();
            yield_now();
        }
        None
    }

    /// Claims the thread's own tray, or else any free tray.
    fn claim_any(&self, own: usize) -> Option<crate::tray::Claimed<'_>> {
        for _ in 0..ROUNDS_MAX {
            for step in 0..self.trays.len() {
                let number = (own + step) & (self.trays.len() - 1);
                if let Some(tray) = self.trays[number].claim() {
                    return Some(tray);
                }
            }
            hint::spin_loop();
            yield_now();
        }
        None
    }

    fn next(&self) -> Option<Few> {
        let few = self.queue.next()?;
        self.count_out(&few);
        Some(few)
    }

    fn count_out(&self, few: &Few) {
        self.marks.queued.fetch_sub(few.len(), Ordering::Relaxed);
    }

    fn count_in(&self, few: &Few) {
        // Before the push, so that the count never falls below zero.
        self.marks.queued.fetch_add(few.len(), Ordering::Relaxed);
    }

    fn push(&self, few: Few) {
        self.count_in(&few);
        self.queue.push(few);
    }

    /// Adds a key that was never used.
    pub(crate) fn add(&self, id: SlotId) {
        self.push(Few::of(id));
    }

    /// Takes the longest idle key from the queue, not from a tray, to destroy it.
    pub(crate) fn retire(&self) -> Option<SlotId> {
        let mut few = self.queue.oldest()?;
        self.count_out(&few);
        let found = few.take_first();
        if !few.is_empty() {
            self.count_in(&few);
            self.queue.put_back_oldest(few);
        }
        found
    }

    /// Keys in the queue, without those on trays: the low mark concerns keys that all threads can
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

    /// Number of keys taken and returned, for all trays at one moment. A transfer that bypasses the
    /// trays meanwhile may be counted on one side only.
    pub(crate) fn traffic(&self) -> Traffic {
        let claimed: Vec<_> = (0..self.trays.len())
            .map(|number| self.claim(number))
            .collect();
        let sum = self.trays.iter().fold((0, 0), |sum, tray| {
            let (taken, returned) = tray.traffic();
            (sum.0 + taken, sum.1 + returned)
        });
        drop(claimed);
        // Read returns first: returns then never exceed takes.
        let returned = sum.1 + self.marks.returned.load(Ordering::Relaxed) as u64;
        let taken = sum.0 + self.marks.taken.load(Ordering::Relaxed) as u64;
        Traffic { taken, returned }
    }

    #[inline]
    fn own_tray(&self) -> usize {
        thread_number() & (self.trays.len() - 1)
    }
}

impl Handfuls {
    fn push(&self, few: Few) {
        match self {
            Self::Fifo(queue) => queue.push(few),
            Self::Lifo(stack) => lock(stack).push_back(few),
            Self::Affinity(resting) => {
                let mut resting = lock(resting);
                few.ids().for_each(|id| resting.put(id));
            }
        }
    }

    /// The next chunk in the order of reuse.
    fn next(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_back(),
            Self::Affinity(resting) => lock(resting).take(None).map(Few::of),
        }
    }

    /// Returns the rest of a next chunk. A queue accepts it at its end only.
    fn put_back(&self, few: Few) {
        self.push(few);
    }

    /// The longest idle chunk.
    fn oldest(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_front(),
            Self::Affinity(_) => self.next(),
        }
    }

    /// Returns the rest of the oldest chunk. A queue accepts it at its end only.
    fn put_back_oldest(&self, few: Few) {
        match self {
            Self::Fifo(queue) => queue.push(few),
            Self::Lifo(stack) => lock(stack).push_front(few),
            Self::Affinity(_) => self.push(few),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_leave_in_the_order_in_which_they_came_to_within_a_tray() {
        let shelf = Shelf::new(256, 8, 1, ReuseOrder::Fifo);
        (0..40).for_each(|id| shelf.add(SlotId(id)));
        let mut last_used = [None; 40];
        for round in 0..1000u32 {
            let id = shelf.take(None).expect("forty keys");
            if let Some(last) = last_used[id.0 as usize].replace(round) {
                assert!(
                    round - last >= 40 - 8,
                    "key {} rested for {}",
                    id.0,
                    round - last
                );
            }
            shelf.put(id);
        }
    }

    #[test]
    fn without_trays_the_order_is_exact() {
        let shelf = Shelf::new(4, 8, 1, ReuseOrder::Fifo);
        assert_eq!(shelf.tray_keys, 0, "four keys are too few for trays");
        (0..4).for_each(|id| shelf.add(SlotId(id)));
        for round in 0..20 {
            let id = shelf.take(None).expect("four keys");
            assert_eq!(id.0, round % 4);
            shelf.put(id);
        }
    }

    /// The last returned key is the first taken, over trays and stack, and the oldest retires
    /// first.
    #[track_caller]
    fn check_lifo(capacity: u32, keys: u32) {
        let shelf = Shelf::new(capacity, 8, 1, ReuseOrder::Lifo);
        (0..keys).for_each(|id| shelf.add(SlotId(id)));
        let mut model: Vec<u32> = (0..keys).collect();
        let mut held = Vec::new();
        // Empty it and fill it again, in steps of different lengths.
        for step in [1, 3, 20, 7, 30, 40] {
            for _ in 0..step {
                let id = shelf.take(None).map(|id| id.0);
                assert_eq!(id, model.pop());
                held.extend(id);
            }
            for id in held.drain(..) {
                shelf.put(SlotId(id));
                model.push(id);
            }
        }
        assert!(shelf.retire().is_some_and(|id| id.0 == model[0]));
    }

    #[test]
    fn by_lifo_the_last_key_is_the_next() {
        check_lifo(256, 40);
        check_lifo(4, 4);
    }

    #[test]
    fn what_another_thread_left_is_found() {
        let shelf = Shelf::new(1024, 8, 16, ReuseOrder::Fifo);
        (0..8).for_each(|id| shelf.add(SlotId(id)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ids: Vec<_> = (0..8).map(|_| shelf.take(None).expect("a key")).collect();
                ids.into_iter().for_each(|id| shelf.put(id));
            });
        });
        let found: HashSet<_> = std::iter::from_fn(|| shelf.take(None))
            .map(|id| id.0)
            .collect();
        assert_eq!(found, (0..8).collect());
        let Traffic { taken, returned } = shelf.traffic();
        assert_eq!((taken, returned), (16, 8));
    }
}
