//! Why a process can run no more.

use std::fmt;

/// The fault of a process: its thread, place and cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Number of the thread.
    pub thread: u32,
    /// Address of the instruction.
    pub pc: u64,
    /// The refused address, or the program counter.
    pub address: u64,
    /// The function of the instruction, if a symbol names it.
    pub function: String,
    /// The cause, in one line.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            thread,
            pc,
            function,
            text,
            ..
        } = self;
        write!(f, "thread {thread} at {pc:#x}")?;
        if !function.is_empty() {
            write!(f, " in {function}")?;
        }
        write!(f, ": {text}")
    }
}
