//! Fixed-point functions of the processor. Numbers have 16 bits of fraction. No document states how the processor rounds; here
//! results are rounded down, and those that do not fit are the largest number.

/// One as a Q2.62 number.
const ONE: u64 = 1 << 62;

/// 2 to the power of 2^-1, 2^-2, ... 2^-16, with 62 bits of fraction.
const ROOTS: [u64; 16] = [
    0x5a82_7999_fcef_3242,
    0x4c1b_f828_c6dc_54b8,
    0x45ca_e0f1_f545_eb73,
    0x42d5_61b3_e624_3d8a,
    0x4166_c34c_5615_d0ec,
    0x40b2_68f9_de01_83ba,
    0x4058_f6a7_eccc_d5b6,
    0x402c_6be9_6af2_fb58,
    0x4016_321b_6870_27a8,
    0x400b_1817_8ba3_3b14,
    0x4005_8bce_4101_47e8,
    0x4002_c5d7_bff7_1daf,
    0x4001_62e8_07ee_7e5b,
    0x4000_b173_0df6_a524,
    0x4000_58b9_497b_8152,
    0x4000_2c5c_955d_d701,
];

/// Number of [`pow2`] for [`Service::Intrinsic`](crate::Service::Intrinsic).
pub const POW2: u64 = 1;
/// Number of [`log2`].
pub const LOG2: u64 = 2;

/// The function with a number.
#[must_use]
pub fn by_number(number: u64, x: u32) -> Option<u32> {
    match number {
        POW2 => Some(pow2(x)),
        LOG2 => Some(log2(x)),
        _ => None,
    }
}

/// 1 / x. Of an integer, the result has 32 bits of fraction.
#[must_use]
pub fn recip(x: u32) -> u32 {
    u32::try_from((1_u64 << 32) / u64::from(x.max(1))).unwrap_or(u32::MAX)
}

/// 2^x.
#[must_use]
pub fn pow2(x: u32) -> u32 {
    let whole = x >> 16;
    if whole > 15 {
        return u32::MAX;
    }
    let mut power = ONE;
    for (bit, root) in (0..16).rev().zip(ROOTS) {
        if x & (1 << bit) != 0 {
            power = product(power, root);
        }
    }
    u32::try_from(power >> (62 - 16 - whole)).unwrap_or(u32::MAX)
}

/// The logarithm of x to base 2, a signed number; that of 0 is the smallest integer, -32768.
#[must_use]
pub fn log2(x: u32) -> u32 {
    if x == 0 {
        return 1 << 31;
    }
    let top = 31 - x.leading_zeros();
    let mut mantissa = u64::from(x) << (62 - top);
    let mut result = top.wrapping_sub(16);
    for _ in 0..16 {
        mantissa = product(mantissa, mantissa);
        let is_two = mantissa >> 63 != 0;
        mantissa >>= u32::from(is_two);
        result = result << 1 | u32::from(is_two);
    }
    result
}

#[expect(clippy::cast_possible_truncation, reason = "both factors are below 2")]
fn product(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 62) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u32 = 1 << 16;

    #[test]
    fn powers_of_two_are_exact() {
        for bit in 1..32 {
            assert_eq!(recip(1 << bit), 1 << (32 - bit));
        }
        for power in 0..16 {
            assert_eq!(pow2(power << 16), UNIT << power);
        }
        for power in 0_u32..32 {
            assert_eq!(log2(1 << power), power.wrapping_sub(16) << 16);
        }
    }

    #[test]
    fn results_that_do_not_fit_are_the_largest_or_the_smallest() {
        assert_eq!((recip(0), recip(1)), (u32::MAX, u32::MAX));
        assert_eq!((pow2(16 << 16), pow2(u32::MAX)), (u32::MAX, u32::MAX));
        assert_eq!(log2(0), 0x8000_0000);
    }

    #[test]
    fn results_are_rounded_down() {
        // Three are 0x55555555.55...; 3.0 as a fraction has the reciprocal 0x5555.
        assert_eq!((recip(3), recip(3 * UNIT)), (0x5555_5555, 0x5555));
        // sqrt 2 = 1.41421356 and log2 3 = 1.5849625.
        assert_eq!(pow2(UNIT / 2), 92_681);
        assert_eq!(log2(3 * UNIT), 103_872);
    }

    #[test]
    fn powers_and_logarithms_agree_with_those_of_f64() {
        let unit = f64::from(UNIT);
        for step in 0..40_000_u32 {
            let x = step * 26;
            let exact = (f64::from(x) / unit).exp2() * unit;
            let found = f64::from(pow2(x));
            assert!(
                found <= exact + 1e-6 && exact < found + 1.0 + 1e-6,
                "2^{x}: {found}, {exact}"
            );
            let y = step.wrapping_mul(104_729) | 1;
            let exact = (f64::from(y) / unit).log2() * unit;
            let found = f64::from(log2(y).cast_signed());
            assert!(
                found <= exact + 1e-6 && exact < found + 1.0 + 1e-6,
                "log2 {y}: {found}, {exact}"
            );
        }
    }
}
