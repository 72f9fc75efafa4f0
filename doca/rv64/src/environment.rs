//! The environment of a program: windows, calls and instructions that the embedder answers.

use crate::hart::{HARTS_MAX, Hart};
use crate::space::Space;
use crate::trap::HartId;

/// An access to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowAccess {
    /// The hart.
    pub hart: HartId,
    /// Address of the instruction.
    pub pc: u64,
    /// The number that [`Machine::map_window`](crate::Machine::map_window) got.
    pub window: u32,
    /// Address in the program's space.
    pub address: u64,
    /// The same, from the start of the window.
    pub offset: u64,
    /// Bytes: 1, 2, 4 or 8. All of them are in the window.
    pub size: u8,
}

/// An access to watched memory, see [`Machine::watch`](crate::Machine::watch).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The hart.
    pub hart: HartId,
    /// Address of the instruction.
    pub pc: u64,
    /// Address of the memory.
    pub address: u64,
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// It has changed the memory.
    pub is_store: bool,
}

/// An atomic operation. `old` is the value in memory, of the size of the access; numbers of 4 bytes are in the lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Stores the operand.
    Swap,
    /// Stores the sum.
    Add,
    /// Stores the exclusive or.
    Xor,
    /// Stores the and.
    And,
    /// Stores the or.
    Or,
    /// Stores the smaller signed number.
    Min,
    /// Stores the larger signed number.
    Max,
    /// Stores the smaller unsigned number.
    MinUnsigned,
    /// Stores the larger unsigned number.
    MaxUnsigned,
    /// Stores the operand if `old` equals this value. `sc` on a window uses it with the value that `lr` loaded.
    CompareSwap(u64),
}

impl Atomic {
    /// The operation of an AMO's field `funct5`.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            0x00 => Self::Add,
            0x01 => Self::Swap,
            0x04 => Self::Xor,
            0x08 => Self::Or,
            0x0c => Self::And,
            0x10 => Self::Min,
            0x14 => Self::Max,
            0x18 => Self::MinUnsigned,
            0x1c => Self::MaxUnsigned,
            _ => return None,
        })
    }

    /// The new value in memory, for a size of 4 or 8 bytes. Only the bytes of that size count.
    #[must_use]
    pub fn apply(self, old: u64, operand: u64, size: u8) -> u64 {
        // Numbers of 4 bytes are compared in the upper half.
        let up = |value: u64| if size == 4 { value << 32 } else { value };
        let signed = |value| up(value).cast_signed();
        let choose = |first: bool| if first { old } else { operand };
        match self {
            Self::Swap => operand,
            Self::Add => old.wrapping_add(operand),
            Self::Xor => old ^ operand,
            Self::And => old & operand,
            Self::Or => old | operand,
            Self::Min => choose(signed(old) <= signed(operand)),
            Self::Max => choose(signed(old) >= signed(operand)),
            Self::MinUnsigned => choose(up(old) <= up(operand)),
            Self::MaxUnsigned => choose(up(old) >= up(operand)),
            Self::CompareSwap(expected) => choose(up(old) != up(expected)),
        }
    }
}

/// How a hart goes on after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// With the next instruction.
    Continue,
    /// With the next instruction, after harts that are ready.
    Yield,
    /// With the next instruction, after [`Machine::wake`](crate::Machine::wake) or [`Call::wake`].
    Wait,
    /// With the same instruction again, after [`Machine::wake`](crate::Machine::wake) or [`Call::wake`].
    WaitAgain,
    /// With the next instruction. [`Machine::run`](crate::Machine::run) returns to the embedder now.
    Stop,
    /// Not at all: the hart has finished with this value.
    Finish(u64),
    /// Not at all: a trap with this code.
    Trap(u32),
}

/// A call: the hart that makes it, and the memory.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) hart: &'a mut Hart,
    pub(crate) space: &'a mut Space,
    pub(crate) wakes: &'a mut Vec<HartId>,
}

