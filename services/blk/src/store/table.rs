//! The index of a store in memory: groups in change as a whole, and which others the medium has. Does no I/O.

use super::index::{ENTRY, Entry, SLOT, slot_bytes};
use super::layout::{GROUP, GROUP_BYTES, GROUP_LEN, SECTOR, Shape, UNIT, UNIT_BYTES};
use super::space::Extent;
use super::units::Units;
use crate::crc32c::{crc32c, crc32c_append};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// The number of no group.
const NONE: u32 = u32::MAX;
/// Bytes of a sector of the settled index behind its groups.
const REST: usize = SECTOR % GROUP_BYTES;
/// Bytes before the entries of a group.
const HEADER: usize = 8;

/// The entries of a group.
pub(super) type Entries = [Entry; GROUP_LEN];

/// How far a group is on its way to the settled index. Each step is durable before the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It has changed since.
    InChange,
    /// The settled index has it too.
    Copied,
    /// The map says so.
    Mapped,
    /// Its sector is empty.
    Emptied,
}

/// What changes with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Those beside it.
    Neighbours,
    /// Any others, before and after it.
    Others,
}

/// A group in change.
pub(super) struct Group {
    pub(super) slot: u64,
    pub(super) entries: Entries,
    pub(super) stage: Stage,
    /// Its sector as it was written last. None: this process has not written it, or the settled index has the group.
    written: Option<Box<[u8; SECTOR]>>,
}

impl std::fmt::Debug for Group {
    /// Without the sector, which says the same as the entries.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Group");
        debug.field("slot", &self.slot);
        debug.field("entries", &self.entries);
        debug.field("stage", &self.stage).finish()
    }
}

/// Groups that the settled index gets, in their order.
#[derive(Default)]
pub(super) struct Copies {
    /// Offsets on the medium, and ends in `bytes` and `groups`.
    parts: Vec<(u64, usize, usize)>,
    bytes: Vec<u8>,
    groups: Vec<u64>,
}

impl Copies {
    /// Adds bytes behind the others, which are as many groups.
    fn push(&mut self, at: u64, bytes: &[u8], groups: &[u64]) {
        let of_last =
            |(last, end, _): &(u64, usize, usize), before: usize| last + (end - before) as u64;
        let before = self.parts.len().checked_sub(2);
        let before = before.map_or(0, |before| self.parts[before].1);
        let end = self.parts.last().map(|last| of_last(last, before));
        let between = end.and_then(|end| at.checked_sub(end));
        // What is behind the last group of a sector is zeros.
        let rest = if at.is_multiple_of(SECTOR as u64) {
            REST
        } else {
            0
        };
        // No part begins in one unit and ends in another: the system may have no space for one of them.
        let is_adjacent = !at.is_multiple_of(UNIT_BYTES as u64) && between == Some(rest as u64);
        if is_adjacent {
            self.bytes.extend_from_slice(&[0; REST][..rest]);
        }
        self.bytes.extend_from_slice(bytes);
        self.groups.extend_from_slice(groups);
        let ends = (self.bytes.len(), self.groups.len());
        match self.parts.last_mut() {
            Some(last) if is_adjacent => (last.1, last.2) = ends,
            _ => self.parts.push((at, ends.0, ends.1)),
        }
    }

    /// Offset, bytes and groups of each part.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, &[u8], &[u64])> {
        let mut from = (0, 0);
        self.parts.iter().map(move |&(at, bytes, groups)| {
            let start = std::mem::replace(&mut from, (bytes, groups));
            (
                at,
                &self.bytes[start.0..bytes],
                &self.groups[start.1..groups],
            )
        })
    }
}

/// A change of a block's entry.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) block: u64,
    pub(super) old: Entry,
    pub(super) new: Entry,
}

/// Sectors that are to be written, in the order of their slots.
#[derive(Default)]
pub(super) struct Sectors {
    slots: SmallVec<[u64; 1]>,
    bytes: SmallVec<[u8; SECTOR]>,
}

impl Sectors {
    /// Sectors without groups, for slots in their order.
    pub(super) fn empty(slots: impl Iterator<Item = u64>) -> Self {
        let mut sectors = Self::default();
        slots.for_each(|slot| sectors.push(slot, &sector(slot, None)));
        sectors
    }

