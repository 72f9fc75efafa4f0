//! What a program says to a client, and hears from it.

use crate::wire::Collective;
use xgvmi_ucp::MappedRange;

/// A group of ranks, numbered by the program: the same number for the same group at all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(pub u32);

impl CommunicatorId {
    /// All ranks of the job. There from the beginning.
    pub const WORLD: Self = Self(0);
}

/// Numbers of a client so far. Differences of two of them tell about the calls between.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Completed calls.
    pub calls: u64,
    /// Time that connecting took, the making of announced aliases included, in microseconds.
    pub connect_us: f64,
    /// Time in registration and export, in microseconds.
    pub registration_us: f64,
    /// Time in giving registrations back, in microseconds.
    pub deregistration_us: f64,
    /// Buffers registered and exported by calls.
    pub registrations: u64,
    /// Aliases that the SP had made of our announced keys when we were connected.
    pub announced_aliases: u64,
    /// Exports of this process for which the pool had a free key; `None` without the library.
    pub host_hits: Option<u64>,
    /// Exports for which it had none.
    pub host_misses: Option<u64>,
    /// Imports of our SP, for all its ranks, for which there was an alias; as of our last completed call.
    pub alias_hits: Option<u64>,
    /// Imports, and announced keys, for which it had to make one.
    pub alias_misses: Option<u64>,
}

/// Memory of one side of a call.
#[derive(Debug, Clone, Copy)]
pub enum Memory<'a> {
    /// Registered for the call and given back at its end. May be null if `length` is 0.
    Temporary {
        /// First byte.
        start: *mut u8,
        /// Bytes.
        length: usize,
    },
    /// Registered before, by [`Client::register`](super::Client::register).
    Registered(&'a Registered),
}

/// One side of an alltoallv: blocks in the order of the communicator's members, all numbers in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Where the blocks are.
    pub memory: Memory<'a>,
    /// Length of the block for, or from, each member. May be 0.
    pub counts: &'a [usize],
    /// Where it begins, from the start of the memory.
    pub displacements: &'a [usize],
}

/// A long-lived buffer, registered and exported once.
#[derive(Debug)]
pub struct Registered {
    pub(super) range: MappedRange,
    pub(super) start: *mut u8,
    pub(super) packed: Vec<u8>,
}

/// A call under way. To be completed with [`Client::test`](super::Client::test) or [`Client::wait`](super::Client::wait).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffers belong to the call until it is complete"]
pub struct Request {
    pub(super) collective: Collective,
}

impl Memory<'_> {
    pub(super) fn range(&self) -> (*mut u8, usize) {
        match self {
            Self::Temporary { start, length } => (*start, *length),
            Self::Registered(registered) => (registered.start, registered.range.length()),
        }
    }
}
