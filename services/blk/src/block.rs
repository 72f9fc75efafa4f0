//! Contents of a block: compression, the split in parts, and their parity. Does no I/O.
//!
//! A block is stored as nothing (all zeros), as one LZ4 block if that saves a sixteenth, or as it is. The stored bytes are
//! split in parts of one length; the last ones can be shorter, or empty. Parity is that of `code`, as if they were continued with
//! zeros: of two halves the exclusive or. Only stored bytes move and are kept: there is no padding to the block size.
//!
//! With a key the stored bytes are encrypted before the split. A block that LZ4 shortens to less than AES can encrypt is
//! stored as it is.

use crate::code;
use crate::encryption::{SEALED_MIN, Seal};
use crate::geometry::{Layout, PerTarget, Role};
use crate::tries::Tries;
use bytes::Bytes;
use lz4_flex::block::CompressTable;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Form in which a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// All bytes are zero. No bytes are stored.
    Zero = 1,
    /// The block's own bytes: compression saves little or no space.
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

/// A block in its stored form, split for the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The form.
    pub kind: Kind,
    /// Stored bytes of the whole block.
    pub stored: u32,
    /// The part of each role. They share their memory.
    pub parts: PerTarget<Bytes>,
}

/// Encodes a block of up to 1 MiB.
#[must_use]
pub fn encode(layout: Layout, block: &[u8]) -> Encoded {
    encode_with(layout, block, false, None)
}

/// As [`encode`], encrypted if there is a key. With `allocate` an all-zero block has bytes, too.
#[must_use]
pub fn encode_with(
    layout: Layout,
    block: &[u8],
    allocate: bool,
    seal: Option<Seal<'_>>,
) -> Encoded {
    let mut run = Run::new(layout, 1, Vec::new());
    run.push(block, allocate, seal);
    let encoded = run.finish(Bytes::from).next();
    encoded.unwrap_or_else(|| empty(layout, Kind::Zero))
}

/// Blocks that are encoded one behind the other, in memory that all of them share.
#[derive(Debug)]
pub(crate) struct Run {
    layout: Layout,
    /// Blocks that are still to come.
    left: usize,
    all: Vec<u8>,
    /// The bytes of all blocks, if they may stay there.
    source: Option<Bytes>,
    blocks: SmallVec<[Stored; 1]>,
}

/// Where a block of a run is.
#[derive(Debug, Clone, Copy)]
struct Stored {
    kind: Kind,
    /// Its stored bytes.
    length: usize,
    /// The first of them.
    data: usize,
    /// They are those of the source.
    is_source: bool,
    /// The first byte of the parities.
    parities: usize,
}

impl Run {
    /// A run of so many blocks, in this memory as far as it reaches.
    pub(crate) fn new(layout: Layout, count: usize, memory: Vec<u8>) -> Self {
        Self {
            layout,
            left: count,
            all: memory,
            source: None,
            blocks: SmallVec::with_capacity(count),
        }
    }

    /// As [`Run::new`]. Blocks that are pushed are one behind the other in `source`, and are not copied if all of them are
    /// stored as they are.
    pub(crate) fn of(layout: Layout, count: usize, source: Bytes) -> Self {
        Self {
            source: Some(source),
            ..Self::new(layout, count, Vec::new())
        }
    }

