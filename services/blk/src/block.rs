//! Contents of a block: compression, the split in two halves, and their parity. Does no I/O.
//!
//! A block is stored as nothing (all zeros), as one LZ4 block if that saves space on its targets, or as it is. The stored bytes are split in the middle;
//! the first half has the odd byte. Parity is the exclusive or of both halves, where the second one is continued with a
//! zero byte if it is shorter. Only stored bytes move and are kept: there is no padding to the block size.
//!
//! With a key the stored bytes are encrypted before the split. A block that LZ4 shortens to less than AES can encrypt is
//! stored as it is.

use crate::encryption::{SEALED_MIN, Seal};
use crate::geometry::{Role, TARGETS};
use lz4_flex::block::CompressTable;
use std::cell::RefCell;

/// Form in which a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// All bytes are zero. No bytes are stored.
    Zero = 1,
    /// The block's own bytes: compression saves no space.
    Raw = 2,
    /// One LZ4 block, without frame.
    Lz4 = 3,
    /// The target knows of this generation and has no half of it: fewer than two targets had one when it was completed.
    Lost = 4,
    /// The layer does not have the block any more: an older one does, or it is zeros. No bytes are stored.
    Hole = 5,
}

impl Kind {
    /// The form with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Zero),
            2 => Some(Self::Raw),
            3 => Some(Self::Lz4),
            4 => Some(Self::Lost),
            5 => Some(Self::Hole),
            _ => None,
        }
    }

    /// True if a half block has bytes.
    #[must_use]
    pub fn has_bytes(self) -> bool {
        !matches!(self, Self::Zero | Self::Lost | Self::Hole)
    }
}

/// Why stored bytes are no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBlock {
    /// The halves have lengths that one block cannot have.
    #[error("the halves have lengths that do not belong to one block")]
    Halves,
    /// The bytes are not LZ4, reach outside the block, or have another length than the block.
    #[error("the LZ4 bytes do not make a whole block")]
    Lz4,
    /// The stored length does not fit the form.
    #[error("the stored length does not fit the form")]
    Length,
}

/// A block in its stored form, split for the three targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The form.
    pub kind: Kind,
    /// Stored bytes of the whole block.
    pub stored: u32,
    /// The part of each role.
    pub parts: [Vec<u8>; TARGETS],
}

/// Encodes a block of up to 1 MiB.
#[must_use]
pub fn encode(block: &[u8]) -> Encoded {
    encode_with(block, false, None)
}

/// As [`encode`], encrypted if there is a key. With `allocate` an all-zero block has bytes, too.
#[must_use]
pub fn encode_with(block: &[u8], allocate: bool, seal: Option<Seal<'_>>) -> Encoded {
    if !allocate && block.iter().all(|byte| *byte == 0) {
        return Encoded {
            kind: Kind::Zero,
            stored: 0,
            parts: Default::default(),
        };
    }
    encode_allocated(block, seal)
}

/// A block that its layer does not have any more.
#[must_use]
pub fn hole() -> Encoded {
    Encoded {
        kind: Kind::Hole,
        stored: 0,
        parts: Default::default(),
    }
}

fn encode_allocated(block: &[u8], seal: Option<Seal<'_>>) -> Encoded {
    COMPRESSOR.with_borrow_mut(|(buffer, table, tries)| {
        if !tries.tries(block) {
            return raw(block, seal, buffer);
        }
        let most = lz4_flex::block::get_maximum_output_size(block.len());
        if buffer.len() < most {
            buffer.resize(most, 0);
        }
        let least = seal.map_or(0, |_| SEALED_MIN);
        let shortened = match lz4_flex::block::compress_into_with_table(block, buffer, table) {
            Ok(length) => (length >= least && saves(length, block.len())).then_some(length),
            // The buffer is too small: the block does not shrink.
            Err(_) => None,
        };
        let encoded = match shortened {
            None => raw(block, seal, buffer),
            Some(length) => {
                let bytes = &mut buffer[..length];
                if let Some(seal) = seal {
                    seal.encrypt(bytes);
                }
                split(Kind::Lz4, bytes)
            }
        };
        tries.learn(encoded.kind);
        if buffer.len() > KEPT {
            *buffer = Vec::new();
        }
        encoded
    })
}

