//! The completion that is being written, so that it is written whole or not at all.
//!
//! A completion changes three things: the counter of the queue whose entry it completes, the ring
//! in the memory of its reader, and the counter of the completion queue. A sender that is killed
//! between two of them would leave its peer with a queue that is out of step for ever. So all three
//! are written down first, as absolute values; whoever finds the lock of a dead holder does them
//! again, which does no harm if they were done already. As all of it happens under the device's
//! lock, there is one journal.

use std::sync::atomic::{Ordering, fence};

use mlx5_prm::cqe::CQE_BYTES;

/// The counter of the queue whose entry is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Take {
    /// Which queue.
    pub from: TakenFrom,
    /// Function of the queue.
    pub function: u32,
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
    pub function: u32,
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

/// At most one record. All zeroes is none.
#[derive(Debug)]
#[repr(C)]
pub struct Journal {
    open: u32,
    record: Record,
}

impl Journal {
    /// Writes down what is to be done.
    pub fn begin(&mut self, record: Record) {
        self.record = record;
        fence(Ordering::Release);
        self.open = 1;
        // Not later than what is written down.
        fence(Ordering::SeqCst);
    }

    /// It is done.
    pub fn end(&mut self) {
        fence(Ordering::Release);
        self.open = 0;
    }

    /// What a dead holder of the lock was about to do.
    #[must_use]
    pub fn pending(&self) -> Option<Record> {
        (self.open == 1).then_some(self.record)
    }
}
