//! Free and used space of a store's data area. Does no I/O.
//!
//! A range that is freed is not used again before the next sync: until then the durable index may still refer to it.

use crate::record;
use std::collections::{BTreeMap, BTreeSet};

/// Ranges are multiples of this number of bytes.
pub(super) const UNIT: u64 = 64;

/// Bytes that may rest before a sync is due: half of what is in use, within these limits.
const RESTING_MIN: u64 = 4 << 20;
const RESTING_MAX: u64 = 64 << 20;
/// Shortest free range that is given back to the file system. A shorter one is soon used again: to take it back costs a
/// journal entry and a search for blocks.
const RELEASE_MIN: u64 = 1 << 20;

/// A range of the data area in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Extent {
    pub(super) fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// Allocator of a data area.
#[derive(Debug)]
pub(super) struct Space {
    /// Free ranges below the tail, by offset. No two of them touch.
    free: BTreeMap<u64, u64>,
    /// The same ranges by length and offset.
    by_length: BTreeSet<(u64, u64)>,
    /// Their bytes.
    free_bytes: u64,
    /// Everything from here on is free.
    tail: u64,
    end: u64,
    used: u64,
    /// Freed since the last sync.
    resting: Vec<Extent>,
    resting_bytes: u64,
    unknown: Option<Unknown>,
}

/// Space that was taken for several records, as far as none has it yet.
#[derive(Debug, Default)]
pub(super) struct Room(pub(super) Option<Extent>);

impl Room {
    /// Its first bytes, for a record. None if it is too short.
    pub(super) fn take(&mut self, length: u64) -> Option<Extent> {
        let length = Space::rounded(length);
        let left = self.0.as_mut().filter(|left| left.length >= length)?;
        let offset = left.offset;
        left.offset += length;
        left.length -= length;
        Some(Extent { offset, length })
    }
}

/// Space of which only that is known to be free that was freed since.
#[derive(Debug)]
struct Unknown {
    end: u64,
    /// Ranges that were freed since, used again or not. No two of them touch.
    given: BTreeMap<u64, u64>,
}

/// Bytes that may be taken behind unknown space before it is looked at, beside a quarter of what is in use.
const UNKNOWN_MAX: u64 = 1 << 30;

impl Space {
    /// A data area from `start` to `end` in which `used` is in use.
    pub(super) fn new(start: u64, end: u64, mut used: Vec<Extent>) -> Self {
        used.sort_unstable();
        let mut space = Self {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free_bytes: 0,
            tail: start,
            end,
            used: 0,
            resting: Vec::new(),
            resting_bytes: 0,
            unknown: None,
        };
        for extent in used {
            // A range in use may lie behind the end: that limits what is taken from now on.
            let gap_end = extent.offset.min(end);
            if gap_end > space.tail {
                space.insert(Extent {
                    offset: space.tail,
                    length: gap_end - space.tail,
                });
            }
            // Ranges of a damaged index may overlap.
            space.tail = space.tail.max(extent.end());
            space.used += extent.length;
        }
        space
    }

    /// A data area of which `used` bytes before `tail` are in use, and nothing behind it.
    pub(super) fn unknown(tail: u64, end: u64, used: u64) -> Self {
        let unknown = Unknown {
            end: tail,
            given: BTreeMap::new(),
        };
        Self {
            used,
            unknown: Some(unknown),
            ..Self::new(tail, end, Vec::new())
        }
    }

    /// True if it is time to look at unknown space: much was taken behind it.
    pub(super) fn is_look_due(&self) -> bool {
        let unknown = self.unknown.as_ref();
        unknown.is_some_and(|unknown| {
            self.tail.saturating_sub(unknown.end) > self.used / 4 + UNKNOWN_MAX
        })
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.unknown.is_some()
    }

    /// Nothing from `start` on is in use but for these ranges, and what is not in the index yet.
    pub(super) fn learn(&mut self, start: u64, mut used: Vec<Extent>) {
        let Some(Unknown { end, given }) = self.unknown.take() else {
            return;
        };
        self.used = used.iter().map(|extent| extent.length).sum();
        let given = given.into_iter();
        used.extend(given.map(|(offset, length)| Extent { offset, length }));
        used.sort_unstable();
        let mut from = start;
        for extent in used.into_iter().chain([Extent {
            offset: end,
            length: 0,
        }]) {
            let gap_end = extent.offset.min(end);
            if gap_end > from {
                self.merge(Extent {
                    offset: from,
                    length: gap_end - from,
                });
            }
            from = from.max(extent.end());
        }
    }

