//! Sizes and bounds of a machine, and what is wrong with them.

pub use crate::hart::HARTS_MAX;
use crate::schedule::Schedule;
use crate::trap::HartId;

/// Most bytes of a heap.
pub const HEAP_BYTES_MAX: u64 = 256 << 20;
/// Most bytes of a stack.
pub const STACK_BYTES_MAX: u64 = 1 << 20;
/// Most windows at a time.
pub const WINDOWS_MAX: usize = 1 << 16;

/// Sizes and places of a machine. All addresses and sizes are multiples of [`PAGE`](crate::PAGE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// Most harts that exist at a time: 1 to [`HARTS_MAX`].
    pub harts: u32,
    /// Bytes of each stack: [`PAGE`](crate::PAGE) to [`STACK_BYTES_MAX`].
    pub stack_bytes: u64,
    /// First address of the harts' stacks and thread-local storage.
    pub stacks: u64,
    /// Bytes of the heap: 0 to [`HEAP_BYTES_MAX`]. The operating system provides them as they are used.
    pub heap_bytes: u64,
    /// First address of the heap.
    pub heap: u64,
    /// How harts take turns.
    pub schedule: Schedule,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            harts: HARTS_MAX,
            stack_bytes: 16 << 10,
            stacks: 0x20_0000_0000,
            heap_bytes: HEAP_BYTES_MAX,
            heap: 0x10_0000_0000,
            schedule: Schedule::RoundRobin(10_000),
        }
    }
}

/// Why a machine, or a part of it, cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A field of [`Config`].
    #[error("{field} = {value}: allowed are multiples of {multiple} from {least} to {most}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Bound.
        least: u64,
        /// Bound.
        most: u64,
        /// Unit.
        multiple: u64,
    },
    /// Two ranges have addresses in common.
    #[error("{what}, {bytes} bytes at {start:#x}, overlaps {other_bytes} bytes at {other:#x}")]
    Overlap {
        /// The range to add.
        what: &'static str,
        /// Its first address.
        start: u64,
        /// Its size.
        bytes: u64,
        /// The first address of the other one.
        other: u64,
        /// The size of the other one.
        other_bytes: u64,
    },
    /// A range is empty, ends beyond the address space, or is one too many.
    #[error(
        "{what}, {bytes} bytes at {start:#x}: empty, beyond the end of the address space, or one range too many"
    )]
    Range {
        /// The range to add.
        what: &'static str,
        /// Its first address.
        start: u64,
        /// Its size.
        bytes: u64,
    },
    /// All harts exist.
    #[error("all {0} harts of the machine exist")]
    NoHart(u32),
    /// No such hart exists.
    #[error("no hart {0}")]
    UnknownHart(HartId),
    /// The hart is running or waiting.
    #[error("hart {0} has not finished")]
    Busy(HartId),
    /// No window begins there.
    #[error("no window begins at {0:#x}")]
    UnknownWindow(u64),
    /// All windows exist.
    #[error("all {WINDOWS_MAX} windows exist")]
    TooManyWindows,
    /// More arguments than registers.
    #[error("{0} arguments; a function takes up to 8 in registers")]
    Arguments(usize),
    /// A function outside executable memory.
    #[error("a function at {0:#x}: no instruction is there")]
    Function(u64),
}
