//! Syncs of a store, what is known after a failed one, and the way of groups into the settled index.

use super::blocks::Blocks;
use super::index::{Age, Entry, Slot};
use super::layout::{GROUP, UNIT};
use super::open::empty_sectors;
use super::superblock::Superblock;
use super::table::{Change, Copies, Sectors, Stage, nth};
use super::{Mark, State, Store};
use crate::error::{BlkError, Result};
use crate::record;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Most bytes of records that may be written behind the recorded end before it is recorded again.
const TAIL_STEP: u64 = 64 << 20;

/// Entries that lose older generations by one step.
const DROPPED_AT_ONCE: usize = 256;

/// What a sync makes durable beside entries and records.
#[derive(Default)]
struct Written {
    /// Sectors of the map.
    map: BTreeSet<u64>,
    /// New sectors for groups in change.
    sectors: std::ops::Range<u64>,
    /// Damaged sectors that are empty now.
    healed: BTreeSet<u64>,
}

impl Store {
    /// Somebody asks [`Store::wants_sync`] from now on, and flushes then.
    pub(crate) fn leave_syncs_to_owner(&self) {
        self.is_synced_by_owner.store(true, Ordering::Relaxed);
    }

    /// True if so much freed space waits for a sync that one is due.
    pub(crate) fn wants_sync(&self) -> bool {
        self.state().space.is_sync_due(1)
    }

