//! The decoder: instructions of 32 bits.
//!
//! Source: RISC-V unprivileged ISA 20240411: the chapters of RV32I, RV64I, the extensions "M", "A" and "B", Zicsr and Zifencei, and
//! the chapter "RV32/64G Instruction Set Listings". Reserved encodings are illegal, except that fences and hints with reserved
//! fields are executed as the standard advises.

use crate::op::{Code, Op};

/// Length of an instruction of 32 bits in halfwords.
pub(crate) const LONG: u8 = 2;

/// Decodes the instruction `word`, which has `length` halfwords in memory (1 if it was compressed).
pub(crate) fn decode(word: u32, length: u8) -> Op {
    known(word, length).unwrap_or_else(|| Op::plain(Code::Illegal, length))
}

fn known(word: u32, length: u8) -> Option<Op> {
    let (rd, rs1, rs2) = (register(word, 7), register(word, 15), register(word, 20));
    let funct3 = (word >> 12) & 7;
    let immediate = |code| Some(Op::immediate(code, rd, rs1, i_imm(word), length));
    match word & 0x7f {
        0x37 => Some(Op::immediate(Code::Lui, rd, 0, u_imm(word), length)),
        0x17 => Some(Op::immediate(Code::Auipc, rd, 0, u_imm(word), length)),
        0x6f => Some(Op::immediate(Code::Jal, rd, 0, j_imm(word) >> 1, length)),
        0x67 if funct3 == 0 => immediate(Code::Jalr),
        0x63 => {
            let code = [
                Code::Beq,
                Code::Bne,
                Code::Illegal,
                Code::Illegal,
                Code::Blt,
                Code::Bge,
                Code::Bltu,
                Code::Bgeu,
            ];
            let code = pick(&code, funct3)?;
            Some(Op::sources(code, rs1, rs2, b_imm(word) >> 1, length))
        }
        0x03 => {
            let code = [
                Code::Lb,
                Code::Lh,
                Code::Lw,
                Code::Ld,
                Code::Lbu,
                Code::Lhu,
                Code::Lwu,
            ];
            immediate(pick(&code, funct3)?)
        }
        0x23 => {
            let code = pick(&[Code::Sb, Code::Sh, Code::Sw, Code::Sd], funct3)?;
            Some(Op::sources(code, rs1, rs2, s_imm(word), length))
        }
        0x13 => op_imm(word, funct3).map(|(code, imm)| Op::immediate(code, rd, rs1, imm, length)),
        0x1b => {
            op_imm_32(word, funct3).map(|(code, imm)| Op::immediate(code, rd, rs1, imm, length))
        }
        0x33 => op(word >> 25, funct3).map(|code| Op::three(code, rd, rs1, rs2, length)),
        0x3b => op_32(word >> 25, funct3, rs2).map(|code| Op::three(code, rd, rs1, rs2, length)),
        0x2f => atomic(word, funct3).map(|code| Op {
            // The kind, and the size in bytes.
            imm: i32::from(u8::try_from(word >> 27).unwrap_or_default()) << 8 | (1 << funct3),
            ..Op::three(code, rd, rs1, rs2, length)
        }),
        // Predecessor and successor sets are read again from the word.
        0x0f if funct3 == 0 => Some(Op::plain(Code::Fence, length)),
        0x0f if funct3 == 1 => Some(Op::plain(Code::FenceI, length)),
        0x73 => match (funct3, word) {
            (0, 0x0000_0073) => Some(Op::plain(Code::Ecall, length)),
            (0, 0x0010_0073) => Some(Op::plain(Code::Ebreak, length)),
            (1..=3 | 5..=7, _) => {
                let number = i32::from(u16::try_from(word >> 20).unwrap_or_default());
                let kind = i32::from(u8::try_from(funct3).unwrap_or_default()) << 12;
                Some(Op::immediate(Code::Csr, rd, rs1, kind | number, length))
            }
            _ => None,
        },
        // The word is read again for the environment.
        0x0b => Some(Op::plain(Code::Custom0, length)),
        _ => None,
    }
}

