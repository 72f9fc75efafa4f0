//! String moves into device pages, for the doorbell trap: the instruction, its remaining length,
//! and the registers after it. Has no side effects.
//!
//! Compilers use `rep movs` to copy a work request, and some builds of UCX use it everywhere. Such
//! an instruction faults at the first element that it may not store. The registers then show the
//! remaining elements. The handler executes the part in the faulting page, and the instruction
//! continues after it. Intel SDM volume 2, MOVS and REP.

use super::{INSTRUCTION_BYTES_MAX, Registers};

/// Encodings of the registers that a string move uses.
const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;
/// The direction flag in RFLAGS: strings are processed downwards.
const DIRECTION: u64 = 1 << 10;
const REX_W: u8 = 8;

/// A string move at the point of its interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// Source address of the next element.
    pub from: u64,
    /// Remaining bytes; at least one element.
    pub bytes: u64,
    /// Length of the instruction, 1..=[`INSTRUCTION_BYTES_MAX`].
    length: u8,
    /// Bytes of one element: 1, 2, 4 or 8.
    width: u8,
    repeats: bool,
}

/// Decodes the string move at the start of `bytes`, with the registers and flags at its fault.
///
/// None if it is not a string move, is incomplete, goes downwards, or uses an address other than
/// rsi and rdi.
#[must_use]
pub fn decode(bytes: &[u8], registers: &Registers, flags: u64) -> Option<Moves> {
    let (mut operand_size, mut repeats, mut wide) = (false, false, false);
    for (at, byte) in bytes.iter().take(INSTRUCTION_BYTES_MAX).enumerate() {
        let width = match byte {
            0x66 => {
                operand_size = true;
                continue;
            }
            0xf2 | 0xf3 => {
                repeats = true;
                wide = false;
                continue;
            }
            // A REX prefix is valid only directly before the opcode.
            rex @ 0x40..=0x4f => {
                wide = rex & REX_W != 0;
                continue;
            }
            0xa4 => 1,
            0xa5 if wide => 8,
            0xa5 if operand_size => 2,
            0xa5 => 4,
            _ => return None,
        };
        let count = if repeats { registers.general[RCX] } else { 1 };
        let left = count.checked_mul(u64::from(width))?;
        if flags & DIRECTION != 0 || left == 0 {
            return None;
        }
        return Some(Moves {
            from: registers.general[RSI],
            bytes: left,
            length: u8::try_from(at + 1).ok()?,
            width,
            repeats,
        });
    }
    None
}

impl Moves {
    /// The registers after the elements that begin within the first `limit` bytes. If no element
    /// remains, the instruction pointer is after the instruction. Otherwise it stays at the
    /// instruction, as after an interruption.
    #[must_use]
    pub fn follow(&self, mut registers: Registers, limit: u64) -> Registers {
        let width = u64::from(self.width);
        let elements = (self.bytes / width).min(limit.div_ceil(width));
        let moved = elements * width;
        // Addresses wrap, as in the processor.
        for register in [RSI, RDI] {
            registers.general[register] = registers.general[register].wrapping_add(moved);
        }
        if self.repeats {
            registers.general[RCX] -= elements;
        }
        if moved == self.bytes {
            registers.rip = registers.rip.wrapping_add(u64::from(self.length));
        }
        registers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn registers(count: u64) -> Registers {
        let mut registers = Registers {
            general: [0; 16],
            rip: 0x40_0000,
        };
        registers.general[RCX] = count;
        registers.general[RSI] = 0x1000;
        registers.general[RDI] = 0x2000;
        registers
    }

    /// Instruction, count, and the expected results: remaining bytes, and the advance of rsi, rdi,
    /// rcx and rip for 64 bytes.
    fn check(bytes: &[u8], count: u64, left: u64, forward: [u64; 4]) {
        let before = registers(count);
        let moves = decode(bytes, &before, 0).unwrap();
        assert_eq!((moves.from, moves.bytes), (0x1000, left), "{bytes:02x?}");
        let after = moves.follow(before, 64);
        let of = |register: usize| after.general[register].abs_diff(before.general[register]);
        let moved = [of(RSI), of(RDI), of(RCX), after.rip - before.rip];
        assert_eq!(moved, forward, "{bytes:02x?}");
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end], &before, 0), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn string_moves() {
        // rep movsl, rep movsq, rep movsb, rep movsw: complete, and continued in the next page
        check(&[0xf3, 0xa5], 16, 64, [64, 64, 16, 2]);
        check(&[0xf3, 0x48, 0xa5], 8, 64, [64, 64, 8, 3]);
        check(&[0xf3, 0xa4], 65, 65, [64, 64, 64, 0]);
        check(&[0x66, 0xf3, 0xa5], 3, 6, [6, 6, 3, 3]);
        check(&[0xf3, 0x48, 0xa5], 9, 72, [64, 64, 8, 0]);
        // movsl, movsq without a repeat
        check(&[0xa5], 16, 4, [4, 4, 0, 1]);
        check(&[0x48, 0xa5], 0, 8, [8, 8, 0, 2]);
        // A REX prefix before the repeat prefix is ignored.
        check(&[0x48, 0xf3, 0xa5], 2, 8, [8, 8, 2, 3]);
    }

    #[test]
    fn everything_else_is_refused() {
        let repeated = [0xf3, 0xa5];
        for (bytes, count, flags) in [
            (&repeated[..], 4, DIRECTION),
            (&repeated, 0, 0),
            (&repeated, u64::MAX, 0),
            // rep stosl; movsl from fs, and with 32-bit addresses; mov
            (&[0xf3, 0xab], 4, 0),
            (&[0x64, 0xa5], 4, 0),
            (&[0x67, 0xa5], 4, 0),
            (&[0x48, 0x89, 0x08], 4, 0),
        ] {
            assert_eq!(
                decode(bytes, &registers(count), flags),
                None,
                "{bytes:02x?}"
            );
        }
    }

    proptest! {
        /// A decoded move advances by whole elements, to its end or to the end of the range.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..20), count in any::<u64>(), limit in 1_u64..4096) {
            let before = registers(count);
            if let Some(moves) = decode(&bytes, &before, 0) {
                let after = moves.follow(before, limit);
                let moved = after.general[RDI].wrapping_sub(before.general[RDI]);
                prop_assert!(moved > 0 && moved <= moves.bytes);
                prop_assert_eq!(moved, after.general[RSI].wrapping_sub(before.general[RSI]));
                prop_assert_eq!(moved == moves.bytes, after.rip != before.rip);
                prop_assert!(moved == moves.bytes || moved >= limit);
            }
        }
    }
}
