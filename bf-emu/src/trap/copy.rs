//! The code after a trapped store: executes the rest of a BlueFlame copy without a trap for each of
//! its stores. It has no side effects on memory. The signal handler uses it, so it does not
//! allocate, lock or panic.
//!
//! A library copies a request into a BlueFlame register with 4 or 8 stores for each 64 bytes, and
//! each would trap. The copied bytes also lie in the ring, so the stores can be omitted. The loads,
//! counters and branches between them must take effect. This module interprets only those: the
//! instructions to which stock UCX (1.18 to 1.23) and rdma-core (44) compile, and close variants.
//! At any other instruction it stops, and the thread resumes after the last store that was skipped.
//! The next store then traps as usual. Encodings and flags: Intel SDM volumes 1 and 2.

use super::Registers;

/// Largest number of interpreted instructions. A BlueFlame register holds four blocks of 64 bytes,
/// and a block takes 11 to 20 instructions in the known binaries.
pub const INSTRUCTIONS_MAX: usize = 96;
/// Code is read in windows of this size.
const WINDOW_BYTES: usize = 128;

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
/// A debugger is single-stepping and must see each instruction.
const TRAP: u64 = 1 << 8;
const OVERFLOW: u64 = 1 << 11;
const ARITHMETIC: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

/// The contents of a vector register after the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Its low 16 bytes.
    pub bytes: [u8; 16],
    /// The upper bits are cleared, as by every VEX instruction.
    pub clears_upper: bool,
}

/// A thread between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its general registers and instruction pointer.
    pub registers: Registers,
    /// RFLAGS.
    pub flags: u64,
    /// The changed registers of xmm0 ... xmm15.
    pub vectors: [Option<Loaded>; 16],
    /// False if the upper parts of vector registers (above 16 bytes) cannot be changed. VEX loads
    /// are then not interpreted.
    pub upper_known: bool,
}

/// Interprets `thread`, which has just stored to a BlueFlame register, through its further stores
/// to addresses in `from..end` within the register. The thread is then after the last of these
/// stores. Returns their number; with 0, the thread is unchanged.
///
/// `read` copies the thread's memory, including code, or returns false if a part is not accessible.
pub fn follow(
    thread: &mut Thread,
    (from, end): (u64, u64),
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> u32 {
    let mut stores = 0;
    let mut ahead = *thread;
    let mut window = Window::default();
    for _ in 0..INSTRUCTIONS_MAX {
        if ahead.flags & TRAP != 0 {
            break;
        }
        let rip = ahead.registers.rip;
        let decoded = window.at(rip, &mut read).and_then(decode);
        let Some((act, length)) = decoded else { break };
        ahead.registers.rip = rip.wrapping_add(length as u64);
        match ahead.step(act, &mut read) {
            Some(None) => {}
            Some(Some((address, width))) => {
                let Some(last) = address.checked_add(u64::from(width)) else {
                    break;
                };
                if address < from || last > end {
                    break;
                }
                stores += 1;
                *thread = ahead;
            }
            None => break,
        }
    }
    stores
}

/// The source register of the store at the start of `code`, if it stores the low bytes of one of
/// the first 16 vector registers.
#[must_use]
pub fn vector_source(code: &[u8]) -> Option<u8> {
    match decode(code)?.0 {
        Act::Store { vector, .. } => vector,
        _ => None,
    }
}

/// Code bytes around the thread's instruction pointer.
struct Window {
    start: u64,
    length: usize,
    bytes: [u8; WINDOW_BYTES],
}

impl Default for Window {
    fn default() -> Self {
        Self {
            start: 0,
            length: 0,
            bytes: [0; WINDOW_BYTES],
        }
    }
}

impl Window {
    /// The code bytes from `rip` on, enough for an instruction.
    fn at(&mut self, rip: u64, read: &mut impl FnMut(u64, &mut [u8]) -> bool) -> Option<&[u8]> {
        let offset = rip.wrapping_sub(self.start);
        let enough = self.length.saturating_sub(super::INSTRUCTION_BYTES_MAX);
        if self.length == 0 || offset > enough as u64 {
            self.start = rip;
            self.length = WINDOW_BYTES;
            // The end of a mapping may be near. Then only one instruction is read.
            if !read(rip, &mut self.bytes) {
                self.length = super::INSTRUCTION_BYTES_MAX;
                let short = self.bytes.get_mut(..self.length)?;
                if !read(rip, short) {
                    self.length = 0;
                    return None;
                }
            }
        }
        let offset = usize::try_from(rip.wrapping_sub(self.start)).ok()?;
        self.bytes.get(offset..self.length)
    }
}

/// Address of a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    base: Base,
    index: Option<(u8, u8)>,
    displacement: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    None,
    Rip,
    Register(u8),
}

