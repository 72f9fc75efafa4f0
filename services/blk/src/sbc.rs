//! Image files of the reference application (`.sbc`): reader and writer. Does no I/O.
//!
//! An image consists of three files, data_1, data_2 and data_p, with one header each:
//!
//! ```text
//! magic 0xDEADF00D1337FADE (8)   bytes of a half block (4)   half blocks (4)   content, at most 2 GiB
//! ```
//!
//! A block of `B` bytes is `{original length (4), compressed length (4)}`, LZ4 blocks with their lengths (little endian,
//! the highest bit marks a block that is not compressed) of up to 64 KiB of data each, zeros, and a trailer of four zero
//! bytes. Its halves are in data_1 and data_2, and their exclusive or is in data_p. All other numbers are big endian
//! (doca-samples, `applications/storage`: `binary_content.cpp`, `gga_offload_sbc_generator.cpp`, `lz4_sw_context.cpp`).

use crate::block::xor;
use crate::geometry::{BLOCK_SIZE_MAX, BLOCK_UNIT};

const MAGIC: u64 = 0xDEAD_F00D_1337_FADE;
/// Bytes of a file's header.
pub const HEADER: usize = 16;
/// Most content bytes of a file.
pub const CONTENT_MAX: u64 = 2 << 30;
const BLOCK_HEADER: usize = 8;
const BLOCK_TRAILER: usize = 4;
/// Data bytes of one LZ4 block.
const LZ4_BLOCK: usize = 64 << 10;
const UNCOMPRESSED: u32 = 1 << 31;

/// Why bytes are no image, or cannot become one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SbcError {
    /// The file has no header of an image.
    #[error("it is no .sbc file: {0}")]
    Header(&'static str),
    /// A file is shorter or longer than its header says.
    #[error("the header announces {announced} bytes, the file has {present}")]
    Length {
        /// Bytes that the header announces.
        announced: u64,
        /// Bytes behind the header.
        present: u64,
    },
    /// Fewer than two files, or files that do not belong together.
    #[error("{0}")]
    Files(&'static str),
    /// A block cannot be decoded.
    #[error("block {block}: {fault}")]
    Block {
        /// The block, from 0.
        block: usize,
        /// The defect.
        fault: &'static str,
    },
    /// A block does not fit into the format.
    #[error(
        "block {block} compresses to {compressed} bytes, and the .sbc format has room for {room}: it cannot hold such data"
    )]
    Incompressible {
        /// The block, from 0.
        block: usize,
        /// Its compressed length.
        compressed: usize,
        /// Largest compressed length.
        room: usize,
    },
    /// A block size that the format does not have.
    #[error("block size {0}: give a multiple of 64 up to 1048576")]
    BlockSize(u32),
    /// More content than a file can hold.
    #[error("{0} bytes per file; the format has at most 2 GiB")]
    TooLarge(u64),
}

/// One of the three files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SbcFile<'a> {
    /// Bytes of a half block.
    pub half: u32,
    /// Number of half blocks.
    pub count: u32,
    /// The half blocks.
    pub content: &'a [u8],
}

/// Parses a file.
///
/// # Errors
/// It is no such file, or has another length than its header says.
pub fn parse(bytes: &[u8]) -> Result<SbcFile<'_>, SbcError> {
    let (header, content) = bytes
        .split_first_chunk::<HEADER>()
        .ok_or(SbcError::Header("it is shorter than a header"))?;
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if u64::from(word(0)) << 32 | u64::from(word(4)) != MAGIC {
        return Err(SbcError::Header("the magic number is wrong"));
    }
    let (half, count) = (word(8), word(12));
    if half == 0 || !half.is_multiple_of(BLOCK_UNIT / 2) || half > BLOCK_SIZE_MAX / 2 {
        return Err(SbcError::Header(
            "the block size is no multiple of 64 up to 1048576",
        ));
    }
    let announced = u64::from(half) * u64::from(count);
    if announced > CONTENT_MAX {
        return Err(SbcError::TooLarge(announced));
    }
    if announced != content.len() as u64 {
        return Err(SbcError::Length {
            announced,
            present: content.len() as u64,
        });
    }
    Ok(SbcFile {
        half,
        count,
        content,
    })
}