    /// Bytes that a record of `length` bytes takes.
    pub(super) fn rounded(length: u64) -> u64 {
        length.next_multiple_of(UNIT)
    }

    /// Takes a range of `length` bytes: the shortest free one that is long enough.
    pub(super) fn take(&mut self, length: u64) -> Option<Extent> {
        let length = Self::rounded(length);
        let found = self.by_length.range((length, 0)..).next().copied();
        let offset = if let Some((found, offset)) = found {
            self.remove(offset, found);
            if found > length {
                self.insert(Extent {
                    offset: offset + length,
                    length: found - length,
                });
            }
            offset
        } else {
            let end = self.tail.checked_add(length)?;
            if end > self.end {
                return None;
            }
            std::mem::replace(&mut self.tail, end)
        };
        self.used += length;
        Some(Extent { offset, length })
    }

    /// As [`Space::take`], for records one behind the other, of which the shortest takes `least` bytes. None if they have to use
    /// several free ranges.
    pub(super) fn take_run(&mut self, length: u64, least: u64) -> Option<Extent> {
        let longest = self.by_length.last().map_or(0, |(longest, _)| *longest);
        let is_one = longest >= length || longest < least;
        is_one.then(|| self.take(length)).flatten()
    }

    /// Returns a range that nothing refers to. It rests until [`Space::synced`].
    pub(super) fn give(&mut self, extent: Extent) {
        let length = Self::rounded(extent.length);
        self.used = self.used.saturating_sub(length);
        self.resting_bytes += length;
        match self.resting.last_mut() {
            Some(last) if last.end() == extent.offset => last.length += length,
            _ => self.resting.push(Extent { length, ..extent }),
        }
        if let Some(unknown) = &mut self.unknown
            && extent.offset < unknown.end
        {
            unknown.give(extent.offset, extent.offset + length);
        }
    }

    /// The end of everything in use.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// True if so much rests that a sync is due before more is taken, or `times` as much.
    pub(super) fn is_sync_due(&self, times: u64) -> bool {
        self.resting_bytes >= times * (self.used / 2).clamp(RESTING_MIN, RESTING_MAX)
    }

    /// Takes the ranges that a sync which starts now will make free.
    pub(super) fn begin_sync(&mut self) -> Vec<Extent> {
        self.resting_bytes = 0;
        std::mem::take(&mut self.resting)
    }

    /// Makes ranges of [`Space::begin_sync`] free after the sync. Returns the free ranges around them that the file system
    /// gets back: none if as much as a sync waits for at most is free.
    pub(super) fn synced(&mut self, extents: Vec<Extent>) -> Vec<Extent> {
        let tail = self.tail;
        let offsets: Vec<u64> = extents.iter().map(|extent| extent.offset).collect();
        for extent in extents {
            self.merge(extent);
        }
        let behind = tail.saturating_sub(self.tail);
        if self.free_bytes + behind <= (self.used / 2).max(RESTING_MIN) {
            return Vec::new();
        }
        let around = offsets.into_iter().filter_map(|offset| {
            let (&start, &length) = self.free.range(..=offset).next_back()?;
            (offset < start + length).then_some((start, length))
        });
        let around: BTreeSet<(u64, u64)> = around.chain([(self.tail, behind)]).collect();
        let around = around
            .into_iter()
            .map(|(offset, length)| Extent { offset, length });
        around
            .filter(|extent| extent.length >= RELEASE_MIN)
            .collect()
    }

    /// Takes the ranges back if the sync has failed.
    pub(super) fn not_synced(&mut self, extents: Vec<Extent>) {
        self.resting_bytes += extents.iter().map(|extent| extent.length).sum::<u64>();
        self.resting.extend(extents);
    }

