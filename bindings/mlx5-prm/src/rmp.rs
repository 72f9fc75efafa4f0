//! Receive memory pools, the shared receive queues of DEVX: `CREATE_RMP`.

use crate::field::fields;

/// Bytes of the input of `CREATE_RMP`.
pub const CREATE_IN_BYTES: usize = 0x110;

/// State of a queue that takes entries.
pub const READY: u8 = 1;

fields! {
    /// State: 1 is ready.
    STATE = 0x108, 4;
    /// The ring is used in order (cyclic), not as a linked list.
    BASIC_CYCLIC = 0x120, 1;
    /// One of [`wq_type`].
    WQ_TYPE = 0x280, 4;
    /// Limit that raises an event.
    LWM = 0x2b0, 16;
    /// Protection domain.
    PD = 0x2c8, 24;
    /// Doorbell record: an address, or an offset in its umem.
    DBR_ADDR = 0x300, 64;
    /// log2 of the bytes of an entry.
    LOG_WQ_STRIDE = 0x38c, 4;
    /// log2 of the number of entries.
    LOG_WQ_SZ = 0x39b, 5;
    /// `DBR_UMEM_ID` is valid.
    DBR_UMEM_VALID = 0x3a0, 1;
    /// `WQ_UMEM_ID` is valid.
    WQ_UMEM_VALID = 0x3a1, 1;
    /// umem of the doorbell record.
    DBR_UMEM_ID = 0x3c0, 32;
    /// umem of the ring.
    WQ_UMEM_ID = 0x3e0, 32;
    /// Offset of the ring in its umem.
    WQ_UMEM_OFFSET = 0x400, 64;
}

/// Kinds of work queue.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod wq_type {
    pub const LINKED_LIST: u8 = 0;
    pub const CYCLIC: u8 = 1;
}
