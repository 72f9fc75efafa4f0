//! Execution of instructions: a loop for the frequent ones, and [`slow`] for all others.

mod slow;

use crate::alu::{self, extended, word};
use crate::code::Decodes;
use crate::environment::{Action, Environment};
use crate::hart::{Hart, JUMP};
use crate::op::{Code, Op};
use crate::space::Space;
use crate::trap::{Cause, Fault, HartId, Trap};

/// A function returns to this address when it has finished.
pub(crate) const RETURN: u64 = 0xffff_ffff_ffff_f000;

/// What `lr` reserved. Only the hart that runs can have a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reservation {
    address: u64,
    size: u8,
    value: u64,
}

/// Why a hart stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The budget is used up.
    Spent,
    /// The environment's answer, if it is not [`Action::Continue`].
    Action(Action),
    /// The function returned.
    Returned(u64),
    Trap(Trap),
}

/// Why the loop of frequent instructions ended.
enum Exit {
    Spent,
    /// The next instruction is not frequent, or its memory is not in the cache.
    Slow,
    /// The next instruction is in another range.
    Outside,
}

/// A hart and everything that its instructions can reach.
pub(crate) struct Core<'a> {
    pub(crate) hart: &'a mut Hart,
    pub(crate) space: &'a mut Space,
    pub(crate) code: &'a mut Decodes,
    pub(crate) reservation: &'a mut Option<Reservation>,
    pub(crate) wakes: &'a mut Vec<HartId>,
    pub(crate) environment: &'a mut dyn Environment,
    /// The last instruction has stored to a window.
    pub(crate) stored_outside: bool,
}

impl Core<'_> {
    /// Executes up to `budget` instructions. [`Hart::retired`] counts them.
    pub(crate) fn run(&mut self, budget: u64) -> End {
        let limit = self.hart.retired.saturating_add(budget);
        if let Some((first, last)) = self.space.take_stale() {
            self.code.forget(first, last);
        }
        loop {
            match self.fast(limit) {
                Exit::Spent => return End::Spent,
                Exit::Slow => {
                    if let Some(end) = self.slow() {
                        return end;
                    }
                }
                Exit::Outside if self.hart.pc == RETURN => return End::Returned(self.hart.x(10)),
                Exit::Outside => {
                    let refused = self.space.fetch(self.hart.pc).err();
                    // Executable memory has decoded code, so there is always a fault.
                    let (address, refusal) = (self.hart.pc, crate::Refusal::Rights);
                    let fault = refused.unwrap_or(Fault { address, refusal });
                    return self.trap(fault, Cause::Fetch);
                }
            }
        }
    }

    /// A trap of the next instruction because of a refused access.
    fn trap(&self, fault: Fault, cause: fn(crate::Refusal) -> Cause) -> End {
        End::Trap(Trap {
            hart: self.hart.id(),
            pc: self.hart.pc,
            address: fault.address,
            cause: cause(fault.refusal),
        })
    }

    /// Executes frequent instructions. The program counter and the count are right afterwards.
    fn fast(&mut self, limit: u64) -> Exit {
        let Some(range) = self.code.range(self.hart.pc) else {
            return Exit::Outside;
        };
        let mut now = Now {
            i: range.index(self.hart.pc),
            start: range.start,
            r: &mut self.hart.file,
            space: self.space,
        };
        let ops = &range.ops[..];
        let mut left = limit - self.hart.retired;
        let exit = loop {
            let Some(&op) = ops.get(now.i) else {
                break Exit::Outside;
            };
            if left == 0 {
                break Exit::Spent;
            }
            if !now.execute(op) {
                break Exit::Slow;
            }
            left -= 1;
        };
        self.hart.pc = address(now.start, now.i);
        self.hart.retired = limit - left;
        exit
    }
}

/// What frequent instructions change. The loop keeps it in registers of the processor.
struct Now<'a> {
    /// Index of the next instruction, and the address of index 0.
    i: usize,
    start: u64,
    r: &'a mut [u64; 256],
    space: &'a mut Space,
}

