//! The stored form of a half block: a header of 64 bytes, then the bytes. Does no I/O.
//!
//! ```text
//! 0  magic "XBH1"     4  form (1), role (1), zero (2)   8  block (8)        16  generation (8)
//! 24 volume (16)      40 stored bytes of the block (4)  44 bytes here (4)   48  zero (12)
//! 60 CRC32C of the first 60 bytes and of the bytes behind the header
//! ```
//!
//! Numbers are big endian, as in the reference format.

use crate::block::{Kind, part_length};
use crate::crc32c::{crc32c, crc32c_append};
use crate::geometry::{BLOCK_SIZE_MAX, Id, Role};
use bytes::Bytes;

/// Bytes of a header.
pub const HEADER: usize = 64;
/// Longest record: the largest block of a mirror, stored as it is.
pub const RECORD_MAX: usize = HEADER + BLOCK_SIZE_MAX as usize;

const MAGIC: [u8; 4] = *b"XBH1";
const CRC_AT: usize = 60;

/// A half block: the part of one block that one target holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Half {
    /// Number of the write that made it. Later writes have higher numbers.
    pub generation: u64,
    /// Form of the block.
    pub kind: Kind,
    /// Stored bytes of the whole block.
    pub stored: u32,
    /// The bytes of this half. Those of one block, call or read may share their memory.
    pub data: Bytes,
}

impl Half {
    /// True if the length is the one that `role` holds of such a block.
    #[must_use]
    pub fn fits(&self, role: Role) -> bool {
        self.data.len() == part_length(self.stored, role)
    }
}

/// Where a record belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The volume.
    pub volume: Id,
    /// The target's role.
    pub role: Role,
    /// The block.
    pub block: u64,
}

/// Bytes of the record of a half block.
#[must_use]
pub fn length(half: &Half) -> u64 {
    (HEADER + half.data.len()) as u64
}

/// The record of a half block.
#[must_use]
pub fn to_bytes(place: Place, half: &Half) -> Vec<u8> {
    [&header(place, half)[..], &half.data].concat()
}

/// What is before the bytes in the record of a half block.
#[must_use]
pub fn header(place: Place, half: &Half) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = half.kind as u8;
    bytes[5] = place.role.number();
    bytes[8..16].copy_from_slice(&place.block.to_be_bytes());
    bytes[16..24].copy_from_slice(&half.generation.to_be_bytes());
    bytes[24..40].copy_from_slice(&place.volume.0);
    bytes[40..44].copy_from_slice(&half.stored.to_be_bytes());
    // Cannot be cut: a block has at most 1 MiB.
    let length = u32::try_from(half.data.len()).unwrap_or(u32::MAX);
    bytes[44..48].copy_from_slice(&length.to_be_bytes());
    let crc = checksum(&bytes, &half.data);
    bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Checks and parses the record of generation `generation` at `place`.
///
/// # Errors
/// The defect: other bytes than those that were written, or the record of something else.
pub fn parse(place: Place, generation: u64, bytes: &Bytes) -> Result<Half, &'static str> {
    let Some((header, data)) = bytes.split_first_chunk::<HEADER>() else {
        return Err("the record is shorter than its header");
    };
    if header[..4] != MAGIC {
        return Err("there is no record");
    }
    let be32 = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
    if checksum(header, data) != be32(CRC_AT) {
        return Err("the checksum is wrong");
    }
    let half = Half {
        generation: be64(16),
        kind: Kind::of(header[4]).ok_or("the form is unknown")?,
        stored: be32(40),
        data: bytes.slice(HEADER..),
    };
    if header[24..40] != place.volume.0
        || header[5] != place.role.number()
        || be64(8) != place.block
    {
        return Err("the record belongs elsewhere");
    }
    if half.generation != generation {
        return Err("the record has another generation");
    }
    if be32(44) as usize != half.data.len() || !half.fits(place.role) {
        return Err("the lengths contradict each other");
    }
    Ok(half)
}

/// CRC32C of a record, without the checksum itself.
fn checksum(header: &[u8; HEADER], data: &[u8]) -> u32 {
    crc32c_append(crc32c(&header[..CRC_AT]), data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place {
        volume: Id([9; 16]),
        role: Role::SECOND,
        block: 77,
    };

    fn half() -> Half {
        Half {
            generation: 5,
            kind: Kind::Raw,
            stored: 129,
            data: (0..64).collect(),
        }
    }

    #[test]
    fn a_record_comes_back() {
        let bytes = to_bytes(PLACE, &half()).into();
        let parsed = parse(PLACE, 5, &bytes).unwrap();
        assert_eq!(parsed, half());
        assert_eq!(parsed.data.as_ptr(), bytes[HEADER..].as_ptr(), "a copy");
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = to_bytes(PLACE, &half());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(PLACE, 5, &bad.into()).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(
                parse(PLACE, 5, &bytes[..length].to_vec().into()).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn a_record_of_something_else_is_refused() {
        let bytes = to_bytes(PLACE, &half()).into();
        for (place, generation) in [
            (Place { block: 78, ..PLACE }, 5),
            (
                Place {
                    role: Role::FIRST,
                    ..PLACE
                },
                5,
            ),
            (
                Place {
                    volume: Id([8; 16]),
                    ..PLACE
                },
                5,
            ),
            (PLACE, 4),
        ] {
            assert!(parse(place, generation, &bytes).is_err(), "{place:?}");
        }
    }

    proptest! {
        /// Any bytes, with a right checksum or not, are accepted or refused.
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), right in any::<bool>()) {
            if right && bytes.len() >= HEADER {
                bytes[..4].copy_from_slice(&MAGIC);
                let (header, data) = bytes.split_first_chunk::<HEADER>().unwrap();
                let crc = checksum(header, data);
                bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_be_bytes());
            }
            if let Ok(half) = parse(PLACE, 5, &bytes.into()) {
                prop_assert!(half.fits(PLACE.role));
            }
        }
    }
}