/// Decodes an image from data_1, data_2 and data_p, of which two are enough.
///
/// # Errors
/// The files do not belong together, or a block is damaged.
pub fn decode(files: [Option<SbcFile<'_>>; 3]) -> Result<Vec<u8>, SbcError> {
    let mut present = files.iter().flatten();
    let first = present.next().ok_or(SbcError::Files("there is no file"))?;
    if files.iter().flatten().count() < 2 {
        return Err(SbcError::Files(
            "one file is not enough: give two of data_1, data_2 and data_p",
        ));
    }
    if present.any(|file| (file.half, file.count) != (first.half, first.count)) {
        return Err(SbcError::Files(
            "the files have different block sizes or numbers of blocks",
        ));
    }
    let half = first.half as usize;
    let mut image = Vec::with_capacity(first.content.len() * 2);
    let mut block = vec![0; 2 * half];
    for number in 0..first.count as usize {
        let part = |index: usize| {
            let file: Option<SbcFile<'_>> = files[index];
            file.and_then(|file| file.content.get(number * half..(number + 1) * half))
        };
        let halves = match (part(0), part(1), part(2)) {
            (Some(first), Some(second), _) => [first, second].concat(),
            (Some(first), None, Some(parity)) => [first, &xor(parity, first)].concat(),
            (None, Some(second), Some(parity)) => [&xor(parity, second), second].concat(),
            _ => return Err(SbcError::Files("a file is too short")),
        };
        decode_block(&halves, &mut block).map_err(|fault| SbcError::Block {
            block: number,
            fault,
        })?;
        image.extend_from_slice(&block);
    }
    Ok(image)
}

/// Decodes one block into `data`, whose length is the block size.
///
/// # Errors
/// The defect.
pub fn decode_block(block: &[u8], data: &mut [u8]) -> Result<(), &'static str> {
    let Some((header, rest)) = block.split_first_chunk::<BLOCK_HEADER>() else {
        return Err("it is shorter than its header");
    };
    let [a, b, c, d, e, f, g, h] = *header;
    let original = u32::from_be_bytes([a, b, c, d]) as usize;
    let compressed = u32::from_be_bytes([e, f, g, h]) as usize;
    if original != data.len() {
        return Err("its original length is not the block size");
    }
    if block.len() < BLOCK_TRAILER + BLOCK_HEADER || compressed > rest.len() - BLOCK_TRAILER {
        return Err("its compressed length exceeds the block");
    }
    let (mut stream, padding) = rest.split_at(compressed);
    if padding.iter().any(|byte| *byte != 0) {
        return Err("its padding or trailer is not zero");
    }
    for part in data.chunks_mut(LZ4_BLOCK) {
        let (length, rest) = stream
            .split_first_chunk::<4>()
            .ok_or("its LZ4 blocks stop short")?;
        let length = u32::from_le_bytes(*length);
        let (bytes, rest) = rest
            .split_at_checked((length & !UNCOMPRESSED) as usize)
            .ok_or("an LZ4 block exceeds the stream")?;
        stream = rest;
        if length & UNCOMPRESSED != 0 {
            if bytes.len() != part.len() {
                return Err("an uncompressed LZ4 block has the wrong length");
            }
            part.copy_from_slice(bytes);
        } else if lz4_flex::block::decompress_into(bytes, part).ok() != Some(part.len()) {
            return Err("an LZ4 block does not make the data that it should");
        }
    }
    if stream.is_empty() {
        Ok(())
    } else {
        Err("there is more than its LZ4 blocks")
    }
}

/// Encodes an image of blocks of `block_size` bytes as data_1, data_2 and data_p. The last block is continued with zeros.
///
/// # Errors
/// A block does not fit into the format, or the image is too large.
pub fn encode(image: &[u8], block_size: u32) -> Result<[Vec<u8>; 3], SbcError> {
    if block_size == 0 || !block_size.is_multiple_of(BLOCK_UNIT) || block_size > BLOCK_SIZE_MAX {
        return Err(SbcError::BlockSize(block_size));
    }
    let size = block_size as usize;
    let count = image.len().div_ceil(size);
    let content = (count * size / 2) as u64;
    let number = u32::try_from(count).map_err(|_| SbcError::TooLarge(content))?;
    if content > CONTENT_MAX {
        return Err(SbcError::TooLarge(content));
    }
    let header = [
        &MAGIC.to_be_bytes()[..],
        &(block_size / 2).to_be_bytes(),
        &number.to_be_bytes(),
    ]
    .concat();
    let mut files: [Vec<u8>; 3] = std::array::from_fn(|_| header.clone());
    let mut padded = vec![0; size];
    for (number, data) in image.chunks(size).enumerate() {
        padded[..data.len()].copy_from_slice(data);
        padded[data.len()..].fill(0);
        let block = encode_block(&padded).map_err(|compressed| SbcError::Incompressible {
            block: number,
            compressed,
            room: size.saturating_sub(BLOCK_HEADER + BLOCK_TRAILER),
        })?;
        let (first, second) = block.split_at(size / 2);
        files[0].extend_from_slice(first);
        files[1].extend_from_slice(second);
        files[2].extend_from_slice(&xor(first, second));
    }
    Ok(files)
}

