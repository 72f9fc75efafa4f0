//! Compressed instructions: each one expands to the instruction of 32 bits that it abbreviates.
//!
//! Source: RISC-V unprivileged ISA 20240411, the chapter of the extension "C", for RV64 without floating point.

/// The instruction of 32 bits for a compressed one. `None` if it is reserved, or needs floating-point registers.
///
/// Hints expand to an instruction that writes `x0`.
pub(crate) fn expand(half: u16) -> Option<u32> {
    let c = u32::from(half);
    match (c & 3, c >> 13) {
        (0, 0b000) => {
            // nzuimm[5:4|9:6|2|3] = 0 is reserved; the word 0 is the defined illegal instruction.
            let imm = bits(c, 11, 2, 4) | bits(c, 7, 4, 6) | bits(c, 6, 1, 2) | bits(c, 5, 1, 3);
            (imm != 0).then(|| i_type(imm, 2, 0b000, low(c, 2), OP_IMM))
        }
        (0, 0b010) => Some(i_type(word_offset(c), low(c, 7), 0b010, low(c, 2), LOAD)),
        (0, 0b011) => Some(i_type(double_offset(c), low(c, 7), 0b011, low(c, 2), LOAD)),
        (0, 0b110) => Some(s_type(word_offset(c), low(c, 2), low(c, 7), 0b010)),
        (0, 0b111) => Some(s_type(double_offset(c), low(c, 2), low(c, 7), 0b011)),
        (1, 0b000) => Some(i_type(imm6(c), rd(c), 0b000, rd(c), OP_IMM)),
        (1, 0b001) => (rd(c) != 0).then(|| i_type(imm6(c), rd(c), 0b000, rd(c), OP_IMM_32)),
        (1, 0b010) => Some(i_type(imm6(c), 0, 0b000, rd(c), OP_IMM)),
        (1, 0b011) if rd(c) == 2 => {
            let imm = bits(c, 12, 1, 9)
                | bits(c, 6, 1, 4)
                | bits(c, 5, 1, 6)
                | bits(c, 3, 2, 7)
                | bits(c, 2, 1, 5);
            (imm != 0).then(|| i_type(sign(imm, 10), 2, 0b000, 2, OP_IMM))
        }
        (1, 0b011) => (imm6(c) != 0).then(|| (imm6(c) << 12) | (rd(c) << 7) | LUI),
        (1, 0b100) => arithmetic(c),
        (1, 0b101) => {
            let imm = bits(c, 12, 1, 11)
                | bits(c, 11, 1, 4)
                | bits(c, 9, 2, 8)
                | bits(c, 8, 1, 10)
                | bits(c, 7, 1, 6)
                | bits(c, 6, 1, 7)
                | bits(c, 3, 3, 1)
                | bits(c, 2, 1, 5);
            Some(j_type(sign(imm, 12), 0))
        }
        (1, 0b110) => Some(b_type(branch_offset(c), low(c, 7), 0, 0b000)),
        (1, 0b111) => Some(b_type(branch_offset(c), low(c, 7), 0, 0b001)),
        (2, 0b000) => {
            let amount = bits(c, 12, 1, 5) | bits(c, 2, 5, 0);
            Some(i_type(amount, rd(c), 0b001, rd(c), OP_IMM))
        }
        (2, 0b010) => {
            let imm = bits(c, 12, 1, 5) | bits(c, 4, 3, 2) | bits(c, 2, 2, 6);
            (rd(c) != 0).then(|| i_type(imm, 2, 0b010, rd(c), LOAD))
        }
        (2, 0b011) => {
            let imm = bits(c, 12, 1, 5) | bits(c, 5, 2, 3) | bits(c, 2, 3, 6);
            (rd(c) != 0).then(|| i_type(imm, 2, 0b011, rd(c), LOAD))
        }
        (2, 0b100) => jump_or_move(c),
        (2, 0b110) => {
            let imm = bits(c, 9, 4, 2) | bits(c, 7, 2, 6);
            Some(s_type(imm, rs2(c), 2, 0b010))
        }
        (2, 0b111) => {
            let imm = bits(c, 10, 3, 3) | bits(c, 7, 3, 6);
            Some(s_type(imm, rs2(c), 2, 0b011))
        }
        // C.FLD, C.FSD, C.FLDSP, C.FSDSP, and the reserved code.
        _ => None,
    }
}

const LOAD: u32 = 0x03;
const OP_IMM: u32 = 0x13;
const OP_IMM_32: u32 = 0x1b;
const STORE: u32 = 0x23;
const OP: u32 = 0x33;
const LUI: u32 = 0x37;
const OP_32: u32 = 0x3b;
const BRANCH: u32 = 0x63;
const JALR: u32 = 0x67;
const JAL: u32 = 0x6f;
const EBREAK: u32 = 0x0010_0073;

