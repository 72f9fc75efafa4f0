//! The free keys: a bounded queue for all threads, and in front of it a tray for each of a few groups
//! of threads, so that most leases and returns touch no memory that another thread writes.
//!
//! Keys leave in the order in which they came. A thread takes from its tray's `out` side and puts onto
//! the `back` side. The queue holds handfuls: an empty `out` takes the one at the front, a full `back`
//! becomes the one at the end. So a key that was just released rests until those before it have been
//! used, to within a handful. By [`ReuseOrder::Lifo`] it is the other way round: a thread takes what
//! it put last, and handfuls lie in a stack. Trays belong to the pool and not to threads, so a thread that ends
//! leaves nothing behind; what it left on a tray serves the next thread there, and anybody who finds
//! queue and own tray empty.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use crate::policy::ReuseOrder;
use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, Queue, lock, thread_number};

/// Most keys on one side of a tray.
pub(crate) const TRAY_KEYS_MAX: u32 = 16;

/// Most trays: threads beyond as many share one with another thread.
const TRAYS_MAX: usize = 64;

/// All free keys of a pool.
#[derive(Debug)]
pub(crate) struct Shelf {
    queue: Handfuls,
    /// Away from what every lease reads and nobody writes.
    marks: CachePadded<Marks>,
    /// Their number is a power of two.
    trays: Box<[CachePadded<Mutex<Tray>>]>,
    /// Keys on one side of a tray; zero if there are no trays.
    tray_keys: u32,
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
}

/// How full the queue is, and was.
#[derive(Debug)]
struct Marks {
    /// Keys in the queue.
    queued: AtomicUsize,
    /// Fewest keys in the queue since somebody asked: so many were never needed.
    idle_min: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tray {
    out: Few,
    back: Few,
    taken: u64,
    returned: u64,
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
            },
            marks: CachePadded::new(Marks {
                queued: AtomicUsize::new(0),
                idle_min: AtomicUsize::new(usize::MAX),
            }),
            trays: (0..trays).map(|_| CachePadded::default()).collect(),
            tray_keys: tray_keys.min(TRAY_KEYS_MAX).min(share),
        }
    }

    /// The key whose turn it is, to within a handful.
    #[inline]
    pub(crate) fn take(&self) -> Option<SlotId> {
        let own = self.own_tray();
        let mut tray = lock(&self.trays[own]);
        let mut found = match self.queue {
            Handfuls::Fifo(_) => tray.out.pop(),
            Handfuls::Lifo(_) => tray.pop_last(),
        };
        if found.is_none() {
            found = self.refill(&mut tray).or_else(|| tray.back.pop());
        }
        tray.taken += u64::from(found.is_some());
        drop(tray);
        found.or_else(|| self.take_elsewhere(own))
    }

    /// Puts the handful whose turn it is on the tray and takes one of it.
    fn refill(&self, tray: &mut Tray) -> Option<SlotId> {
        tray.out = self.count_out(self.queue.next()?);
        self.marks
            .idle_min
            .fetch_min(self.queued(), Ordering::Relaxed);
        match self.queue {
            Handfuls::Fifo(_) => tray.out.pop(),
            Handfuls::Lifo(_) => tray.out.pop_last(),
        }
    }

    fn count_out(&self, few: Few) -> Few {
        self.marks
            .queued
            .fetch_sub(few.len() as usize, Ordering::Relaxed);
        few
    }

    fn push(&self, few: Few) {
        // Before the push, so that the count never falls below zero.
        self.marks
            .queued
            .fetch_add(few.len() as usize, Ordering::Relaxed);
        self.queue.push(few);
    }

    /// A key off another's tray.
    #[cold]
    fn take_elsewhere(&self, own: usize) -> Option<SlotId> {
        for (number, tray) in self.trays.iter().enumerate() {
            if number == own {
                continue;
            }
            let mut tray = lock(tray);
            if let Some(id) = tray.out.pop().or_else(|| tray.back.pop()) {
                tray.taken += 1;
                return Some(id);
            }
        }
        // A tray that was empty may have been on its way to the queue.
        let mut tray = lock(&self.trays[own]);
        let found = self.refill(&mut tray)?;
        tray.taken += 1;
        Some(found)
    }

    /// Puts a key back.
    #[inline]
    pub(crate) fn put(&self, id: SlotId) {
        let mut tray = lock(&self.trays[self.own_tray()]);
        tray.returned += 1;
        if self.tray_keys == 0 {
            self.add(id);
            return;
        }
        if tray.back.len() == self.tray_keys {
            let full = std::mem::take(&mut tray.back);
            match self.queue {
                Handfuls::Fifo(_) => self.push(full),
                Handfuls::Lifo(_) => {
                    let older = std::mem::replace(&mut tray.out, full);
                    if older.len() != 0 {
                        self.push(older);
                    }
                }
            }
        }
        tray.back.push(id);
    }

    /// Puts a key that nobody has had yet.
    pub(crate) fn add(&self, id: SlotId) {
        let mut few = Few::default();
        few.push(id);
        self.push(few);
    }

    /// Takes a key that has rested long out of the queue alone, to be destroyed.
    pub(crate) fn retire(&self) -> Option<SlotId> {
        let mut few = self.count_out(self.queue.oldest()?);
        let found = few.pop();
        if few.len() != 0 {
            self.marks
                .queued
                .fetch_add(few.len() as usize, Ordering::Relaxed);
            self.queue.put_back(few);
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

    /// How often keys were taken and returned, at one moment for all trays.
    pub(crate) fn traffic(&self) -> Traffic {
        let trays: Vec<_> = self.trays.iter().map(|tray| lock(tray)).collect();
        trays.iter().fold(Traffic::default(), |sum, tray| Traffic {
            taken: sum.taken + tray.taken,
            returned: sum.returned + tray.returned,
        })
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
        }
    }

    /// The handful whose turn it is.
    fn next(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_back(),
        }
    }

    /// The handful that has been there longest.
    fn oldest(&self) -> Option<Few> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Lifo(stack) => lock(stack).pop_front(),
        }
    }

    /// What is left of the oldest handful. A queue takes it at its end only.
    fn put_back(&self, few: Few) {
        match self {
            Self::Fifo(queue) => queue.push(few),
            Self::Lifo(stack) => lock(stack).push_front(few),
        }
    }
}