    fn merge(&mut self, mut extent: Extent) {
        if let Some((&offset, &length)) = self.free.range(..extent.offset).next_back()
            && offset + length == extent.offset
        {
            self.remove(offset, length);
            extent = Extent {
                offset,
                length: length + extent.length,
            };
        }
        if let Some(&length) = self.free.get(&extent.end()) {
            self.remove(extent.end(), length);
            extent.length += length;
        }
        if extent.end() == self.tail {
            self.tail = extent.offset;
        } else if extent.end() <= self.end {
            self.insert(extent);
        }
    }

    fn insert(&mut self, extent: Extent) {
        self.free_bytes += extent.length;
        self.free.insert(extent.offset, extent.length);
        self.by_length.insert((extent.length, extent.offset));
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.free_bytes -= length;
        self.free.remove(&offset);
        self.by_length.remove(&(length, offset));
    }

    /// True if a range is still free as a whole.
    pub(super) fn is_free(&self, extent: Extent) -> bool {
        if extent.offset >= self.tail {
            return true;
        }
        let around = self.free.range(..=extent.offset).next_back();
        around.is_some_and(|(&offset, &length)| offset + length >= extent.end())
    }

    /// Bytes in use, without those that rest.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that can be allocated, in ranges that may be too short.
    pub(super) fn available(&self) -> u64 {
        self.free_bytes + self.end.saturating_sub(self.tail)
    }
}

impl Unknown {
    fn give(&mut self, mut from: u64, mut to: u64) {
        while let Some((&offset, &length)) = self.given.range(..=to).next_back()
            && offset + length >= from
        {
            self.given.remove(&offset);
            from = from.min(offset);
            to = to.max(offset + length);
        }
        self.given.insert(from, to - from);
    }
}

