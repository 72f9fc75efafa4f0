//! Free *long* keys: those with more translation entries than other keys have. Memory of many gigabytes or of
//! many registrations needs them. They are created when such memory is first bound, and they have a list of
//! their own, so that an ordinary buffer costs the adapter no more entries than without a pool.

use std::collections::VecDeque;

use crate::idle_watch::IdleWatch;
use crate::policy::ReuseOrder;
use crate::slots::SlotId;
use crate::sync::{Mutex, lock};

/// The free long keys of a pool.
#[derive(Debug)]
pub(crate) struct LongKeys {
    /// Largest number of long keys, free or not.
    max: u32,
    list: Mutex<List>,
    pub(crate) watch: IdleWatch,
}

#[derive(Debug, Default)]
struct List {
    /// The key released first is at the front.
    free: VecDeque<SlotId>,
    /// Smallest number of free keys since the last query.
    idle_min: usize,
    taken: u64,
    returned: u64,
}

impl LongKeys {
    /// An empty list, in a pool that may have `max` long keys.
    pub(crate) fn new(max: u32) -> Self {
        let list = List {
            free: VecDeque::with_capacity(max as usize),
            ..List::default()
        };
        Self {
            max,
            list: Mutex::new(list),
            watch: IdleWatch::default(),
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// Takes the next free key in the order of reuse.
    pub(crate) fn take(&self, order: ReuseOrder) -> Option<SlotId> {
        let mut list = lock(&self.list);
        let found = match order {
            ReuseOrder::Lifo => list.free.pop_back(),
            ReuseOrder::Fifo | ReuseOrder::Affinity => list.free.pop_front(),
        }?;
        list.taken += 1;
        list.idle_min = list.idle_min.min(list.free.len());
        Some(found)
    }

    /// Returns a key.
    pub(crate) fn put(&self, id: SlotId) {
        let mut list = lock(&self.list);
        list.returned += 1;
        list.free.push_back(id);
    }

    /// Takes the longest idle key, to destroy it.
    pub(crate) fn retire(&self) -> Option<SlotId> {
        let mut list = lock(&self.list);
        let found = list.free.pop_front();
        list.idle_min = list.idle_min.min(list.free.len());
        found
    }

    /// Free keys that were not needed since the last call.
    pub(crate) fn idle(&self) -> usize {
        let mut list = lock(&self.list);
        let free = list.free.len();
        std::mem::replace(&mut list.idle_min, free)
    }

    /// Number of keys taken and returned.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let list = lock(&self.list);
        (list.taken, list.returned)
    }
}