    pub(super) fn syncing(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything durable, and what was freed before usable again. Then drops generations that are not needed any more.
    pub(super) fn sync(&self, _syncing: &MutexGuard<'_, ()>) -> Result<()> {
        let (freed, touched, written) = {
            let _alone = self.alone();
            self.write_doubtful()?;
            let mut written = Written::default();
            if let Err(error) = self.settle_groups(&mut written) {
                self.state().not_settled(written);
                return Err(error);
            }
            let mut state = self.state();
            let touched = std::mem::take(&mut state.touched);
            state.change_age(&touched, Age::Fresh, Age::Syncing);
            (state.space.begin_sync(), touched, written)
        };
        let synced = self.medium.sync();
        let _alone = self.alone();
        if let Err(error) = synced {
            let mut state = self.state();
            state.change_age(&touched, Age::Syncing, Age::Doubtful);
            state.doubtful.extend(touched.iter());
            state.doubt();
            state.space.not_synced(freed);
            state.not_settled(written);
            return Err(self.io(error));
        }
        let sectors = written.sectors.clone();
        {
            let mut state = self.state();
            state.settled(written);
        }
        self.use_sectors(sectors);
        let free = self.state().space.synced(freed);
        // Another write may take such a range at once, so the lock is held while it is given back.
        for extent in free {
            let state = self.state();
            if state.space.is_free(extent) {
                self.medium.release(extent.offset, extent.length);
            }
        }
        self.drop_old(&touched, Age::Syncing);
        Ok(())
    }

    /// Drops what is older than the generations that all targets have made durable.
    pub(super) fn release(&self, generation: u64) {
        let _alone = self.alone();
        let kept = {
            let mut state = self.state();
            if state.released >= generation {
                return;
            }
            state.released = generation;
            std::mem::take(&mut state.kept)
        };
        self.drop_old(&kept, Age::Durable);
        let mut state = self.state();
        let more = |block: &u64| {
            let group = state.table.groups.get(&(block / GROUP));
            group.is_some_and(|group| group.entries[nth(*block)].has_more())
        };
        state.kept = kept.iter().filter(more).collect();
    }

    /// Writes the next step of each group on its way to the settled index, the map, the superblock if it has changed, and more
    /// sectors for groups if few are free. The caller excludes changes.
    fn settle_groups(&self, written: &mut Written) -> Result<()> {
        let (is_crowded, emptied, copies) = {
            let mut state = self.state();
            let table = &mut state.table;
            let is_crowded = table.is_crowded();
            let emptied = table.go_on();
            let copies = match is_crowded {
                true => table.copies(),
                false => Copies::default(),
            };
            (is_crowded, emptied, copies)
        };
        // The system may have no space for a part of the index that was never written: the group stays where it is.
        for (at, bytes, groups) in copies.runs() {
            if self.medium.write(at, bytes).is_ok() {
                self.state().table.copied(groups);
            }
        }
        self.write_sectors(&emptied)?;
        self.write_map(written)?;
        self.heal(written)?;
        if is_crowded || self.state().table.free.is_empty() {
            self.add_sectors(written);
        }
        self.write_tail()
    }

    fn write_map(&self, written: &mut Written) -> Result<()> {
        let (shape, map) = {
            let mut state = self.state();
            let map = state.table.units.take_unwritten();
            (state.table.shape, map)
        };
        for number in &map {
            let bytes = self.state().table.units.to_bytes(*number);
            if let Err(error) = self.medium.write(shape.map_at(*number), &bytes) {
                self.state().table.units.not_written(map);
                return Err(self.io(error));
            }
        }
        written.map = map;
        Ok(())
    }

    /// Empties damaged sectors when all is known again that may have been there, or the superblock says that it is not.
    fn heal(&self, written: &mut Written) -> Result<()> {
        let bad = {
            let mut state = self.state();
            if state.table.suspects.is_empty() {
                state.changed |= state.superblock.has_suspects;
                state.superblock.has_suspects = false;
            } else if !state.table.shape.has_settled()
                || !state.superblock.has_suspects
                || state.changed
            {
                // The superblock must say first that there was damage.
                return Ok(());
            }
            std::mem::take(&mut state.table.bad)
        };
        let done = self.write_sectors(&Sectors::empty(bad.iter().copied()));
        if done.is_err() {
            self.state().table.bad.extend(bad);
        } else {
            written.healed = bad;
        }
        done
    }

    /// Writes more sectors for groups. Without space there are no more.
    fn add_sectors(&self, written: &mut Written) {
        let (ready, shape) = {
            let state = self.state();
            (state.superblock.ready, state.table.shape)
        };
        let end = (2 * ready).min(shape.slots);
        if end > ready {
            let bytes = empty_sectors(ready..end);
            if self.medium.write(shape.slot_at(ready), &bytes).is_ok() {
                written.sectors = ready..end;
            }
        }
    }

    /// Lets groups have new sectors, of which the superblock must say that they are there: if this process is killed before the
    /// next sync, the next one reads no others. Without that they stay unused.
    fn use_sectors(&self, sectors: std::ops::Range<u64>) {
        if sectors.is_empty() {
            return;
        }
        let mut next = self.state().superblock;
        next.sequence += 1;
        if self.medium.write(next.offset(), &next.to_bytes()).is_ok() {
            let mut state = self.state();
            // The next sync writes it again, and makes it durable with what is in them.
            state.superblock = next;
            state.table.free.extend(sectors);
        }
    }

    /// Records the end of all records if that of the settled index may be behind the recorded one, and other changes of the
    /// superblock.
    fn write_tail(&self) -> Result<()> {
        let next = {
            let state = self.state();
            let settles = !state.table.moving.is_empty();
            let (tail, mut next) = (state.space.tail(), state.superblock);
            let is_short = settles && tail > next.tail;
            if !is_short && !state.changed {
                return Ok(());
            }
            if is_short {
                next.tail = tail.next_multiple_of(TAIL_STEP);
                next.used = state.space.used();
            }
            next.sequence += 1;
            next
        };
        let written = self.medium.write(next.offset(), &next.to_bytes());
        written.map_err(|error| self.io(error))?;
        let mut state = self.state();
        state.superblock = next;
        // If the sync fails, the copy before is there, and the next change writes both again.
        state.changed = false;
        Ok(())
    }

    /// True if a mark is on the medium already.
    pub(super) fn is_marked(&self, epoch: u64, mark: Mark) -> bool {
        let state = self.state();
        let mut after = state.superblock.identity;
        after.marked(epoch, mark);
        after == state.superblock.identity && mark != Mark::Equal && !state.changed
    }

    /// Makes a superblock durable, with everything else. The caller excludes other syncs.
    pub(super) fn store_superblock(&self, mut next: Superblock) -> Result<()> {
        next.sequence += 1;
        let written = self.medium.write(next.offset(), &next.to_bytes());
        written.map_err(|error| self.io(error))?;
        // Without the lock: the disk may be busy.
        let synced = self.medium.sync();
        let mut state = self.state();
        if let Err(error) = synced {
            state.doubt();
            return Err(self.io(error));
        }
        state.superblock = next;
        state.changed = false;
        self.blocks.store(next.reach(), Ordering::Release);
        Ok(())
    }

    /// The targets are equal: what changes from here on counts. If that cannot be written, more counts as changed.
    pub(super) fn forget_changes(&self) {
        let _alone = self.alone();
        {
            let mut state = self.state();
            let table = &mut state.table;
            let in_change: BTreeSet<u64> = table.groups.keys().map(|group| group / UNIT).collect();
            table.units.equal(|unit| in_change.contains(&unit));
        }
        let mut written = Written::default();
        // They are written again before the next sync: nothing says that they are durable.
        if self.write_map(&mut written).is_ok() {
            self.state().table.units.not_written(written.map);
        }
    }

    /// Writes a block's records again in those slots that are `wanted`. False if one of them cannot be read.
    pub(super) fn write_records_of(
        &self,
        block: u64,
        entry: &Entry,
        wanted: impl Fn(&Slot) -> bool,
    ) -> io::Result<bool> {
        let place = self.place(block);
        let mut are_whole = true;
        for slot in entry.slots.iter().flatten().filter(|slot| wanted(slot)) {
            let Some(extent) = slot.extent() else {
                continue;
            };
            // Cannot be cut: the length was checked when the entry was read or made.
            let mut bytes = vec![0; usize::try_from(extent.length).unwrap_or(0)];
            let read = self.medium.read(extent.offset, &mut bytes);
            let bytes = bytes.into();
            let parsed = record::parse(place, slot.generation, &bytes);
            if read.is_ok() && parsed.is_ok() {
                self.medium.write(extent.offset, &bytes)?;
            } else {
                are_whole = false;
            }
        }
        Ok(are_whole)
    }

    /// Writes again what was written before a sync failed, so that the next one makes it durable. The caller excludes changes.
    fn write_doubtful(&self) -> Result<()> {
        let blocks = self.state().doubtful.clone();
        let mut dropped = None;
        for block in blocks {
            let entry = self.entry(block)?;
            let is_doubtful = |slot: &Slot| slot.age == Age::Doubtful;
            let are_whole = self.write_records_of(block, &entry, is_doubtful);
            let are_whole = are_whole.map_err(|error| self.io(error))?;
            self.write_group_again(block / GROUP)?;
            let mut state = self.state();
            state.doubtful.remove(&block);
            state.touched.insert(block);
            if are_whole {
                state.change_age(&Blocks::from_iter([block]), Age::Doubtful, Age::Fresh);
            } else {
                dropped.get_or_insert(block);
            }
        }
        dropped.map_or(Ok(()), |block| {
            Err(BlkError::Corrupt {
                target: self.name.clone(),
                block,
                fault: "the system has dropped its record after a failed sync".to_owned(),
            })
        })
    }

    fn write_group_again(&self, number: u64) -> Result<()> {
        let sectors = self.state().table.sector_of(number);
        self.write_sectors(&sectors)
    }

    /// What is so old is durable now. Drops the generations before those that are. If an entry cannot be written, the next change
    /// of it does so.
    fn drop_old(&self, touched: &Blocks, durable: Age) {
        let mut groups = touched.groups();
        let mut changes = Vec::new();
        loop {
            self.find_old(&mut groups, durable, &mut changes);
            if changes.is_empty() {
                return;
            }
            let _ = self.replace(&changes);
            changes.clear();
        }
    }

    /// The next entries that have something to drop. The caller excludes changes.
    fn find_old<I: Iterator<Item = usize>>(
        &self,
        groups: &mut impl Iterator<Item = (u64, I)>,
        durable: Age,
        changes: &mut Vec<Change>,
    ) {
        let mut state = self.state();
        let released = state.released;
        for (group, places) in groups {
            let Some(in_change) = state.table.groups.get_mut(&group) else {
                continue;
            };
            for place in places {
                let old = &mut in_change.entries[place];
                old.change_age(durable, Age::Durable);
                if !old.has_more() {
                    // There is nothing older.
                    continue;
                }
                let new = old.aged(released);
                if new != *old {
                    changes.push(Change {
                        block: group * GROUP + place as u64,
                        old: *old,
                        new,
                    });
                }
            }
            if changes.len() >= DROPPED_AT_ONCE {
                return;
            }
        }
    }
}

impl State {
    /// A sync has failed. The system may have dropped what it could not write: a later sync says nothing about it.
    pub(super) fn doubt(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        self.change_age(&touched, Age::Fresh, Age::Doubtful);
        self.doubtful.extend(touched.iter());
        self.unsettle();
    }

    /// Groups begin their way to the settled index again. Sectors that are empty on the medium are written again.
    fn unsettle(&mut self) {
        let blocks = self.superblock.reach();
        for (number, group) in &mut self.table.groups {
            if group.stage == Stage::Emptied {
                self.doubtful
                    .extend(number * GROUP..((number + 1) * GROUP).min(blocks));
            }
            group.stage = Stage::InChange;
        }
        self.table.moving.clear();
        self.changed = true;
    }

    /// What a sync has written may not be there.
    fn not_settled(&mut self, written: Written) {
        self.table.units.not_written(written.map);
        self.table.bad.extend(written.healed);
        self.unsettle();
    }

    /// A sync was successful.
    fn settled(&mut self, written: Written) {
        let table = &mut self.table;
        table.remove_emptied();
        table.free.extend(written.healed);
        if !written.sectors.is_empty() {
            self.superblock.ready = written.sectors.end;
            self.changed = true;
        }
    }

    pub(super) fn change_age(&mut self, blocks: &Blocks, from: Age, to: Age) {
        for (group, places) in blocks.groups() {
            if let Some(group) = self.table.groups.get_mut(&group) {
                places.for_each(|place| group.entries[place].change_age(from, to));
            }
        }
    }
}
