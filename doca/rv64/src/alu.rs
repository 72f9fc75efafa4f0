//! Arithmetic that is more than one operator of Rust.
//!
//! Source: RISC-V unprivileged ISA 20240411, the chapters of the extensions "M" (division by zero and overflow) and "B".

use crate::op::Code;

/// The result of an instruction with three registers. `None` for other instructions.
#[inline(always)]
pub(crate) fn three(code: Code, a: u64, b: u64) -> Option<u64> {
    let amount = word(b) & 63;
    let (a_word, b_word) = (word(a), word(b));
    let zero_extended = u64::from(a_word);
    let bit = 1 << amount;
    Some(match code {
        Code::Sllw => extended(a_word << (b_word & 31)),
        Code::Srlw => extended(a_word >> (b_word & 31)),
        Code::Sraw => extended((a_word.cast_signed() >> (b_word & 31)).cast_unsigned()),
        Code::Mulh => mulh(a, b),
        Code::Mulhsu => mulhsu(a, b),
        Code::Mulhu => mulhu(a, b),
        Code::Div => div(a, b),
        Code::Divu => divu(a, b),
        Code::Rem => rem(a, b),
        Code::Remu => remu(a, b),
        Code::Mulw => extended(a_word.wrapping_mul(b_word)),
        Code::Divw => divw(a, b),
        Code::Divuw => divuw(a, b),
        Code::Remw => remw(a, b),
        Code::Remuw => remuw(a, b),
        Code::AddUw => zero_extended.wrapping_add(b),
        Code::Sh1add => (a << 1).wrapping_add(b),
        Code::Sh2add => (a << 2).wrapping_add(b),
        Code::Sh3add => (a << 3).wrapping_add(b),
        Code::Sh1addUw => (zero_extended << 1).wrapping_add(b),
        Code::Sh2addUw => (zero_extended << 2).wrapping_add(b),
        Code::Sh3addUw => (zero_extended << 3).wrapping_add(b),
        Code::Andn => a & !b,
        Code::Orn => a | !b,
        Code::Xnor => !(a ^ b),
        Code::Max => a.cast_signed().max(b.cast_signed()).cast_unsigned(),
        Code::Maxu => a.max(b),
        Code::Min => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
        Code::Minu => a.min(b),
        Code::ZextH => a & 0xffff,
        Code::Rol => a.rotate_left(amount),
        Code::Ror => a.rotate_right(amount),
        Code::Rolw => extended(a_word.rotate_left(b_word & 31)),
        Code::Rorw => extended(a_word.rotate_right(b_word & 31)),
        Code::Bclr => a & !bit,
        Code::Bext => a >> amount & 1,
        Code::Binv => a ^ bit,
        Code::Bset => a | bit,
        _ => return None,
    })
}

/// The result of an instruction with one source and an immediate. `None` for other instructions.
#[inline(always)]
pub(crate) fn immediate(code: Code, a: u64, imm: i32) -> Option<u64> {
    let amount = imm.cast_unsigned() & 63;
    let bit = 1 << amount;
    Some(match code {
        Code::Roriw => extended(word(a).rotate_right(amount)),
        Code::SlliUw => u64::from(word(a)) << amount,
        Code::Clz => a.leading_zeros().into(),
        Code::Ctz => a.trailing_zeros().into(),
        Code::Cpop => a.count_ones().into(),
        Code::Clzw => word(a).leading_zeros().into(),
        Code::Ctzw => word(a).trailing_zeros().into(),
        Code::Cpopw => word(a).count_ones().into(),
        Code::SextB => ((a << 56).cast_signed() >> 56).cast_unsigned(),
        Code::SextH => ((a << 48).cast_signed() >> 48).cast_unsigned(),
        Code::Rori => a.rotate_right(amount),
        Code::OrcB => orc_b(a),
        Code::Rev8 => a.swap_bytes(),
        Code::Bclri => a & !bit,
        Code::Bexti => a >> amount & 1,
        Code::Binvi => a ^ bit,
        Code::Bseti => a | bit,
        Code::Slti => u64::from(a.cast_signed() < i64::from(imm)),
        Code::Xori => a ^ i64::from(imm).cast_unsigned(),
        Code::Ori => a | i64::from(imm).cast_unsigned(),
        _ => return None,
    })
}

/// The upper half of a product of two signed numbers.
pub(crate) fn mulh(a: u64, b: u64) -> u64 {
    upper(i128::from(a.cast_signed()) * i128::from(b.cast_signed()))
}

/// The upper half of the product of a signed and an unsigned number.
pub(crate) fn mulhsu(a: u64, b: u64) -> u64 {
    upper(i128::from(a.cast_signed()) * i128::from(b))
}

/// The upper half of a product of two unsigned numbers.
pub(crate) fn mulhu(a: u64, b: u64) -> u64 {
    upper((u128::from(a) * u128::from(b)).cast_signed())
}

fn upper(product: i128) -> u64 {
    (product.cast_unsigned() >> 64) as u64
}