/// Bytes of a block for which each of two targets gives a unit of space.
const UNITS: usize = 2 * 64;

/// True if so few stored bytes take less space. Each read would decompress others for nothing.
fn saves(stored: usize, block: usize) -> bool {
    stored.div_ceil(UNITS) < block.div_ceil(UNITS)
}

/// Blocks in a row that saved nothing, after which compression is left out if a sample looks like noise, but for one of as many.
const IN_VAIN: u32 = 8;
/// Bytes of a sample.
const SAMPLE: usize = 512;

/// Whether compression has saved something lately.
#[derive(Debug, Default)]
struct Tries {
    /// Blocks in a row that saved nothing; behind so many, less a multiple.
    in_vain: u32,
}

impl Tries {
    /// True if compression of a block should be tried.
    fn tries(&mut self, block: &[u8]) -> bool {
        if self.in_vain <= IN_VAIN || !is_noise(block) {
            return true;
        }
        self.learn(Kind::Raw);
        false
    }

    fn learn(&mut self, kind: Kind) {
        self.in_vain = match kind {
            Kind::Raw if self.in_vain + 1 < 2 * IN_VAIN => self.in_vain + 1,
            Kind::Raw => IN_VAIN,
            _ => 0,
        };
    }
}

/// True if bytes from all of a block are as evenly distributed as noise.
fn is_noise(block: &[u8]) -> bool {
    let step = (block.len() / SAMPLE).max(1);
    let mut counts = [0u32; 256];
    let mut sampled = 0;
    for part in block.chunks(step) {
        counts[usize::from(part[sampled % part.len()])] += 1;
        sampled += 1;
    }
    let squares: u32 = counts.iter().map(|count| count * count).sum();
    // Of noise the sum is about n + n^2 / 256.
    let even = sampled + sampled * sampled / 256;
    squares as usize <= even + even / 4
}

/// A block as it is, or encrypted.
fn raw(block: &[u8], seal: Option<Seal<'_>>, buffer: &mut Vec<u8>) -> Encoded {
    let Some(seal) = seal else {
        return split(Kind::Raw, block);
    };
    buffer.clear();
    buffer.extend_from_slice(block);
    seal.encrypt(buffer);
    split(Kind::Raw, buffer)
}

/// Most bytes that a thread keeps for the compression of its next block.
const KEPT: usize = 64 << 10;

/// Output and table of compression, and what it has saved.
type Compressor = (Vec<u8>, CompressTable, Tries);

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = RefCell::new(compressor_new());
}

fn compressor_new() -> Compressor {
    (Vec::new(), CompressTable::small(), Tries::default())
}

fn split(kind: Kind, stored: &[u8]) -> Encoded {
    let (first, second) = stored.split_at(first_length(stored.len()));
    Encoded {
        kind,
        // Cannot fail: a block has at most 1 MiB, and a compressed one is shorter.
        stored: u32::try_from(stored.len()).unwrap_or(u32::MAX),
        parts: [first.to_vec(), second.to_vec(), xor(first, second)],
    }
}

/// Bytes of the first half, and of the parity.
fn first_length(stored: usize) -> usize {
    stored.div_ceil(2)
}

/// Bytes that a role holds of a block with `stored` bytes.
#[must_use]
pub fn part_length(stored: u32, role: Role) -> usize {
    let stored = stored as usize;
    match role {
        Role::First | Role::Parity => first_length(stored),
        Role::Second => stored / 2,
    }
}

/// Exclusive or of two halves, as long as the first one. The second one may be a byte shorter.
#[must_use]
pub fn xor(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut parity = first.to_vec();
    for (to, from) in parity.iter_mut().zip(second) {
        *to ^= from;
    }
    parity
}