    /// Room for so many.
    fn with_capacity(count: usize) -> Self {
        Self {
            slots: SmallVec::with_capacity(count),
            bytes: SmallVec::with_capacity(count * SECTOR),
        }
    }

    /// Adds a sector. Its slot is behind the others.
    fn push(&mut self, slot: u64, bytes: &[u8; SECTOR]) {
        debug_assert!(self.slots.last().is_none_or(|last| *last < slot));
        self.slots.push(slot);
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes for a slot.
    fn get(&self, slot: u64) -> Option<&[u8; SECTOR]> {
        let at = self.slots.binary_search(&slot).ok()?;
        self.bytes.as_chunks::<SECTOR>().0.get(at)
    }

    /// The first slot and the bytes of each run of adjacent sectors.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = &self.bytes[..];
        let runs = self.slots.chunk_by(|one, next| one + 1 == *next);
        runs.filter_map(move |run| {
            let (bytes, behind) = rest.split_at_checked(run.len() * SECTOR)?;
            rest = behind;
            Some((*run.first()?, bytes))
        })
    }
}

/// The index.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) shape: Shape,
    pub(super) groups: BTreeMap<u64, Box<Group>>,
    /// Those that are on their way to the settled index.
    pub(super) moving: BTreeSet<u64>,
    /// Sectors without a group.
    pub(super) free: BTreeSet<u64>,
    pub(super) units: Units,
    /// Groups whose entries may have been in a damaged sector.
    pub(super) suspects: BTreeSet<u64>,
    /// These sectors.
    pub(super) bad: BTreeSet<u64>,
}

/// Where a block is in its group.
pub(super) fn nth(block: u64) -> usize {
    // Cannot be cut: less than eight.
    usize::try_from(block % GROUP).unwrap_or(0)
}

impl Group {
    /// The group for the settled index. None if it says more than that can hold.
    fn settled(&self, number: u64) -> Option<[u8; GROUP_BYTES]> {
        let mut bytes = [0; GROUP_BYTES];
        let parts = bytes.as_chunks_mut::<SLOT>().0;
        let written = self.written.as_ref();
        let written = written.map(|sector| sector[HEADER..].as_chunks::<ENTRY>().0);
        for (at, (entry, part)) in self.entries.iter().zip(parts).enumerate() {
            let slot = entry.settled()?;
            // The first slot has the same form there.
            let same = written.filter(|_| entry.slots[0] == slot);
            let same = same.and_then(|entries| entries[at].first_chunk::<SLOT>());
            *part = match same {
                Some(same) => *same,
                None => slot_bytes(slot, number * GROUP + at as u64),
            };
        }
        Some(bytes)
    }

    /// Its sector with new entries. Only these are made again.
    fn sector_with(&self, changes: &[Change]) -> [u8; SECTOR] {
        let number = changes.first().map_or(0, |change| change.block / GROUP);
        let Some(written) = &self.written else {
            let mut entries = self.entries;
            for change in changes {
                entries[nth(change.block)] = change.new;
            }
            return sector(self.slot, Some((number, &entries)));
        };
        let mut bytes = **written;
        let places = bytes[HEADER..].as_chunks_mut::<ENTRY>().0;
        for change in changes {
            let at = nth(change.block);
            let before = (&self.entries[at], &places[at]);
            places[at] = change.new.to_bytes_behind(change.block, before);
        }
        bytes
    }
}

/// The sector of a group, or one without.
pub(super) fn sector(slot: u64, group: Option<(u64, &Entries)>) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    let number = group
        .and_then(|(group, _)| u32::try_from(group).ok())
        .unwrap_or(NONE);
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[4..HEADER].copy_from_slice(&checksum(slot, number).to_be_bytes());
    let Some((group, entries)) = group else {
        return bytes;
    };
    let places = bytes[HEADER..].chunks_exact_mut(ENTRY);
    for ((block, entry), place) in (group * GROUP..).zip(entries).zip(places) {
        place.copy_from_slice(&entry.to_bytes(block));
    }
    bytes
}

