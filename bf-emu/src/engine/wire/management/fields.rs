//! Fields of a message by their offset behind the common header, and those of the header.

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 256;

/// Bytes of the common header.
const HEADER_BYTES: usize = 24;
/// Offsets in it.
const TRANSACTION_AT: usize = 8;
const ATTRIBUTE_AT: usize = 16;
const MODIFIER_AT: usize = 20;

/// The bytes of a message.
pub(super) struct Fields([u8; MESSAGE_BYTES]);

impl Fields {
    /// None for another length than that of all messages.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Zeroes behind the start of a header.
    pub(super) fn new(start: [u8; 4], transaction: u64) -> Self {
        let mut fields = Self([0; MESSAGE_BYTES]);
        fields.put_at(0, &start);
        fields.put_at(TRANSACTION_AT, &transaction.to_be_bytes());
        fields
    }

    pub(super) fn bytes(self) -> [u8; MESSAGE_BYTES] {
        self.0
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let part = self.0.get(at..).and_then(<[u8]>::first_chunk);
        part.copied().unwrap_or([0; N])
    }

    fn put_at(&mut self, at: usize, value: &[u8]) {
        if let Some(target) = self.0.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
    }

    /// Base version, class, class version and method.
    pub(super) fn header(&self) -> [u8; 4] {
        self.array(0)
    }

    pub(super) fn transaction(&self) -> u64 {
        u64::from_be_bytes(self.array(TRANSACTION_AT))
    }

    pub(super) fn attribute(&self) -> u16 {
        u16::from_be_bytes(self.array(ATTRIBUTE_AT))
    }

    pub(super) fn put_attribute(&mut self, attribute: u16) {
        self.put_at(ATTRIBUTE_AT, &attribute.to_be_bytes());
    }

    pub(super) fn modifier(&self) -> u32 {
        u32::from_be_bytes(self.array(MODIFIER_AT))
    }

    pub(super) fn put_modifier(&mut self, modifier: u32) {
        self.put_at(MODIFIER_AT, &modifier.to_be_bytes());
    }

    pub(super) fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.array(HEADER_BYTES + at)
    }

    pub(super) fn put(&mut self, at: usize, value: &[u8]) {
        self.put_at(HEADER_BYTES + at, value);
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        let [byte] = self.get(at);
        byte
    }

    pub(super) fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.get(at))
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.get(at))
    }

    pub(super) fn long(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.get(at))
    }

    /// A number of 24 bits.
    pub(super) fn low(&self, at: usize) -> u32 {
        let [a, b, c] = self.get(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub(super) fn put_low(&mut self, at: usize, value: u32) {
        let [_, low @ ..] = value.to_be_bytes();
        self.put(at, &low);
    }

    /// `width` bits of a byte. The standard counts bits from the highest one.
    pub(super) fn part(&self, at: usize, first: u32, width: u32) -> u8 {
        self.byte(at) >> (8 - first - width) & mask(width)
    }

    pub(super) fn put_part(&mut self, at: usize, first: u32, width: u32, value: u8) {
        let shift = 8 - first - width;
        let others = self.byte(at) & !(mask(width) << shift);
        self.put(at, &[others | (value & mask(width)) << shift]);
    }
}

fn mask(width: u32) -> u8 {
    u8::MAX >> (8 - width)
}
