//! What travels: a read for the program, and where other services read.

use std::cell::RefCell;

/// Where another service reads memory: the alias, and the target of dynamic connections through which it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct Target {
    pub(super) key: u32,
    pub(super) number: u32,
    pub(super) lid: u16,
    pub(super) access: u64,
}

impl Target {
    const MARK: [u8; 8] = *b"xgvmidpa";
    pub(in crate::service) const BYTES: usize = 26;

    /// The target behind a packed key; `None` if the service that packed it has no DPA.
    pub(in crate::service) fn of(packed: &[u8]) -> Option<Self> {
        let (mark, rest) = packed
            .last_chunk::<{ Self::BYTES }>()?
            .split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (lid, access) = rest.split_first_chunk()?;
        (*mark == Self::MARK).then_some(Self {
            key: u32::from_le_bytes(*key),
            number: u32::from_le_bytes(*number),
            lid: u16::from_le_bytes(*lid),
            access: u64::from_le_bytes(access.try_into().ok()?),
        })
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MARK);
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.lid.to_le_bytes());
        bytes[18..].copy_from_slice(&self.access.to_le_bytes());
        bytes
    }
}

/// Blocks that may be under way, as a logarithm.
pub(super) const LOG_BLOCKS: u32 = 8;

/// A notice counts modulo this number; the bit itself reports a failure.
pub(super) const FAILED: u32 = 1 << 30;

/// Numbers of reads that are done and were not taken.
pub(in crate::service) type Ends = RefCell<Vec<u32>>;

/// A read: `struct block` of reads.c.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Block {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) to_key: u32,
    pub(super) bytes: u32,
    pub(super) target: Target,
}

impl Block {
    pub(super) const BYTES: usize = 48;

    pub(super) fn write(&self, to: &mut [u8; Self::BYTES]) {
        let target = &self.target;
        to[..8].copy_from_slice(&self.to.to_le_bytes());
        to[8..16].copy_from_slice(&self.from.to_le_bytes());
        to[16..24].copy_from_slice(&target.access.to_le_bytes());
        to[24..28].copy_from_slice(&self.to_key.to_le_bytes());
        to[28..32].copy_from_slice(&target.key.to_le_bytes());
        to[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        to[36..40].copy_from_slice(&target.number.to_le_bytes());
        to[40..44].copy_from_slice(&u32::from(target.lid).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_stands_behind_a_key() {
        let target = Target {
            key: 0x1234_5600,
            number: 0x8765,
            lid: 77,
            access: 0x1122_3344_5566_7788,
        };
        let mut packed = vec![5; 60];
        assert_eq!(Target::of(&packed), None);
        packed.extend(target.to_bytes());
        assert_eq!(Target::of(&packed), Some(target));
        packed.push(0);
        assert_eq!(Target::of(&packed), None);
        assert_eq!(Target::of(&target.to_bytes()[1..]), None);
    }
}
