//! State of a debugger of a process.

use rv64::HartId;
use std::collections::BTreeMap;

/// Registers: `x0` to `x31`, and the program counter.
pub const REGISTERS: usize = 33;

/// What the threads of a process do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// They run, or wait for work.
    No,
    /// All have stopped, this one at a breakpoint or after a step.
    Thread(u32),
    /// This one has a fault, which ends the process as soon as it goes on.
    Fault(u32),
    /// The process has ended.
    Ended,
}

/// A debugger of a process.
#[derive(Debug, Default)]
pub(crate) struct Debugger {
    /// Addresses, and the bytes that were there.
    pub(crate) breakpoints: BTreeMap<u64, [u8; 2]>,
    /// All threads have stopped, and this one is the reason.
    pub(crate) stopped: Option<HartId>,
    /// It waits for the first thread that executes a function.
    pub(crate) wants_thread: bool,
}
