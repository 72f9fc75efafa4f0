//! Intrinsics: instructions with the opcode custom-0.

/// Opcode custom-0, the low seven bits of an instruction.
pub const OPCODE: u32 = 0x0b;

/// Operation of an intrinsic, the field `funct7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Orders accesses. `rs1` holds the memory space in bits 0 to 7, the kinds of accesses before the fence in bits 8 to
    /// 15, and those after it in bits 16 to 23.
    Fence = 0x01,
    /// Writes the thread's changes of window memory back, so that the host sees them.
    WindowWriteback = 0x02,
    /// Drops cached window memory, so that the next read meets what the host has written.
    WindowReadInv = 0x03,
    /// Writes the thread's changes of DPA memory back.
    MemoryWriteback = 0x04,
    /// Drops the cache line with the address in `rs1` without writing it back.
    DataIgnore = 0x05,
    /// Reciprocal of the Q16.16 number in `rs1`.
    FxpRcp = 0x10,
    /// 2 to the power of the Q16.16 number in `rs1`.
    FxpPow2 = 0x11,
    /// Logarithm to base 2 of the Q16.16 number in `rs1`.
    FxpLog2 = 0x12,
}

use Operation::{
    DataIgnore, Fence, FxpLog2, FxpPow2, FxpRcp, MemoryWriteback, WindowReadInv, WindowWriteback,
};

/// All operations, and the macro by which the C headers name each.
pub const OPERATIONS: &[(Operation, &str)] = &[
    (Fence, "DPA_OP_FENCE"),
    (WindowWriteback, "DPA_OP_WINDOW_WRITEBACK"),
    (WindowReadInv, "DPA_OP_WINDOW_READ_INV"),
    (MemoryWriteback, "DPA_OP_MEMORY_WRITEBACK"),
    (DataIgnore, "DPA_OP_DATA_IGNORE"),
    (FxpRcp, "DPA_OP_FXP_RCP"),
    (FxpPow2, "DPA_OP_FXP_POW2"),
    (FxpLog2, "DPA_OP_FXP_LOG2"),
];

/// Memory spaces of a fence, and the macro of each.
pub const SPACES: &[(u8, &str)] = &[
    (1, "__DPA_HEAP"),
    (2, "__DPA_MEMORY"),
    (3, "__DPA_MMIO"),
    (4, "__DPA_SYSTEM"),
];

/// Kinds of accesses of a fence, and the macro of each.
pub const ACCESSES: &[(u8, &str)] = &[(1, "__DPA_R"), (2, "__DPA_W"), (3, "__DPA_RW")];

/// A decoded intrinsic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intrinsic {
    /// The operation.
    pub operation: Operation,
    /// Register of the result.
    pub rd: u8,
    /// Register of the first operand.
    pub rs1: u8,
    /// Register of the second operand.
    pub rs2: u8,
}

/// Decodes an instruction; `None` if it is not an intrinsic.
#[must_use]
pub fn decode(instruction: u32) -> Option<Intrinsic> {
    let field = |low: u32, bits: u32| ((instruction >> low) & ((1 << bits) - 1)).to_le_bytes()[0];
    let funct7 = field(25, 7);
    let operation = OPERATIONS
        .iter()
        .map(|(operation, _)| *operation)
        .find(|operation| *operation as u8 == funct7)?;
    let known = instruction & 0x7f == OPCODE && field(12, 3) == 0;
    known.then_some(Intrinsic {
        operation,
        rd: field(7, 5),
        rs1: field(15, 5),
        rs2: field(20, 5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_decoded_by_its_fields() {
        // .insn r 0x0b, 0, 0x10, a0, a1, zero
        let word = 0x0b | (10 << 7) | (11 << 15) | (0x10 << 25);
        let expect = Intrinsic {
            operation: Operation::FxpRcp,
            rd: 10,
            rs1: 11,
            rs2: 0,
        };
        assert_eq!(decode(word), Some(expect));
        for other in [0x13, word | (1 << 12), word | (0x40 << 25), word ^ 0x20] {
            assert_eq!(decode(other), None, "{other:#x}");
        }
    }
}
