//! Index entries of a store: which generations of a block it holds, and where. Does no I/O.
//!
//! ```text
//! entry of a block: two slots of 32 bytes
//! 0 generation (8)   8 offset (8)   16 bytes of the record (4)   20 form (1), settled (1), zero (6)   28 CRC32C (4)
//! ```
//!
//! The CRC covers the block's number and the first 28 bytes of the slot. Numbers are big endian.

use super::space::Extent;
use crate::block::Kind;

/// Bytes of a block's entry.
pub(super) const ENTRY: usize = 64;
const SLOT: usize = ENTRY / 2;
const CRC_AT: usize = 28;

/// A generation of a block that a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) generation: u64,
    /// Where its record is. None if the block is all zeros.
    pub(super) extent: Option<Extent>,
    pub(super) kind: Kind,
    /// The generation is committed.
    pub(super) settled: bool,
}

/// The generations of one block, the newest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slots: [Option<Slot>; 2],
}

impl Entry {
    pub(super) fn get(&self, generation: u64) -> Option<Slot> {
        let mut slots = self.slots.iter().flatten();
        slots.find(|slot| slot.generation == generation).copied()
    }

    pub(super) fn to_bytes(self, block: u64) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        for (slot, part) in self.slots.iter().zip(bytes.chunks_exact_mut(SLOT)) {
            if let Some(slot) = slot {
                part.copy_from_slice(&slot.to_bytes(block));
            }
        }
        bytes
    }

    /// Parses an entry. The number counts slots that are damaged: they count as absent.
    pub(super) fn parse(block: u64, bytes: &[u8; ENTRY]) -> (Self, u64) {
        let mut entry = Self::default();
        let mut damaged = 0;
        for (slot, part) in entry.slots.iter_mut().zip(bytes.as_chunks::<SLOT>().0) {
            match Slot::parse(block, part) {
                Ok(parsed) => *slot = parsed,
                Err(Damaged) => damaged += 1,
            }
        }
        (entry, damaged)
    }
}

struct Damaged;

impl Slot {
    fn to_bytes(self, block: u64) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&self.generation.to_be_bytes());
        if let Some(extent) = self.extent {
            bytes[8..16].copy_from_slice(&extent.offset.to_be_bytes());
            // Cannot be cut: a record has less than 2^20 bytes.
            let length = u32::try_from(extent.length).unwrap_or(u32::MAX);
            bytes[16..20].copy_from_slice(&length.to_be_bytes());
        }
        bytes[20] = self.kind as u8;
        bytes[21] = u8::from(self.settled);
        let crc = checksum(block, &bytes);
        bytes[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn parse(block: u64, bytes: &[u8; SLOT]) -> Result<Option<Self>, Damaged> {
        if bytes == &[0; SLOT] {
            return Ok(None);
        }
        let be32 = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        if be32(CRC_AT) != checksum(block, bytes) {
            return Err(Damaged);
        }
        let kind = Kind::of(bytes[20]).ok_or(Damaged)?;
        let extent = match be32(16) {
            0 => None,
            length => Some(Extent {
                offset: be64(8),
                length: u64::from(length),
            }),
        };
        if extent.is_none() != (kind == Kind::Zero) {
            return Err(Damaged);
        }
        Ok(Some(Self {
            generation: be64(0),
            extent,
            kind,
            settled: bytes[21] != 0,
        }))
    }
}

fn checksum(block: u64, bytes: &[u8; SLOT]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block.to_be_bytes()), &bytes[..CRC_AT])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY_OF_TWO: Entry = Entry {
        slots: [
            Some(Slot {
                generation: 9,
                extent: Some(Extent {
                    offset: 4096,
                    length: 100,
                }),
                kind: Kind::Lz4,
                settled: false,
            }),
            Some(Slot {
                generation: 3,
                extent: None,
                kind: Kind::Zero,
                settled: true,
            }),
        ],
    };

    #[test]
    fn an_entry_comes_back_for_its_own_block() {
        let bytes = ENTRY_OF_TWO.to_bytes(7);
        assert_eq!(Entry::parse(7, &bytes), (ENTRY_OF_TWO, 0));
        assert_eq!(Entry::parse(8, &bytes), (Entry::default(), 2));
        assert_eq!(Entry::parse(7, &[0; ENTRY]), (Entry::default(), 0));
        assert_eq!(ENTRY_OF_TWO.get(3).map(|slot| slot.kind), Some(Kind::Zero));
        assert_eq!(ENTRY_OF_TWO.get(4), None);
    }

    #[test]
    fn a_damaged_slot_leaves_the_other() {
        for bit in 0..ENTRY * 8 {
            let mut bytes = ENTRY_OF_TWO.to_bytes(7);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (entry, damaged) = Entry::parse(7, &bytes);
            assert_eq!(
                (entry.slots.iter().flatten().count(), damaged),
                (1, 1),
                "{bit}"
            );
        }
    }
}
