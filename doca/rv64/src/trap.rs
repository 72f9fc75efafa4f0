//! Traps: why a hart cannot go on, as values.

use std::fmt;

/// Number of a hart in its machine, starting at 0.
pub type HartId = u32;

/// Why a memory access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// No memory is at the address.
    Unmapped,
    /// The address is in a guard page beside a stack or a block of thread-local storage.
    Guard,
    /// There is memory, but the program may not access it in this way.
    Rights,
    /// There is a window, and the access cannot be passed to it: an instruction, or a part of a larger access.
    Window,
    /// The environment refused the access to a window, with a code of its own.
    Environment(u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped => f.write_str("no memory is there"),
            Self::Guard => f.write_str("guard page of a stack or of thread-local storage"),
            Self::Rights => f.write_str("not allowed by the rights of the memory"),
            Self::Window => f.write_str("not possible in a window"),
            Self::Environment(code) => write!(f, "refused by the window's owner with code {code}"),
        }
    }
}

/// What caused a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The instruction (or the two bytes of a compressed one) is none of this processor.
    Illegal(u32),
    /// The next instruction cannot be fetched.
    Fetch(Refusal),
    /// A load was refused.
    Load(Refusal),
    /// A store was refused.
    Store(Refusal),
    /// An atomic operation was refused.
    Atomic(Refusal),
    /// The address of an atomic operation is no multiple of its size.
    Misaligned,
    /// `ebreak`. The program counter is that of the instruction.
    Breakpoint,
    /// The environment ended the hart in a call or in one of its own instructions, with a code of its own.
    Environment(u32),
}

/// A trap. The instruction at [`pc`](Self::pc) has changed neither registers nor memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trap {
    /// The hart.
    pub hart: HartId,
    /// Address of the instruction.
    pub pc: u64,
    /// The first refused address, or else [`pc`](Self::pc).
    pub address: u64,
    /// The cause.
    pub cause: Cause,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hart,
            pc,
            address,
            cause,
        } = self;
        write!(f, "hart {hart} at {pc:#x}: ")?;
        match cause {
            Cause::Illegal(word) => write!(f, "illegal instruction {word:#010x}"),
            Cause::Fetch(refusal) => write!(f, "jump to {address:#x}: {refusal}"),
            Cause::Load(refusal) => write!(f, "load from {address:#x}: {refusal}"),
            Cause::Store(refusal) => write!(f, "store to {address:#x}: {refusal}"),
            Cause::Atomic(refusal) => write!(f, "atomic operation on {address:#x}: {refusal}"),
            Cause::Misaligned => write!(f, "misaligned atomic operation on {address:#x}"),
            Cause::Breakpoint => f.write_str("breakpoint"),
            Cause::Environment(code) => write!(f, "ended by the environment with code {code}"),
        }
    }
}

impl std::error::Error for Trap {}

/// A refused access: the first refused address and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{address:#x}: {refusal}")]
pub struct Fault {
    /// The first refused address.
    pub address: u64,
    /// The reason.
    pub refusal: Refusal,
}
