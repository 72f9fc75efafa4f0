//! Looks at the index of a store: entries that are in memory, those of the settled index, and what neither refers to.

use super::index::{Entry, Slot};
use super::layout::{self, GROUP, GROUP_BYTES, GROUP_LEN, Shape, UNIT};
use super::space::{Extent, Room, Space, fits};
use super::table::{Change, Entries, nth, parse_settled};
use super::{DAMAGED_MAX, GROUP_LOCKS, Held, Looked, State, Step, Store};
use crate::block::Kind;
use crate::error::{BlkError, Result};
use crate::geometry::GeometryError;
use crate::record;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry as Found;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

impl Store {
    /// Everything that the next call depends on beside the medium, as text: for a search of all states.
    #[doc(hidden)]
    #[must_use]
    pub fn searched(&self) -> String {
        let state = self.state();
        let blocks = (&state.touched, &state.doubtful);
        let blocks = (blocks, state.released, &state.kept);
        format!(
            "{:?} {} {:?} {:?} {blocks:?} {:?}",
            state.superblock, state.changed, state.table, state.space, state.layers
        )
    }

    /// An error if a block is outside the volume.
    pub(super) fn check(&self, block: u64) -> Result<()> {
        if block < self.blocks.load(Ordering::Acquire) {
            return Ok(());
        }
        let geometry = self.state().superblock.identity.geometry;
        let size = u64::from(geometry.block_size());
        Err(BlkError::Geometry(GeometryError::Bounds {
            offset: block.saturating_mul(size),
            length: size,
            size: geometry.size(),
        }))
    }

    /// The entry of a block.
    pub(super) fn entry(&self, block: u64) -> Result<Entry> {
        self.entry_of(block, &mut Looked::new())
    }

    /// As [`Store::entry`]. What was looked at already is not read again. No other call changes these blocks meanwhile.
    pub(super) fn entry_of(&self, block: u64, looked: &mut Looked) -> Result<Entry> {
        self.check(block)?;
        if let Some(entry) = self.state().table.entry(block) {
            return Ok(entry);
        }
        let group = block / GROUP;
        let entries = match looked.entry(group) {
            Found::Occupied(found) => found.into_mut(),
            Found::Vacant(place) => place.insert(self.settled(group)?),
        };
        Ok(entries[nth(block)])
    }

