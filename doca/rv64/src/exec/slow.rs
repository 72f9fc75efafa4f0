//! Instructions that are not frequent, and accesses to memory that is not in the cache of ranges: one at a time.

use super::{Core, End, Reservation};
use crate::alu::{extended, word};
use crate::code;
use crate::environment::{Action, Atomic, Call, MemoryAccess, WindowAccess};
use crate::op::{Code, Op};
use crate::space::Miss;
use crate::trap::{Cause, Fault, Refusal, Trap};

/// Unprivileged counters (Zicntr).
const CYCLE: i32 = 0xc00;
const TIME: i32 = 0xc01;
const INSTRET: i32 = 0xc02;

/// Result of one instruction: how far to go, or an end.
type Step = Result<(), End>;

impl Core<'_> {
    /// Executes the next instruction, or only decodes it if that has not been done. `Some` is the end of the run.
    #[cold]
    #[inline(never)]
    pub(super) fn slow(&mut self) -> Option<End> {
        let pc = self.hart.pc;
        self.stored_outside = false;
        let op = match self.code.op(self.space, pc) {
            Ok(op) => op,
            Err(fault) => return Some(self.trap(fault, Cause::Fetch)),
        };
        let done = match op.code {
            Code::Lb | Code::Lh | Code::Lw | Code::Ld | Code::Lbu | Code::Lhu | Code::Lwu => {
                self.load(op)
            }
            Code::Sb | Code::Sh | Code::Sw | Code::Sd => self.store(op),
            Code::Lr | Code::Sc | Code::Amo => self.atomic(op),
            Code::Csr => self.csr(op),
            Code::Ecall | Code::Custom0 | Code::Fence => self.call(op),
            Code::FenceI => {
                self.retire(op.rs2);
                Ok(())
            }
            Code::Ebreak => Err(self.caused(Cause::Breakpoint)),
            Code::Illegal => {
                let word = code::word(self.space, pc).unwrap_or_default();
                Err(self.caused(Cause::Illegal(word)))
            }
            // Decoded now; the fast loop executes it.
            _ => Ok(()),
        };
        if let Some((first, last)) = self.space.take_stale() {
            self.code.forget(first, last);
        }
        match done {
            Ok(()) if self.stored_outside && self.environment.stops() => {
                Some(End::Action(Action::Stop))
            }
            done => done.err(),
        }
    }

    /// Goes to the next instruction: `length` halfwords.
    fn retire(&mut self, length: u8) {
        self.hart.pc = self.hart.pc.wrapping_add(2 * u64::from(length));
        self.hart.retired += 1;
    }

    /// A trap whose address is that of the instruction.
    fn caused(&self, cause: Cause) -> End {
        self.caused_at(cause, self.hart.pc)
    }

    fn caused_at(&self, cause: Cause, address: u64) -> End {
        let (hart, pc) = (self.hart.id(), self.hart.pc);
        End::Trap(Trap {
            hart,
            pc,
            address,
            cause,
        })
    }

    fn refused(&self, address: u64, code: u32, cause: fn(Refusal) -> Cause) -> End {
        let refusal = Refusal::Environment(code);
        self.trap(Fault { address, refusal }, cause)
    }

    fn access(&self, window: u32, offset: u64, address: u64, size: u8) -> WindowAccess {
        let (hart, pc) = (self.hart.id(), self.hart.pc);
        WindowAccess {
            hart,
            pc,
            window,
            address,
            offset,
            size,
        }
    }

    fn set(&mut self, rd: u8, value: u64) {
        self.hart.set_x(rd, value);
    }

    fn load(&mut self, op: Op) -> Step {
        let address = self
            .hart
            .x(op.rs1)
            .wrapping_add(i64::from(op.imm).cast_unsigned());
        let (size, signed) = match op.code {
            Code::Lb => (1, true),
            Code::Lbu => (1, false),
            Code::Lh => (2, true),
            Code::Lhu => (2, false),
            Code::Lw => (4, true),
            Code::Lwu => (4, false),
            _ => (8, false),
        };
        let value = self.loaded(address, size)?;
        let unused = 64 - 8 * u32::from(size);
        let value = value << unused;
        let value = if signed {
            (value.cast_signed() >> unused).cast_unsigned()
        } else {
            value >> unused
        };
        self.set(op.rd, value);
        self.retire(op.rs2);
        Ok(())
    }

    /// Tells the environment of an access to watched memory.
    fn watch(&mut self, address: u64, size: u8, is_store: bool) {
        if self.space.is_watched(address) {
            let (hart, pc) = (self.hart.id(), self.hart.pc);
            self.environment.watched(&MemoryAccess {
                hart,
                pc,
                address,
                size,
                is_store,
            });
        }
    }

    /// Loads `size` bytes from memory or a window.
    fn loaded(&mut self, address: u64, size: u8) -> Result<u64, End> {
        let mut bytes = [0; 8];
        match self
            .space
            .load_slowly(address, &mut bytes[..usize::from(size)])
        {
            Ok(()) => {
                self.watch(address, size, false);
                Ok(u64::from_le_bytes(bytes))
            }
            Err(Miss::Fault(fault)) => Err(self.trap(fault, Cause::Load)),
            Err(Miss::Window { window, offset }) => {
                let access = self.access(window, offset, address, size);
                let loaded = self.environment.load(&access);
                loaded.map_err(|code| self.refused(address, code, Cause::Load))
            }
        }
    }

    fn store(&mut self, op: Op) -> Step {
        let address = self
            .hart
            .x(op.rs1)
            .wrapping_add(i64::from(op.imm).cast_unsigned());
        let size = match op.code {
            Code::Sb => 1,
            Code::Sh => 2,
            Code::Sw => 4,
            _ => 8,
        };
        self.stored(address, size, self.hart.x(op.rs2), Cause::Store)?;
        self.retire(op.rd);
        Ok(())
    }

    /// Stores `size` bytes to memory or a window.
    fn stored(&mut self, address: u64, size: u8, value: u64, cause: fn(Refusal) -> Cause) -> Step {
        let bytes = &value.to_le_bytes()[..usize::from(size)];
        match self.space.store_slowly(address, bytes) {
            Ok(()) => {
                self.watch(address, size, true);
                Ok(())
            }
            Err(Miss::Fault(fault)) => Err(self.trap(fault, cause)),
            Err(Miss::Window { window, offset }) => {
                let access = self.access(window, offset, address, size);
                self.stored_outside = true;
                let stored = self.environment.store(&access, value);
                stored.map_err(|code| self.refused(address, code, cause))
            }
        }
    }

    /// `lr`, `sc` and AMOs: `imm` has the size in bytes, and above it the function.
    fn atomic(&mut self, op: Op) -> Step {
        let address = self.hart.x(op.rs1);
        let size = if op.imm & 0xff == 4 { 4 } else { 8 };
        if !address.is_multiple_of(size.into()) {
            return Err(self.caused_at(Cause::Misaligned, address));
        }
        let operand = self.hart.x(op.rs2);
        let result = match op.code {
            Code::Lr => {
                let value = self.loaded(address, size)?;
                *self.reservation = Some(Reservation {
                    address,
                    size,
                    value,
                });
                sized(value, size)
            }
            Code::Sc => self.store_conditional(address, size, operand)?,
            _ => {
                let operation = Atomic::from_code(op.imm >> 8);
                let operation = operation.ok_or_else(|| self.caused(Cause::Illegal(0)))?;
                sized(self.exchanged(address, size, operation, operand)?, size)
            }
        };
        self.set(op.rd, result);
        self.retire(crate::decode::LONG);
        Ok(())
    }

    /// `sc`: 0 if the value is stored, otherwise 1.
    fn store_conditional(&mut self, address: u64, size: u8, operand: u64) -> Result<u64, End> {
        let reservation = *self.reservation;
        let reserved = reservation.filter(|own| (own.address, own.size) == (address, size));
        let Some(Reservation { value, .. }) = reserved else {
            *self.reservation = None;
            return Ok(1);
        };
        // In memory no other hart has been running since; behind a window others may have stored.
        let old = self.exchanged(address, size, Atomic::CompareSwap(value), operand)?;
        *self.reservation = None;
        Ok(u64::from(sized(old, size) != sized(value, size)))
    }

    /// Executes an atomic operation and returns the old value.
    fn exchanged(
        &mut self,
        address: u64,
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, End> {
        match self.space.check_atomic(address, size.into()) {
            Ok(()) => {
                let old = self.loaded(address, size)?;
                // A conditional store on memory does not compare: the reservation holds.
                let new = match operation {
                    Atomic::CompareSwap(_) => operand,
                    other => other.apply(old, operand, size),
                };
                self.stored(address, size, new, Cause::Atomic)?;
                match operation {
                    Atomic::CompareSwap(expected) => Ok(expected),
                    _ => Ok(old),
                }
            }
            Err(Miss::Fault(fault)) => Err(self.trap(fault, Cause::Atomic)),
            Err(Miss::Window { window, offset }) => {
                let access = self.access(window, offset, address, size);
                self.stored_outside = true;
                let old = self.environment.atomic(&access, operation, operand);
                old.map_err(|code| self.refused(address, code, Cause::Atomic))
            }
        }
    }

    /// Reads a counter. All of them are read-only (the chapter of Zicntr).
    fn csr(&mut self, op: Op) -> Step {
        let function = (op.imm >> 12) & 3;
        // csrrw always writes; csrrs and csrrc write unless their source is x0 or 0.
        let writes = function == 1 || op.rs1 != 0;
        let value = match op.imm & 0xfff {
            CYCLE | INSTRET => self.hart.retired,
            TIME => self.environment.time(self.hart.id(), self.hart.retired),
            _ => return Err(self.illegal()),
        };
        if writes {
            return Err(self.illegal());
        }
        self.set(op.rd, value);
        self.retire(op.rs2);
        Ok(())
    }

    fn illegal(&self) -> End {
        let word = code::word(self.space, self.hart.pc).unwrap_or_default();
        self.caused(Cause::Illegal(word))
    }

    /// `ecall`, fences and instructions of the embedder.
    fn call(&mut self, op: Op) -> Step {
        let word = code::word(self.space, self.hart.pc).unwrap_or_default();
        let pc = self.hart.pc;
        let mut call = Call {
            hart: self.hart,
            space: self.space,
            wakes: self.wakes,
        };
        let action = match op.code {
            Code::Ecall => self.environment.ecall(&mut call),
            Code::Custom0 => self.environment.custom(&mut call, word),
            _ => {
                self.environment.fence(&mut call, word);
                Action::Continue
            }
        };
        self.hart.pc = pc;
        match action {
            Action::Trap(code) => return Err(self.caused(Cause::Environment(code))),
            Action::WaitAgain => return Err(End::Action(action)),
            _ => self.retire(op.rs2),
        }
        match action {
            Action::Continue => Ok(()),
            _ => Err(End::Action(action)),
        }
    }
}

/// A value of 4 or 8 bytes as a register.
fn sized(value: u64, size: u8) -> u64 {
    if size == 4 {
        extended(word(value))
    } else {
        value
    }
}
