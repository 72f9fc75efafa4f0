//! The free keys, in the order in which they came back: the first in is the first out, so that a key
//! that was just released rests longest, and a peer with a stale handle meets a dead key and not the
//! next buffer.

use std::collections::VecDeque;

use crate::slots::SlotId;
use crate::sync::{Mutex, lock};

/// A bounded queue of slots. The bound is the number of slots, so it can never be full.
#[derive(Debug)]
pub(crate) struct Shelf {
    queue: Mutex<VecDeque<SlotId>>,
    capacity: usize,
}

impl Shelf {
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        // Room for all at once: nothing is allocated when a key comes back.
        Self {
            queue: Mutex::new(VecDeque::with_capacity(capacity)),
            capacity,
        }
    }

    pub(crate) fn take(&self) -> Option<SlotId> {
        lock(&self.queue).pop_front()
    }

    pub(crate) fn put(&self, id: SlotId) {
        let mut queue = lock(&self.queue);
        assert!(queue.len() < self.capacity, "more free keys than slots");
        queue.push_back(id);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }
}
