//! The outbox: a page through which a thread rings doorbells. Each register has 64 bits.

/// Address of the page. All threads have it at this address, and each has its own.
pub const BASE: u64 = 0x30_0000_0000;

/// Bytes of the page.
pub const BYTES: u64 = 0x1000;

/// A register: offset, and the macro by which the C headers name it. A doorbell has a number in bits 0 to 23 and an index in
/// bits 32 to 55, except where the list says so.
pub const REGISTERS: &[(u64, &str)] = &[
    // Arms a completion queue: its number, and the consumer index.
    (CQ_DB, "DPA_OUTBOX_CQ_DB"),
    // Updates the consumer index of an event queue, with and without arming it.
    (EQ_DB_REARM, "DPA_OUTBOX_EQ_DB_REARM"),
    (EQ_DB_NO_REARM, "DPA_OUTBOX_EQ_DB_NO_REARM"),
    // Work on a send queue or queue pair: the producer index in bits 0 to 15, the number in bits 32 to 55.
    (SXD_DB, "DPA_OUTBOX_SXD_DB"),
    // Generates an empty completion on a completion queue.
    (RXT_DB, "DPA_OUTBOX_RXT_DB"),
];

/// See [`REGISTERS`].
pub const CQ_DB: u64 = 0x100;
/// See [`REGISTERS`].
pub const EQ_DB_REARM: u64 = 0x140;
/// See [`REGISTERS`].
pub const EQ_DB_NO_REARM: u64 = 0x180;
/// See [`REGISTERS`].
pub const SXD_DB: u64 = 0x1c0;
/// See [`REGISTERS`].
pub const RXT_DB: u64 = 0x280;
