//! Completion queues: `CREATE_CQ`, `MODIFY_CQ` and `QUERY_CQ`. All three have the context at the
//! same offset.

use crate::field::fields;

/// Bytes of the input of `CREATE_CQ` without a page list.
pub const CREATE_IN_BYTES: usize = 0x110;
/// Bytes of the output of `QUERY_CQ` without a page list.
pub const QUERY_OUT_BYTES: usize = 0x110;

/// `MODIFY_CQ`: the `OP_MOD` that replaces the ring. 0 changes attributes.
pub const OP_MOD_RESIZE: u16 = 1;

/// Fields that `MODIFY_CQ` changes, for [`MODIFY_FIELD_SELECT`] (`mlx5/cq.h`, MLX5_CQ_MODIFY_*).
pub mod select {
    /// [`super::CQ_PERIOD`].
    pub const PERIOD: u32 = 1 << 0;
    /// [`super::CQ_MAX_COUNT`].
    pub const COUNT: u32 = 1 << 1;
    /// [`super::OVERRUN_IGNORE`].
    pub const OVERRUN: u32 = 1 << 2;
}

/// Arm state of a queue (PRM, completion queue context, `st`).
pub mod notification {
    /// Armed for the next solicited completion.
    pub const ARMED_SOLICITED: u8 = 0x6;
    /// Armed for the next completion.
    pub const ARMED: u8 = 0x9;
    /// Not armed: the last request was answered, or none was made.
    pub const FIRED: u8 = 0xa;
}

/// State of a queue: an entry was lost because the queue was full. 0 is good.
pub const STATUS_OVERFLOW: u8 = 0x9;

fields! {
    /// `MODIFY_CQ`: the fields to change, see [`select`].
    MODIFY_FIELD_SELECT = 0x060, 32;
    /// State of the queue, output only.
    STATUS = 0x080, 4;
    /// `dbr_umem_id` is valid.
    DBR_UMEM_VALID = 0x086, 1;
    /// 0: 64-byte entries. 1: 128-byte entries.
    CQE_SZ = 0x088, 3;
    /// Collapsed: every completion goes to entry 0.
    COLLAPSED = 0x08b, 1;
    /// Moderation does not delay a solicited completion.
    SCQE_BREAK_MODERATION_EN = 0x08d, 1;
    /// Overrun is ignored.
    OVERRUN_IGNORE = 0x08e, 1;
    /// 0: the moderation period starts at the last event. 1: it starts at a completion.
    CQ_PERIOD_MODE = 0x08f, 2;
    /// Arm state, output only, see [`notification`].
    ST = 0x094, 4;
    /// umem of the doorbell record.
    DBR_UMEM_ID = 0x0a0, 32;
    /// log2 of the number of entries.
    LOG_CQ_SIZE = 0x0e3, 5;
    /// UAR page that arms the queue.
    UAR_PAGE = 0x0e8, 24;
    /// Moderation period in microseconds; 0 disables it.
    CQ_PERIOD = 0x104, 12;
    /// Moderation count of completions; 0 disables it.
    CQ_MAX_COUNT = 0x110, 16;
    /// Event queue.
    EQN = 0x138, 8;
    /// Consumer counter, output only, modulo 2^24.
    CONSUMER_COUNTER = 0x1c8, 24;
    /// Producer counter, output only, modulo 2^24.
    PRODUCER_COUNTER = 0x1e8, 24;
    /// Doorbell record: an address, or an offset in its umem.
    DBR_ADDR = 0x240, 64;
    /// Offset of the ring in its umem.
    UMEM_OFFSET = 0x280, 64;
    /// umem of the ring.
    UMEM_ID = 0x2c0, 32;
}