/// True if a record can be between two offsets.
pub(super) fn fits(extent: Extent, (start, end): (u64, u64)) -> bool {
    let last = extent.offset.checked_add(Space::rounded(extent.length));
    extent.offset >= start
        && last.is_some_and(|last| last <= end)
        && (record::HEADER as u64..=record::RECORD_MAX as u64).contains(&extent.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_freed_range_rests_until_the_sync() {
        let mut space = Space::new(0, 256, Vec::new());
        let extents: Vec<_> = (0..4).map(|_| space.take(1).unwrap()).collect();
        assert_eq!(space.take(1), None);
        space.give(extents[1]);
        assert_eq!(space.take(1), None, "it is still in the durable index");
        let resting = space.begin_sync();
        space.synced(resting);
        assert_eq!(space.take(64), Some(extents[1]));
    }

    /// A smaller limit takes nothing away, and nothing is taken behind it.
    #[test]
    fn ranges_in_use_behind_the_end_stay() {
        let used = [64, 256, 448].map(|offset| Extent { offset, length: 64 });
        let mut space = Space::new(0, 192, used.to_vec());
        assert_eq!((space.used(), space.available()), (192, 128));
        assert_eq!(space.take(64).map(|extent| extent.offset), Some(0));
        assert_eq!(space.take(64).map(|extent| extent.offset), Some(128));
        assert_eq!(space.take(64), None);
        space.give(used[1]);
        let resting = space.begin_sync();
        space.synced(resting);
        assert_eq!(space.take(64), None, "it was behind the end");
    }

    /// Unknown space is used again as far as it was freed, and as a whole after a look.
    #[test]
    fn unknown_space_is_found_by_a_look() {
        let range = |from: u64, to: u64| Extent {
            offset: from * 64,
            length: (to - from) * 64,
        };
        let mut space = Space::unknown(10 * 64, 12 * 64, 5 * 64);
        assert_eq!(space.take(128), Some(range(10, 12)));
        assert_eq!(space.take(64), None);
        space.give(range(2, 4));
        let resting = space.begin_sync();
        space.synced(resting);
        assert_eq!(
            space.take(64),
            Some(range(2, 3)),
            "it is not in the index yet"
        );
        space.learn(0, vec![range(5, 7), range(10, 12)]);
        assert_eq!((space.used(), space.is_unknown()), (4 * 64, false));
        let mut free: Vec<Extent> = std::iter::from_fn(|| space.take(64)).collect();
        free.sort_unstable();
        let units = [0, 1, 3, 4, 7, 8, 9].map(|unit| range(unit, unit + 1));
        assert_eq!(free, units);
    }

    /// Records of one call are together where that is possible without a longer file.
    #[test]
    fn a_run_takes_one_free_range_or_what_is_behind_all() {
        let mut space = Space::new(0, 1 << 20, Vec::new());
        let run = space.take_run(8 * 64, 64).unwrap();
        assert_eq!((run.offset, run.length), (0, 512), "nothing was freed");
        let mut room = Room(Some(run));
        let records: Vec<Extent> = (0..8).map(|_| room.take(60).unwrap()).collect();
        assert_eq!(room.take(1), None);
        let _behind = space.take(64).unwrap();
        let free = |space: &mut Space, records: &[Extent]| {
            records.iter().for_each(|record| space.give(*record));
            let resting = space.begin_sync();
            assert_eq!(resting.len(), 1, "neighbours rest together");
            space.synced(resting);
        };
        free(&mut space, &records[..2]);
        assert_eq!(space.take_run(3 * 64, 64), None, "two of them fit there");
        let longer = space.take_run(4 * 256, 256).unwrap();
        assert_eq!(longer.offset, 9 * 64, "none of them fits");
        free(&mut space, &records[2..5]);
        assert_eq!(space.take_run(5 * 64, 64).unwrap().offset, 0);
        assert_eq!(
            (space.used(), space.available()),
            (9 * 64 + 1024, (1 << 20) - 25 * 64)
        );
    }

    #[test]
    fn a_sync_is_due_when_much_rests() {
        let mut space = Space::new(0, u64::MAX, Vec::new());
        let record = 1 << 20;
        for _ in 0..4 {
            assert!(!space.is_sync_due(1));
            let extent = space.take(record).unwrap();
            space.give(extent);
        }
        assert!(space.is_sync_due(1));
        let resting = space.begin_sync();
        assert!(!space.is_sync_due(1));
        space.not_synced(resting);
        assert!(space.is_sync_due(1));
    }

    /// The file system gets long ranges back once, and only if much is free.
    #[test]
    fn much_free_space_is_given_back_once() {
        let mut space = Space::new(0, u64::MAX, Vec::new());
        let records: Vec<Extent> = (0..16 << 8).map(|_| space.take(4096).unwrap()).collect();
        let end = space.tail();
        let mut give = |records: &[Extent]| {
            for record in records {
                space.give(*record);
            }
            let resting = space.begin_sync();
            space.synced(resting)
        };
        let (kept, rest) = records.split_at(1 << 8);
        let (little, much) = rest.split_at(1 << 10);
        assert_eq!(give(little), [], "4 MiB of 16");
        let free = Extent {
            offset: kept.len() as u64 * 4096,
            length: end - kept.len() as u64 * 4096,
        };
        assert_eq!(give(much), [free]);
        assert_eq!(give(kept), [], "the rest is back already");
    }

    proptest! {
        /// Ranges in use never overlap, stay inside, and everything comes back.
        #[test]
        fn ranges_are_disjoint(steps in proptest::collection::vec((0u64..3000, any::<bool>()), 1..200)) {
            let mut space = Space::new(4096, 1 << 17, Vec::new());
            let mut held: Vec<Extent> = Vec::new();
            for (length, free) in steps {
                if free && !held.is_empty() {
                    let extent = held.swap_remove(usize::try_from(length).unwrap() % held.len());
                    space.give(extent);
                    let resting = space.begin_sync();
                    space.synced(resting);
                } else if let Some(extent) = space.take(length + 1) {
                    prop_assert!(extent.offset >= 4096 && extent.end() <= 1 << 17);
                    prop_assert!(held.iter().all(|other| other.end() <= extent.offset || extent.end() <= other.offset));
                    held.push(extent);
                }
                prop_assert_eq!(space.used(), held.iter().map(|extent| extent.length).sum::<u64>());
            }
            // The same state follows from the ranges in use.
            let again = Space::new(4096, 1 << 17, held.clone());
            prop_assert_eq!((again.used(), again.available()), (space.used(), space.available()));
            for extent in held {
                space.give(extent);
            }
            let resting = space.begin_sync();
            space.synced(resting);
            prop_assert_eq!(space.available(), (1 << 17) - 4096);
            prop_assert!(space.free.is_empty());
        }
    }
}