impl Call<'_> {
    /// Number of the hart.
    #[must_use]
    pub fn hart(&self) -> HartId {
        self.hart.id()
    }

    /// Address of the calling instruction.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.hart.pc()
    }

    /// The registers, the instruction count and the program counter of the calling instruction. A new program counter is not
    /// used; see [`Action`].
    pub fn registers(&mut self) -> &mut Hart {
        self.hart
    }

    /// Argument `n` (0 to 7) by the calling convention: `a0` to `a7`. Others are 0.
    #[must_use]
    pub fn argument(&self, n: u8) -> u64 {
        if n < 8 { self.hart.x(10 + n) } else { 0 }
    }

    /// Register `x0` to `x31`. Others are 0.
    #[must_use]
    pub fn register(&self, n: u8) -> u64 {
        self.hart.x(n)
    }

    /// Sets the result `a0`.
    pub fn set_result(&mut self, value: u64) {
        self.hart.set_x(10, value);
    }

    /// The program's memory, without windows.
    pub fn memory(&mut self) -> &mut Space {
        self.space
    }

    /// The program's memory, to read it.
    #[must_use]
    pub fn memory_ref(&self) -> &Space {
        self.space
    }

    /// Wakes a hart at the end of this hart's turn. Nothing happens if it does not wait then, so that the environment must remember
    /// the reason of the call ([`Action::WaitAgain`] asks it again).
    pub fn wake(&mut self, hart: HartId) {
        if hart < HARTS_MAX && !self.wakes.contains(&hart) {
            self.wakes.push(hart);
        }
    }
}

/// Answers of the embedder. All calls come from the thread that runs the machine, and must return soon.
///
/// The defaults refuse everything: a program without calls and windows needs no environment.
pub trait Environment {
    /// A load from a window. The value's upper bytes are ignored.
    ///
    /// # Errors
    /// A code that the trap then has ([`Refusal::Environment`](crate::Refusal::Environment)).
    fn load(&mut self, access: &WindowAccess) -> Result<u64, u32> {
        let _ = access;
        Err(0)
    }

    /// A store to a window. The value's upper bytes have no meaning.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn store(&mut self, access: &WindowAccess, value: u64) -> Result<(), u32> {
        let _ = (access, value);
        Err(0)
    }

    /// Asked after a store to a window, and after an atomic operation on one: whether [`Machine::run`](crate::Machine::run) returns
    /// to the embedder before the next instruction, as with [`Action::Stop`].
    fn stops(&mut self) -> bool {
        false
    }

    /// An atomic operation on a window, of 4 or 8 aligned bytes. Returns the old value.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn atomic(
        &mut self,
        access: &WindowAccess,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, u32> {
        let _ = (access, operation, operand);
        Err(0)
    }

    /// A load or store of an instruction on watched memory has been executed. An atomic operation is a load and a store.
    fn watched(&mut self, access: &MemoryAccess) {
        let _ = access;
    }

    /// `ecall`.
    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        let _ = call;
        Action::Trap(0)
    }

    /// An instruction with the opcode custom-0 (0x0b), for instructions of the embedder.
    fn custom(&mut self, call: &mut Call<'_>, word: u32) -> Action {
        let _ = (call, word);
        Action::Trap(0)
    }

    /// A fence instruction: bits 27 to 20 of `word` are the predecessor and successor sets (I, O, R, W each). Memory is strongly
    /// ordered here, so a fence has no effect of its own.
    fn fence(&mut self, call: &mut Call<'_>, word: u32) {
        let _ = (call, word);
    }

    /// The counter `time`, for a hart that has executed `cycles` instructions. The default is one tick per 1,800 cycles: a
    /// microsecond at 1.8 GHz.
    fn time(&mut self, hart: HartId, cycles: u64) -> u64 {
        let _ = hart;
        cycles / 1800
    }
}

/// An environment that refuses everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl Environment for Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_of_words_compare_words() {
        let check = |operation: Atomic, old, operand, size, expect| {
            assert_eq!(
                operation.apply(old, operand, size),
                expect,
                "{operation:?} {old:#x} {operand:#x}"
            );
        };
        let minus = 0xffff_ffff;
        check(Atomic::Min, minus, 1, 4, minus);
        check(Atomic::Min, minus, 1, 8, 1);
        check(Atomic::Max, minus, 1, 4, 1);
        check(Atomic::MinUnsigned, minus, 1, 4, 1);
        check(Atomic::MaxUnsigned, minus, 1, 4, minus);
        // Upper halves do not count.
        check(Atomic::MaxUnsigned, 5 << 32 | 1, 2, 4, 2);
        check(Atomic::CompareSwap(7), 1 << 32 | 7, 9, 4, 9);
        check(Atomic::CompareSwap(7), 1 << 32 | 7, 9, 8, 1 << 32 | 7);
    }
}
