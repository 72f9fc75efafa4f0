//! Completion queues: `CREATE_CQ`.

use crate::field::fields;

/// Bytes of the input of `CREATE_CQ` without a page list.
pub const CREATE_IN_BYTES: usize = 0x110;

fields! {
    /// `dbr_umem_id` is used.
    DBR_UMEM_VALID = 0x086, 1;
    /// 0: 64-byte entries. 1: 128-byte entries.
    CQE_SZ = 0x088, 3;
    /// Collapsed: every completion goes to entry 0.
    COLLAPSED = 0x08b, 1;
    /// Overrun is ignored.
    OVERRUN_IGNORE = 0x08e, 1;
    /// umem of the doorbell record.
    DBR_UMEM_ID = 0x0a0, 32;
    /// log2 of the number of entries.
    LOG_CQ_SIZE = 0x0e3, 5;
    /// UAR page that arms the queue.
    UAR_PAGE = 0x0e8, 24;
    /// Event queue.
    EQN = 0x138, 8;
    /// Doorbell record: an address, or an offset in its umem.
    DBR_ADDR = 0x240, 64;
    /// Where in its umem the ring starts.
    UMEM_OFFSET = 0x280, 64;
    /// umem of the ring.
    UMEM_ID = 0x2c0, 32;
}