    /// Encodes the next block, as [`encode_with`] does.
    pub(crate) fn push(&mut self, block: &[u8], allocate: bool, seal: Option<Seal<'_>>) {
        match !allocate && block.iter().all(|byte| *byte == 0) {
            true => self.put(Kind::Zero, &[], false),
            false => encode_allocated(self, block, seal),
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Adds the stored bytes of a block, and the parities. `is_block`: they are the block itself.
    fn put(&mut self, kind: Kind, stored: &[u8], is_block: bool) {
        let layout = self.layout;
        let length = longest(stored.len(), layout);
        let is_source = is_block && self.source.is_some();
        let start = self.all.len();
        let mut new = Stored {
            kind,
            length: stored.len(),
            data: start,
            is_source,
            parities: start,
        };
        if is_source {
            new.data = self.blocks.len() * stored.len();
        } else {
            new.parities += stored.len();
        }
        self.blocks.push(new);
        if stored.is_empty() {
            return;
        }
        let parities = parities(layout) * length;
        let bytes = parities + if is_source { 0 } else { stored.len() };
        if self.all.capacity() - start < bytes {
            // The others may need as much.
            self.all.reserve_exact(bytes * self.left.max(1));
        }
        if !is_source {
            self.all.extend_from_slice(stored);
        }
        if parities == 0 {
            return;
        }
        let mut rest = stored;
        let data: PerTarget<&[u8]> = (0..layout.needed())
            .map(|_| {
                let (part, behind) = rest.split_at(length.min(rest.len()));
                rest = behind;
                part
            })
            .collect();
        for role in layout
            .roles()
            .skip(layout.targets() - self::parities(layout))
        {
            code::append(role, &data, length, &mut self.all);
        }
    }

    /// The encoded blocks, in their order. `share` takes their memory.
    pub(crate) fn finish(
        mut self,
        share: impl FnOnce(Vec<u8>) -> Bytes,
    ) -> impl Iterator<Item = Encoded> {
        let mut source = self.source.take().unwrap_or_default();
        if self.blocks.iter().any(|block| !block.is_source) {
            // A few blocks would keep the memory of all.
            let bytes = self.blocks.iter().filter(|block| block.is_source);
            self.all
                .reserve_exact(bytes.map(|block| block.length).sum());
            for block in self.blocks.iter_mut().filter(|block| block.is_source) {
                let start = self.all.len();
                let data = &source[block.data..block.data + block.length];
                self.all.extend_from_slice(data);
                (block.data, block.is_source) = (start, false);
            }
            source = Bytes::new();
        }
        let (layout, all) = (self.layout, share(self.all));
        let blocks = self.blocks.into_iter();
        blocks.map(move |block| match block.is_source {
            true => cut(layout, &block, (&source, &all)),
            false => cut(layout, &block, (&all, &all)),
        })
    }
}

/// A block that its layer does not have any more.
#[must_use]
pub fn hole(layout: Layout) -> Encoded {
    empty(layout, Kind::Hole)
}

fn empty(layout: Layout, kind: Kind) -> Encoded {
    Encoded {
        kind,
        stored: 0,
        parts: layout.map(|_| Bytes::new()),
    }
}

fn encode_allocated(run: &mut Run, block: &[u8], seal: Option<Seal<'_>>) {
    COMPRESSOR.with_borrow_mut(|(buffer, table, tries)| {
        if !tries.tries(block) {
            return raw(run, block, seal, buffer);
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
        match shortened {
            None => {
                raw(run, block, seal, buffer);
                tries.learn(block, false);
            }
            Some(length) => {
                let bytes = &mut buffer[..length];
                if let Some(seal) = seal {
                    seal.encrypt(bytes);
                }
                run.put(Kind::Lz4, bytes, false);
                tries.learn(block, true);
            }
        }
        if buffer.len() > KEPT {
            *buffer = Vec::new();
        }
    });
}

/// Bytes of a block for which each of two targets gives a unit of space.
const UNITS: usize = 2 * 64;
/// The part of a block that compression saves at least.
const SAVED: usize = 16;

/// True if so few stored bytes take clearly less space. Each read would decompress others for little.
fn saves(stored: usize, block: usize) -> bool {
    stored.div_ceil(UNITS) < block.div_ceil(UNITS) && stored <= block - block / SAVED
}

/// A block as it is, or encrypted.
fn raw(run: &mut Run, block: &[u8], seal: Option<Seal<'_>>, buffer: &mut Vec<u8>) {
    let Some(seal) = seal else {
        return run.put(Kind::Raw, block, true);
    };
    buffer.clear();
    buffer.extend_from_slice(block);
    seal.encrypt(buffer);
    run.put(Kind::Raw, buffer, false);
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

/// Bytes of all parts of a block that is stored as it is: copies are the same ones.
pub(crate) fn raw_bytes(layout: Layout, block: usize) -> usize {
    block + parities(layout) * longest(block, layout)
}

/// Parts behind those of data that have bytes of their own.
fn parities(layout: Layout) -> usize {
    match layout.is_mirror() {
        true => 0,
        false => layout.targets() - layout.needed(),
    }
}

/// The parts of a block, whose stored bytes and parities are in these.
fn cut(layout: Layout, block: &Stored, (data, parities): (&Bytes, &Bytes)) -> Encoded {
    let (stored, start) = (block.length, block.data);
    let length = longest(stored, layout);
    let part = |role: Role| match role.index() {
        // The last parts of data may be empty.
        nth if nth < layout.needed() => {
            let from = (nth * length).min(stored);
            data.slice(start + from..start + (from + length).min(stored))
        }
        // Of a mirror, another copy of the only part of data.
        _ if layout.is_mirror() => data.slice(start..start + stored),
        nth => {
            let from = block.parities + (nth - layout.needed()) * length;
            parities.slice(from..from + length)
        }
    };
    Encoded {
        kind: block.kind,
        // Cannot fail: a block has at most 1 MiB, and a compressed one is shorter.
        stored: u32::try_from(stored).unwrap_or(u32::MAX),
        parts: layout.map(part),
    }
}

/// Length of the first part, which is also that of the parity.
fn longest(stored: usize, layout: Layout) -> usize {
    stored.div_ceil(layout.needed())
}

/// Bytes that a role holds of a block with `stored` bytes.
#[must_use]
pub fn part_length(stored: u32, role: Role) -> usize {
    let stored = stored as usize;
    let length = longest(stored, role.layout());
    match role.is_data() {
        true => stored.saturating_sub(role.index() * length).min(length),
        false => length,
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

/// Parts of a block by role. None: it is not there.
pub type Parts<'a> = [Option<&'a [u8]>];

/// Restores one part of a block with `stored` bytes from others.
///
/// # Errors
/// They are too few, or have lengths that one block cannot have.
pub fn restore(role: Role, stored: u32, parts: &Parts<'_>) -> Result<Vec<u8>, BadBlock> {
    let layout = role.layout();
    let there = layout.roles().zip(parts);
    let there = there.filter_map(|(other, part)| Some((other, (*part)?)));
    let others = there.filter(|(other, _)| *other != role);
    let others: PerTarget<(Role, &[u8])> = others.take(layout.needed()).collect();
    for (other, part) in &others {
        if part.len() != part_length(stored, *other) {
            return Err(BadBlock::Halves);
        }
    }
    code::restored(role, &others, part_length(stored, role)).ok_or(BadBlock::Halves)
}

/// The part of a role, from all parts of data.
#[must_use]
pub fn part(role: Role, stored: u32, data: &[&[u8]]) -> Vec<u8> {
    match data.get(role.index()) {
        Some(part) => part.to_vec(),
        None => code::part(role, data, part_length(stored, role)),
    }
}

/// Decodes a block of these parts of data into `block`, whose length is the block size.
///
/// # Errors
/// The stored bytes are no block of this size.
pub fn decode(kind: Kind, data: &[&[u8]], block: &mut [u8]) -> Result<(), BadBlock> {
    decode_with(kind, data, None, block)
}

/// As [`decode`], of a block that is encrypted if there is a key.
///
/// # Errors
/// As [`decode`].
pub fn decode_with(
    kind: Kind,
    data: &[&[u8]],
    seal: Option<Seal<'_>>,
    block: &mut [u8],
) -> Result<(), BadBlock> {
    let stored: usize = data.iter().map(|part| part.len()).sum();
    let length = stored.div_ceil(data.len().max(1));
    let mut rest = stored;
    for part in data {
        if part.len() != rest.min(length) {
            return Err(BadBlock::Halves);
        }
        rest -= part.len();
    }
    if seal.is_some() && kind.has_bytes() && stored < SEALED_MIN {
        return Err(BadBlock::Length);
    }
    match kind {
        Kind::Zero | Kind::Hole if stored == 0 => block.fill(0),
        Kind::Raw if stored == block.len() => {
            let mut rest = &mut *block;
            for part in data {
                let (to, behind) = rest.split_at_mut(part.len());
                to.copy_from_slice(part);
                rest = behind;
            }
            if let Some(seal) = seal {
                seal.decrypt(block);
            }
        }
        Kind::Lz4 if stored < block.len() => {
            let mut together;
            let bytes = match (data, seal) {
                ([all], None) => all,
                (parts, seal) => {
                    together = parts.concat();
                    if let Some(seal) = seal {
                        seal.decrypt(&mut together);
                    }
                    &together[..]
                }
            };
            match lz4_flex::block::decompress_into(bytes, block) {
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

    fn data(encoded: &Encoded, layout: Layout) -> Vec<&[u8]> {
        let data = encoded.parts.iter().take(layout.needed());
        data.map(|part| &part[..]).collect()
    }

    #[track_caller]
    fn check(block: &[u8], kind: Kind) {
        for layout in ["2+1", "mirror-2", "mirror-3", "3+1", "5+2", "8+3"] {
            let layout = layout.parse().unwrap();
            let encoded = encode(layout, block);
            assert_eq!(encoded.kind, kind);
            assert!(encoded.stored as usize <= block.len(), "it grows");
            let mut back = vec![0xaa; block.len()];
            decode(kind, &data(&encoded, layout), &mut back).unwrap();
            assert!(back == block);
            for role in layout.roles() {
                let wanted = &encoded.parts[role.index()];
                assert_eq!(wanted.len(), part_length(encoded.stored, role));
                assert_eq!(wanted, &part(role, encoded.stored, &data(&encoded, layout)));
                let left = |other: Role| (other != role).then(|| &encoded.parts[other.index()][..]);
                let left = layout.map(left);
                let back = restore(role, encoded.stored, &left);
                assert_eq!(&back.unwrap(), wanted, "{layout} {role}");
            }
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

    /// Noise in words whose highest bits are zero, as fio writes it: no value comes twice.
    fn small_words(seed: u64) -> Vec<u8> {
        let mut bytes = noise(seed);
        bytes
            .iter_mut()
            .skip(7)
            .step_by(8)
            .for_each(|high| *high /= 8);
        bytes
    }

    /// Blocks that look like noise and would save space are missed behind much noise only, and few of them.
    #[test]
    fn what_looks_like_noise_is_tried_soon_behind_little_noise() {
        for before in [0, 7, 8, 40, 104, 232, 1000] {
            let mut tries = Tries::default();
            for seed in 0..before {
                if tries.tries(&noise(seed)) {
                    tries.learn(&noise(seed), false);
                }
            }
            let mut missed = 0;
            while !tries.tries(&noise(before + missed)) {
                missed += 1;
            }
            assert!(
                missed < (2 * before).clamp(32, 256),
                "{missed} behind {before}"
            );
            tries.learn(&noise(before), true);
            assert!(
                (0..8).all(|seed| tries.tries(&noise(seed))),
                "all are tried again"
            );
        }
    }

    /// Of a stream of noise, or of bytes that save nothing although some are more frequent, one block in 32, and soon one in 256,
    /// is compressed in vain, and the blocks that save space are found among it.
    #[test]
    fn noise_is_rarely_compressed() {
        for make in [noise, small_words] {
            let mut tries = Tries::default();
            let mut tried = 0;
            for seed in 0..808 {
                if tries.tries(&make(seed)) {
                    tried += 1;
                    tries.learn(&make(seed), false);
                }
            }
            assert_eq!(tried, 8 + 5);
        }
        let mut end = noise(1);
        end[3600..].fill(0);
        let text = include_str!("block.rs").as_bytes();
        let mut some = noise(2);
        for (to, from) in some.chunks_mut(512).zip(text.chunks(256)) {
            to[..256].copy_from_slice(from);
        }
        for make in [noise, small_words] {
            for block in [&end[..], &text[..4096], &some, &text[..1024]] {
                for seed in 0..4 {
                    check(&make(seed), Kind::Raw);
                }
                check(block, Kind::Lz4);
            }
        }
    }

    /// Compression that saves less than a sixteenth costs each read for little.
    #[test]
    fn a_block_that_saves_no_space_stays_as_it_is() {
        let mut block = noise(1);
        block[..200].fill(1);
        check(&block, Kind::Raw);
        block[..300].fill(1);
        check(&block, Kind::Lz4);
    }

    /// Blocks of a run are those that are encoded alone, in one piece of memory.
    #[test]
    fn a_run_has_its_blocks_in_one_memory() {
        let mut short = noise(4);
        short[1000..].fill(3);
        let blocks = [noise(1), vec![0; 4096], short, vec![7; 4096], noise(2)];
        for layout in ["2+1", "mirror-3", "5+2"] {
            let layout = layout.parse().unwrap();
            let mut run = Run::new(layout, blocks.len(), Vec::new());
            blocks.iter().for_each(|block| run.push(block, false, None));
            let encoded: Vec<Encoded> = run.finish(Bytes::from).collect();
            let alone = blocks.each_ref().map(|block| encode(layout, block));
            assert_eq!(encoded, alone);
            let part = |at: usize, role: usize| encoded[at].parts[role].as_ptr() as usize;
            let bytes = |one: &Encoded| match layout.is_mirror() {
                true => one.parts[0].len(),
                false => one.parts.iter().map(Bytes::len).sum(),
            };
            let before: usize = encoded[..4].iter().map(bytes).sum();
            assert_eq!(part(4, 0) - part(0, 0), before);
        }
    }

    /// The bytes of a block are copied once, for all targets.
    #[test]
    fn parts_share_their_memory() {
        let encoded = encode(Layout::HALVES, &noise(1));
        let [first, second, parity] = &encoded.parts[..] else {
            panic!("{encoded:?}");
        };
        assert_eq!(first.as_ptr_range().end, second.as_ptr());
        assert_eq!(second.as_ptr_range().end, parity.as_ptr());
        let copies = encode("mirror-3".parse().unwrap(), &noise(1)).parts;
        assert!(
            copies
                .iter()
                .all(|copy| copy.as_ptr() == copies[0].as_ptr())
        );
    }

    #[test]
    fn zeros_that_must_be_allocated_have_bytes() {
        let encoded = encode_with(Layout::HALVES, &[0; 4096], true, None);
        assert_eq!(encoded.kind, Kind::Lz4);
        let mut back = [1; 4096];
        decode(Kind::Lz4, &data(&encoded, Layout::HALVES), &mut back).unwrap();
        assert_eq!(back, [0; 4096]);
    }

    /// Bytes that are no LZ4 block of this size: they expand beyond the block, stop short, or point before its start.
    #[test]
    fn lz4_that_is_no_block_is_refused() {
        let long = encode(Layout::HALVES, &[7; 8192]);
        let short = encode(Layout::HALVES, &[7; 1024]);
        for encoded in [long, short] {
            let mut block = [0; 4096];
            let result = decode(Kind::Lz4, &data(&encoded, Layout::HALVES), &mut block);
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
            assert!(decode(Kind::Lz4, &[first, second], &mut block).is_err());
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
            let result = decode(kind, &[&vec![0; first], &vec![0; second]], &mut block);
            assert!(result.is_err(), "{kind:?} {first} {second}");
        }
        assert!(restore(Role::FIRST, 10, &[None, Some(&[0; 5]), Some(&[0; 4])]).is_err());
        assert!(restore(Role::SECOND, 10, &[Some(&[0; 6]), None, Some(&[0; 5])]).is_err());
    }

    proptest! {
        #[test]
        fn any_block_comes_back(
            pattern in proptest::collection::vec(any::<u8>(), 1..300),
            units in 1usize..80,
        ) {
            let block: Vec<u8> = pattern.iter().copied().cycle().take(units * 64).collect();
            for layout in ["2+1", "mirror-2", "7+2"] {
                let layout = layout.parse().unwrap();
                let encoded = encode(layout, &block);
                let mut back = vec![1; block.len()];
                decode(encoded.kind, &data(&encoded, layout), &mut back).unwrap();
                prop_assert_eq!(&back, &block);
            }
        }

        /// A decoder accepts any bytes without a panic.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..5) {
            let Some(kind) = Kind::of(kind) else { return Ok(()) };
            let mut block = [0; 256];
            let (first, second) = bytes.split_at(bytes.len().div_ceil(2));
            let _ = decode(kind, &[first, second], &mut block);
        }
    }
}
