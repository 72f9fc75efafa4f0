//! Decoded instructions: eight bytes each, one per halfword of code.

/// What an instruction does. Names are the assembler's mnemonics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Code {
    /// Not decoded yet.
    #[default]
    Fresh,
    /// No instruction of this processor. `imm` has the length only; the word is read again for the trap.
    Illegal,
    Lui,
    Auipc,
    Jal,
    Jalr,
    Beq,
    Bne,
    Blt,
    Bge,
    Bltu,
    Bgeu,
    Lb,
    Lh,
    Lw,
    Ld,
    Lbu,
    Lhu,
    Lwu,
    Sb,
    Sh,
    Sw,
    Sd,
    Addi,
    Slti,
    Sltiu,
    Xori,
    Ori,
    Andi,
    Slli,
    Srli,
    Srai,
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
    Addiw,
    Slliw,
    Srliw,
    Sraiw,
    Addw,
    Subw,
    Sllw,
    Srlw,
    Sraw,
    Fence,
    FenceI,
    Ecall,
    Ebreak,
    Csr,
    Custom0,
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
    Mulw,
    Divw,
    Divuw,
    Remw,
    Remuw,
    Lr,
    Sc,
    Amo,
    AddUw,
    Sh1add,
    Sh2add,
    Sh3add,
    Sh1addUw,
    Sh2addUw,
    Sh3addUw,
    SlliUw,
    Andn,
    Orn,
    Xnor,
    Clz,
    Ctz,
    Cpop,
    Clzw,
    Ctzw,
    Cpopw,
    Max,
    Maxu,
    Min,
    Minu,
    SextB,
    SextH,
    ZextH,
    Rol,
    Ror,
    Rori,
    Rolw,
    Rorw,
    Roriw,
    OrcB,
    Rev8,
    Bclr,
    Bext,
    Binv,
    Bset,
    Bclri,
    Bexti,
    Binvi,
    Bseti,
}

/// The register that results for `x0` go to. Nothing reads it.
pub(crate) const SINK: u8 = 32;

/// A decoded instruction.
///
/// Its length in halfwords (1 or 2) is in the field that its form does not use: `imm` of the form with three registers,
/// `rd` of stores and branches, `rs2` of the others. Offsets of jumps and branches are in halfwords.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Op {
    pub(crate) code: Code,
    pub(crate) rd: u8,
    pub(crate) rs1: u8,
    pub(crate) rs2: u8,
    pub(crate) imm: i32,
}

const _: () = assert!(size_of::<Op>() == 8);

impl Op {
    /// `rd` and two sources. `length` is in halfwords, here and below.
    pub(crate) fn three(code: Code, rd: u8, rs1: u8, rs2: u8, length: u8) -> Self {
        Self {
            code,
            rd: target(rd),
            rs1,
            rs2,
            imm: i32::from(length),
        }
    }

    /// `rd`, a source and an immediate.
    pub(crate) fn immediate(code: Code, rd: u8, rs1: u8, imm: i32, length: u8) -> Self {
        Self {
            code,
            rd: target(rd),
            rs1,
            rs2: length,
            imm,
        }
    }

    /// Two sources and an immediate: stores and branches.
    pub(crate) fn sources(code: Code, rs1: u8, rs2: u8, imm: i32, length: u8) -> Self {
        Self {
            code,
            rd: length,
            rs1,
            rs2,
            imm,
        }
    }

    /// An instruction without operands that the processor acts upon.
    pub(crate) fn plain(code: Code, length: u8) -> Self {
        Self::immediate(code, 0, 0, 0, length)
    }
}

fn target(rd: u8) -> u8 {
    if rd == 0 { SINK } else { rd }
}
