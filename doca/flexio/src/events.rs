//! Event queues in memory of the DPA.

use crate::error::Result;
use crate::object::{Input, Object};
use crate::process::{Process, low};
use crate::queue::check;
use mlx5_prm::cmd;
use mlx5_prm::dpa::{self, object};

/// log2 of the bytes of an entry, and of the largest number of entries.
const LOG_ENTRY: u32 = 6;
const LOG_MAX: u32 = 22;

/// Attributes of an event queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EqAttr {
    /// Address of the ring. [`initial_ring`](Eq::initial_ring) has its first content.
    pub ring: u64,
    /// log2 of its entries, of 64 bytes each.
    pub log_entries: u32,
    /// The thread that an event activates. A doorbell of device code arms the queue again.
    pub thread: Option<u32>,
}

/// An event queue of a process: it gets an entry for each event of the completion queues whose target it is.
#[derive(Debug)]
pub struct Eq {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    number: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Eq {
    /// Creates an event queue, which is armed.
    ///
    /// # Errors
    /// The ring is not in an allocation, or the thread is none of the process.
    pub fn create(process: &Process, attr: &EqAttr) -> Result<Self> {
        check("event queue", attr.log_entries, LOG_MAX)?;
        let input = Input::general(object::EVENT_QUEUE)
            .with(dpa::PROCESS_ID, process.id().into())
            .with(dpa::LOG_EVENTS, attr.log_entries.into())
            .with(dpa::EVENT_RING, attr.ring)
            .with(dpa::EVENT_THREAD, attr.thread.unwrap_or_default().into());
        let (object, output) = process.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        Ok(Self {
            object,
            number: low(cmd::GENERAL_OBJECT_ID.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number, for completion queues and for doorbells.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Content of a ring before its first event: each entry belongs to the device.
    #[must_use]
    pub fn initial_ring(log_entries: u32) -> Vec<u8> {
        let mut ring = vec![0; 1 << (log_entries.min(LOG_MAX) + LOG_ENTRY)];
        for entry in ring.as_chunks_mut::<64>().0 {
            entry[63] = 1;
        }
        ring
    }
}
