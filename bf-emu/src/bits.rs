//! Parts of numbers, and conversions that lose nothing.

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
