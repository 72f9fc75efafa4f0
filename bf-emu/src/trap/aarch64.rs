//! A decoder of the AArch64 instructions that store to memory, for trapped doorbells. It has no side
//! effects. The signal handler uses it, so it does not allocate, lock or panic.
//!
//! It knows the stores that compilers, rdma-core and UCX use for device registers: `str`, `stur`, `sttr` and `stlr` of
//! general registers, `str` of vector registers, `stp` and `stnp` of both, and `st1` to `st4` of whole registers
//! (rdma-core copies a request with `st4`, see `util/mmio.h`). Exclusive stores, atomics, and stores of tags, lanes and 64
//! bytes at once give `None`. Encodings: Arm Architecture Reference Manual for A-profile, C4.1, "Loads and Stores".

/// Bytes of an instruction.
pub const INSTRUCTION_BYTES: usize = 4;

/// Number of the register that reads as zero in a store, and is the stack pointer in an address.
const ZERO_OR_SP: u32 = 31;

/// The registers at the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// x0 ... x30 and the stack pointer.
    pub general: [u64; 32],
    /// v0 ... v31, if they are known.
    pub vectors: Option<[[u8; 16]; 32]>,
}

impl Registers {
    fn general(&self, register: u32) -> u64 {
        match register {
            ZERO_OR_SP => 0,
            other => self.base(other),
        }
    }

    fn base(&self, register: u32) -> u64 {
        let value = self.general.get(register as usize);
        value.copied().unwrap_or(0)
    }

    fn vector(&self, register: u32) -> Option<[u8; 16]> {
        self.vectors?.get((register % 32) as usize).copied()
    }
}

/// A decoded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its address.
    pub address: u64,
    /// Bytes stored.
    pub width: u8,
    /// The first eight bytes stored, as a little-endian number; None if they come from registers
    /// that are not known. The bytes of a shorter store are followed by zeroes.
    pub value: Option<u64>,
    /// A general register that the instruction changes too, and its new value.
    pub changed: Option<(usize, u64)>,
}

/// Decodes an instruction. None if it is not a known store.
#[must_use]
pub fn decode(code: u32, registers: &Registers) -> Option<Store> {
    match field(code, 24, 6) {
        0b00_1000 => release(code, registers),
        0b00_1100 => structures(code, registers),
        0b10_1000 | 0b10_1001 | 0b10_1100 | 0b10_1101 => pair(code, registers),
        0b11_1000 | 0b11_1001 | 0b11_1100 | 0b11_1101 => single(code, registers),
        _ => None,
    }
}

/// `width` bits of an instruction from bit `at` on.
const fn field(code: u32, at: u32, width: u32) -> u32 {
    code >> at & ((1 << width) - 1)
}

const fn bit(code: u32, at: u32) -> bool {
    field(code, at, 1) == 1
}

/// A signed immediate, scaled by the size of a register.
fn signed(code: u32, at: u32, width: u32, shift: u32) -> u64 {
    let value = u64::from(field(code, at, width));
    let unused = 64 - width;
    ((value << unused).cast_signed() >> unused << shift).cast_unsigned()
}

const fn rt(code: u32) -> u32 {
    field(code, 0, 5)
}

const fn rn(code: u32) -> u32 {
    field(code, 5, 5)
}

/// The low `bytes` of a value.
fn low(value: u64, bytes: u32) -> u64 {
    match bytes {
        8.. => value,
        _ => value & ((1 << (8 * bytes)) - 1),
    }
}

/// The first eight bytes of a vector register, or fewer if it is stored in part.
fn vector_low(registers: &Registers, register: u32, bytes: u32) -> Option<u64> {
    let [a, b, c, d, e, f, g, h, ..] = registers.vector(register)?;
    Some(low(u64::from_le_bytes([a, b, c, d, e, f, g, h]), bytes))
}

/// Addresses before or behind the base, which the instruction may change.
fn indexed(code: u32, registers: &Registers, offset: u64, mode: Mode) -> (u64, Changed) {
    let base = registers.base(rn(code));
    let moved = base.wrapping_add(offset);
    let changed = Some((rn(code) as usize, moved));
    match mode {
        Mode::Offset => (moved, None),
        Mode::Before => (moved, changed),
        Mode::Behind => (base, changed),
    }
}

