//! The layers of a volume: where its targets hold the blocks of the volume and of its snapshots. Does no I/O.
//!
//! ```text
//! magic "XBLY", bytes (4)   8 epoch (8), revision (8)   24 end (8)   32 step (4), next id (4), layers (4)
//! layer: id (4), blocks (8), deleted (1), bytes of its name (1), segments (1), name, segments: first, length, place (8 each)
//! CRC32C (4)
//! ```
//!
//! A snapshot freezes the layer to which writes went before, and gives the volume a new one. A block is read from the newest
//! layer that has it. Each layer has blocks of its own at the targets, which are like all others: two targets hold each, and
//! rebuild, scrub and replacement know no difference. A layer that was deleted takes over what the next one has.

use crate::crc32c::crc32c;
use crate::error::{BlkError, Result};
use std::ops::Range;

/// Most snapshots of a volume, also those whose space is not free yet.
pub(crate) const SNAPSHOTS_MAX: usize = 15;
/// Longest name of a snapshot.
pub(crate) const NAME_MAX: usize = 64;
/// Most segments of all layers.
const SEGMENTS_MAX: usize = 64;
/// Longest table.
pub(crate) const BYTES_MAX: usize = 3584;
const MAGIC: [u8; 4] = *b"XBLY";

/// A part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// First block of the volume.
    pub(crate) first: u64,
    pub(crate) length: u64,
    /// Where it is at the targets.
    pub(crate) place: u64,
}

impl Segment {
    fn end(self) -> u64 {
        self.place + self.length
    }

    /// The part that lies in a range of the volume's blocks.
    fn within(self, blocks: &Range<u64>) -> Option<Self> {
        let first = self.first.max(blocks.start);
        let end = (self.first + self.length).min(blocks.end);
        (first < end).then(|| Self {
            first,
            length: end - first,
            place: self.place + (first - self.first),
        })
    }
}

/// The volume as it is, or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Layer {
    pub(crate) id: u32,
    /// Empty for the volume, and for a snapshot that was deleted.
    pub(crate) name: String,
    /// Blocks of the snapshot.
    pub(crate) blocks: u64,
    pub(crate) deleted: bool,
    /// In the order of their blocks.
    pub(crate) segments: Vec<Segment>,
}

impl Layer {
    /// Where the layer has a block of the volume, if it covers it.
    pub(crate) fn place(&self, block: u64) -> Option<u64> {
        let covers = |segment: &&Segment| {
            block
                .checked_sub(segment.first)
                .is_some_and(|at| at < segment.length)
        };
        let segment = self.segments.iter().find(covers)?;
        Some(segment.place + (block - segment.first))
    }

    /// Blocks that it covers, from 0 on.
    pub(crate) fn covered(&self) -> u64 {
        self.segments
            .last()
            .map_or(0, |last| last.first + last.length)
    }

    /// The parts that lie in a range of the volume's blocks.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Segment> + use<'_> {
        let segments = self.segments.iter();
        segments.filter_map(move |segment| segment.within(&blocks))
    }
}

/// All layers, the oldest first. The last one is the volume. None: there never was a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Layers {
    /// The opening that wrote the table, and its changes since. The highest one counts.
    pub(crate) version: (u64, u64),
    /// All places are below.
    pub(crate) end: u64,
    /// A block and its places have the same remainder.
    pub(crate) step: u64,
    next: u32,
    pub(crate) all: Vec<Layer>,
}

/// An error of a command.
fn refused<T>(text: String) -> Result<T> {
    Err(BlkError::Argument(text))
}

impl Layers {
    /// The volume without snapshots.
    pub(crate) fn new(blocks: u64, (end, step): (u64, u64)) -> Self {
        let whole = Segment {
            first: 0,
            length: blocks,
            place: 0,
        };
        Self {
            version: (0, 0),
            end,
            step,
            next: 2,
            all: vec![Layer {
                id: 1,
                name: String::new(),
                blocks: 0,
                deleted: false,
                segments: vec![whole],
            }],
        }
    }

    pub(crate) fn with_version(self, version: (u64, u64)) -> Self {
        Self { version, ..self }
    }

