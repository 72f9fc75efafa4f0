//! A journal of the completion in progress, which makes its write atomic.
//!
//! A completion changes three things: the counter of the queue whose entry it completes, the ring in its reader's
//! memory, and the counter of the completion queue. A sender that dies between two of these would leave its peer with
//! an inconsistent queue. So the sender first records all three as absolute values. A process that takes the lock of a
//! dead holder writes them again, which is harmless if they are there already. The device's lock serialises
//! completions. Each processor has its own record, which stays in its caches.

use std::sync::atomic::{Ordering, fence};

use mlx5_prm::cqe::CQE_BYTES;

use crate::sys;

/// The counter of the queue whose entry is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Take {
    /// Which queue.
    pub from: TakenFrom,
    /// Function of the queue.
    pub function: usize,
    /// Its slot.
    pub slot: u32,
    /// What its counter is to be.
    pub counter: u32,
    /// Shared receive queue: the entry to take next.
    pub head: u32,
}

/// Kinds of queues that entries are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum TakenFrom {
    /// None: the poster counts for itself.
    #[default]
    Nothing,
    /// The send queue of a queue pair.
    Send,
    /// The receive queue of a queue pair.
    Receive,
    /// A shared receive queue.
    Shared,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Record {
    /// The entry that is taken.
    pub take: Take,
    /// Function of the completion queue.
    pub function: usize,
    /// Its slot.
    pub slot: u32,
    /// Its generation: a queue that went and came is not the one meant.
    pub generation: u32,
    /// Its counter with this completion.
    pub produced: u32,
    /// How far its owner had read.
    pub consumed: u32,
    /// Where in its owner's memory the entry goes.
    pub address: u64,
    /// The entry.
    pub entry: [u8; CQE_BYTES],
}

/// Places for records: more processors than these share some.
const PLACES: usize = 16;

/// At most one record. All zeroes is none.
#[derive(Debug)]
#[repr(C)]
pub struct Journal {
    places: [Place; PLACES],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Place {
    open: u32,
    record: Record,
}

/// Where a record was written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a record that is not ended is done again"]
pub struct Written(usize);

impl Journal {
    /// Writes down what is to be done.
    pub fn begin(&mut self, record: Record) -> Written {
        let index = sys::cpu() as usize % PLACES;
        let place = &mut self.places[index];
        place.record = record;
        fence(Ordering::Release);
        place.open = 1;
        // Not later than what is written down.
        fence(Ordering::SeqCst);
        Written(index)
    }

    /// It is done.
    pub fn end(&mut self, written: Written) {
        fence(Ordering::Release);
        if let Some(place) = self.places.get_mut(written.0) {
            place.open = 0;
        }
    }

    /// What a dead holder of the lock was about to do.
    #[must_use]
    pub fn pending(&self) -> Option<(Written, Record)> {
        let index = self.places.iter().position(|place| place.open == 1)?;
        Some((Written(index), self.places.get(index)?.record))
    }
}
