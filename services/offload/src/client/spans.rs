//! The part of a buffer that the device must reach: the blocks that are long enough for a device read.
//!
//! A buffer is registered from its first long block to its last one if there is little between them. Otherwise, and if the
//! memory cannot be registered, the long blocks lie in memory of the client during the call, one after the other.

use crate::wire::{Block, BlockList};

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
    pub(super) fn of(blocks: &BlockList, direct_min: u64) -> Option<Self> {
        let long = blocks.groups().filter(|group| group.length >= direct_min);
        let spans = long.map(|group| Self {
            first: group.first,
            end: group.end,
        });
        spans.reduce(|span, other| Self {
            first: span.first.min(other.first),
            end: span.end.max(other.end),
        })
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.end - self.first
    }

    /// Whether the span is worth a registration: it has few bytes beside its blocks.
    pub(super) fn is_dense(&self, blocks: &BlockList, direct_min: u64) -> bool {
        if self.length() <= GAPS_MAX {
            return true;
        }
        let filled = packed_length(&pieces(blocks, direct_min));
        self.length() - filled <= filled.max(GAPS_MAX)
    }
}

/// The ranges of the long blocks in ascending order. Blocks that touch or overlap share one: a broadcast sends one block to
/// all.
pub(super) fn pieces(blocks: &BlockList, direct_min: u64) -> Vec<Piece> {
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
pub(super) fn pack(blocks: &BlockList, pieces: &[Piece], direct_min: u64) -> BlockList {
    let packed = blocks.iter().map(|block| {
        if block.length < direct_min {
            return block;
        }
        // The last piece that begins at the block or before it contains the block.
        let after = pieces.partition_point(|piece| piece.at <= block.offset);
        let piece = after.checked_sub(1).and_then(|at| pieces.get(at));
        piece.map_or(block, |piece| Block {
            offset: block.offset - piece.at + piece.packed,
            ..block
        })
    });
    packed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = 512;

    fn blocks(of: &[(u64, u64)]) -> BlockList {
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
        let given = blocks(&[(1 << 33, 600), (0, 512), (512, 512), (100, 5), (0, 512)]);
        let pieces = pieces(&given, MIN);
        let piece = |at, length, packed| Piece { at, length, packed };
        assert_eq!(pieces, [piece(0, 1024, 0), piece(1 << 33, 600, 1024)]);
        assert_eq!(packed_length(&pieces), 1624);
        let packed = pack(&given, &pieces, MIN);
        let offsets: Vec<u64> = packed.iter().map(|block| block.offset).collect();
        assert_eq!(offsets, [1024, 0, 512, 100, 0]);
    }

    #[test]
    fn rebased_blocks_are_counted_from_the_first_long_one() {
        let mut blocks = blocks(&[(5000, 600), (8, 8), (9000, 512)]);
        blocks.rebase(5000, MIN);
        let offsets: Vec<u64> = blocks.iter().map(|block| block.offset).collect();
        assert_eq!(offsets, [0, 8, 4000]);
    }
}