/// The quotient: all ones for a divisor of 0; the dividend on overflow.
pub(crate) fn div(a: u64, b: u64) -> u64 {
    match b {
        0 => u64::MAX,
        _ => a
            .cast_signed()
            .wrapping_div(b.cast_signed())
            .cast_unsigned(),
    }
}

/// The quotient of unsigned numbers: all ones for a divisor of 0.
pub(crate) fn divu(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

/// The remainder: the dividend for a divisor of 0; 0 on overflow.
pub(crate) fn rem(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => a
            .cast_signed()
            .wrapping_rem(b.cast_signed())
            .cast_unsigned(),
    }
}

/// The remainder of unsigned numbers: the dividend for a divisor of 0.
pub(crate) fn remu(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

/// As [`div`], of words.
pub(crate) fn divw(a: u64, b: u64) -> u64 {
    match word(b) {
        0 => u64::MAX,
        b => extended(
            word(a)
                .cast_signed()
                .wrapping_div(b.cast_signed())
                .cast_unsigned(),
        ),
    }
}

/// As [`divu`], of words.
pub(crate) fn divuw(a: u64, b: u64) -> u64 {
    extended(word(a).checked_div(word(b)).unwrap_or(u32::MAX))
}

/// As [`rem`], of words.
pub(crate) fn remw(a: u64, b: u64) -> u64 {
    match word(b) {
        0 => extended(word(a)),
        b => extended(
            word(a)
                .cast_signed()
                .wrapping_rem(b.cast_signed())
                .cast_unsigned(),
        ),
    }
}

/// As [`remu`], of words.
pub(crate) fn remuw(a: u64, b: u64) -> u64 {
    extended(word(a).checked_rem(word(b)).unwrap_or(word(a)))
}

/// Each byte that is not 0 becomes 255.
pub(crate) fn orc_b(a: u64) -> u64 {
    u64::from_le_bytes(a.to_le_bytes().map(|byte| if byte == 0 { 0 } else { 255 }))
}

/// The lower 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper bits are dropped on purpose"
)]
#[inline(always)]
pub(crate) fn word(value: u64) -> u32 {
    value as u32
}

/// Extends the sign of 32 bits to 64.
#[inline(always)]
pub(crate) fn extended(word: u32) -> u64 {
    i64::from(word.cast_signed()).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = i64::MIN.cast_unsigned();
    const MIN_WORD: u64 = 0xffff_ffff_8000_0000;
    const MINUS: u64 = u64::MAX;

    #[test]
    fn division_by_zero_and_overflow_have_the_standard_results() {
        // The table of the chapter about "M".
        for a in [0, 1, 5, MIN, MINUS] {
            assert_eq!(div(a, 0), MINUS, "{a:#x}");
            assert_eq!(divu(a, 0), MINUS, "{a:#x}");
            assert_eq!(rem(a, 0), a);
            assert_eq!(remu(a, 0), a);
        }
        assert_eq!((div(MIN, MINUS), rem(MIN, MINUS)), (MIN, 0));
        assert_eq!((div(7, MINUS - 1), rem(7, MINUS - 1)), (MINUS - 2, 1));
        assert_eq!((div(MINUS - 6, 2), rem(MINUS - 6, 2)), (MINUS - 2, MINUS));
        assert_eq!(
            (divu(MINUS, 2), remu(MINUS, 2)),
            (i64::MAX.cast_unsigned(), 1)
        );
    }

    #[test]
    fn division_of_words_extends_the_sign() {
        // Upper bits of the operands do not count.
        let dirty = |word: u64| word & 0xffff_ffff | 0xdead_beef << 32;
        assert_eq!(divw(dirty(5), dirty(0)), MINUS);
        assert_eq!(divuw(dirty(5), dirty(0)), MINUS);
        assert_eq!(remw(dirty(MIN_WORD), dirty(0)), MIN_WORD);
        assert_eq!(remuw(dirty(MIN_WORD), dirty(0)), MIN_WORD);
        assert_eq!(divw(dirty(MIN_WORD), dirty(MINUS)), MIN_WORD);
        assert_eq!(remw(dirty(MIN_WORD), dirty(MINUS)), 0);
        assert_eq!(divuw(dirty(MINUS), dirty(1)), MINUS);
        assert_eq!(remuw(dirty(7), dirty(4)), 3);
    }

    #[test]
    fn products_have_upper_halves() {
        assert_eq!(mulh(MINUS, MINUS), 0);
        assert_eq!(mulh(MIN, MIN), 1 << 62);
        assert_eq!(mulhu(MINUS, MINUS), MINUS - 1);
        assert_eq!(mulhsu(MINUS, MINUS), MINUS);
        assert_eq!(mulhsu(1, MINUS), 0);
        assert_eq!(mulhsu(MIN, 2), MINUS);
    }

    #[test]
    fn bytes_are_spread() {
        assert_eq!(orc_b(0x0100_8000_0000_ff01), 0xff00_ff00_0000_ffff);
    }
}