/// A register or memory, from ModRM's r/m field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Register(u8),
    Memory(Operand),
}

/// The second operand of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Immediate(u64),
    Place(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Compare,
}

/// An interpreted instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    Store {
        to: Operand,
        width: u8,
        vector: Option<u8>,
    },
    LoadVector {
        register: u8,
        from: Operand,
        aligned: bool,
        vex: bool,
    },
    /// A move into a general register. A move of 4 bytes clears the upper half.
    Load {
        register: u8,
        from: Place,
        width: u8,
    },
    LoadAddress {
        register: u8,
        from: Operand,
        width: u8,
    },
    Compute {
        what: Arithmetic,
        left: Place,
        right: Right,
        width: u8,
    },
    /// A jump. It is taken if the condition (the opcode's low bits) holds, or always without a
    /// condition.
    Jump {
        condition: Option<u8>,
        distance: i64,
    },
}

impl Thread {
    /// Executes an instruction. `rip` already points after it. Returns None if the execution is not
    /// possible, and otherwise the range of its store, if it is a store.
    fn step(
        &mut self,
        act: Act,
        read: &mut impl FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Option<(u64, u8)>> {
        match act {
            Act::Nothing => {}
            Act::Store { to, width, .. } => return Some(Some((self.address(to)?, width))),
            Act::LoadVector {
                register,
                from,
                aligned,
                vex,
            } => {
                let address = self.address(from)?;
                if (aligned && address & 15 != 0) || (vex && !self.upper_known) {
                    return None;
                }
                let mut bytes = [0; 16];
                if !read(address, &mut bytes) {
                    return None;
                }
                let place = self.vectors.get_mut(usize::from(register))?;
                let cleared = place.is_some_and(|before| before.clears_upper);
                *place = Some(Loaded {
                    bytes,
                    clears_upper: vex || cleared,
                });
            }
            Act::Load {
                register,
                from,
                width,
            } => {
                let value = self.value(from, width, read)?;
                self.set(register, value)?;
            }
            Act::LoadAddress {
                register,
                from,
                width,
            } => {
                let value = self.address(from)? & mask(width);
                self.set(register, value)?;
            }
            Act::Compute {
                what,
                left,
                right,
                width,
            } => {
                let a = self.value(left, width, read)?;
                let b = match right {
                    Right::Immediate(value) => value & mask(width),
                    Right::Place(place) => self.value(place, width, read)?,
                };
                let (result, flags) = compute(what, a, b, width);
                self.flags = self.flags & !ARITHMETIC | flags;
                match (what, left) {
                    (Arithmetic::Compare, _) => {}
                    (_, Place::Register(register)) => self.set(register, result)?,
                    (_, Place::Memory(_)) => return None,
                }
            }
            Act::Jump {
                condition,
                distance,
            } => {
                if condition.is_none_or(|code| holds(code, self.flags)) {
                    let rip = &mut self.registers.rip;
                    *rip = rip.wrapping_add_signed(distance);
                }
            }
        }
        Some(None)
    }

    fn get(&self, register: u8) -> Option<u64> {
        self.registers.general.get(usize::from(register)).copied()
    }

    fn set(&mut self, register: u8, value: u64) -> Option<()> {
        *self.registers.general.get_mut(usize::from(register))? = value;
        Some(())
    }

    fn address(&self, operand: Operand) -> Option<u64> {
        let base = match operand.base {
            Base::None => 0,
            Base::Rip => self.registers.rip,
            Base::Register(register) => self.get(register)?,
        };
        let index = match operand.index {
            None => 0,
            Some((register, scale)) => self.get(register)?.wrapping_shl(u32::from(scale)),
        };
        Some(
            base.wrapping_add(index)
                .wrapping_add_signed(operand.displacement),
        )
    }

    fn value(
        &self,
        place: Place,
        width: u8,
        read: &mut impl FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<u64> {
        match place {
            Place::Register(register) => Some(self.get(register)? & mask(width)),
            Place::Memory(operand) => {
                let mut bytes = [0; 8];
                let wanted = bytes.get_mut(..usize::from(width))?;
                read(self.address(operand)?, wanted).then_some(u64::from_le_bytes(bytes))
            }
        }
    }
}

/// The result of `width` bytes and the resulting flags.
fn compute(what: Arithmetic, a: u64, b: u64, width: u8) -> (u64, u64) {
    let top = 1u64 << (8 * u32::from(width.clamp(1, 8)) - 1);
    let (result, carry, overflow) = if what == Arithmetic::Add {
        let result = a.wrapping_add(b) & mask(width);
        (result, result < a, (a ^ result) & (b ^ result) & top != 0)
    } else {
        let result = a.wrapping_sub(b) & mask(width);
        (result, a < b, (a ^ b) & (a ^ result) & top != 0)
    };
    let [low, ..] = result.to_le_bytes();
    let flag = |is: bool, bit: u64| if is { bit } else { 0 };
    let flags = flag(carry, CARRY)
        | flag(low.count_ones().is_multiple_of(2), PARITY)
        | flag((a ^ b ^ result) & 0x10 != 0, ADJUST)
        | flag(result == 0, ZERO)
        | flag(result & top != 0, SIGN)
        | flag(overflow, OVERFLOW);
    (result, flags)
}

/// True if a condition holds (SDM volume 2, appendix B.1.4.7).
fn holds(code: u8, flags: u64) -> bool {
    let is = |bit: u64| flags & bit != 0;
    let less = is(SIGN) != is(OVERFLOW);
    let holds = match code >> 1 & 7 {
        0 => is(OVERFLOW),
        1 => is(CARRY),
        2 => is(ZERO),
        3 => is(CARRY) || is(ZERO),
        4 => is(SIGN),
        5 => is(PARITY),
        6 => less,
        _ => is(ZERO) || less,
    };
    holds != (code & 1 == 1)
}

fn mask(width: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(width.clamp(1, 8)))
}

/// Prefixes of any form.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// The mandatory prefix of vector instructions in the numbering of VEX.pp: none, 66, f3, f2.
    pp: u8,
    wide: bool,
    /// Added to the register numbers of ModRM.reg, SIB.index and ModRM.rm.
    reg: u8,
    index: u8,
    rm: u8,
    vex: bool,
}

