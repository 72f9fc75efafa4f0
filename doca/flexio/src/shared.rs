//! Receive queues in memory of the DPA that several queue pairs share.

use crate::error::{Error, Result};
use crate::object::{Input, Object};
use crate::process::{Process, low};
use crate::queue::check;
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::rmp;

/// log2 of the largest number of entries: the counters have 16 bits.
const LOG_MAX: u32 = 15;

/// Attributes of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RmpAttr {
    /// Address of the ring.
    pub ring: u64,
    /// log2 of its entries.
    pub log_entries: u32,
    /// log2 of the bytes of an entry, at least 5: 16 bytes that the device does not read, and data segments of 16.
    pub log_stride: u32,
    /// Address of the doorbell record: the counter of entries, 4 bytes, big-endian.
    pub doorbell: u64,
}

/// A receive queue that queue pairs of the process use by its number. The device takes its entries in the order of the ring. A
/// completion goes to the completion queue of the queue pair.
#[derive(Debug)]
pub struct Rmp {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    number: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Rmp {
    /// Creates a queue.
    ///
    /// # Errors
    /// A size is not possible, or the ring or the record is not in the heap.
    pub fn create(process: &Process, attr: &RmpAttr) -> Result<Self> {
        check("shared receive queue", attr.log_entries, LOG_MAX)?;
        if !(5..=9).contains(&attr.log_stride) {
            let log = attr.log_stride;
            return Err(Error::failed(format!(
                "entries of 2^{log} bytes in a shared receive queue: allowed are 2^5 to 2^9"
            )));
        }
        let umem = u64::from(process.umem());
        let input = Input::new(opcode::CREATE_RMP, rmp::CREATE_IN_BYTES)
            .with(rmp::STATE, rmp::READY.into())
            .with(rmp::BASIC_CYCLIC, 1)
            .with(rmp::WQ_TYPE, rmp::wq_type::CYCLIC.into())
            .with(rmp::PD, process.pd_number().into())
            .with(rmp::DBR_UMEM_VALID, 1)
            .with(rmp::DBR_UMEM_ID, umem)
            .with(rmp::DBR_ADDR, process.offset(attr.doorbell)?)
            .with(rmp::LOG_WQ_STRIDE, attr.log_stride.into())
            .with(rmp::LOG_WQ_SZ, attr.log_entries.into())
            .with(rmp::WQ_UMEM_VALID, 1)
            .with(rmp::WQ_UMEM_ID, umem)
            .with(rmp::WQ_UMEM_OFFSET, process.offset(attr.ring)?);
        let (object, output) = process.create_queue(&input, "shared receive queue")?;
        Ok(Self {
            object,
            number: low(cmd::OBJECT_NUMBER.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number, for queue pairs.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}
