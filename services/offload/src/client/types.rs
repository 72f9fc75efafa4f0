//! Arguments and results of a client's calls.

use crate::wire::Collective;
use xgvmi_ucp::MappedRange;

/// A group of ranks. The program assigns the number; all members use the same number for the same group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(pub u64);

impl CommunicatorId {
    /// All ranks of the job. This communicator always exists.
    pub const WORLD: Self = Self(0);
}

/// A call that has its number and has not started. The members of a communicator number their calls in the same order, and
/// the numbers match them.
#[derive(Debug)]
pub struct Numbered {
    pub(super) communicator: u64,
    pub(super) sequence: u32,
    pub(super) starts: u32,
    pub(super) is_persistent: bool,
}

/// The call of a communicator that starts.
#[derive(Debug)]
pub enum Call<'a> {
    /// The next call: it gets its number now.
    Next(CommunicatorId),
    /// A call that [`Client::number`](super::Client::number) has numbered.
    Numbered(&'a mut Numbered),
}

impl Call<'_> {
    pub(super) fn communicator(&self) -> u64 {
        match self {
            Self::Next(id) => id.0,
            Self::Numbered(call) => call.communicator,
        }
    }
}

impl From<CommunicatorId> for Call<'_> {
    fn from(communicator: CommunicatorId) -> Self {
        Self::Next(communicator)
    }
}

impl<'a> From<&'a mut Numbered> for Call<'a> {
    fn from(call: &'a mut Numbered) -> Self {
        Self::Numbered(call)
    }
}

/// Counters of a client since it connected. The difference of two snapshots covers the calls between them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Completed calls.
    pub calls: u64,
    /// Time to connect, in microseconds. It includes the creation of announced aliases.
    pub connect_us: f64,
    /// Time to register and export buffers, in microseconds.
    pub registration_us: f64,
    /// Time to release registrations, in microseconds.
    pub deregistration_us: f64,
    /// Buffers that calls registered and exported.
    pub registrations: u64,
    /// Bytes that calls copied because their memory could not be registered, or has its blocks far from each other.
    pub bounced_bytes: u64,
    /// Aliases that the SP created for this rank's announced keys by the time of the connect.
    pub announced_aliases: u64,
    /// Exports of this process that took a free key of the pool; `None` without the library.
    pub host_hits: Option<u64>,
    /// Exports that found no free key.
    pub host_misses: Option<u64>,
    /// Imports of this rank's SP, for all its ranks, that found an alias; as of the last completed call.
    pub alias_hits: Option<u64>,
    /// Imports and announced keys for which the SP created an alias.
    pub alias_misses: Option<u64>,
}

/// Memory of one side of a call.
#[derive(Debug, Clone, Copy)]
pub enum Memory<'a> {
    /// Registered for the call and released at its end. May be null if `length` is 0.
    Temporary {
        /// First byte.
        start: *mut u8,
        /// Length in bytes.
        length: usize,
    },
    /// Registered earlier by [`Client::register`](super::Client::register).
    Registered(&'a Registered),
}

/// One side of an alltoallv: blocks in the order of the communicator's members, all numbers in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The memory that contains the blocks.
    pub memory: Memory<'a>,
    /// Length of the block to or from each member. May be 0.
    pub counts: &'a [usize],
    /// Offset of each block from the start of the memory.
    pub displacements: &'a [usize],
}

/// A long-lived buffer that is registered and exported once.
#[derive(Debug)]
pub struct Registered {
    pub(super) range: MappedRange,
    pub(super) start: *mut u8,
    pub(super) packed: Vec<u8>,
}

/// An outstanding call. Complete it with [`Client::test`](super::Client::test) or
/// [`Client::wait`](super::Client::wait).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffers belong to the call until it is complete"]
pub struct Request {
    pub(super) collective: Collective,
    pub(super) message: Option<u64>,
}

impl Request {
    /// Length of the message that a complete [`Client::recv`](super::Client::recv) has got, if it is not that of its memory. Of a
    /// longer message the memory has the first bytes, or none.
    #[must_use]
    pub fn message_length(&self) -> Option<u64> {
        self.message
    }
}

impl Memory<'_> {
    pub(super) fn range(&self) -> (*mut u8, usize) {
        match self {
            Self::Temporary { start, length } => (*start, *length),
            Self::Registered(registered) => (registered.start, registered.range.length()),
        }
    }
}
