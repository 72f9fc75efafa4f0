//! Launches of kernels with many threads.

use crate::app::Function;

/// A word of 64 bits at a multiple of 8, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// In memory of the process.
    Dpa(u64),
    /// Behind a key of the process's protection domain.
    Key {
        /// The key.
        key: u32,
        /// Its address there.
        address: u64,
    },
}

/// A launch starts when the bits of the word in the mask are above a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wait {
    /// The word.
    pub word: Word,
    /// The bits that count.
    pub mask: u64,
    /// The number.
    pub above: u64,
}

/// How a word changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoneOperation {
    /// It gets the value.
    Set,
    /// The value is added.
    Add,
}

/// The change of a word after the return of all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Done {
    /// The word.
    pub word: Word,
    /// The change.
    pub operation: DoneOperation,
    /// Its operand.
    pub value: u64,
}

/// A kernel to run. Launches of a process run in the order of the calls, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: &'a Function,
    /// Its packed arguments.
    pub arguments: &'a [u8],
    /// Threads, 1 to 254.
    pub threads: u32,
    /// It starts at once, after the launches before it, or when a word has a value.
    pub wait: Option<Wait>,
    /// What reports its end.
    pub done: Option<Done>,
}