/// Quadrant 1, code 100: shifts, C.ANDI, and operations of two registers.
fn arithmetic(c: u32) -> Option<u32> {
    let (rd, rs2) = (low(c, 7), low(c, 2));
    let amount = bits(c, 12, 1, 5) | bits(c, 2, 5, 0);
    match (bits(c, 10, 2, 0), bits(c, 12, 1, 0), bits(c, 5, 2, 0)) {
        (0, _, _) => Some(i_type(amount, rd, 0b101, rd, OP_IMM)),
        (1, _, _) => Some(i_type(amount | 0x400, rd, 0b101, rd, OP_IMM)),
        (2, _, _) => Some(i_type(imm6(c), rd, 0b111, rd, OP_IMM)),
        (_, 0, 0) => Some(r_type(0x20, rs2, rd, 0b000, rd, OP)),
        (_, 0, 1) => Some(r_type(0, rs2, rd, 0b100, rd, OP)),
        (_, 0, 2) => Some(r_type(0, rs2, rd, 0b110, rd, OP)),
        (_, 0, _) => Some(r_type(0, rs2, rd, 0b111, rd, OP)),
        (_, _, 0) => Some(r_type(0x20, rs2, rd, 0b000, rd, OP_32)),
        (_, _, 1) => Some(r_type(0, rs2, rd, 0b000, rd, OP_32)),
        _ => None,
    }
}

/// Quadrant 2, code 100: C.JR, C.MV, C.EBREAK, C.JALR, C.ADD.
fn jump_or_move(c: u32) -> Option<u32> {
    match (bits(c, 12, 1, 0), rd(c), rs2(c)) {
        (0, 0, 0) => None,
        (0, rs1, 0) => Some(i_type(0, rs1, 0b000, 0, JALR)),
        (0, rd, rs2) => Some(r_type(0, rs2, 0, 0b000, rd, OP)),
        (_, 0, 0) => Some(EBREAK),
        (_, rs1, 0) => Some(i_type(0, rs1, 0b000, 1, JALR)),
        (_, rd, rs2) => Some(r_type(0, rs2, rd, 0b000, rd, OP)),
    }
}

/// `count` bits of `c` from bit `from`, moved to bit `to`.
fn bits(c: u32, from: u32, count: u32, to: u32) -> u32 {
    ((c >> from) & ((1 << count) - 1)) << to
}

/// One of the registers x8 to x15 that three bits name.
fn low(c: u32, from: u32) -> u32 {
    8 + bits(c, from, 3, 0)
}

fn rd(c: u32) -> u32 {
    bits(c, 7, 5, 0)
}

fn rs2(c: u32) -> u32 {
    bits(c, 2, 5, 0)
}

/// Extends the sign of a number of `width` bits.
fn sign(value: u32, width: u32) -> u32 {
    let unused = 32 - width;
    (((value << unused).cast_signed()) >> unused).cast_unsigned()
}

fn imm6(c: u32) -> u32 {
    sign(bits(c, 12, 1, 5) | bits(c, 2, 5, 0), 6)
}

fn word_offset(c: u32) -> u32 {
    bits(c, 10, 3, 3) | bits(c, 6, 1, 2) | bits(c, 5, 1, 6)
}

fn double_offset(c: u32) -> u32 {
    bits(c, 10, 3, 3) | bits(c, 5, 2, 6)
}

fn branch_offset(c: u32) -> u32 {
    let imm = bits(c, 12, 1, 8)
        | bits(c, 10, 2, 3)
        | bits(c, 5, 2, 6)
        | bits(c, 3, 2, 1)
        | bits(c, 2, 1, 5);
    sign(imm, 9)
}

fn r_type(funct7: u32, rs2: u32, rs1: u32, funct3: u32, rd: u32, opcode: u32) -> u32 {
    (funct7 << 25) | (rs2 << 20) | (rs1 << 15) | (funct3 << 12) | (rd << 7) | opcode
}

fn i_type(imm: u32, rs1: u32, funct3: u32, rd: u32, opcode: u32) -> u32 {
    (imm << 20) | (rs1 << 15) | (funct3 << 12) | (rd << 7) | opcode
}

fn s_type(imm: u32, rs2: u32, rs1: u32, funct3: u32) -> u32 {
    r_type(
        bits(imm, 5, 7, 0),
        rs2,
        rs1,
        funct3,
        bits(imm, 0, 5, 0),
        STORE,
    )
}