impl Now<'_> {
    /// Executes an instruction. Returns false, with nothing changed, if it is not frequent, or if its memory is not in the cache.
    #[inline(always)]
    fn execute(&mut self, op: Op) -> bool {
        match op.code {
            Code::Addi => self.immediate(op, |a, imm| a.wrapping_add(wide(imm))),
            Code::Add => self.three(op, u64::wrapping_add),
            Code::Ld => self.load(op, u64::from_le_bytes),
            Code::Sd => self.store(op, u64::to_le_bytes),
            Code::Lw => self.load(op, |bytes| extended(u32::from_le_bytes(bytes))),
            Code::Sw => self.store(op, |value| word(value).to_le_bytes()),
            Code::Beq => self.branch(op, |a, b| a == b),
            Code::Bne => self.branch(op, |a, b| a != b),
            Code::Blt => self.branch(op, |a, b| a.cast_signed() < b.cast_signed()),
            Code::Bge => self.branch(op, |a, b| a.cast_signed() >= b.cast_signed()),
            Code::Bltu => self.branch(op, |a, b| a < b),
            Code::Bgeu => self.branch(op, |a, b| a >= b),
            Code::Jal => self.jump(op, self.i.wrapping_add(offset(op.imm))),
            Code::Jalr => {
                let target = self.source(op).wrapping_add(wide(op.imm));
                self.jump(op, index(target.wrapping_sub(self.start)))
            }
            Code::Lbu => self.load(op, |[byte]| byte.into()),
            Code::Lb => self.load(op, |bytes| {
                i64::from(i8::from_le_bytes(bytes)).cast_unsigned()
            }),
            Code::Lhu => self.load(op, |bytes| u16::from_le_bytes(bytes).into()),
            Code::Lh => self.load(op, |bytes| {
                i64::from(i16::from_le_bytes(bytes)).cast_unsigned()
            }),
            Code::Lwu => self.load(op, |bytes| u32::from_le_bytes(bytes).into()),
            Code::Sb => self.store(op, low_bytes::<1>),
            Code::Sh => self.store(op, low_bytes::<2>),
            Code::Lui => self.immediate(op, |_, imm| wide(imm)),
            Code::Auipc => {
                let here = address(self.start, self.i);
                self.immediate(op, |_, imm| here.wrapping_add(wide(imm)))
            }
            Code::Andi => self.immediate(op, |a, imm| a & wide(imm)),
            Code::Slli => self.immediate(op, |a, imm| a << (imm & 63)),
            Code::Srli => self.immediate(op, |a, imm| a >> (imm & 63)),
            Code::Srai => {
                self.immediate(op, |a, imm| (a.cast_signed() >> (imm & 63)).cast_unsigned())
            }
            Code::Sltiu => self.immediate(op, |a, imm| (a < wide(imm)).into()),
            Code::Addiw => self.immediate(op, |a, imm| {
                extended(word(a).wrapping_add(imm.cast_unsigned()))
            }),
            Code::Slliw => self.immediate(op, |a, imm| extended(word(a) << (imm & 31))),
            Code::Srliw => self.immediate(op, |a, imm| extended(word(a) >> (imm & 31))),
            Code::Sraiw => self.immediate(op, |a, imm| {
                extended((word(a).cast_signed() >> (imm & 31)).cast_unsigned())
            }),
            Code::Sub => self.three(op, u64::wrapping_sub),
            Code::And => self.three(op, |a, b| a & b),
            Code::Or => self.three(op, |a, b| a | b),
            Code::Xor => self.three(op, |a, b| a ^ b),
            Code::Sll => self.three(op, |a, b| a << (b & 63)),
            Code::Srl => self.three(op, |a, b| a >> (b & 63)),
            Code::Sra => self.three(op, |a, b| (a.cast_signed() >> (b & 63)).cast_unsigned()),
            Code::Slt => self.three(op, |a, b| (a.cast_signed() < b.cast_signed()).into()),
            Code::Sltu => self.three(op, |a, b| (a < b).into()),
            Code::Addw => self.three(op, |a, b| extended(word(a).wrapping_add(word(b)))),
            Code::Subw => self.three(op, |a, b| extended(word(a).wrapping_sub(word(b)))),
            Code::Mul => self.three(op, u64::wrapping_mul),
            code => {
                let (a, b) = (self.source(op), self.r[usize::from(op.rs2)]);
                if let Some(value) = alu::three(code, a, b) {
                    self.three(op, |_, _| value)
                } else if let Some(value) = alu::immediate(code, a, op.imm) {
                    self.immediate(op, |_, _| value)
                } else {
                    false
                }
            }
        }
    }

    #[inline(always)]
    fn source(&self, op: Op) -> u64 {
        self.r[usize::from(op.rs1)]
    }

    #[inline(always)]
    fn three(&mut self, op: Op, result: impl FnOnce(u64, u64) -> u64) -> bool {
        self.r[usize::from(op.rd)] = result(self.source(op), self.r[usize::from(op.rs2)]);
        self.i += offset(op.imm);
        true
    }

    #[inline(always)]
    fn immediate(&mut self, op: Op, result: impl FnOnce(u64, i32) -> u64) -> bool {
        self.r[usize::from(op.rd)] = result(self.source(op), op.imm);
        self.i += usize::from(op.rs2);
        true
    }

    /// The record of the jump is a store, so the processor predicts this branch, and need not wait for the registers.
    #[inline(always)]
    fn branch(&mut self, op: Op, condition: impl FnOnce(u64, u64) -> bool) -> bool {
        if condition(self.source(op), self.r[usize::from(op.rs2)]) {
            self.r[JUMP] = address(self.start, self.i);
            self.i = self.i.wrapping_add(offset(op.imm));
        } else {
            self.i += usize::from(op.rd);
        }
        true
    }

    #[inline(always)]
    fn jump(&mut self, op: Op, target: usize) -> bool {
        self.r[JUMP] = address(self.start, self.i);
        self.r[usize::from(op.rd)] = address(self.start, self.i + usize::from(op.rs2));
        self.i = target;
        true
    }

    #[inline(always)]
    fn load<const N: usize>(&mut self, op: Op, value: impl FnOnce([u8; N]) -> u64) -> bool {
        let address = self.source(op).wrapping_add(wide(op.imm));
        let Some(bytes) = self.space.load(address) else {
            return false;
        };
        self.r[usize::from(op.rd)] = value(bytes);
        self.i += usize::from(op.rs2);
        true
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, op: Op, bytes: impl FnOnce(u64) -> [u8; N]) -> bool {
        let address = self.source(op).wrapping_add(wide(op.imm));
        let stored = self
            .space
            .store(address, bytes(self.r[usize::from(op.rs2)]));
        if stored {
            self.i += usize::from(op.rd);
        }
        stored
    }
}

/// Address of the instruction at an index.
#[inline(always)]
fn address(start: u64, index: usize) -> u64 {
    start.wrapping_add((index as u64).wrapping_mul(2))
}

/// Index of the instruction at a distance in bytes. Bit 0 is ignored, as `jalr` demands.
#[inline(always)]
fn index(distance: u64) -> usize {
    (distance >> 1) as usize
}

/// An offset in halfwords, for wrapping addition.
#[expect(clippy::cast_sign_loss, reason = "wrapping addition")]
#[inline(always)]
fn offset(imm: i32) -> usize {
    imm as isize as usize
}

/// Extends the sign of an immediate.
#[inline(always)]
fn wide(imm: i32) -> u64 {
    i64::from(imm).cast_unsigned()
}

/// The lower bytes of a register, the lowest first.
#[inline(always)]
fn low_bytes<const N: usize>(value: u64) -> [u8; N] {
    *value.to_le_bytes().first_chunk().unwrap_or(&[0; N])
}
