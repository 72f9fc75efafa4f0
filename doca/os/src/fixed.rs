//! Fixed-point functions of the processor, on numbers in the format Q16.16.

use dpa_dev::intrinsics::Operation;

const ONE: u64 = 1 << 16;

/// The result of a fixed-point operation; `None` for another operation. A result beyond the format is the largest number.
pub(crate) fn apply(operation: Operation, x: u64) -> Option<u64> {
    let x = x & 0xffff_ffff;
    Some(match operation {
        Operation::FxpRcp => reciprocal(x),
        Operation::FxpPow2 => power(x),
        Operation::FxpLog2 => logarithm(x),
        _ => return None,
    })
}

fn reciprocal(x: u64) -> u64 {
    (1u64 << 32)
        .checked_div(x)
        .map_or(u64::from(u32::MAX), |value| value.min(u64::from(u32::MAX)))
}

/// 2 to the power of `x`, by the product of the powers of its bits below the point.
fn power(x: u64) -> u64 {
    let (whole, mut rest) = (x >> 16, x & 0xffff);
    if whole >= 16 {
        return u64::from(u32::MAX);
    }
    // The root of the root ... of 2, in Q32.
    let mut root = 2u128 << 32;
    let mut product = 1u128 << 32;
    for _ in 0..16 {
        root = square_root(root << 32);
        rest <<= 1;
        if rest & 0x1_0000 != 0 {
            product = (product * root) >> 32;
        }
        rest &= 0xffff;
    }
    let shifted = (product << whole) >> 16;
    u64::try_from(shifted)
        .unwrap_or(u64::MAX)
        .min(u64::from(u32::MAX))
}

/// The logarithm to base 2, by squaring. That of 0 is 0, and of numbers below 1 the two's complement of 32 bits.
fn logarithm(x: u64) -> u64 {
    if x == 0 {
        return 0;
    }
    let whole = i64::from(63 - x.leading_zeros()) - 16;
    // The number between 1 and 2, in Q31.
    let mut mantissa = u128::from(x) << (31 - (whole + 16));
    let mut fraction = 0i64;
    for _ in 0..16 {
        mantissa = (mantissa * mantissa) >> 31;
        fraction <<= 1;
        if mantissa >= 2 << 31 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    let value = whole * ONE.cast_signed() + fraction;
    value.cast_unsigned() & 0xffff_ffff
}

fn square_root(value: u128) -> u128 {
    value.isqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result beside the one of double precision.
    #[track_caller]
    fn check(operation: Operation, x: f64, expect: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small number"
        )]
        let input = (x * 65536.0) as u64;
        let result = apply(operation, input).expect("an operation");
        let result = f64::from(u32::try_from(result).expect("32 bits").cast_signed()) / 65536.0;
        assert!(
            (result - expect).abs() <= 3.0 / 65536.0 * expect.abs().max(1.0),
            "{x}: {result} {expect}"
        );
    }

    #[test]
    fn functions_are_near_those_of_double_precision() {
        for x in [0.015625, 0.3, 1.0, 1.5, 2.0, 3.25, 7.9, 14.5] {
            check(Operation::FxpRcp, x, 1.0 / x);
            check(Operation::FxpPow2, x, x.exp2());
            check(Operation::FxpLog2, x, x.log2());
        }
        assert_eq!(apply(Operation::FxpRcp, 0), Some(0xffff_ffff));
        assert_eq!(apply(Operation::FxpPow2, 16 << 16), Some(0xffff_ffff));
        assert_eq!(apply(Operation::FxpLog2, 0), Some(0));
        assert_eq!(apply(Operation::Fence, 5), None);
    }
}