    /// The remainder that locks use, given the blocks for which an index has room: small ones have no space for large steps.
    pub(crate) fn step_of(room: u64) -> u64 {
        if room < 4096 { 8 } else { 256 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of the snapshot with this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let named = |layer: &Layer| !name.is_empty() && layer.name == name;
        self.all.iter().position(named)
    }

    /// Number of a layer that was not deleted.
    pub(crate) fn find_id(&self, id: u32) -> Option<usize> {
        let same = |layer: &Layer| layer.id == id && !layer.deleted;
        self.all.iter().position(same)
    }

    /// The layer that takes over what the next one has, if any does.
    pub(crate) fn merging(&self) -> Option<usize> {
        self.all.iter().position(|layer| layer.deleted)
    }

    /// The same as the next table of this opening.
    pub(crate) fn next(mut self) -> Self {
        self.version.1 += 1;
        self
    }

    /// The table with a snapshot of the volume, which has `blocks`.
    ///
    /// # Errors
    /// The name is taken or no name, there are too many snapshots, or the index has no room.
    pub(crate) fn snapshot(&self, name: &str, blocks: u64) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
            return refused(format!(
                "'{name}': the name of a snapshot has 1 to {NAME_MAX} letters, digits, '.', '_' or '-'"
            ));
        }
        if self.find(name).is_some() {
            return refused(format!(
                "there is a snapshot '{name}': delete it, or choose another name"
            ));
        }
        if self.all.len() > SNAPSHOTS_MAX {
            return refused(format!(
                "a volume has at most {SNAPSHOTS_MAX} snapshots, with those whose space is not free yet: delete one"
            ));
        }
        let mut next = self.clone();
        let segment = next.allocate(0, blocks)?;
        if let Some(frozen) = next.all.last_mut() {
            frozen.name = name.to_owned();
            frozen.blocks = blocks;
        }
        next.all.push(Layer {
            id: self.next,
            name: String::new(),
            blocks: 0,
            deleted: false,
            segments: vec![segment],
        });
        next.next = self.next.wrapping_add(1);
        Ok(next.next())
    }

    /// The table without a snapshot. Its layer remains.
    ///
    /// # Errors
    /// There is none with this name.
    pub(crate) fn without(&self, name: &str) -> Result<Self> {
        let Some(at) = self.find(name) else {
            return refused(format!(
                "there is no snapshot '{name}': `ctl snapshot list` names them"
            ));
        };
        let mut next = self.clone();
        next.all[at].name = String::new();
        next.all[at].deleted = true;
        Ok(next.next())
    }

    /// The table in which a layer has taken the place of the next one.
    pub(crate) fn merged(&self, lower: usize) -> Self {
        let mut next = self.clone();
        let upper = next.all.remove(lower + 1);
        let old = &mut next.all[lower];
        let covered = old.covered();
        let more = upper.within(covered..u64::MAX);
        let mut segments = std::mem::take(&mut old.segments);
        segments.extend(more);
        *old = Layer { segments, ..upper };
        next.next()
    }

    /// The table of a volume with this many blocks.
    ///
    /// # Errors
    /// The index has no room.
    pub(crate) fn grown(&self, blocks: u64) -> Result<Self> {
        let Some(last) = self.all.last() else {
            return Ok(self.clone());
        };
        let covered = last.covered();
        if covered >= blocks {
            return Ok(self.clone());
        }
        let mut next = self.clone();
        // Behind its last segment, if that is free.
        let behind = last.segments.last().map(|last| Segment {
            first: covered,
            length: blocks - covered,
            place: last.end(),
        });
        let segment = match behind.filter(|segment| self.is_free(*segment)) {
            Some(segment) => segment,
            None => self.allocate(covered, blocks - covered)?,
        };
        if let Some(last) = next.all.last_mut() {
            match last.segments.last_mut() {
                Some(before) if before.end() == segment.place => before.length += segment.length,
                _ => last.segments.push(segment),
            }
        }
        Ok(next.next())
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + use<'_> {
        self.all
            .iter()
            .flat_map(|layer| layer.segments.iter().copied())
    }

    /// A segment that overlaps another one.
    fn in_the_way(&self, of: Segment) -> Option<Segment> {
        let overlaps = |other: &Segment| of.place < other.end() && other.place < of.end();
        self.segments().find(overlaps)
    }

    fn is_free(&self, segment: Segment) -> bool {
        segment.end() <= self.end && self.in_the_way(segment).is_none()
    }

    /// Free places for blocks of the volume, as high as possible: the volume itself grows from below.
    fn allocate(&self, first: u64, length: u64) -> Result<Segment> {
        let rest = first % self.step;
        let below = |end: u64| {
            let place = end.checked_sub(length)?.checked_sub(rest)?;
            Some(Segment {
                first,
                length,
                place: place / self.step * self.step + rest,
            })
        };
        let mut segment = below(self.end);
        while let Some(other) = segment.and_then(|segment| self.in_the_way(segment)) {
            segment = below(other.place);
        }
        match segment {
            Some(segment) if self.segments().count() < SEGMENTS_MAX => Ok(segment),
            _ => refused(format!(
                "the index of the targets has room for {} blocks, and no {length} of them are free together: delete a \
                 snapshot, or copy the volume to one whose first size is larger",
                self.end
            )),
        }
    }

    /// The table as bytes, at most [`BYTES_MAX`].
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; 4]);
        for word in [self.version.0, self.version.1, self.end] {
            bytes.extend(word.to_be_bytes());
        }
        // Cannot be cut: all have limits.
        let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
        bytes.extend(short(self.step));
        bytes.extend(short(self.next.into()));
        bytes.extend(short(self.all.len() as u64));
        for layer in &self.all {
            bytes.extend(layer.id.to_be_bytes());
            bytes.extend(layer.blocks.to_be_bytes());
            let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
            bytes.extend([
                u8::from(layer.deleted),
                byte(layer.name.len()),
                byte(layer.segments.len()),
            ]);
            bytes.extend(layer.name.as_bytes());
            for segment in &layer.segments {
                for word in [segment.first, segment.length, segment.place] {
                    bytes.extend(word.to_be_bytes());
                }
            }
        }
        let length = short(bytes.len() as u64 + 4);
        bytes[4..8].copy_from_slice(&length);
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_be_bytes());
        bytes
    }

    /// The table at the start of these bytes. None: there is none, or it is damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.first_chunk() != Some(&MAGIC) {
            return None;
        }
        let length = bytes.get(4..8)?.try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
        if length > BYTES_MAX {
            return None;
        }
        let (content, crc) = bytes.get(..length)?.split_last_chunk::<4>()?;
        if crc32c(content).to_be_bytes() != *crc {
            return None;
        }
        let mut rest = Words(content.get(8..)?);
        let version = (rest.u64()?, rest.u64()?);
        let (end, step) = (rest.u64()?, rest.u32()?);
        let (next, count) = (rest.u32()?, rest.u32()?);
        let mut layers = Self {
            version,
            end,
            step: step.into(),
            next,
            all: Vec::new(),
        };
        for _ in 0..count.min(64) {
            let (id, blocks) = (rest.u32()?, rest.u64()?);
            let [deleted, name, segments] = rest.take::<3>()?;
            let name = rest.bytes(name.into())?;
            let mut layer = Layer {
                id,
                name: std::str::from_utf8(name).ok()?.to_owned(),
                blocks,
                deleted: deleted != 0,
                segments: Vec::new(),
            };
            for _ in 0..segments {
                let segment = Segment {
                    first: rest.u64()?,
                    length: rest.u64()?,
                    place: rest.u64()?,
                };
                let at = layer.covered();
                let fits = segment
                    .place
                    .checked_add(segment.length)
                    .is_some_and(|end| end <= layers.end);
                let is_next = segment.first == at && at.checked_add(segment.length).is_some();
                if !fits || !is_next || layers.in_the_way(segment).is_some() {
                    return None;
                }
                layer.segments.push(segment);
            }
            layers.all.push(layer);
        }
        let last_is_volume = layers
            .all
            .last()
            .is_none_or(|last| last.name.is_empty() && !last.deleted);
        let is_whole = rest.0.is_empty() && layers.all.len() <= SNAPSHOTS_MAX + 1;
        let has_step = layers.is_empty() || (1..=256).contains(&layers.step);
        (is_whole && has_step && last_is_volume).then_some(layers)
    }
}

