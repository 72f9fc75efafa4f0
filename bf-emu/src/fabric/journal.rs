//! A journal of the completion in progress, which makes its write atomic.
//!
//! A completion changes three things: the counter of the queue whose entry it completes, the ring
//! in its reader's memory, and the counter of the completion queue. A sender that dies between two
//! of these would leave its peer with an inconsistent queue. So the sender first records all three
//! as absolute values. A process that takes the lock of a dead holder writes them again, which is
//! harmless if they are there already. If the sender dies while it writes the event of the completion,
//! that process sends the event again, and counts it as unsure: an event too many is harmless, and one
//! too few would let the reader sleep without end. The lock of a card serialises its completions. Each processor
//! has its own record, which stays in its caches.

use std::sync::atomic::{Ordering, fence};

use mlx5_prm::cqe::CQE_BYTES;

use crate::sys::{self, steps::step};

/// The counter of the queue whose entry is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Take {
    /// Kind of the queue.
    pub from: TakenFrom,
    /// Function of the queue.
    pub function: usize,
    /// Its slot.
    pub slot: u32,
    /// New value of its counter.
    pub counter: u32,
    /// Shared receive queue: the entry to take next.
    pub head: u32,
}

/// Kinds of queues whose entries are completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum TakenFrom {
    /// No queue: the poster counts its own entries.
    #[default]
    Nothing,
    /// The send queue of a queue pair.
    Send,
    /// The receive queue of a queue pair.
    Receive,
    /// A shared receive queue.
    Shared,
}

/// A recorded completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Record {
    /// The counter of the work queue.
    pub take: Take,
    /// Function of the completion queue.
    pub function: usize,
    /// Its slot.
    pub slot: u32,
    /// Its generation, to detect that the slot was reused.
    pub generation: u32,
    /// Its producer counter after this completion.
    pub produced: u32,
    /// The owner's consumer counter.
    pub consumed: u32,
    /// Address of the entry in the owner's memory.
    pub address: u64,
    /// The entry.
    pub entry: [u8; CQE_BYTES],
}

/// Number of records. With more processors, some processors share a record.
const PLACES: usize = 16;

/// The completions of one function: at most one pending record. All zeroes means none.
#[derive(Debug)]
#[repr(C)]
pub struct Journal {
    places: [Place; PLACES],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Place {
    /// One of the stages below.
    open: u32,
    record: Record,
}

/// Stages of a record.
const CLOSED: u32 = 0;
const BEGUN: u32 = 1;
const TELLING: u32 = 2;

/// Handle of a pending record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a record that is not ended is done again"]
pub struct Written(usize);

impl Journal {
    /// Records the completion before it is executed.
    pub fn begin(&mut self, record: Record) -> Written {
        step();
        let index = sys::cpu() as usize % PLACES;
        let place = &mut self.places[index];
        place.record = record;
        fence(Ordering::Release);
        place.open = BEGUN;
        // The mark must not become visible before the record.
        fence(Ordering::SeqCst);
        step();
        Written(index)
    }

    /// The completion is executed, and its event is about to be written.
    pub fn tells(&mut self, written: Written) {
        fence(Ordering::Release);
        if let Some(place) = self.places.get_mut(written.0) {
            place.open = TELLING;
        }
        fence(Ordering::SeqCst);
    }

    /// Closes a record after its execution.
    pub fn end(&mut self, written: Written) {
        fence(Ordering::Release);
        if let Some(place) = self.places.get_mut(written.0) {
            place.open = CLOSED;
        }
    }

    /// The record that a dead holder of the lock left pending, and whether its event may have been written.
    #[must_use]
    pub fn pending(&self) -> Option<(Written, Record, bool)> {
        let index = self.places.iter().position(|place| place.open != CLOSED)?;
        let place = self.places.get(index)?;
        Some((Written(index), place.record, place.open == TELLING))
    }
}