/// OP-IMM: operation and immediate or shift amount.
fn op_imm(word: u32, funct3: u32) -> Option<(Code, i32)> {
    let amount = i_imm(word) & 63;
    let code = match (funct3, word >> 26) {
        (0, _) => return Some((Code::Addi, i_imm(word))),
        (2, _) => return Some((Code::Slti, i_imm(word))),
        (3, _) => return Some((Code::Sltiu, i_imm(word))),
        (4, _) => return Some((Code::Xori, i_imm(word))),
        (6, _) => return Some((Code::Ori, i_imm(word))),
        (7, _) => return Some((Code::Andi, i_imm(word))),
        (1, 0x00) => Code::Slli,
        (1, 0x0a) => Code::Bseti,
        (1, 0x12) => Code::Bclri,
        (1, 0x1a) => Code::Binvi,
        (1, 0x18) => match amount {
            0 => Code::Clz,
            1 => Code::Ctz,
            2 => Code::Cpop,
            4 => Code::SextB,
            5 => Code::SextH,
            _ => return None,
        },
        (5, 0x00) => Code::Srli,
        (5, 0x10) => Code::Srai,
        (5, 0x12) => Code::Bexti,
        (5, 0x18) => Code::Rori,
        (5, 0x0a) if amount == 7 => Code::OrcB,
        (5, 0x1a) if amount == 0x38 => Code::Rev8,
        _ => return None,
    };
    Some((code, amount))
}

/// OP-IMM-32.
fn op_imm_32(word: u32, funct3: u32) -> Option<(Code, i32)> {
    let (amount, wide) = (i_imm(word) & 31, i_imm(word) & 63);
    Some(match (funct3, word >> 25) {
        (0, _) => (Code::Addiw, i_imm(word)),
        (1, 0x00) => (Code::Slliw, amount),
        // Shift amounts of six bits.
        (1, 0x04 | 0x05) => (Code::SlliUw, wide),
        (1, 0x30) => match amount {
            0 => (Code::Clzw, 0),
            1 => (Code::Ctzw, 0),
            2 => (Code::Cpopw, 0),
            _ => return None,
        },
        (5, 0x00) => (Code::Srliw, amount),
        (5, 0x20) => (Code::Sraiw, amount),
        (5, 0x30) => (Code::Roriw, amount),
        _ => return None,
    })
}

/// OP.
fn op(funct7: u32, funct3: u32) -> Option<Code> {
    let row: [Code; 8] = match funct7 {
        0x00 => [
            Code::Add,
            Code::Sll,
            Code::Slt,
            Code::Sltu,
            Code::Xor,
            Code::Srl,
            Code::Or,
            Code::And,
        ],
        0x01 => [
            Code::Mul,
            Code::Mulh,
            Code::Mulhsu,
            Code::Mulhu,
            Code::Div,
            Code::Divu,
            Code::Rem,
            Code::Remu,
        ],
        _ => {
            return Some(match (funct7, funct3) {
                (0x20, 0) => Code::Sub,
                (0x20, 5) => Code::Sra,
                (0x20, 4) => Code::Xnor,
                (0x20, 6) => Code::Orn,
                (0x20, 7) => Code::Andn,
                (0x05, 4) => Code::Min,
                (0x05, 5) => Code::Minu,
                (0x05, 6) => Code::Max,
                (0x05, 7) => Code::Maxu,
                (0x10, 2) => Code::Sh1add,
                (0x10, 4) => Code::Sh2add,
                (0x10, 6) => Code::Sh3add,
                (0x14, 1) => Code::Bset,
                (0x24, 1) => Code::Bclr,
                (0x24, 5) => Code::Bext,
                (0x30, 1) => Code::Rol,
                (0x30, 5) => Code::Ror,
                (0x34, 1) => Code::Binv,
                _ => return None,
            });
        }
    };
    pick(&row, funct3)
}

/// OP-32.
fn op_32(funct7: u32, funct3: u32, rs2: u8) -> Option<Code> {
    Some(match (funct7, funct3) {
        (0x00, 0) => Code::Addw,
        (0x00, 1) => Code::Sllw,
        (0x00, 5) => Code::Srlw,
        (0x20, 0) => Code::Subw,
        (0x20, 5) => Code::Sraw,
        (0x01, 0) => Code::Mulw,
        (0x01, 4) => Code::Divw,
        (0x01, 5) => Code::Divuw,
        (0x01, 6) => Code::Remw,
        (0x01, 7) => Code::Remuw,
        (0x04, 0) => Code::AddUw,
        (0x04, 4) if rs2 == 0 => Code::ZextH,
        (0x10, 2) => Code::Sh1addUw,
        (0x10, 4) => Code::Sh2addUw,
        (0x10, 6) => Code::Sh3addUw,
        (0x30, 1) => Code::Rolw,
        (0x30, 5) => Code::Rorw,
        _ => return None,
    })
}

