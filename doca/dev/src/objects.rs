//! Objects of the host library in the memory of the DPA: what handles of device code point to. The host library writes them,
//! device calls read and change them.
//!
//! Each is an array of words of 64 bits in little-endian order. The first word is the [`Kind`], so that a handle of
//! another kind is found. The constants are indices of words. "Address" means an address in the memory of the DPA.

/// What an object is: its first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// [`context`].
    Context = MAGIC | 1,
    /// [`event`].
    Event = MAGIC | 2,
    /// [`remote_event`].
    RemoteEvent = MAGIC | 3,
    /// [`completion`].
    Completion = MAGIC | 4,
    /// [`element`].
    Element = MAGIC | 5,
    /// [`rdma`].
    Rdma = MAGIC | 6,
    /// [`queue`].
    Queue = MAGIC | 7,
    /// [`async_ops`].
    AsyncOps = MAGIC | 8,
    /// [`notification`].
    Notification = MAGIC | 9,
    /// [`table`].
    Table = MAGIC | 10,
    /// [`verbs`].
    Verbs = MAGIC | 11,
}

const MAGIC: u64 = 0x5847_564d_4450_4100;

impl Kind {
    /// How messages name the object.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Context => "DPA context",
            Kind::Event => "sync event",
            Kind::RemoteEvent => "remote sync event",
            Kind::Completion => "completion queue",
            Kind::Element => "completion element",
            Kind::Rdma => "RDMA handle",
            Kind::Queue => "queue",
            Kind::AsyncOps => "asynchronous operations",
            Kind::Notification => "notification completion",
            Kind::Table => "hash table",
            Kind::Verbs => "queue pair of doca_verbs",
        }
    }
}

/// Bytes of a word.
pub const WORD: u64 = 8;

/// A context.
pub mod context {
    /// Words of the object.
    pub const WORDS: usize = 1;
}

/// A counter of 64 bits, in little-endian order.
pub mod event {
    /// Memory key of the counter, or 0 for a counter in the memory of the DPA.
    pub const KEY: usize = 1;
    /// Where the counter is: an address of the key's memory, or an address.
    pub const ADDRESS: usize = 2;
    /// [`READS`] and [`WRITES`].
    pub const RIGHTS: usize = 3;
    /// Words of the object.
    pub const WORDS: usize = 4;
    /// The DPA is a subscriber.
    pub const READS: u64 = 1;
    /// The DPA is a publisher.
    pub const WRITES: u64 = 2;
}

/// A counter of the other node.
pub mod remote_event {
    /// Key for the other node's memory.
    pub const KEY: usize = 1;
    /// Address of the other node's memory.
    pub const ADDRESS: usize = 2;
    /// Words of the object.
    pub const WORDS: usize = 3;
}

/// A completion queue: a ring of entries of 64 bytes in the format of mlx5.
pub mod completion {
    /// Number of the queue.
    pub const NUMBER: usize = 1;
    /// Logarithm to base 2 of the number of entries.
    pub const LOG_ENTRIES: usize = 2;
    /// Address of the ring.
    pub const RING: usize = 3;
    /// Address of the doorbell record: consumer index, arm word.
    pub const DOORBELL: usize = 4;
    /// Page of the doorbell.
    pub const UAR: usize = 5;
    /// Entries that were taken.
    pub const TAKEN: usize = 6;
    /// Entries that were given back.
    pub const GIVEN: usize = 7;
    /// Address of one [`element`](super::element) for each entry of the ring.
    pub const ELEMENTS: usize = 8;
    /// Address of the list of attached [`queue`](super::queue)s: their addresses.
    pub const QUEUES: usize = 9;
    /// Length of that list.
    pub const QUEUE_COUNT: usize = 10;
    /// Words of the object.
    pub const WORDS: usize = 11;
    /// Most attached queues.
    pub const QUEUES_MAX: u64 = 4096;
}

/// A taken completion.
pub mod element {
    /// `doca_dpa_dev_completion_type_t`.
    pub const TYPE: usize = 1;
    /// Number that the host has given to the completed object.
    pub const USER_DATA: usize = 2;
    /// Immediate value.
    pub const IMMEDIATE: usize = 3;
    /// Time of the device.
    pub const TIMESTAMP: usize = 4;
    /// Index of the request.
    pub const COUNTER: usize = 5;
    /// Words of the object.
    pub const WORDS: usize = 8;
}

