//! Launches of kernels: what they wait for, and what reports their end.

/// Most launches of a process that have not finished.
pub const LAUNCHES_MAX: usize = 4096;

/// A word of 64 bits at a multiple of 8, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// In memory of the process.
    Dpa(u64),
    /// Behind a key.
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

/// A kernel to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Address of the unpack function.
    pub unpack: u64,
    /// Address of the kernel.
    pub function: u64,
    /// The packed arguments.
    pub arguments: Vec<u8>,
    /// Threads.
    pub threads: u32,
    /// It starts at once, after the launches before it, or when a word has a value.
    pub wait: Option<Wait>,
    /// What reports its end.
    pub done: Option<Done>,
}

/// The launch that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Threads that have not returned.
    pub(crate) left: u32,
    /// Address of the arguments; 0 without any.
    pub(crate) buffer: u64,
    pub(crate) done: Option<Done>,
}