fn checksum(slot: u64, number: u32) -> u32 {
    crc32c_append(crc32c(&slot.to_be_bytes()), &number.to_be_bytes())
}

/// A group as the settled index has it.
pub(super) fn parse_settled(group: u64, bytes: &[u8], fits: impl Fn(Extent) -> bool) -> Entries {
    let mut entries = Entries::default();
    let parts = bytes.as_chunks::<SLOT>().0;
    for ((block, entry), part) in (group * GROUP..).zip(&mut entries).zip(parts) {
        *entry = Entry::parse_settled(block, part, &fits);
    }
    entries
}

/// A group of empty entries for the settled index.
fn nothing_settled(group: u64) -> [u8; GROUP_BYTES] {
    let mut bytes = [0; GROUP_BYTES];
    let parts = bytes.as_chunks_mut::<SLOT>().0;
    for (block, part) in (group * GROUP..).zip(parts) {
        *part = slot_bytes(None, block);
    }
    bytes
}

impl Table {
    /// The index of a new target.
    pub(super) fn new(shape: Shape, ready: u64) -> Self {
        Self {
            shape,
            groups: BTreeMap::new(),
            moving: BTreeSet::new(),
            free: (0..ready).collect(),
            units: Units::new(shape.map_sectors()),
            suspects: BTreeSet::new(),
            bad: BTreeSet::new(),
        }
    }

    /// The index with these sectors of the map and of groups in change. `blocks` are those of the volume; with `suspects`
    /// sectors were damaged before.
    pub(super) fn parse(
        shape: Shape,
        (map, sectors): (&[u8], &[u8]),
        (blocks, suspects): (u64, bool),
        fits: impl Fn(Extent) -> bool,
    ) -> Self {
        let mut table = Self {
            units: Units::parse(map),
            ..Self::new(shape, 0)
        };
        for (slot, bytes) in (0..).zip(sectors.chunks_exact(SECTOR)) {
            table.parse_sector(slot, bytes, &fits);
        }
        if suspects || !table.bad.is_empty() {
            table.suspect(blocks);
        }
        let groups: Vec<u64> = table.groups.keys().copied().collect();
        // Also those that were written when the machine lost power before it wrote the map.
        for group in groups {
            table.units.change(group / UNIT);
        }
        table
    }

    fn parse_sector(&mut self, slot: u64, bytes: &[u8], fits: &impl Fn(Extent) -> bool) {
        let be32 = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (number, crc) = (be32(0), be32(4));
        let group = u64::from(number);
        if crc != checksum(slot, number) || (number != NONE && group >= self.shape.groups()) {
            self.bad.insert(slot);
            return;
        }
        if number == NONE {
            self.free.insert(slot);
            return;
        }
        let mut entries = Entries::default();
        let parts = bytes[HEADER..].as_chunks::<ENTRY>().0;
        for ((block, entry), part) in (group * GROUP..).zip(&mut entries).zip(parts) {
            *entry = Entry::parse(block, part, fits);
        }
        if let Some(other) = self.groups.get_mut(&group) {
            // Nobody writes that: neither can be believed.
            other
                .entries
                .iter_mut()
                .for_each(|entry| entry.damaged = true);
            self.bad.insert(slot);
            return;
        }
        self.insert(group, slot, entries);
    }

    fn insert(&mut self, group: u64, slot: u64, entries: Entries) {
        let new = Group {
            slot,
            entries,
            stage: Stage::InChange,
            written: None,
        };
        self.groups.insert(group, Box::new(new));
    }

    /// Finds the groups that can have been in damaged sectors: those that have changed and have none, or if each group has
    /// the sector of its number, that one.
    fn suspect(&mut self, blocks: u64) {
        let groups = blocks.div_ceil(GROUP);
        if !self.shape.has_settled() {
            self.suspects
                .extend(self.bad.iter().filter(|slot| **slot < groups));
        } else {
            let mut from = 0;
            while let Some(unit) = self.units.next(from, true) {
                self.suspects
                    .extend((unit * UNIT..(unit + 1) * UNIT).filter(|group| *group < groups));
                from = unit + 1;
            }
        }
        self.suspects
            .retain(|group| !self.groups.contains_key(group));
    }