type Changed = Option<(usize, u64)>;

#[derive(Clone, Copy)]
enum Mode {
    Offset,
    /// The base changes before the store.
    Before,
    /// The base changes after the store.
    Behind,
}

/// `str`, `stur`, `sttr`: one register.
fn single(code: u32, registers: &Registers) -> Option<Store> {
    let (size, opc, is_vector) = (field(code, 30, 2), field(code, 22, 2), bit(code, 26));
    let shift = match (is_vector, opc) {
        (_, 0b00) => size,
        (true, 0b10) if size == 0 => 4,
        _ => return None,
    };
    let (address, changed) = if bit(code, 24) {
        let offset = u64::from(field(code, 10, 12)) << shift;
        indexed(code, registers, offset, Mode::Offset)
    } else {
        let offset = signed(code, 12, 9, 0);
        match (bit(code, 21), field(code, 10, 2)) {
            (false, 0b00 | 0b10) => indexed(code, registers, offset, Mode::Offset),
            (false, 0b01) => indexed(code, registers, offset, Mode::Behind),
            (false, 0b11) => indexed(code, registers, offset, Mode::Before),
            (true, 0b10) => {
                let scaled = if bit(code, 12) { shift } else { 0 };
                let index = registers.general(field(code, 16, 5));
                let index = match field(code, 13, 3) {
                    // uxtw, lsl, sxtw, sxtx.
                    0b010 => low(index, 4),
                    0b011 | 0b111 => index,
                    0b110 => (low(index, 4) << 32)
                        .cast_signed()
                        .wrapping_shr(32)
                        .cast_unsigned(),
                    _ => return None,
                };
                indexed(code, registers, index << scaled, Mode::Offset)
            }
            _ => return None,
        }
    };
    let width = 1_u8 << shift;
    let value = match is_vector {
        true => vector_low(registers, rt(code), u32::from(width)),
        false => Some(low(registers.general(rt(code)), u32::from(width))),
    };
    Some(Store {
        address,
        width,
        value,
        changed,
    })
}

/// `stp`, `stnp`: two registers.
fn pair(code: u32, registers: &Registers) -> Option<Store> {
    let (opc, is_vector) = (field(code, 30, 2), bit(code, 26));
    let shift = match (is_vector, opc) {
        (false, 0b00) => 2,
        (false, 0b10) => 3,
        (true, 0..=2) => opc + 2,
        _ => return None,
    };
    let offset = signed(code, 15, 7, shift);
    let mode = match (field(code, 23, 2), bit(code, 22)) {
        (0b00 | 0b10, false) => Mode::Offset,
        (0b01, false) => Mode::Behind,
        (0b11, false) => Mode::Before,
        _ => return None,
    };
    let (address, changed) = indexed(code, registers, offset, mode);
    let one = 1_u32 << shift;
    let part = |register| match is_vector {
        true => vector_low(registers, register, one),
        false => Some(low(registers.general(register), one)),
    };
    let first = part(rt(code));
    let value = match one {
        4 => first.and_then(|first| Some(first | part(field(code, 10, 5))? << 32)),
        _ => first,
    };
    Some(Store {
        address,
        width: 2 << shift,
        value,
        changed,
    })
}

/// `stlr`: a store that earlier accesses precede.
fn release(code: u32, registers: &Registers) -> Option<Store> {
    // No load, not exclusive, not a pair, ordered; the unused registers are all ones.
    if field(code, 21, 3) != 0b100
        || !bit(code, 15)
        || field(code, 16, 5) != 31
        || field(code, 10, 5) != 31
    {
        return None;
    }
    let width = 1_u8 << field(code, 30, 2);
    Some(Store {
        address: registers.base(rn(code)),
        width,
        value: Some(low(registers.general(rt(code)), u32::from(width))),
        changed: None,
    })
}

