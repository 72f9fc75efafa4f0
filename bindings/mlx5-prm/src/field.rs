//! Big-endian bit fields of PRM structures.

/// One field: its first bit, counted from the most significant bit of the first byte, and its width
/// in bits (1 to 64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    bit: u32,
    width: u32,
}

impl Field {
    /// A field of `width` bits at `bit`, counted as in the PRM.
    ///
    /// # Panics
    /// At compile time, if the width of a constant is not 1 to 64.
    #[must_use]
    pub const fn new(bit: u32, width: u32) -> Self {
        assert!(width >= 1 && width <= 64, "a field is 1 to 64 bits wide");
        Self { bit, width }
    }

    /// The same field of a structure that starts at byte `base` of another structure.
    #[must_use]
    pub const fn within(self, base: u32) -> Self {
        Self {
            bit: self.bit + base * 8,
            width: self.width,
        }
    }

    /// The field's value. Bytes beyond the end of the mailbox read as zero, as the device pads
    /// them.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        let mut value: u128 = 0;
        for index in self.first_byte()..=self.last_byte() {
            value = value << 8 | u128::from(bytes.get(index).copied().unwrap_or(0));
        }
        let value = value >> self.shift() & self.mask();
        u64::try_from(value).expect("the mask has at most 64 bits")
    }

    /// The value of a field of at most 32 bits, see [`Field::get`].
    ///
    /// # Panics
    /// If the field is wider. Fields are constants, so the first use shows it.
    #[must_use]
    pub fn get32(self, bytes: &[u8]) -> u32 {
        assert!(self.width <= 32, "a field of {} bits", self.width);
        let [b0, b1, b2, b3, ..] = self.get(bytes).to_le_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    }

    /// The value of a field of at most 16 bits, see [`Field::get32`].
    ///
    /// # Panics
    /// If the field is wider.
    #[must_use]
    pub fn get16(self, bytes: &[u8]) -> u16 {
        assert!(self.width <= 16, "a field of {} bits", self.width);
        let [b0, b1, ..] = self.get(bytes).to_le_bytes();
        u16::from_le_bytes([b0, b1])
    }

    /// The value of a field of at most 8 bits, see [`Field::get32`].
    ///
    /// # Panics
    /// If the field is wider.
    #[must_use]
    pub fn get8(self, bytes: &[u8]) -> u8 {
        assert!(self.width <= 8, "a field of {} bits", self.width);
        let [byte, ..] = self.get(bytes).to_le_bytes();
        byte
    }

    /// Writes the field and preserves its neighbours. Truncates bits of `value` above the width. If
    /// the field is outside `bytes`, writes nothing and returns false.
    #[must_use = "a field outside of the buffer is not written"]
    pub fn set(self, bytes: &mut [u8], value: u64) -> bool {
        if self.last_byte() >= bytes.len() {
            return false;
        }
        let mut mask = self.mask() << self.shift();
        let mut value = (u128::from(value) & self.mask()) << self.shift();
        for index in (self.first_byte()..=self.last_byte()).rev() {
            let (keep, put) = (low_byte(mask), low_byte(value));
            bytes[index] = bytes[index] & !keep | put;
            mask >>= 8;
            value >>= 8;
        }
        true
    }

    /// True if any bit of the field is set.
    #[must_use]
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    const fn first_byte(self) -> usize {
        (self.bit / 8) as usize
    }

    const fn last_byte(self) -> usize {
        ((self.bit + self.width - 1) / 8) as usize
    }

    const fn shift(self) -> u32 {
        7 - (self.bit + self.width - 1) % 8
    }

    const fn mask(self) -> u128 {
        (1 << self.width) - 1
    }
}

const fn low_byte(value: u128) -> u8 {
    value.to_le_bytes()[0]
}

/// Declares documented [`Field`] constants: `NAME = bit, width; "description"`.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident = $bit:expr, $width:expr;)*) => {
        $($(#[$meta])* pub const $name: $crate::Field = $crate::Field::new($bit, $width);)*
    };
}
pub(crate) use fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(field: Field, value: u64, expect: &[u8]) {
        let mut bytes = [0u8; 16];
        assert!(field.set(&mut bytes, value));
        assert_eq!(&bytes[..expect.len()], expect);
        assert!(bytes[expect.len()..].iter().all(|&byte| byte == 0));
        assert_eq!(field.get(&bytes), value);
        // Zeroing a field in a buffer of ones preserves all other bits.
        let mut ones = [0xffu8; 16];
        assert!(field.set(&mut ones, 0));
        let left: u32 = ones.iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(left, field.width);
    }

    #[test]
    fn fields_read_back_what_they_wrote() {
        check(Field::new(0, 16), 0x0b16, &[0x0b, 0x16]);
        check(
            Field::new(0x48, 24),
            0x12_3456,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56],
        );
        check(Field::new(3, 1), 1, &[0x10]);
        check(Field::new(6, 3), 5, &[0x02, 0x80]);
        check(
            Field::new(0, 64),
            0x0102_0304_0506_0708,
            &[1, 2, 3, 4, 5, 6, 7, 8],
        );
        check(
            Field::new(4, 64),
            u64::MAX,
            &[15, 255, 255, 255, 255, 255, 255, 255, 240],
        );
    }

    #[test]
    fn a_short_buffer_reads_as_zero_and_is_not_written() {
        let field = Field::new(0x20, 32);
        assert_eq!(field.get(&[0xff; 6]), 0xffff_0000);
        let mut short = [0u8; 7];
        assert!(!field.set(&mut short, 1));
        assert_eq!(short, [0; 7]);
    }

    #[test]
    fn a_value_too_wide_is_cut() {
        let mut bytes = [0u8; 1];
        assert!(Field::new(4, 4).set(&mut bytes, 0x1f));
        assert_eq!(bytes, [0x0f]);
    }
}