/// Restores one part from the two others of a block with `stored` bytes.
///
/// # Errors
/// The parts have lengths that one block cannot have.
pub fn restore(role: Role, stored: u32, parts: [&[u8]; TARGETS]) -> Result<Vec<u8>, BadBlock> {
    for other in Role::ALL.into_iter().filter(|other| *other != role) {
        if parts[other.index()].len() != part_length(stored, other) {
            return Err(BadBlock::Halves);
        }
    }
    let [first, second, parity] = parts;
    Ok(match role {
        Role::First => xor(parity, second),
        Role::Parity => xor(first, second),
        Role::Second => {
            let mut second = xor(parity, first);
            second.truncate(part_length(stored, role));
            second
        }
    })
}

/// Decodes a block into `block`, whose length is the block size.
///
/// # Errors
/// The stored bytes are no block of this size.
pub fn decode(kind: Kind, first: &[u8], second: &[u8], block: &mut [u8]) -> Result<(), BadBlock> {
    decode_with(kind, (first, second), None, block)
}

/// As [`decode`], of a block that is encrypted if there is a key.
///
/// # Errors
/// As [`decode`].
pub fn decode_with(
    kind: Kind,
    (first, second): (&[u8], &[u8]),
    seal: Option<Seal<'_>>,
    block: &mut [u8],
) -> Result<(), BadBlock> {
    let stored = first.len() + second.len();
    if first.len() != first_length(stored) {
        return Err(BadBlock::Halves);
    }
    if seal.is_some() && kind.has_bytes() && stored < SEALED_MIN {
        return Err(BadBlock::Length);
    }
    match kind {
        Kind::Zero | Kind::Hole if stored == 0 => block.fill(0),
        Kind::Raw if stored == block.len() => {
            let (left, right) = block.split_at_mut(first.len());
            left.copy_from_slice(first);
            right.copy_from_slice(second);
            if let Some(seal) = seal {
                seal.decrypt(block);
            }
        }
        Kind::Lz4 if stored < block.len() => {
            let mut bytes = [first, second].concat();
            if let Some(seal) = seal {
                seal.decrypt(&mut bytes);
            }
            match lz4_flex::block::decompress_into(&bytes, block) {
                Ok(length) if length == block.len() => {}
                _ => return Err(BadBlock::Lz4),
            }
        }
        _ => return Err(BadBlock::Length),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(block: &[u8], kind: Kind) {
        let encoded = encode(block);
        assert_eq!(encoded.kind, kind);
        let [first, second, parity] = &encoded.parts;
        assert!(first.len() + second.len() <= block.len(), "it grows");
        let mut back = vec![0xaa; block.len()];
        decode(kind, first, second, &mut back).unwrap();
        assert!(back == block);
        for role in Role::ALL {
            let part = &encoded.parts[role.index()];
            assert_eq!(part.len(), part_length(encoded.stored, role));
            let mut left: [&[u8]; 3] = [first, second, parity];
            left[role.index()] = &[];
            assert_eq!(
                &restore(role, encoded.stored, left).unwrap(),
                part,
                "{role}"
            );
        }
    }

    #[test]
    fn each_form_comes_back_also_with_a_part_absent() {
        check(&[0; 4096], Kind::Zero);
        check(&[7; 4096], Kind::Lz4);
        check(&[7; 1 << 20], Kind::Lz4);
        let noise: Vec<u8> = (0..65u32)
            .map(|n| (n * n * 167).to_be_bytes()[2] ^ (n * 31).to_le_bytes()[0])
            .collect();
        check(&noise[..64], Kind::Raw);
        check(&noise, Kind::Raw);
    }

    fn noise(seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..4096).map(|_| random.u8(..)).collect()
    }

    /// Of a stream of noise one block in eight is compressed in vain, and the blocks that save space are found among it.
    #[test]
    fn noise_is_rarely_compressed() {
        let mut tries = Tries::default();
        let mut tried = 0;
        for seed in 0..808 {
            if tries.tries(&noise(seed)) {
                tried += 1;
                tries.learn(Kind::Raw);
            }
        }
        assert_eq!(tried, 8 + 100);
        let mut end = noise(1);
        end[3600..].fill(0);
        let text = include_str!("block.rs").as_bytes();
        let mut some = noise(2);
        for (to, from) in some.chunks_mut(512).zip(text.chunks(256)) {
            to[..256].copy_from_slice(from);
        }
        for block in [&end[..], &text[..4096], &some, &text[..1024]] {
            for seed in 0..30 {
                check(&noise(seed), Kind::Raw);
            }
            check(block, Kind::Lz4);
        }
    }

    /// Compression that saves no unit of space costs each read for nothing.
    #[test]
    fn a_block_that_saves_no_space_stays_as_it_is() {
        let mut block = noise(1);
        block[..60].fill(1);
        check(&block, Kind::Raw);
        block[..300].fill(1);
        check(&block, Kind::Lz4);
    }

    #[test]
    fn zeros_that_must_be_allocated_have_bytes() {
        let encoded = encode_with(&[0; 4096], true, None);
        assert_eq!(encoded.kind, Kind::Lz4);
        let [first, second, _] = &encoded.parts;
        let mut back = [1; 4096];
        decode(Kind::Lz4, first, second, &mut back).unwrap();
        assert_eq!(back, [0; 4096]);
    }

    /// Bytes that are no LZ4 block of this size: they expand beyond the block, stop short, or point before its start.
    #[test]
    fn lz4_that_is_no_block_is_refused() {
        let long = encode(&[7; 8192]);
        let short = encode(&[7; 1024]);
        for encoded in [long, short] {
            let [first, second, _] = &encoded.parts;
            let mut block = [0; 4096];
            let result = decode(Kind::Lz4, first, second, &mut block);
            assert_eq!(result, Err(BadBlock::Lz4));
        }
        // One literal, then a match 0xffff bytes back.
        for bytes in [
            &[0x10, b'a', 0xff, 0xff][..],
            &[0xff],
            &[0xf0, 0xff, 0xff],
            &[],
        ] {
            let (first, second) = bytes.split_at(bytes.len().div_ceil(2));
            let mut block = [0; 64];
            assert!(decode(Kind::Lz4, first, second, &mut block).is_err());
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let mut block = [0; 64];
        for (kind, first, second) in [
            (Kind::Zero, 1, 0),
            (Kind::Raw, 32, 31),
            (Kind::Raw, 33, 31),
            (Kind::Raw, 0, 0),
            (Kind::Lz4, 32, 32),
            (Kind::Lz4, 1, 9),
        ] {
            let result = decode(kind, &vec![0; first], &vec![0; second], &mut block);
            assert!(result.is_err(), "{kind:?} {first} {second}");
        }
        assert!(restore(Role::First, 10, [&[], &[0; 5], &[0; 4]]).is_err());
        assert!(restore(Role::Second, 10, [&[0; 6], &[], &[0; 5]]).is_err());
    }

    proptest! {
        #[test]
        fn any_block_comes_back(
            pattern in proptest::collection::vec(any::<u8>(), 1..300),
            units in 1usize..80,
        ) {
            let block: Vec<u8> = pattern.iter().copied().cycle().take(units * 64).collect();
            let encoded = encode(&block);
            let [first, second, _] = &encoded.parts;
            let mut back = vec![1; block.len()];
            decode(encoded.kind, first, second, &mut back).unwrap();
            prop_assert_eq!(back, block);
        }

        /// A decoder accepts any bytes without a panic.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..5) {
            let Some(kind) = Kind::of(kind) else { return Ok(()) };
            let mut block = [0; 256];
            let (first, second) = bytes.split_at(bytes.len().div_ceil(2));
            let _ = decode(kind, first, second, &mut block);
        }
    }
}
