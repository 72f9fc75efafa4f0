//! The index of a store in memory: groups in change as a whole, and which others the medium has. Does no I/O.

use super::index::{ENTRY, Entry, SLOT, slot_bytes};
use super::layout::{GROUP, GROUP_BYTES, GROUP_LEN, SECTOR, Shape, UNIT, UNIT_BYTES};
use super::space::Extent;
use super::units::Units;
use std::collections::{BTreeMap, BTreeSet};

/// The number of no group.
const NONE: u32 = u32::MAX;
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

/// A group in change.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) slot: u64,
    pub(super) entries: Entries,
    pub(super) stage: Stage,
}

/// The index.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) shape: Shape,
    pub(super) groups: BTreeMap<u64, Group>,
    /// Sectors without a group.
    pub(super) free: BTreeSet<u64>,
    pub(super) units: Units,
    /// Groups whose entries may have been in a damaged sector.
    pub(super) suspects: BTreeSet<u64>,
    /// These sectors.
    pub(super) bad: BTreeSet<u64>,
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
    crc32c::crc32c_append(crc32c::crc32c(&slot.to_be_bytes()), &number.to_be_bytes())
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

/// A group for the settled index. None if it says more than that can hold.
fn settled(group: u64, entries: &Entries) -> Option<[u8; GROUP_BYTES]> {
    let mut bytes = [0; GROUP_BYTES];
    let parts = bytes.as_chunks_mut::<SLOT>().0;
    for ((block, entry), part) in (group * GROUP..).zip(entries).zip(parts) {
        *part = slot_bytes(entry.settled()?, block);
    }
    Some(bytes)
}

impl Table {
    /// The index of a new target.
    pub(super) fn new(shape: Shape, ready: u64) -> Self {
        Self {
            shape,
            groups: BTreeMap::new(),
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
        let stage = Stage::InChange;
        self.groups.insert(
            group,
            Group {
                slot,
                entries,
                stage,
            },
        );
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

    /// A sector for a group that begins to change. None: a sync must come first.
    pub(super) fn begin(&mut self, group: u64, entries: Entries) -> bool {
        if self.groups.contains_key(&group) {
            return true;
        }
        // Adjacent groups get adjacent sectors, which one call writes.
        let home = group % self.shape.slots;
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
        let stage = Stage::InChange;
        self.groups.insert(
            group,
            Group {
                slot,
                entries,
                stage,
            },
        );
        true
    }

    /// The entry of a block, as far as it is here. None: the settled index has it.
    pub(super) fn entry(&self, block: u64) -> Option<Entry> {
        let group = block / GROUP;
        // Cannot be cut: less than eight.
        let nth = usize::try_from(block % GROUP).unwrap_or(0);
        match self.groups.get(&group) {
            Some(group) => Some(group.entries[nth]),
            None if self.units.is_there(group / UNIT) => None,
            None => Some(Entry {
                damaged: self.suspects.contains(&group),
                ..Entry::default()
            }),
        }
    }

    pub(super) fn entry_mut(&mut self, block: u64) -> Option<&mut Entry> {
        // Cannot be cut: less than eight.
        let nth = usize::try_from(block % GROUP).unwrap_or(0);
        let group = self.groups.get_mut(&(block / GROUP))?;
        Some(&mut group.entries[nth])
    }

    /// What must be written so that the settled index has a group: an offset on the medium, and bytes. None if the group
    /// says more than it can hold.
    pub(super) fn copied(&self, group: u64) -> Option<(u64, Vec<u8>)> {
        let bytes = settled(group, &self.groups.get(&group)?.entries)?;
        let unit = group / UNIT;
        let at = self.shape.unit_at(unit);
        if self.units.is_there(unit) {
            return Some((at + Shape::within_unit(group) as u64, bytes.to_vec()));
        }
        // The first one of a unit brings the others with it.
        let mut whole = vec![0; UNIT_BYTES];
        for other in unit * UNIT..(unit + 1) * UNIT {
            let known = self
                .groups
                .get(&other)
                .and_then(|known| settled(other, &known.entries));
            let bytes = known.or_else(|| settled(other, &Entries::default()));
            let at = Shape::within_unit(other);
            whole[at..at + GROUP_BYTES].copy_from_slice(&bytes?);
        }
        Some((at, whole))
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
