//! The free keys: a bounded queue for all threads, and in front of it a tray for each of a few groups
//! of threads, so that most leases and returns touch no memory that another thread writes.
//!
//! Keys leave in the order in which they came. A thread takes from its tray's `out` side and puts onto
//! the `back` side. The queue holds handfuls: an empty `out` takes the one at the front, a full `back`
//! becomes the one at the end. So a key that was just released rests until those before it have been
//! used, to within a handful. By [`ReuseOrder::Lifo`] it is the other way round: a thread takes what
//! it put last, and handfuls lie in a stack. Trays belong to the pool and not to threads, so a thread
//! that ends leaves nothing behind; what it left on a tray serves the next thread there, and anybody
//! who finds queue and own tray empty. Nobody waits for a tray: whoever finds it in another's hands
//! uses the next one.

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

/// Most trays: threads beyond as many share one with another thread.
const TRAYS_MAX: usize = 64;

/// How often all trays are looked at when all are in others' hands, before the queue is used without
/// one. They are held for some nanoseconds, but whoever holds one may have lost the processor.
#[cfg(not(loom))]
const ROUNDS_MAX: u32 = 64;
/// One is enough to try what follows on it.
#[cfg(loom)]
const ROUNDS_MAX: u32 = 1;

/// All free keys of a pool.
#[derive(Debug)]
pub(crate) struct Shelf {
    queue: Handfuls,
    /// Away from what every lease reads and nobody writes.
    marks: CachePadded<Marks>,
    /// Their number is a power of two.
    trays: Box<[CachePadded<Tray>]>,
    /// Keys on one side of a tray; zero if there are no trays.
    tray_keys: u32,
    order: ReuseOrder,
}

/// Handfuls, in the order in which they are used.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a pool, and it is read on every lease"
)]
#[derive(Debug)]
enum Handfuls {
    Fifo(Queue<Few>),
    /// The last one at the end. The lock is held for a push or a pop of a handful.
    Lifo(Mutex<VecDeque<Few>>),
    /// Key by key, with their last addresses. The lock is held for one of them.
    Affinity(Mutex<Resting>),
}

/// How full the queue is, and was.
#[derive(Debug)]
struct Marks {
    /// Keys in the queue.
    queued: AtomicUsize,
    /// Fewest keys in the queue since somebody asked: so many were never needed.
    idle_min: AtomicUsize,
    /// Keys taken and put without a tray.
    taken: AtomicUsize,
    returned: AtomicUsize,
}

/// How often keys were taken and returned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) taken: u64,
    pub(crate) returned: u64,
}

impl Shelf {
    /// A shelf for up to `capacity` keys, with `tray_keys` of them on each side of each of `trays`
    /// trays. Trays together never take more than a quarter of the keys, else threads would go
    /// without while others' trays are full.
    pub(crate) fn new(capacity: u32, tray_keys: u32, trays: usize, order: ReuseOrder) -> Self {
        let trays = trays.clamp(1, TRAYS_MAX).next_power_of_two();
        let share = capacity as usize / 4 / (2 * trays);
        let share = u32::try_from(share).unwrap_or(TRAY_KEYS_MAX);
        Self {
            queue: match order {
                // In the worst case each handful is one key.
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
                // A key on a tray would not be found by its address.
                ReuseOrder::Affinity => 0,
            },
            order,
        }
    }

    /// The key whose turn it is, to within a handful; by affinity the one that stood for the place.
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

    /// Puts a key back.
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

    /// Takes a key with a handful of the queue, if the tray has none.
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
        // A key off another's tray.
        for step in 1..=self.trays.len() {
            let other = (own + step) & (self.trays.len() - 1);
            if let Some(tray) = self.claim(other)
                && let Some(found) = tray.take(self.order).or_else(|| tray.take_returned())
            {
                return Some(found);
            }
        }
        // A tray that was empty may have been on its way to the queue.
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

    /// Notes which place a key is bound to, if that matters.
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

    /// Puts a key, and a full tray's handful to the others.
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

    /// The tray, if it comes free within a short while.
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

    /// The own tray, or one that is not in anybody's hands.
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

    /// Puts a key that nobody has had yet.
    pub(crate) fn add(&self, id: SlotId) {
        self.push(Few::of(id));
    }

    /// Takes a key that has rested long out of the queue alone, to be destroyed.
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

    /// Keys in the queue. Those on trays are not counted: a low mark is about what all threads can
    /// still draw on.
    pub(crate) fn queued(&self) -> usize {
        self.marks.queued.load(Ordering::Relaxed)
    }

    /// Keys in the queue that nobody needed since the last call.
    pub(crate) fn idle(&self) -> usize {
        self.marks
            .idle_min
            .swap(usize::MAX, Ordering::Relaxed)
            .min(self.queued())
    }

    /// How often keys were taken and returned, at one moment for all trays. What goes past the trays
    /// meanwhile may be counted on one side alone.
    pub(crate) fn traffic(&self) -> Traffic {
        let claimed: Vec<_> = (0..self.trays.len())
            .map(|number| self.claim(number))
            .collect();
        let sum = self.trays.iter().fold((0, 0), |sum, tray| {
            let (taken, returned) = tray.traffic();
            (sum.0 + taken, sum.1 + returned)
        });
        drop(claimed);
        // Returns first: no more came back than went out.
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

    /// The handful whose turn it is.
    fn next(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_back(),
            Self::Affinity(resting) => lock(resting).take(None).map(Few::of),
        }
    }

    /// What is left of a handful whose turn it was. A queue takes it at its end only.
    fn put_back(&self, few: Few) {
        self.push(few);
    }

    /// The handful that has been there longest.
    fn oldest(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_front(),
            Self::Affinity(_) => self.next(),
        }
    }

    /// What is left of the oldest handful. A queue takes it at its end only.
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

    /// The last key put is the first taken, over trays and stack, and the oldest retires first.
    #[track_caller]
    fn check_lifo(capacity: u32, keys: u32) {
        let shelf = Shelf::new(capacity, 8, 1, ReuseOrder::Lifo);
        (0..keys).for_each(|id| shelf.add(SlotId(id)));
        let mut model: Vec<u32> = (0..keys).collect();
        let mut held = Vec::new();
        // Down to the bottom and up again, in steps of different lengths.
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
