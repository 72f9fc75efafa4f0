//! The free keys: a bounded queue for all threads, and in front of it a tray for each of a few groups
//! of threads, so that most leases and returns touch no memory that another thread writes.
//!
//! Keys leave in the order in which they came. A thread takes from its tray's `out` side and puts onto
//! the `back` side. The queue holds handfuls: an empty `out` takes the one at the front, a full `back`
//! becomes the one at the end. So a key that was just released rests until those before it have been
//! used, to within a handful. Trays belong to the pool and not to threads, so a thread that ends
//! leaves nothing behind; what it left on a tray serves the next thread there, and anybody who finds
//! queue and own tray empty.

use crossbeam_utils::CachePadded;

use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, Queue, lock, thread_number};

/// Most keys on one side of a tray.
pub(crate) const TRAY_KEYS_MAX: u32 = 16;

/// Most trays: threads beyond as many share one with another thread.
const TRAYS_MAX: usize = 64;

/// All free keys of a pool.
#[derive(Debug)]
pub(crate) struct Shelf {
    queue: Queue<Few>,
    /// Away from what every lease reads and nobody writes.
    marks: CachePadded<Marks>,
    /// Their number is a power of two.
    trays: Box<[CachePadded<Mutex<Tray>>]>,
    /// Keys on one side of a tray; zero if there are no trays.
    tray_keys: u32,
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
    pub(crate) fn new(capacity: u32, tray_keys: u32, trays: usize) -> Self {
        let trays = trays.clamp(1, TRAYS_MAX).next_power_of_two();
        let share = capacity as usize / 4 / (2 * trays);
        let share = u32::try_from(share).unwrap_or(TRAY_KEYS_MAX);
        Self {
            // In the worst case each handful is one key.
            queue: Queue::new(capacity as usize),
            marks: CachePadded::new(Marks {
                queued: AtomicUsize::new(0),
                idle_min: AtomicUsize::new(usize::MAX),
            }),
            trays: (0..trays).map(|_| CachePadded::default()).collect(),
            tray_keys: tray_keys.min(TRAY_KEYS_MAX).min(share),
        }
    }

    /// The key that has rested longest, to within a handful.
    #[inline]
    pub(crate) fn take(&self) -> Option<SlotId> {
        let own = self.own_tray();
        let mut tray = lock(&self.trays[own]);
        let mut found = tray.out.pop();
        if found.is_none() {
            found = self.refill(&mut tray).or_else(|| tray.back.pop());
        }
        tray.taken += u64::from(found.is_some());
        drop(tray);
        found.or_else(|| self.take_elsewhere(own))
    }

    /// Puts the handful at the front of the queue on the tray and takes one of it.
    fn refill(&self, tray: &mut Tray) -> Option<SlotId> {
        tray.out = self.pop()?;
        self.marks
            .idle_min
            .fetch_min(self.queued(), Ordering::Relaxed);
        tray.out.pop()
    }

    fn pop(&self) -> Option<Few> {
        let few = self.queue.pop()?;
        self.marks
            .queued
            .fetch_sub(few.len() as usize, Ordering::Relaxed);
        Some(few)
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
            self.push(std::mem::take(&mut tray.back));
        }
        tray.back.push(id);
    }

    /// Puts a key that nobody has had yet.
    pub(crate) fn add(&self, id: SlotId) {
        let mut few = Few::default();
        few.push(id);
        self.push(few);
    }

    /// Takes a key out of the queue alone, to be destroyed.
    pub(crate) fn retire(&self) -> Option<SlotId> {
        let mut few = self.pop()?;
        let found = few.pop();
        if few.len() != 0 {
            self.push(few);
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
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_leave_in_the_order_in_which_they_came_to_within_a_tray() {
        let shelf = Shelf::new(256, 8, 1);
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
        let shelf = Shelf::new(4, 8, 1);
        assert_eq!(shelf.tray_keys, 0, "four keys are too few for trays");
        (0..4).for_each(|id| shelf.add(SlotId(id)));
        for round in 0..20 {
            let id = shelf.take().expect("four keys");
            assert_eq!(id.0, round % 4);
            shelf.put(id);
        }
    }

    #[test]
    fn what_another_thread_left_is_found() {
        let shelf = Shelf::new(1024, 8, 16);
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