    /// As [`Table::begin`], for a group that the settled index does not have.
    pub(super) fn begin_new(&mut self, group: u64, with: Company) -> bool {
        let entry = self.never_written(group).unwrap_or_default();
        self.begin(group, [entry; GROUP_LEN], with)
    }

    /// A sector for a group that begins to change. None: a sync must come first.
    pub(super) fn begin(&mut self, group: u64, entries: Entries, with: Company) -> bool {
        if self.groups.contains_key(&group) {
            return true;
        }
        // Adjacent groups get adjacent sectors, which one call writes. So do others that change one after the other: they are
        // settled together.
        let home = match with {
            Company::Others if self.shape.has_settled() => 0,
            _ => group % self.shape.slots,
        };
        let near = self.free.range(home..).next().or(self.free.first());
        // If each group has a sector of its own, a damaged one is written again.
        let own = (!self.shape.has_settled() && self.bad.contains(&group)).then_some(group);
        let Some(slot) = own.or(near.copied()) else {
            return false;
        };
        self.free.remove(&slot);
        self.bad.remove(&slot);
        self.suspects.remove(&group);
        self.units.change(group / UNIT);
        self.insert(group, slot, entries);
        true
    }

    /// The sectors with new entries of blocks whose groups are in change. `changes` are in the order of their blocks.
    pub(super) fn sectors_with(&self, changes: &[Change]) -> Sectors {
        let of_groups = changes.chunk_by(|one, next| one.block / GROUP == next.block / GROUP);
        let mut of_groups: SmallVec<[(&Group, &[Change]); 1]> = of_groups
            .filter_map(|of_group| {
                let number = of_group.first()?.block / GROUP;
                Some((self.groups.get(&number)?.as_ref(), of_group))
            })
            .collect();
        of_groups.sort_unstable_by_key(|(group, _)| group.slot);
        let mut sectors = Sectors::with_capacity(of_groups.len());
        for (group, of_group) in of_groups {
            sectors.push(group.slot, &group.sector_with(of_group));
        }
        sectors
    }

    /// Takes new entries whose sectors were written.
    pub(super) fn enter(&mut self, changes: &[Change], sectors: &Sectors) {
        for of_group in changes.chunk_by(|one, next| one.block / GROUP == next.block / GROUP) {
            let number = of_group.first().map_or(0, |change| change.block / GROUP);
            let Some(group) = self.groups.get_mut(&number) else {
                continue;
            };
            match (&mut group.written, sectors.get(group.slot)) {
                (Some(written), Some(bytes)) => **written = *bytes,
                (written, bytes) => *written = bytes.map(|bytes| Box::new(*bytes)),
            }
            for change in of_group {
                group.entries[nth(change.block)] = change.new;
            }
            if group.stage != Stage::InChange {
                group.stage = Stage::InChange;
                self.moving.remove(&number);
            }
        }
    }

    /// The entry of a block, as far as it is here. None: the settled index has it.
    pub(super) fn entry(&self, block: u64) -> Option<Entry> {
        let group = block / GROUP;
        match self.groups.get(&group) {
            Some(group) => Some(group.entries[nth(block)]),
            None => self.never_written(group),
        }
    }

    /// As [`Table::entry`], of all blocks of a group.
    pub(super) fn entries(&self, group: u64) -> Option<Entries> {
        match self.groups.get(&group) {
            Some(group) => Some(group.entries),
            None => Some([self.never_written(group)?; GROUP_LEN]),
        }
    }

    /// Each entry of a group that is not here. None: the settled index has it.
    fn never_written(&self, group: u64) -> Option<Entry> {
        (!self.units.is_there(group / UNIT)).then(|| Entry {
            damaged: self.suspects.contains(&group),
            ..Entry::default()
        })
    }

    /// As [`Table::entry`], and whether its group is in change.
    pub(super) fn look(&self, block: u64) -> (Option<Entry>, bool) {
        match self.groups.get(&(block / GROUP)) {
            Some(group) => (Some(group.entries[nth(block)]), true),
            None => (self.entry(block), false),
        }
    }