    /// Looks at the groups of these blocks in the settled index, adjacent ones by one call. What cannot be read is left out.
    pub(super) fn look_ahead(&self, blocks: impl Iterator<Item = u64>) -> Looked {
        // Most are in their order.
        let mut groups: SmallVec<[u64; 16]> = SmallVec::new();
        for group in blocks.map(|block| block / GROUP) {
            if groups.last() != Some(&group) {
                groups.push(group);
            }
        }
        groups.sort_unstable();
        groups.dedup();
        let groups: Vec<(u64, bool)> = {
            let table = &self.state().table;
            let groups = groups.into_iter();
            let groups = groups.filter(|group| table.entry(group * GROUP).is_none());
            let groups = groups.map(|group| (group, table.suspects.contains(&group)));
            groups.collect()
        };
        let at = |group: u64| self.shape.unit_at(group / UNIT) + Shape::within_unit(group) as u64;
        let mut looked = Looked::new();
        for run in groups.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let ([(first, _), ..], [.., (last, _)]) = (run, run) else {
                continue;
            };
            let length = at(*last) - at(*first) + GROUP_BYTES as u64;
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            if self.medium.read(at(*first), &mut bytes).is_err() {
                continue;
            }
            for (group, is_suspect) in run {
                let from = usize::try_from(at(*group) - at(*first)).unwrap_or(usize::MAX);
                if let Some(bytes) = bytes.get(from..from.saturating_add(GROUP_BYTES)) {
                    looked.insert(*group, self.parse_settled(*group, bytes, *is_suspect));
                }
            }
        }
        looked
    }

    /// A group as the settled index has it. Its unit is there.
    pub(super) fn settled(&self, group: u64) -> Result<Entries> {
        let at = self.shape.unit_at(group / UNIT) + Shape::within_unit(group) as u64;
        let is_suspect = self.state().table.suspects.contains(&group);
        let mut bytes = [0; GROUP_BYTES];
        let read = self.medium.read(at, &mut bytes);
        read.map_err(|error| self.io(error))?;
        Ok(self.parse_settled(group, &bytes, is_suspect))
    }

    pub(super) fn parse_settled(&self, group: u64, bytes: &[u8], is_suspect: bool) -> Entries {
        let mut entries = parse_settled(group, bytes, |extent| self.fits(extent));
        entries
            .iter_mut()
            .for_each(|entry| entry.damaged |= is_suspect);
        self.count_damaged(group, &entries);
        entries
    }

    fn count_damaged(&self, group: u64, entries: &Entries) {
        let mut damaged = self.damaged();
        for (block, entry) in (group * GROUP..).zip(entries) {
            if entry.damaged && damaged.len() < DAMAGED_MAX {
                damaged.insert(block);
            }
        }
    }

    pub(super) fn damaged(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a record can be there.
    pub(super) fn fits(&self, extent: Extent) -> bool {
        fits(extent, (self.bounds.0, self.last))
    }

    /// Excludes other changes of the groups that change.
    pub(super) fn lock_groups(&self, changes: &[Change]) -> impl Sized + use<'_> {
        let bit = |change: &Change| 1u64 << (change.block / GROUP % GROUP_LOCKS as u64);
        let mut left = changes.iter().map(bit).fold(0, |all, bit| all | bit);
        // In their order: two threads never wait for each other.
        let mut locks = std::iter::from_fn(move || {
            let lock = self.groups.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            // The lock protects no data of its own.
            Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
        });
        // One change needs no memory for a list.
        (locks.next(), locks.collect::<Vec<_>>())
    }

    /// How much may rest before a step syncs: the owner of a target that is served syncs before.
    fn sync_times(&self) -> u64 {
        1 + u64::from(self.is_synced_by_owner.load(Ordering::Relaxed))
    }

    /// Takes space for the records of several steps at once, if that needs no sync.
    pub(super) fn take_room(&self, steps: &[Step<'_>]) -> Room {
        let blocks = self.blocks.load(Ordering::Acquire);
        let lengths = steps.iter().filter_map(|step| match step {
            Step::Prepare { block, half, .. } if *block < blocks && half.kind.has_bytes() => {
                Some(Space::rounded(record::length(half)))
            }
            _ => None,
        });
        let (length, least) = lengths.fold((0, u64::MAX), |(all, least), length| {
            (all + length, least.min(length))
        });
        if length <= least {
            return Room::default();
        }
        let mut state = self.state();
        let is_due = state.space.is_sync_due(self.sync_times()) || state.space.is_look_due();
        let taken = match is_due {
            true => None,
            false => state.space.take_run(length, least),
        };
        Room(taken)
    }

    /// Space for a record of this length: of `room`, or other.
    pub(super) fn take_of(&self, room: &mut Room, length: u64) -> Result<Extent> {
        room.take(length).map_or_else(|| self.take(length), Ok)
    }

    /// Takes space for a record. If none is left but what was freed since the last sync, waits for the sync of another
    /// thread, or syncs. Syncs also if much was freed. Looks for free space that is not known before it says that there is none.
    pub(super) fn take(&self, length: u64) -> Result<Extent> {
        let times = self.sync_times();
        let is_due = |state: &State| state.space.is_sync_due(times) || state.space.is_look_due();
        {
            let mut state = self.state();
            if !is_due(&state)
                && let Some(extent) = state.space.take(length)
            {
                return Ok(extent);
            }
        }
        let syncing = self.syncing();
        if self.state().space.is_sync_due(times) {
            self.sync(&syncing)?;
        }
        if self.state().space.is_look_due() {
            self.look_for_space()?;
        }
        // The first sync makes newer generations durable, the second one the entries without the older ones.
        for _ in 0..2 {
            if let Some(extent) = self.state().space.take(length) {
                return Ok(extent);
            }
            self.sync(&syncing)?;
        }
        if self.state().space.is_unknown() {
            self.look_for_space()?;
        }
        let mut state = self.state();
        state.space.take(length).ok_or_else(|| BlkError::Full {
            target: self.name.clone(),
            wanted: length,
            free: state.space.available(),
            capacity: self.bounds.1 - self.bounds.0,
        })
    }

    /// Finds out what the settled index refers to, and so what else is free.
    pub(super) fn look_for_space(&self) -> Result<()> {
        let _alone = self.alone();
        let mut used = Vec::new();
        let blocks = self.blocks.load(Ordering::Acquire);
        let mut from = 0;
        while from < blocks {
            from = self.each_group(from, |group, entries| {
                let slots = entries.iter().flat_map(|entry| entry.slots).flatten();
                used.extend(slots.filter_map(|slot| slot.extent()).map(|extent| Extent {
                    length: Space::rounded(extent.length),
                    ..extent
                }));
                group % (1 << 16) != 0
            })?;
        }
        self.state().space.learn(self.bounds.0, used);
        Ok(())
    }

    /// Shows groups from that of block `from` on, until `show` returns false. Returns the first block behind them.
    pub(super) fn each_group(
        &self,
        from: u64,
        mut show: impl FnMut(u64, &Entries) -> bool,
    ) -> Result<u64> {
        let mut group = from / GROUP;
        // The unit that was read last.
        let mut read: Option<(u64, Vec<u8>)> = None;
        loop {
            let (next, known, is_there, is_suspect, at) = {
                let state = self.state();
                let table = &state.table;
                let blocks = self.blocks.load(Ordering::Acquire);
                let Some(next) = table
                    .next(group, false)
                    .filter(|next| next * GROUP < blocks)
                else {
                    return Ok(u64::MAX);
                };
                let known = table.groups.get(&next).map(|group| group.entries);
                let unit = next / UNIT;
                let is_there = table.units.is_there(unit);
                let is_suspect = table.suspects.contains(&next);
                (next, known, is_there, is_suspect, table.shape.unit_at(unit))
            };
            let entries = match known {
                Some(entries) => entries,
                None if is_there => {
                    let unit = next / UNIT;
                    if read.as_ref().is_none_or(|(number, _)| *number != unit) {
                        let mut bytes = vec![0; layout::UNIT_BYTES];
                        let done = self.medium.read(at, &mut bytes);
                        done.map_err(|error| self.io(error))?;
                        read = Some((unit, bytes));
                    }
                    let within = Shape::within_unit(next);
                    let bytes = read.as_ref().map_or(&[][..], |(_, bytes)| bytes);
                    self.parse_settled(next, &bytes[within..within + GROUP_BYTES], is_suspect)
                }
                None => {
                    let entry = Entry {
                        damaged: is_suspect,
                        ..Entry::default()
                    };
                    [entry; GROUP_LEN]
                }
            };
            group = next + 1;
            if !show(next, &entries) {
                return Ok(group * GROUP);
            }
        }
    }

    /// What an entry says.
    pub(super) fn held_in(block: u64, entry: &Entry) -> impl Iterator<Item = Held> + use<> {
        let held = |slot: Slot| Held {
            block,
            generation: slot.generation,
            kind: slot.kind,
            settled: slot.settled,
            damaged: false,
        };
        let damaged = entry.damaged.then_some(Held {
            block,
            generation: 0,
            kind: Kind::Lost,
            settled: false,
            damaged: true,
        });
        let slots: Vec<Held> = entry.slots.into_iter().flatten().map(held).collect();
        slots.into_iter().chain(damaged)
    }
}
