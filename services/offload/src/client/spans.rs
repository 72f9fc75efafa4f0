//! The part of a buffer that the device must reach: the blocks that are long enough for a device read.
//!
//! A buffer is registered from its first long block to its last one if there is little between them. Otherwise, and if the
//! memory cannot be registered, the long blocks lie in memory of the client during the call, one after the other.

use crate::wire::Block;

/// Bytes without a block up to which a buffer is registered as a whole. A registration of 4 MiB takes less time than a
/// copy of a few blocks.
const GAPS_MAX: u64 = 4 << 20;

/// The long blocks of one side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// First byte of the first block, from the start of the buffer.
    pub(super) first: u64,
    /// First byte after the last block.
    pub(super) end: u64,
}

/// A range of a buffer, and its place in memory that holds the long blocks one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) length: u64,
    pub(super) packed: u64,
}

impl Span {
    /// The span of the blocks of `direct_min` bytes or more; `None` if there is none.
    pub(super) fn of(blocks: &[Block], direct_min: u64) -> Option<Self> {
        let mut long = blocks.iter().filter(|block| block.length >= direct_min);
        let first = long.next()?;
        let span = Self {
            first: first.offset,
            end: first.offset + first.length,
        };
        Some(long.fold(span, |span, block| Self {
            first: span.first.min(block.offset),
            end: span.end.max(block.offset + block.length),
        }))
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.end - self.first
    }

    /// Whether the span is worth a registration: it has few bytes beside its blocks.
    pub(super) fn is_dense(&self, blocks: &[Block], direct_min: u64) -> bool {
        if self.length() <= GAPS_MAX {
            return true;
        }
        let filled = packed_length(&pieces(blocks, direct_min));
        self.length() - filled <= filled.max(GAPS_MAX)
    }
}

/// The ranges of the long blocks in ascending order. Blocks that touch or overlap share one: a broadcast sends one block to
/// all.
pub(super) fn pieces(blocks: &[Block], direct_min: u64) -> Vec<Piece> {
    let long = blocks.iter().filter(|block| block.length >= direct_min);
    let mut ranges: Vec<(u64, u64)> = long
        .map(|block| (block.offset, block.offset + block.length))
        .collect();
    ranges.sort_unstable();
    let mut pieces: Vec<Piece> = Vec::new();
    for (at, end) in ranges {
        match pieces.last_mut() {
            Some(last) if at <= last.at + last.length => {
                last.length = last.length.max(end - last.at);
            }
            last => {
                let packed = last.map_or(0, |last| last.packed + last.length);
                pieces.push(Piece {
                    at,
                    length: end - at,
                    packed,
                });
            }
        }
    }
    pieces
}

/// Length of the memory that holds these pieces.
pub(super) fn packed_length(pieces: &[Piece]) -> u64 {
    pieces.last().map_or(0, |last| last.packed + last.length)
}

/// The blocks, with the long ones at their places in the packed memory. Short blocks keep their offsets in the buffer: the
/// device does not access them.
pub(super) fn pack(blocks: &mut [Block], pieces: &[Piece], direct_min: u64) {
    for block in blocks.iter_mut().filter(|b| b.length >= direct_min) {
        // The last piece that begins at the block or before it contains the block.
        let after = pieces.partition_point(|piece| piece.at <= block.offset);
        if let Some(piece) = after.checked_sub(1).and_then(|at| pieces.get(at)) {
            block.offset = block.offset - piece.at + piece.packed;
        }
    }
}

/// The blocks, with the long ones counted from `first`.
pub(super) fn rebase(blocks: &mut [Block], first: u64, direct_min: u64) {
    if first > 0 {
        for block in blocks.iter_mut().filter(|b| b.length >= direct_min) {
            block.offset -= first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 512;

    fn blocks(of: &[(u64, u64)]) -> Vec<Block> {
        let block = |(peer, (offset, length)): (u32, &(u64, u64))| Block {
            peer,
            offset: *offset,
            length: *length,
        };
        (0..).zip(of).map(block).collect()
    }

    #[test]
    fn a_span_reaches_from_the_first_to_the_last_long_block() {
        let of = |of: &[(u64, u64)]| Span::of(&blocks(of), MIN).map(|span| (span.first, span.end));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(0, 511), (u64::MAX, 0)]), None);
        // A short block and an empty one do not count, wherever they are.
        assert_eq!(of(&[(0, 8), (5000, 512), (1 << 40, 0)]), Some((5000, 5512)));
        let several = [(9000, 600), (5000, 512), (1 << 40, 8)];
        assert_eq!(of(&several), Some((5000, 9600)));
    }

    #[test]
    fn a_far_block_is_not_registered_with_all_between() {
        let is_dense = |of: &[(u64, u64)]| {
            let blocks = blocks(of);
            let span = Span::of(&blocks, MIN).expect("long blocks");
            span.is_dense(&blocks, MIN)
        };
        assert!(is_dense(&[(0, 4096), (1 << 21, 4096)]));
        assert!(is_dense(&[(0, 1 << 30), (1 << 30, 1 << 30)]));
        assert!(is_dense(&[(0, 64 << 20), (100 << 20, 64 << 20)]));
        assert!(!is_dense(&[(0, 4096), (4 << 30, 4096)]));
        // The same block for many ranks is one block.
        let mut many = vec![(0, 1 << 20); 64];
        many.push((64 << 20, 4096));
        assert!(!is_dense(&many));
    }

    #[test]
    fn packed_blocks_are_apart_and_keep_their_lengths() {
        let mut packed = blocks(&[(1 << 33, 600), (0, 512), (512, 512), (100, 5), (0, 512)]);
        let pieces = pieces(&packed, MIN);
        let piece = |at, length, packed| Piece { at, length, packed };
        assert_eq!(pieces, [piece(0, 1024, 0), piece(1 << 33, 600, 1024)]);
        assert_eq!(packed_length(&pieces), 1624);
        pack(&mut packed, &pieces, MIN);
        let offsets: Vec<u64> = packed.iter().map(|block| block.offset).collect();
        assert_eq!(offsets, [1024, 0, 512, 100, 0]);
    }

    #[test]
    fn rebased_blocks_are_counted_from_the_first_long_one() {
        let mut blocks = blocks(&[(5000, 600), (8, 8), (9000, 512)]);
        rebase(&mut blocks, 5000, MIN);
        let offsets: Vec<u64> = blocks.iter().map(|block| block.offset).collect();
        assert_eq!(offsets, [0, 8, 4000]);
    }
}