/// `st1` to `st4` of whole vector registers. The elements of `st2` to `st4` alternate between the registers.
fn structures(code: u32, registers: &Registers) -> Option<Store> {
    if bit(code, 31) || bit(code, 22) || bit(code, 21) {
        return None;
    }
    let (count, alternate) = match field(code, 12, 4) {
        0b0000 => (4, true),
        0b0100 => (3, true),
        0b1000 => (2, true),
        0b0010 => (4, false),
        0b0110 => (3, false),
        0b1010 => (2, false),
        0b0111 => (1, false),
        _ => return None,
    };
    let one = if bit(code, 30) { 16_u8 } else { 8 };
    let width = one * count;
    let behind = match (bit(code, 23), field(code, 16, 5)) {
        (false, 0) => None,
        (false, _) => return None,
        (true, 31) => Some(u64::from(width)),
        (true, register) => Some(registers.general(register)),
    };
    let (address, changed) = match behind {
        None => indexed(code, registers, 0, Mode::Offset),
        Some(offset) => indexed(code, registers, offset, Mode::Behind),
    };
    let value = if alternate {
        alternating(code, registers, u32::from(count))
    } else {
        vector_low(registers, rt(code), 8)
    };
    Some(Store {
        address,
        width,
        value,
        changed,
    })
}

