//! Parts of integers, and lossless integer conversions.

const _: () = assert!(usize::BITS == 64, "sizes are 64 bits wide");

/// A number of 64 bits as a size.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a size has 64 bits: asserted above"
)]
pub(crate) const fn size(number: u64) -> usize {
    number as usize
}

/// A constant size as a number of 32 bits. A larger size is a compile-time error.
#[expect(
    clippy::cast_possible_truncation,
    reason = "asserted in the line before"
)]
pub(crate) const fn constant(size: usize) -> u32 {
    assert!(size <= u32::MAX as usize, "the constant has 32 bits");
    size as u32
}

/// The low 32 bits of a number.
pub(crate) const fn low32(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The low 16 bits of a counter.
pub(crate) const fn low16(counter: u32) -> u16 {
    let [a, b, ..] = counter.to_le_bytes();
    u16::from_le_bytes([a, b])
}