struct Code<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The instruction at the start of `bytes`, and its length; None if it is not interpreted.
fn decode(bytes: &[u8]) -> Option<(Act, usize)> {
    let mut code = Code {
        bytes: bytes.get(..super::INSTRUCTION_BYTES_MAX).unwrap_or(bytes),
        at: 0,
    };
    let (prefixes, map, opcode) = code.head()?;
    let act = match map {
        0 => code.one_byte(prefixes, opcode)?,
        _ => code.two_byte(prefixes, opcode)?,
    };
    Some((act, code.at))
}

impl Code<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A little-endian value of 1 or 4 bytes, sign-extended.
    fn signed(&mut self, bytes: u8) -> Option<i64> {
        let first = self.byte()?;
        if bytes == 1 {
            return Some(i64::from(first.cast_signed()));
        }
        let word = [first, self.byte()?, self.byte()?, self.byte()?];
        Some(i64::from(i32::from_le_bytes(word)))
    }

    /// Prefixes, map (0: one byte, 1: after 0f) and opcode.
    fn head(&mut self) -> Option<(Prefixes, u8, u8)> {
        let mut prefixes = Prefixes::default();
        let mut operand_size = false;
        let mut repeat = 0;
        let mut first = loop {
            match self.byte()? {
                0x66 => operand_size = true,
                0xf3 => repeat = 2,
                0xf2 => repeat = 3,
                // These have no effect with flat segments. Compilers use them as padding.
                0x2e | 0x3e => {}
                other => break other,
            }
        };
        if matches!(first, 0xc4 | 0xc5) {
            if operand_size || repeat != 0 {
                return None;
            }
            return self.vex(first);
        }
        if first & 0xf0 == 0x40 {
            let bit = |bit: u8| if first & bit != 0 { 8 } else { 0 };
            (prefixes.reg, prefixes.index, prefixes.rm) = (bit(4), bit(2), bit(1));
            prefixes.wide = first & 8 != 0;
            first = self.byte()?;
        }
        prefixes.pp = if repeat != 0 {
            repeat
        } else {
            u8::from(operand_size)
        };
        match first {
            0x0f => Some((prefixes, 1, self.byte()?)),
            // Operands of two bytes are supported in comparisons only. Repeat prefixes are not
            // supported.
            opcode if prefixes.pp == 0 || (prefixes.pp == 1 && is_comparison(opcode)) => {
                Some((prefixes, 0, opcode))
            }
            _ => None,
        }
    }

    fn vex(&mut self, first: u8) -> Option<(Prefixes, u8, u8)> {
        let (high, last) = if first == 0xc5 {
            let last = self.byte()?;
            // The short form contains R only. The other bits read as set, which means off.
            (last | 0x60, last & 0x7f)
        } else {
            let high = self.byte()?;
            if high & 0x1f != 1 {
                return None;
            }
            (high, self.byte()?)
        };
        // Moves have no second source register. Only 128 bits are supported.
        if last >> 3 & 15 != 15 || last & 4 != 0 {
            return None;
        }
        let bit = |bit: u8| if high & bit == 0 { 8 } else { 0 };
        let prefixes = Prefixes {
            pp: last & 3,
            wide: last & 0x80 != 0,
            reg: bit(0x80),
            index: bit(0x40),
            rm: bit(0x20),
            vex: true,
        };
        Some((prefixes, 1, self.byte()?))
    }

    /// The register of ModRM.reg and the operand of ModRM.rm.
    fn operands(&mut self, prefixes: Prefixes) -> Option<(u8, Place)> {
        let modrm = self.byte()?;
        let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let reg = reg + prefixes.reg;
        if mode == 3 {
            return Some((reg, Place::Register(rm + prefixes.rm)));
        }
        let mut index = None;
        let mut low = rm;
        if rm == 4 {
            let sib = self.byte()?;
            low = sib & 7;
            let register = (sib >> 3 & 7) + prefixes.index;
            index = (register != 4).then_some((register, sib >> 6));
        }
        let base = match (mode, low) {
            (0, 5) if rm == 5 => Base::Rip,
            (0, 5) => Base::None,
            _ => Base::Register(low + prefixes.rm),
        };
        let displacement = match (mode, low) {
            (0, 5) | (2, _) => self.signed(4)?,
            (1, _) => self.signed(1)?,
            _ => 0,
        };
        let operand = Operand {
            base,
            index,
            displacement,
        };
        Some((reg, Place::Memory(operand)))
    }

    fn one_byte(&mut self, prefixes: Prefixes, opcode: u8) -> Option<Act> {
        let width = match (prefixes.wide, prefixes.pp) {
            (true, _) => 8,
            (false, 0) => 4,
            (false, _) => 2,
        };
        match opcode {
            0x90 if prefixes.rm == 0 => Some(Act::Nothing),
            // ADD, SUB and CMP: r/m with register, register with r/m
            0x01 | 0x29 | 0x39 | 0x03 | 0x2b | 0x3b => {
                let (register, place) = self.operands(prefixes)?;
                let register = Place::Register(register);
                let (left, right) = if opcode & 2 == 0 {
                    (place, register)
                } else {
                    (register, place)
                };
                Some(Act::Compute {
                    what: arithmetic(opcode >> 3)?,
                    left,
                    right: Right::Place(right),
                    width,
                })
            }
            // The same instructions with an immediate.
            0x81 | 0x83 => {
                let (what, left) = self.operands(Prefixes { reg: 0, ..prefixes })?;
                let what = arithmetic(what)?;
                if width == 2 && what != Arithmetic::Compare {
                    return None;
                }
                let bytes = if opcode == 0x81 { 4 } else { 1 };
                Some(Act::Compute {
                    what,
                    left,
                    right: Right::Immediate(self.signed(bytes)?.cast_unsigned()),
                    width,
                })
            }
            // MOV
            0x89 => match self.operands(prefixes)? {
                (register, Place::Register(to)) => Some(Act::Load {
                    register: to,
                    from: Place::Register(register),
                    width,
                }),
                (_, Place::Memory(to)) => Some(Act::Store {
                    to,
                    width,
                    vector: None,
                }),
            },
            0x8b => {
                let (register, from) = self.operands(prefixes)?;
                Some(Act::Load {
                    register,
                    from,
                    width,
                })
            }
            // LEA
            0x8d => match self.operands(prefixes)? {
                (register, Place::Memory(from)) => Some(Act::LoadAddress {
                    register,
                    from,
                    width,
                }),
                (_, Place::Register(_)) => None,
            },
            0x70..=0x7f => self.jump(Some(opcode & 15), 1),
            0xeb => self.jump(None, 1),
            0xe9 => self.jump(None, 4),
            _ => None,
        }
    }

    fn jump(&mut self, condition: Option<u8>, bytes: u8) -> Option<Act> {
        let distance = self.signed(bytes)?;
        Some(Act::Jump {
            condition,
            distance,
        })
    }

    fn two_byte(&mut self, prefixes: Prefixes, opcode: u8) -> Option<Act> {
        match (opcode, prefixes.vex) {
            // NOPs of several bytes.
            (0x1f, false) if prefixes.pp < 2 => {
                let (kind, _) = self.operands(Prefixes { reg: 0, ..prefixes })?;
                return (kind == 0).then_some(Act::Nothing);
            }
            (0x80..=0x8f, false) if prefixes.pp == 0 => return self.jump(Some(opcode & 15), 4),
            _ => {}
        }
        let (register, Place::Memory(operand)) = self.operands(prefixes)? else {
            return None;
        };
        let load = |aligned| {
            Some(Act::LoadVector {
                register,
                from: operand,
                aligned,
                vex: prefixes.vex,
            })
        };
        match (opcode, prefixes.pp) {
            // MOVUPS, MOVUPD, MOVDQU; MOVAPS, MOVAPD, MOVDQA
            (0x10, 0 | 1) | (0x6f, 2) => load(false),
            (0x28, 0 | 1) | (0x6f, 1) => load(true),
            // The same as stores, and MOVNTPS, MOVNTPD, MOVNTDQ
            (0x11 | 0x29 | 0x2b, 0 | 1) | (0x7f, 1 | 2) | (0xe7, 1) => Some(Act::Store {
                to: operand,
                width: 16,
                vector: Some(register),
            }),
            _ => None,
        }
    }
}

/// A CMP whose immediate, if any, is not of two bytes.
fn is_comparison(opcode: u8) -> bool {
    matches!(opcode, 0x39 | 0x3b | 0x83)
}

fn arithmetic(number: u8) -> Option<Arithmetic> {
    match number {
        0 => Some(Arithmetic::Add),
        5 => Some(Arithmetic::Subtract),
        7 => Some(Arithmetic::Compare),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