    /// What must be written so that the settled index has the groups in change that say no more than it can hold.
    pub(super) fn copies(&self) -> Copies {
        let mut copies = Copies::default();
        let in_change = self.groups.iter();
        let in_change = in_change.filter(|(_, group)| group.stage == Stage::InChange);
        let settled =
            in_change.filter_map(|(number, group)| Some((*number, group.settled(*number)?)));
        let settled: Vec<(u64, [u8; GROUP_BYTES])> = settled.collect();
        for of_unit in settled.chunk_by(|(one, _), (next, _)| one / UNIT == next / UNIT) {
            let unit = of_unit.first().map_or(0, |(group, _)| group / UNIT);
            let at = self.shape.unit_at(unit);
            if self.units.is_there(unit) {
                for (group, bytes) in of_unit {
                    copies.push(at + Shape::within_unit(*group) as u64, bytes, &[*group]);
                }
                continue;
            }
            // The first ones of a unit bring the others with them.
            let mut whole = [0; UNIT_BYTES];
            for other in unit * UNIT..(unit + 1) * UNIT {
                let known = of_unit.binary_search_by_key(&other, |(group, _)| *group);
                let bytes = known.map_or_else(|_| nothing_settled(other), |known| of_unit[known].1);
                let at = Shape::within_unit(other);
                whole[at..at + GROUP_BYTES].copy_from_slice(&bytes);
            }
            let groups: Vec<u64> = of_unit.iter().map(|(group, _)| *group).collect();
            copies.push(at, &whole, &groups);
        }
        copies
    }

    /// The settled index has these groups.
    pub(super) fn copied(&mut self, groups: &[u64]) {
        for number in groups {
            if let Some(group) = self.groups.get_mut(number) {
                group.stage = Stage::Copied;
                // It hardly changes before it leaves.
                group.written = None;
                self.moving.insert(*number);
            }
        }
    }

    /// The next step of groups on their way to the settled index, but for the first one. Returns the sectors that become empty.
    pub(super) fn go_on(&mut self) -> Sectors {
        let mut emptied = BTreeSet::new();
        // The map must be durable before a sector is emptied, also for the next group of the unit.
        let mut added = BTreeSet::new();
        for number in &self.moving {
            let Some(group) = self.groups.get_mut(number) else {
                continue;
            };
            let unit = number / UNIT;
            let is_durable = self.units.is_there(unit) && !added.contains(&unit);
            if group.stage == Stage::Copied && !is_durable {
                self.units.add(unit);
                added.insert(unit);
                group.stage = Stage::Mapped;
            } else if group.stage < Stage::Emptied {
                emptied.insert(group.slot);
                group.stage = Stage::Emptied;
            }
        }
        Sectors::empty(emptied.into_iter())
    }

    /// Groups whose sectors are empty are in the settled index only.
    pub(super) fn remove_emptied(&mut self) {
        self.moving.retain(|number| {
            let emptied = self.groups.get(number);
            let emptied = emptied.filter(|group| group.stage == Stage::Emptied);
            let Some(slot) = emptied.map(|group| group.slot) else {
                return true;
            };
            self.groups.remove(number);
            self.free.insert(slot);
            false
        });
    }

    /// The sector of a group in change.
    pub(super) fn sector_of(&self, number: u64) -> Sectors {
        let mut sectors = Sectors::default();
        if let Some(group) = self.groups.get(&number) {
            sectors.push(
                group.slot,
                &sector(group.slot, Some((number, &group.entries))),
            );
        }
        sectors
    }

    /// True if clean groups should be settled.
    pub(super) fn is_crowded(&self) -> bool {
        self.groups.len() as u64 > self.shape.slots_wanted()
            || (self.shape.has_settled() && self.free.is_empty())
    }

    /// The next group from `from` on of which the medium has something, or which may have changed.
    pub(super) fn next(&self, from: u64, changed: bool) -> Option<u64> {
        let in_change = self.groups.range(from..).next().map(|(group, _)| *group);
        let suspect = self.suspects.range(from..).next().copied();
        let unit = self.units.next(from / UNIT, changed);
        let in_unit = unit.map(|unit| from.max(unit * UNIT));
        [in_change, suspect, in_unit].into_iter().flatten().min()
    }
}