/// AMO of words and doublewords.
fn atomic(word: u32, funct3: u32) -> Option<Code> {
    if !(2..=3).contains(&funct3) {
        return None;
    }
    match word >> 27 {
        0x02 if (word >> 20) & 31 == 0 => Some(Code::Lr),
        0x03 => Some(Code::Sc),
        0x00 | 0x01 | 0x04 | 0x08 | 0x0c | 0x10 | 0x14 | 0x18 | 0x1c => Some(Code::Amo),
        _ => None,
    }
}

fn pick(codes: &[Code], at: u32) -> Option<Code> {
    let code = codes.get(usize::try_from(at).ok()?)?;
    (*code != Code::Illegal).then_some(*code)
}

/// The register whose number begins at bit `from`.
fn register(word: u32, from: u32) -> u8 {
    u8::try_from((word >> from) & 31).unwrap_or_default()
}

fn i_imm(word: u32) -> i32 {
    word.cast_signed() >> 20
}

fn s_imm(word: u32) -> i32 {
    ((word & 0xfe00_0000).cast_signed() >> 20) | ((word >> 7) & 31).cast_signed()
}

fn b_imm(word: u32) -> i32 {
    let low = ((word >> 7) & 0x1e) | ((word >> 20) & 0x7e0) | ((word << 4) & 0x800);
    ((word & 0x8000_0000).cast_signed() >> 19) | low.cast_signed()
}

fn u_imm(word: u32) -> i32 {
    (word & 0xffff_f000).cast_signed()
}

fn j_imm(word: u32) -> i32 {
    let low = ((word >> 20) & 0x7fe) | ((word >> 9) & 0x800) | (word & 0xf_f000);
    ((word & 0x8000_0000).cast_signed() >> 11) | low.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: u32, expect: Op) {
        assert_eq!(decode(word, LONG), expect, "{word:#010x}");
    }

    #[test]
    fn immediates_keep_their_sign() {
        check(0xfff5_0513, Op::immediate(Code::Addi, 10, 10, -1, LONG));
        check(0x8000_0537, Op::immediate(Code::Lui, 10, 0, i32::MIN, LONG));
        check(0x80b5_3023, Op::sources(Code::Sd, 10, 11, -2048, LONG));
        check(0x7eb5_3fa3, Op::sources(Code::Sd, 10, 11, 2047, LONG));
        // `beq a0, a1, .-4096` and `.+4094`; offsets are in halfwords.
        check(0x80b5_0063, Op::sources(Code::Beq, 10, 11, -2048, LONG));
        check(0x7eb5_0fe3, Op::sources(Code::Beq, 10, 11, 2047, LONG));
        check(
            0x8000_00ef,
            Op::immediate(Code::Jal, 1, 0, -(1 << 19), LONG),
        );
        check(
            0x7fff_f0ef,
            Op::immediate(Code::Jal, 1, 0, (1 << 19) - 1, LONG),
        );
    }

    #[test]
    fn results_for_x0_go_to_the_sink() {
        assert_eq!(decode(0x0000_0013, LONG).rd, crate::op::SINK);
        assert_eq!(decode(0x00b5_0033, LONG).rd, crate::op::SINK);
        // The unused field of a store is its length.
        assert_eq!(decode(0x00b5_3023, LONG).rd, LONG);
    }

    #[test]
    fn reserved_encodings_are_illegal() {
        for (word, why) in [
            (0x0000_0000, "all zeros"),
            (0xffff_ffff, "all ones"),
            (0x0005_2063, "branch with code 2"),
            (0x0005_7003, "load with code 7"),
            (0x0005_4023, "store with code 4"),
            (0x0405_1513, "SLLI with bit 26"),
            (0x0205_151b, "SLLIW by 32"),
            (0x6035_1513, "CLZ's group, function 3"),
            (0x2865_5513, "GORCI other than ORC.B"),
            (0x6b75_5513, "GREVI other than REV8"),
            (0x0815_453b, "PACKW with rs2 other than x0"),
            (0x0815_4533, "PACK"),
            (0x0a05_1533, "CLMUL"),
            (0x1015_252f, "LR.W with rs2 other than x0"),
            (0x0005_052f, "AMO of a byte"),
            (0x2800_252f, "AMO with an unknown function"),
            (0x0005_0507, "FLW"),
            (0x3020_0073, "MRET"),
            (0x1050_0073, "WFI"),
            (0x0000_4073, "SYSTEM with code 4"),
            (0x0000_002b, "custom-1"),
        ] {
            check(word, Op::plain(Code::Illegal, LONG));
            let _ = why;
        }
    }
}