/// Numbers one after another.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_share_no_places_through_snapshots_growth_and_merges() {
        let mut layers = Layers::new(1000, (16_000, 256));
        for number in 0..8 {
            layers = layers.snapshot(&format!("s{number}"), 1000).unwrap();
        }
        layers = layers.grown(1500).unwrap();
        assert_eq!(layers.all.last().unwrap().segments.len(), 2);
        layers = layers.snapshot("large", 1500).unwrap();
        for layer in &layers.all {
            for block in [0, 999, 1000, 1499] {
                let place = layer.place(block);
                assert!(place.is_none_or(|place| place % 256 == block % 256));
            }
        }
        assert_eq!(Layers::parse(&layers.to_bytes()), Some(layers.clone()));
        let full = layers.grown(16_000).unwrap_err().to_string();
        assert!(full.contains("delete a snapshot"), "{full}");
        // The oldest layer takes over the others, one by one.
        while layers.all.len() > 1 {
            let name = layers.all[0].name.clone();
            layers = layers.without(&name).unwrap();
            assert_eq!(layers.merging(), Some(0));
            layers = layers.merged(0);
            assert_eq!(Layers::parse(&layers.to_bytes()), Some(layers.clone()));
        }
        assert_eq!(layers.all[0].covered(), 1500);
        assert_eq!(layers.all[0].place(700), Some(700));
    }

    #[test]
    fn names_numbers_and_room_have_limits() {
        let mut layers = Layers::new(8, (1 << 16, 256));
        let long = "n".repeat(NAME_MAX + 1);
        for name in ["", "a/b", "a b", &long] {
            assert!(layers.snapshot(name, 8).is_err(), "{name}");
        }
        for number in 0..SNAPSHOTS_MAX {
            let name = format!("{number}{}", "n".repeat(NAME_MAX - 2));
            layers = layers.snapshot(&name, 8).unwrap();
            assert!(layers.snapshot(&name, 8).is_err());
        }
        assert!(layers.snapshot("more", 8).is_err());
        assert!(layers.to_bytes().len() <= BYTES_MAX);
        assert!(layers.without("none").is_err());
        let none = Layers::new(100, (150, 8)).snapshot("s", 100);
        assert!(none.unwrap_err().to_string().contains("room for 150"));
    }

    #[test]
    fn a_table_of_the_most_segments_fits() {
        let mut layers = Layers::new(8, (1 << 40, 256));
        for number in 0..SNAPSHOTS_MAX as u64 {
            layers = layers
                .snapshot(&format!("{number}{}", "n".repeat(NAME_MAX - 2)), 8 + number)
                .unwrap();
        }
        let mut blocks = 100;
        while let Ok(more) = layers.grown(blocks) {
            // Nothing is free behind the last segment.
            layers = more;
            let last = layers.all.last().unwrap().segments.last().unwrap().end();
            let wall = Segment {
                first: layers.all[0].covered(),
                length: 1,
                place: last,
            };
            if layers.segments().count() >= SEGMENTS_MAX || !layers.is_free(wall) {
                break;
            }
            layers.all[0].segments.push(wall);
            blocks += 100;
        }
        assert!(layers.segments().count() >= SEGMENTS_MAX - 1 || layers.to_bytes().len() < 3000);
        assert!(layers.to_bytes().len() <= BYTES_MAX);
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_found(at in 0usize..200, change in 1u8..) {
            let layers = Layers::new(100, (6400, 256)).snapshot("one", 100).unwrap();
            let mut bytes = layers.to_bytes();
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= change;
                prop_assert_eq!(Layers::parse(&bytes), None);
            }
        }

        #[test]
        fn any_bytes_are_a_table_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Layers::parse(&bytes), None);
            let _ = Layers::parse(&[&MAGIC[..], &bytes].concat());
        }
    }
}