/// Encodes one block. The error is its compressed length, if that is too long.
fn encode_block(data: &[u8]) -> Result<Vec<u8>, usize> {
    let mut stream = Vec::with_capacity(data.len());
    for part in data.chunks(LZ4_BLOCK) {
        let compressed = lz4_flex::block::compress(part);
        let (bytes, mark) = if compressed.len() < part.len() {
            (&compressed[..], 0)
        } else {
            (part, UNCOMPRESSED)
        };
        // Cannot be cut: at most 64 KiB.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX) | mark;
        stream.extend_from_slice(&length.to_le_bytes());
        stream.extend_from_slice(bytes);
    }
    if stream.len() + BLOCK_HEADER + BLOCK_TRAILER > data.len() {
        return Err(stream.len());
    }
    let mut block = Vec::with_capacity(data.len());
    for length in [data.len(), stream.len()] {
        // Cannot be cut: a block has at most 1 MiB.
        block.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    }
    block.extend_from_slice(&stream);
    block.resize(data.len(), 0);
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n / 64).to_le_bytes()[0]).collect()
    }

    #[test]
    fn an_image_comes_back_from_any_two_files() {
        for block_size in [64, 512, 4096, 1 << 17] {
            let mut image = image(300_000);
            if block_size == 64 {
                image.fill(9);
            }
            let files = encode(&image, block_size).unwrap();
            image.resize(image.len().next_multiple_of(block_size as usize), 0);
            for absent in 0..4 {
                let each = |index: usize| (index != absent).then(|| parse(&files[index]).unwrap());
                let back = decode([each(0), each(1), each(2)]).unwrap();
                assert!(back == image, "{block_size}, without {absent}");
            }
            let one = parse(&files[0]).unwrap();
            assert!(decode([Some(one), None, None]).is_err());
        }
    }

    /// The bytes of the format, written down from its description: one block of 64 bytes, all zero.
    #[test]
    fn the_bytes_are_those_of_the_reference() {
        let [first, second, parity] = encode(&[0; 64], 64).unwrap();
        assert_eq!(
            first[..16],
            *b"\xde\xad\xf0\x0d\x13\x37\xfa\xde\0\0\0\x20\0\0\0\x01"
        );
        assert_eq!(first[16..20], 64u32.to_be_bytes());
        let compressed = u32::from_be_bytes(first[20..24].try_into().unwrap());
        assert_eq!(first[24..28], (compressed - 4).to_le_bytes());
        // A literal zero, a match one byte back of everything but the last literals.
        assert_eq!(first[28..32], [0x1f, 0, 1, 0]);
        assert_eq!((first.len(), second.len(), parity.len()), (48, 48, 48));
        let block = [&first[16..], &second[16..]].concat();
        assert_eq!(xor(&first[16..], &second[16..]), parity[16..]);
        let mut data = [1; 64];
        decode_block(&block, &mut data).unwrap();
        assert_eq!(data, [0; 64]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mut noise = image(8192);
        let mut state = 1u64;
        for byte in &mut noise[4096..] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = state.to_be_bytes()[0];
        }
        let error = encode(&noise, 4096).unwrap_err();
        assert!(
            matches!(
                error,
                SbcError::Incompressible {
                    block: 1,
                    room: 4084,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(encode(&noise, 100), Err(SbcError::BlockSize(100)));
    }

    #[test]
    fn malformed_files_are_refused() {
        let [good, second, _] = encode(&image(4096), 512).unwrap();
        let bad = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            bytes
        };
        for bytes in [
            bad(|bytes| bytes.truncate(15)),
            bad(|bytes| bytes[0] ^= 1),
            bad(|bytes| bytes[11] = 33),
            bad(|bytes| bytes[8..12].fill(0)),
            bad(|bytes| bytes[8] = 0x80),
            bad(|bytes| bytes[12] = 0x40),
            bad(|bytes| bytes[15] += 1),
            bad(|bytes| bytes.truncate(300)),
            bad(|bytes| bytes.push(0)),
        ] {
            assert!(parse(&bytes).is_err());
        }
        let second = parse(&second).unwrap();
        for at in [16, 19, 20, 23, 26, 27] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x40;
            let first = parse(&bytes).unwrap();
            let error = decode([Some(first), Some(second), None]).unwrap_err();
            assert!(
                matches!(error, SbcError::Block { block: 0, .. }),
                "{at}: {error}"
            );
        }
        let shorter = encode(&image(2048), 512).unwrap();
        let error = decode([Some(parse(&shorter[0]).unwrap()), Some(second), None]).unwrap_err();
        assert!(error.to_string().contains("different"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let mut data = [0; 128];
            let _ = decode_block(&bytes, &mut data);
            let mut block = bytes;
            block.splice(0..0, [0, 0, 0, 128, 0, 0, 0, 60]);
            let _ = decode_block(&block, &mut data);
        }
    }
}