/// Connections.
pub mod rdma {
    /// Address of the list of addresses of [`queue`](super::queue)s; 0 for a connection that does not exist yet.
    pub const CONNECTIONS: usize = 1;
    /// Length of that list.
    pub const COUNT: usize = 2;
    /// Key of [`SCRATCH`].
    pub const SCRATCH_KEY: usize = 3;
    /// Address of 8 bytes for results that nobody wants.
    pub const SCRATCH: usize = 4;
    /// Address of the [`completion`](super::completion) queue.
    pub const COMPLETION: usize = 5;
    /// Address of the [`queue`](super::queue) whose receive entries all connections share; 0 if the only connection has its own.
    pub const SHARED: usize = 6;
    /// Words of the object.
    pub const WORDS: usize = 7;
}

/// A queue pair: send ring and receive ring in the format of mlx5.
pub mod queue {
    /// Number of the queue pair.
    pub const NUMBER: usize = 1;
    /// Page of the doorbell.
    pub const UAR: usize = 2;
    /// Address of the doorbell record: receive counter, send counter.
    pub const DOORBELL: usize = 3;
    /// Address of the send ring, in blocks of 64 bytes.
    pub const SEND_RING: usize = 4;
    /// Logarithm to base 2 of its number of blocks.
    pub const SEND_LOG: usize = 5;
    /// Address of the receive ring, in entries of 16 bytes.
    pub const RECEIVE_RING: usize = 6;
    /// Logarithm to base 2 of its number of entries.
    pub const RECEIVE_LOG: usize = 7;
    /// Blocks that were posted.
    pub const SENT: usize = 8;
    /// Blocks whose completion was seen.
    pub const DONE: usize = 9;
    /// Blocks posted up to the last request that asked for a completion.
    pub const REPORTED: usize = 10;
    /// Receive entries that were posted.
    pub const RECEIVES: usize = 11;
    /// Receive entries that were given back.
    pub const RECEIVED: usize = 12;
    /// Address of one byte for each block of the send ring: 1 for the first block of a request whose completion is for the
    /// library alone.
    pub const MARKS: usize = 13;
    /// Number for [`element::USER_DATA`](super::element::USER_DATA).
    pub const USER_DATA: usize = 14;
    /// 1 when the queue pair is connected.
    pub const CONNECTED: usize = 15;
    /// Address of the queue whose receive entries it uses; 0 if it has its own.
    pub const SHARED: usize = 16;
    /// Words of the object.
    pub const WORDS: usize = 17;
    /// log2 of the bytes of a receive entry of a queue pair's own ring.
    pub const LOG_ENTRY: u32 = 4;
    /// log2 of the bytes of a receive entry that queue pairs share. Its data segment is the upper half.
    pub const LOG_SHARED_ENTRY: u32 = 5;
}

/// Asynchronous operations.
pub mod async_ops {
    /// Address of the [`queue`](super::queue).
    pub const QUEUE: usize = 1;
    /// Address of the [`completion`](super::completion) queue.
    pub const COMPLETION: usize = 2;
    /// Words of the object.
    pub const WORDS: usize = 3;
}

/// A queue pair of doca_verbs.
pub mod verbs {
    /// Address of the [`queue`](super::queue).
    pub const QUEUE: usize = 1;
    /// Address of the [`completion`](super::completion) queue.
    pub const COMPLETION: usize = 2;
    /// Words of the object.
    pub const WORDS: usize = 3;
}

/// What activates a thread.
pub mod notification {
    /// Number of the thread.
    pub const THREAD: usize = 1;
    /// Words of the object.
    pub const WORDS: usize = 2;
}

/// A hash table with linear search. A slot has two words: [`EMPTY`](table::EMPTY), [`GONE`](table::GONE) or
/// [`USED`](table::USED) with the key in the lower half, and the value.
pub mod table {
    /// Address of the slots.
    pub const SLOTS: usize = 1;
    /// Number of slots, a power of two.
    pub const COUNT: usize = 2;
    /// Most used slots.
    pub const ENTRIES: usize = 3;
    /// Used slots.
    pub const USED_COUNT: usize = 4;
    /// Words of the object.
    pub const WORDS: usize = 5;
    /// A slot that was never used.
    pub const EMPTY: u64 = 0;
    /// A slot whose entry was removed.
    pub const GONE: u64 = 1 << 32;
    /// A slot with an entry.
    pub const USED: u64 = 2 << 32;
}