impl Tray {
    /// The key that was put last. What is out came before what is back.
    fn pop_last(&mut self) -> Option<SlotId> {
        self.back.pop_last().or_else(|| self.out.pop_last())
    }
}

/// A queue of a few keys in place.
#[derive(Debug, Default)]
struct Few {
    slots: [u32; TRAY_KEYS_MAX as usize],
    head: u32,
    len: u32,
}

impl Few {
    #[inline]
    fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn push(&mut self, id: SlotId) {
        assert!(self.len < TRAY_KEYS_MAX, "more keys than a tray takes");
        let tail = (self.head + self.len) % TRAY_KEYS_MAX;
        self.slots[tail as usize] = id.0;
        self.len += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<SlotId> {
        if self.len == 0 {
            return None;
        }
        let id = SlotId(self.slots[self.head as usize]);
        self.head = (self.head + 1) % TRAY_KEYS_MAX;
        self.len -= 1;
        Some(id)
    }

    #[inline]
    fn pop_last(&mut self) -> Option<SlotId> {
        self.len = self.len.checked_sub(1)?;
        let tail = (self.head + self.len) % TRAY_KEYS_MAX;
        Some(SlotId(self.slots[tail as usize]))
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
            let id = shelf.take().expect("forty keys");
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
            let id = shelf.take().expect("four keys");
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
                let id = shelf.take().map(|id| id.0);
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
                let ids: Vec<_> = (0..8).map(|_| shelf.take().expect("a key")).collect();
                ids.into_iter().for_each(|id| shelf.put(id));
            });
        });
        let found: HashSet<_> = std::iter::from_fn(|| shelf.take()).map(|id| id.0).collect();
        assert_eq!(found, (0..8).collect());
        let Traffic { taken, returned } = shelf.traffic();
        assert_eq!((taken, returned), (16, 8));
    }
}
