//! State of an event queue: a ring in memory of the process, into which the device writes which completion queue has an event.

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u64 = ENTRY as u64;
const ENTRY: usize = 64;
/// log2 of the largest ring: the counters of doorbells have 24 bits.
pub(crate) const LOG_MAX: u32 = 22;
/// Bits of a counter.
pub(crate) const COUNTER: u32 = 0xff_ffff;
/// Offsets of the completion queue's number, big-endian, and of the bit that changes in each round.
const CQN_AT: usize = 0x38;
const OWNER_AT: usize = 0x3f;

/// An event queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventQueue {
    pub(crate) ring: u64,
    pub(crate) log_entries: u32,
    /// The event handler that an event activates while the queue is armed.
    pub(crate) thread: Option<u32>,
    pub(crate) produced: u32,
    pub(crate) consumed: u32,
    pub(crate) is_armed: bool,
}

impl EventQueue {
    pub(crate) fn is_full(&self) -> bool {
        self.produced.wrapping_sub(self.consumed) & COUNTER >= 1 << self.log_entries
    }

    pub(crate) fn has_events(&self) -> bool {
        self.produced != self.consumed
    }

    /// The place and the content of the next entry.
    pub(crate) fn entry(&self, cqn: u32) -> (u64, [u8; ENTRY]) {
        let index = u64::from(self.produced) & ((1 << self.log_entries) - 1);
        let mut entry = [0; ENTRY];
        entry[CQN_AT..CQN_AT + 4].copy_from_slice(&cqn.to_be_bytes());
        entry[OWNER_AT] = u8::from(self.produced >> self.log_entries & 1 != 0);
        (self.ring + index * ENTRY_BYTES, entry)
    }
}
