//! Completion queues: `CREATE_CQ`, `MODIFY_CQ` and `QUERY_CQ`. The context lies in the same place of all three.

use crate::field::fields;

/// Bytes of the input of `CREATE_CQ` without a page list.
pub const CREATE_IN_BYTES: usize = 0x110;
/// Bytes of the answer of `QUERY_CQ` without a page list.
pub const QUERY_OUT_BYTES: usize = 0x110;

/// `MODIFY_CQ`: `OP_MOD` that gives the queue another ring; 0 changes its attributes.
pub const OP_MOD_RESIZE: u16 = 1;

/// What `MODIFY_CQ` changes, in [`MODIFY_FIELD_SELECT`] (`mlx5/cq.h`, MLX5_CQ_MODIFY_*).
pub mod select {
    /// [`super::CQ_PERIOD`].
    pub const PERIOD: u32 = 1 << 0;
    /// [`super::CQ_MAX_COUNT`].
    pub const COUNT: u32 = 1 << 1;
    /// [`super::OVERRUN_IGNORE`].
    pub const OVERRUN: u32 = 1 << 2;
}

/// State of a queue's notification (PRM, completion queue context, `st`).
pub mod notification {
    /// Armed for the next solicited completion.
    pub const ARMED_SOLICITED: u8 = 0x6;
    /// Armed for the next completion.
    pub const ARMED: u8 = 0x9;
    /// Not armed: the last request was answered, or there was none.
    pub const FIRED: u8 = 0xa;
}

/// State of a queue: an entry was lost for want of room; 0 is good.
pub const STATUS_OVERFLOW: u8 = 0x9;

fields! {
    /// `MODIFY_CQ`: what is changed, see [`select`].
    MODIFY_FIELD_SELECT = 0x060, 32;
    /// State of the queue, in answers.
    STATUS = 0x080, 4;
    /// `dbr_umem_id` is used.
    DBR_UMEM_VALID = 0x086, 1;
    /// 0: 64-byte entries. 1: 128-byte entries.
    CQE_SZ = 0x088, 3;
    /// Collapsed: every completion goes to entry 0.
    COLLAPSED = 0x08b, 1;
    /// A solicited completion is not held back by moderation.
    SCQE_BREAK_MODERATION_EN = 0x08d, 1;
    /// Overrun is ignored.
    OVERRUN_IGNORE = 0x08e, 1;
    /// 0: the time of moderation begins with the last event. 1: with a completion.
    CQ_PERIOD_MODE = 0x08f, 2;
    /// State of the notification, in answers, see [`notification`].
    ST = 0x094, 4;
    /// umem of the doorbell record.
    DBR_UMEM_ID = 0x0a0, 32;
    /// log2 of the number of entries.
    LOG_CQ_SIZE = 0x0e3, 5;
    /// UAR page that arms the queue.
    UAR_PAGE = 0x0e8, 24;
    /// Moderation: microseconds; 0 is none.
    CQ_PERIOD = 0x104, 12;
    /// Moderation: completions; 0 is none.
    CQ_MAX_COUNT = 0x110, 16;
    /// Event queue.
    EQN = 0x138, 8;
    /// Entries read, in answers, modulo 2^24.
    CONSUMER_COUNTER = 0x1c8, 24;
    /// Entries written, in answers, modulo 2^24.
    PRODUCER_COUNTER = 0x1e8, 24;
    /// Doorbell record: an address, or an offset in its umem.
    DBR_ADDR = 0x240, 64;
    /// Where in its umem the ring starts.
    UMEM_OFFSET = 0x280, 64;
    /// umem of the ring.
    UMEM_ID = 0x2c0, 32;
}