fn b_type(imm: u32, rs1: u32, rs2: u32, funct3: u32) -> u32 {
    let high = bits(imm, 12, 1, 6) | bits(imm, 5, 6, 0);
    let low = bits(imm, 1, 4, 1) | bits(imm, 11, 1, 0);
    r_type(high, rs2, rs1, funct3, low, BRANCH)
}

fn j_type(imm: u32, rd: u32) -> u32 {
    bits(imm, 20, 1, 31)
        | bits(imm, 1, 10, 21)
        | bits(imm, 11, 1, 20)
        | bits(imm, 12, 8, 12)
        | (rd << 7)
        | JAL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of encodings from GNU as 2.40 with and without `.option norvc`.
    #[test]
    fn each_form_expands_to_what_the_assembler_writes() {
        for (half, word, text) in [
            (0x0068, 0x00c1_0513, "addi a0, sp, 12"),
            (0x41c8, 0x0045_a503, "lw a0, 4(a1)"),
            (0x7dfc, 0x0f85_b783, "ld a5, 248(a1)"),
            (0xc1c8, 0x00a5_a223, "sw a0, 4(a1)"),
            (0xfdfc, 0x0ef5_bc23, "sd a5, 248(a1)"),
            (0x0001, 0x0000_0013, "nop"),
            (0x157d, 0xfff5_0513, "addi a0, a0, -1"),
            (0x357d, 0xfff5_051b, "addiw a0, a0, -1"),
            (0x5501, 0xfe00_0513, "li a0, -32"),
            (0x7139, 0xfc01_0113, "addi sp, sp, -64"),
            (0x757d, 0xffff_f537, "lui a0, 0xfffff"),
            (0x9101, 0x0205_5513, "srli a0, a0, 32"),
            (0x857d, 0x41f5_5513, "srai a0, a0, 31"),
            (0x8979, 0x01e5_7513, "andi a0, a0, 30"),
            (0x8d0d, 0x40b5_0533, "sub a0, a0, a1"),
            (0x8d2d, 0x00b5_4533, "xor a0, a0, a1"),
            (0x8d4d, 0x00b5_6533, "or a0, a0, a1"),
            (0x8d6d, 0x00b5_7533, "and a0, a0, a1"),
            (0x9d0d, 0x40b5_053b, "subw a0, a0, a1"),
            (0x9d2d, 0x00b5_053b, "addw a0, a0, a1"),
            (0x1502, 0x0205_1513, "slli a0, a0, 32"),
            (0x4532, 0x00c1_2503, "lw a0, 12(sp)"),
            (0x6562, 0x0181_3503, "ld a0, 24(sp)"),
            (0x8082, 0x0000_8067, "ret"),
            (0x852e, 0x00b0_0533, "add a0, zero, a1"),
            (0x9002, 0x0010_0073, "ebreak"),
            (0x9502, 0x0005_00e7, "jalr a0"),
            (0x952e, 0x00b5_0533, "add a0, a0, a1"),
            (0xc62a, 0x00a1_2623, "sw a0, 12(sp)"),
            (0xec2a, 0x00a1_3c23, "sd a0, 24(sp)"),
        ] {
            assert_eq!(expand(half), Some(word), "{half:#06x} {text}: {word:#010x}");
        }
    }

    #[test]
    fn jumps_keep_their_offsets() {
        // `j .+0x7fe`, `j .-0x800`, `beqz s0, .+0xfe`, `bnez s0, .-0x100`.
        let check = |half, word| assert_eq!(expand(half), Some(word), "{half:#06x}");
        check(0xaffd, 0x7fe0_006f);
        check(0xb001, 0x801f_f06f);
        check(0xcc7d, 0x0e04_0f63);
        check(0xf001, 0xf004_10e3);
    }

    #[test]
    fn reserved_and_floating_point_forms_are_refused() {
        for (half, why) in [
            (0x0000, "the defined illegal instruction"),
            (0x0004, "C.ADDI4SPN with immediate 0"),
            (0x2000, "C.FLD"),
            (0xa000, "C.FSD"),
            (0x8000, "reserved in quadrant 0"),
            (0x2001, "C.ADDIW of x0"),
            (0x6101, "C.ADDI16SP with immediate 0"),
            (0x6501, "C.LUI with immediate 0"),
            (0x9c41, "reserved operation of two registers"),
            (0x9c61, "reserved operation of two registers"),
            (0x2002, "C.FLDSP"),
            (0xa002, "C.FSDSP"),
            (0x4002, "C.LWSP to x0"),
            (0x6002, "C.LDSP to x0"),
            (0x8002, "C.JR of x0"),
        ] {
            assert_eq!(expand(half), None, "{half:#06x}: {why}");
        }
    }
}
