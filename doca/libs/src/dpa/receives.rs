//! Receive entries that all connections of an RDMA object share.

use super::core::{Block, Core, failed};
use crate::error::Result;
use dpa_dev::objects::{Kind, queue};
use flexio::{Rmp, RmpAttr};
use std::sync::Arc;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Receives {
    // Destroyed before its memory.
    queue: Rmp,
    object: Block,
    _memory: [Block; 2],
}

impl Receives {
    pub(crate) fn new(core: &Arc<Core>, entries: u32) -> Result<Arc<Self>> {
        let log_entries = entries.next_power_of_two().ilog2();
        let ring = Block::new(core, 1 << (log_entries + queue::LOG_SHARED_ENTRY))?;
        let doorbell = Block::new(core, 8)?;
        let attributes = RmpAttr {
            ring: ring.address(),
            log_entries,
            log_stride: queue::LOG_SHARED_ENTRY,
            doorbell: doorbell.address(),
        };
        let rmp = Rmp::create(core.process(), &attributes).map_err(failed)?;
        let words = [
            (queue::NUMBER, u64::from(rmp.number())),
            (queue::DOORBELL, doorbell.address()),
            (queue::RECEIVE_RING, ring.address()),
            (queue::RECEIVE_LOG, u64::from(log_entries)),
        ];
        let object = Block::object(core, Kind::Queue, queue::WORDS, &words)?;
        Ok(Arc::new(Self {
            queue: rmp,
            object,
            _memory: [ring, doorbell],
        }))
    }

    /// Its number, for queue pairs.
    pub(crate) fn number(&self) -> u32 {
        self.queue.number()
    }

    /// The address of its object.
    pub(crate) fn address(&self) -> u64 {
        self.object.address()
    }
}