/// The first eight bytes of elements that alternate between `count` registers.
fn alternating(code: u32, registers: &Registers, count: u32) -> Option<u64> {
    let element = 1_u32 << field(code, 10, 2);
    let mut bytes = [0; 8];
    for (at, byte) in (0_u32..).zip(&mut bytes) {
        let (index, within) = (at / element, at % element);
        let register = registers.vector(rt(code) + index % count)?;
        let place = index / count * element + within;
        *byte = *register.get(place as usize)?;
    }
    Some(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x0 ... x30 and the stack pointer are 0x100, 0x101, ...; the bytes of v0 ... are 0, 1, ..., each plus 16 times the number.
    fn registers() -> Registers {
        let mut registers = Registers {
            general: [0; 32],
            vectors: Some([[0; 16]; 32]),
        };
        for (value, general) in (0x100..).zip(&mut registers.general) {
            *general = value;
        }
        for (first, vector) in (0..).step_by(16).zip(registers.vectors.as_mut().unwrap()) {
            for (byte, place) in (first..).zip(vector) {
                *place = u8::try_from(byte % 256).unwrap();
            }
        }
        registers
    }

    const LOW_V0: u64 = 0x0706_0504_0302_0100;

    const fn v(register: u64) -> u64 {
        LOW_V0 + 0x1010_1010_1010_1010 * register
    }

    /// Words by clang 19, with address, width, value, and the changed register.
    #[rustfmt::skip]
    const STORES: &[(u32, &str, u64, u8, u64, Changed)] = &[
        (0xf904_0041, "str x1, [x2, #2048]", 0x902, 8, 0x101, None),
        (0xb900_1041, "str w1, [x2, #16]", 0x112, 4, 0x101, None),
        (0xf800_8403, "str x3, [x0], #8", 0x100, 8, 0x103, Some((0, 0x108))),
        (0xf800_8c03, "str x3, [x0, #8]!", 0x108, 8, 0x103, Some((0, 0x108))),
        (0xf81f_80a4, "stur x4, [x5, #-8]", 0xfd, 8, 0x104, None),
        (0xf828_78e6, "str x6, [x7, x8, lsl #3]", 0x947, 8, 0x106, None),
        (0x3900_0149, "strb w9, [x10]", 0x10a, 1, 0x09, None),
        (0x7900_0149, "strh w9, [x10]", 0x10a, 2, 0x109, None),
        (0xf900_017f, "str xzr, [x11]", 0x10b, 8, 0, None),
        (0xf800_8841, "sttr x1, [x2, #8]", 0x10a, 8, 0x101, None),
        (0xf900_07e1, "str x1, [sp, #8]", 0x127, 8, 0x101, None),
        (0xa900_0861, "stp x1, x2, [x3]", 0x103, 16, 0x101, None),
        (0x2901_0861, "stp w1, w2, [x3, #8]", 0x10b, 8, 0x102_0000_0101, None),
        (0xa881_0861, "stp x1, x2, [x3], #16", 0x103, 16, 0x101, Some((3, 0x113))),
        (0xa9bf_0861, "stp x1, x2, [x3, #-16]!", 0xf3, 16, 0x101, Some((3, 0xf3))),
        (0xa801_0861, "stnp x1, x2, [x3, #16]", 0x113, 16, 0x101, None),
        (0xad00_0460, "stp q0, q1, [x3]", 0x103, 32, LOW_V0, None),
        (0x6d01_0460, "stp d0, d1, [x3, #16]", 0x113, 16, LOW_V0, None),
        (0x2d00_0460, "stp s0, s1, [x3]", 0x103, 8, 0x1312_1110_0302_0100, None),
        (0xac01_0460, "stnp q0, q1, [x3, #32]", 0x123, 32, LOW_V0, None),
        (0x3d80_0482, "str q2, [x4, #16]", 0x114, 16, v(2), None),
        (0x3c81_0482, "str q2, [x4], #16", 0x104, 16, v(2), Some((4, 0x114))),
        (0x3ca5_7882, "str q2, [x4, x5, lsl #4]", 0x1154, 16, v(2), None),
        (0xfd00_0082, "str d2, [x4]", 0x104, 8, v(2), None),
        (0xbd00_0082, "str s2, [x4]", 0x104, 4, 0x2322_2120, None),
        (0x4c00_7000, "st1 {v0.16b}, [x0]", 0x100, 16, LOW_V0, None),
        (0x4c00_2000, "st1 {v0.16b-v3.16b}, [x0]", 0x100, 64, LOW_V0, None),
        (0x4c9f_2000, "st1 {v0.16b-v3.16b}, [x0], #64", 0x100, 64, LOW_V0, Some((0, 0x140))),
        (0x4c85_ac00, "st1 {v0.2d, v1.2d}, [x0], x5", 0x100, 32, LOW_V0, Some((0, 0x205))),
        (0x0c00_7023, "st1 {v3.8b}, [x1]", 0x101, 8, v(3), None),
        (0x4c00_0c00, "st4 {v0.2d-v3.2d}, [x0]", 0x100, 64, LOW_V0, None),
        (0x4c9f_0024, "st4 {v4.16b-v7.16b}, [x1], #64", 0x101, 64, 0x7161_5141_7060_5040, Some((1, 0x141))),
        (0x4c00_8824, "st2 {v4.4s, v5.4s}, [x1]", 0x101, 32, 0x5352_5150_4342_4140, None),
        (0xc89f_fc41, "stlr x1, [x2]", 0x102, 8, 0x101, None),
        (0x889f_fc41, "stlr w1, [x2]", 0x102, 4, 0x101, None),
    ];

    #[test]
    fn stores_have_address_width_value_and_change() {
        for &(code, text, address, width, value, changed) in STORES {
            let value = Some(value);
            let expect = Store {
                address,
                width,
                value,
                changed,
            };
            assert_eq!(decode(code, &registers()), Some(expect), "{text}");
            // Without vector registers only their values are unknown.
            let without = Registers {
                vectors: None,
                ..registers()
            };
            let found = decode(code, &without).unwrap();
            assert_eq!(
                (found.address, found.width, found.changed),
                (address, width, changed),
                "{text}"
            );
        }
    }

    #[test]
    fn other_instructions_are_no_stores() {
        for (code, text) in [
            (0xf940_0041, "ldr x1, [x2]"),
            (0xa940_0861, "ldp x1, x2, [x3]"),
            (0x4c40_7000, "ld1 {v0.16b}, [x0]"),
            (0x4d00_8423, "st1 {v3.d}[1], [x1]"),
            (0xc803_7c41, "stxr w3, x1, [x2]"),
            (0xc8a1_7c62, "cas x1, x2, [x3]"),
            (0xf821_005f, "stadd x1, [x2]"),
            (0xf821_8062, "swp x1, x2, [x3]"),
            (0xf83f_9100, "st64b x0, [x8]"),
            (0x6900_0861, "stgp x1, x2, [x3]"),
            (0x8b03_0041, "add x1, x2, x3"),
            (0xd50b_7421, "dc zva, x1"),
            (0xf980_0020, "prfm pldl1keep, [x1]"),
            (0, "udf #0"),
        ] {
            assert_eq!(decode(code, &registers()), None, "{text}");
        }
    }

    #[test]
    fn any_word_is_decoded_or_refused() {
        let registers = registers();
        // Every seventh pattern of the upper half, which selects the instruction, with few registers.
        for code in (0..=u32::MAX).step_by(7 << 10) {
            if let Some(store) = decode(code, &registers) {
                assert!((1..=64).contains(&store.width), "{code:#x}");
            }
        }
    }
}
