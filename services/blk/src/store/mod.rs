//! A target: one half of each block, on a file or in memory.
//!
//! ```text
//! two superblocks | index (see `layout`) | data: records of half blocks, in units of 64 bytes
//! ```
//!
//! A write goes to free space. Then one store of a sector of the index makes it visible beside the generation before
//! it ([`Target::prepare`]). A second one settles it ([`Target::commit`]). Steps of several blocks store
//! what is adjacent together ([`Target::begin_all`]). A process that is killed
//! between any two instructions therefore leaves the old generation, or both. [`Target::flush`] makes everything
//! durable. The last generation that was durable stays until then, so that a loss of power leaves it. Space is allocated
//! as blocks are written; freed space is used again after the next flush but one, or when much of it rests.
//!
//! Only groups of blocks that have changed lately are in memory, and opening a target reads only them. What else the index
//! has is read when it is needed, also to find free space between older records.
//!
//! An entry of the index that cannot be read is damaged, also one of zeros: it says nothing about the block. After a failed
//! sync nothing that was written before counts as durable until it was written again, which the next sync and the next
//! opening do.

mod batch;
mod blocks;
mod device;
mod direct;
mod file;
mod index;
mod layered;
mod layout;
mod look;
mod medium;
mod open;
mod sectors;
mod space;
mod step;
mod superblock;
mod sync;
mod table;
mod units;

pub use direct::WholeSectors;
pub use file::FileMedium;
pub use index::KEEP_ALL;
pub(crate) use layout::GROUP;
pub use layout::Shape;
pub use medium::{Medium, MemoryMedium};
pub use step::{Begun, Step};
pub(crate) use superblock::{COUNTER_BITS, EPOCH_MAX};
pub use superblock::{Identity, Mark, Members, Standing, Trusted};

use crate::block::Kind;
use crate::error::{BlkError, Result};
use crate::geometry::{Geometry, Id, Role};
use crate::layers::Layers;
use crate::record::{self, Half, Place};
use blocks::Blocks;
use bytes::Bytes;
use index::{AT_ONCE, Entry, Slot, without_bytes};
use sectors::SectorErrors;
use space::{Extent, Room, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use superblock::Superblock;
use table::{Change, Company, Entries, Sectors, Table, nth};

/// A generation of a block that a target holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Number of the block.
    pub block: u64,
    /// The generation.
    pub generation: u64,
    /// Form of the block.
    pub kind: Kind,
    /// The generation is committed.
    pub settled: bool,
    /// No generation: the block's entry cannot be read as a whole, and others may have been there.
    pub damaged: bool,
}

/// Use of a target's space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of records in use, headers included.
    pub used: u64,
    /// Entries of the index that were found damaged since the target was opened.
    pub damaged: u64,
}

/// A part of what a target holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// All generations and all damaged entries of the part's blocks, by block.
    pub held: Vec<Held>,
    /// The first block behind the part. At least the end of the range that was asked for if nothing is behind it.
    pub next: u64,
}

/// Blocks that may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Ranges of blocks, in order.
    pub ranges: Vec<Range<u64>>,
    /// As in [`Part`].
    pub next: u64,
}

/// Most ranges of one answer.
pub(crate) const RANGES_MAX: usize = 1 << 14;

/// Most generations of a part, beside those of the last groups.
pub(crate) const PART_MAX: usize = 1 << 14;

/// One of the three places of a volume. Calls for the same block must not overlap; others may.
pub trait Target: Send + Sync {
    /// Name for messages.
    fn name(&self) -> &str;

    /// What the target is.
    fn identity(&self) -> Identity;

    /// What it holds of some blocks: of all of them, or of the first ones.
    ///
    /// # Errors
    /// The target does not answer.
    fn part(&self, blocks: Range<u64>) -> Result<Part>;

    /// Blocks from `from` on that may have changed since the targets were equal ([`Identity::equal`]).
    ///
    /// # Errors
    /// The target does not answer.
    fn changed(&self, from: u64) -> Result<Changed>;

    /// What it holds of all blocks.
    ///
    /// # Errors
    /// The target does not answer.
    fn held(&self) -> Result<Vec<Held>> {
        let mut all = Vec::new();
        // Also those of snapshots.
        let blocks = self.identity().room;
        let mut from = 0;
        while from < blocks {
            let part = self.part(from..blocks)?;
            all.extend(part.held);
            from = part.next;
        }
        Ok(all)
    }

    /// Gives the volume more blocks, which were never written. What has as many already does not change.
    ///
    /// # Errors
    /// The index has no room for them, or errors of the system.
    fn grow(&self, blocks: u64) -> Result<()>;

    /// Stores a half block, not yet settled, beside generation `keep` and the last one that is durable. Others of the block
    /// disappear, unless `keep` is [`KEEP_ALL`] and there is space in the entry.
    ///
    /// # Errors
    /// The target is full or does not answer. It then holds what it held, or both.
    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()>;

    /// Settles a generation. Other generations of the block disappear, the last durable one when this one is durable. For
    /// generation 0 all disappear: the block was never written.
    ///
    /// # Errors
    /// The target does not hold the generation, or does not answer.
    fn commit(&self, block: u64, generation: u64) -> Result<()>;

    /// Reads a half block.
    ///
    /// # Errors
    /// The target does not hold the generation, the bytes are wrong, or it does not answer.
    fn fetch(&self, block: u64, generation: u64) -> Result<Half>;

    /// Begins a step, and does not wait for a target elsewhere. Steps of one block end in the order in which they begin.
    fn begin(&self, step: Step<'_>) -> Begun {
        Begun::Ended(match step {
            Step::Prepare { block, half, keep } => self.prepare(block, half, keep).map(|()| None),
            Step::Commit { block, generation } => self.commit(block, generation).map(|()| None),
            Step::Fetch { block, generation } => self.fetch(block, generation).map(Some),
        })
    }

    /// Begins steps, each of another block.
    fn begin_all(&self, steps: &[Step<'_>]) -> Vec<Begun> {
        steps.iter().map(|step| self.begin(*step)).collect()
    }

    /// True if steps are still under way when they have begun.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// True if another process is connected to the target and owns it, and this one does not take it over.
    fn is_owned(&self) -> bool {
        false
    }

    /// Begins a step without effect. Its end is an error if another process has opened the volume since.
    fn begin_confirm(&self) -> Begun {
        Begun::Ended(Ok(None))
    }

    /// Begins to tell the target that all have made durable what counts up to a generation: nothing older is necessary.
    fn begin_release(&self, generation: u64) -> Begun {
        let _ = generation;
        Begun::Ended(Ok(None))
    }

    /// Waits for the end of a step that this target has begun.
    ///
    /// # Errors
    /// As for the call of the step.
    fn finish(&self, begun: Begun) -> Result<Option<Half>> {
        match begun {
            Begun::Ended(result) => result,
            // Only targets elsewhere send.
            Begun::Sent {
                block, generation, ..
            } => Err(BlkError::Absent {
                target: self.name().to_owned(),
                block,
                generation,
            }),
        }
    }

    /// As [`Target::finish`], of steps in the order in which they have begun.
    fn finish_all(&self, begun: Vec<Begun>) -> Vec<Result<Option<Half>>> {
        begun.into_iter().map(|begun| self.finish(begun)).collect()
    }

    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// Errors of the system.
    fn flush(&self) -> Result<()>;

    /// True if [`Target::flush`] has nothing to wait for, so that it needs no thread of its own.
    fn flushes_at_once(&self) -> bool {
        false
    }

    /// Records, durably, the epoch of the volume and what the target has of it.
    ///
    /// # Errors
    /// No volume has such an epoch, or errors of the system.
    fn mark(&self, epoch: u64, mark: Mark) -> Result<()>;

    /// The table of layers that it has.
    ///
    /// # Errors
    /// The target does not answer.
    fn layers(&self) -> Result<Layers> {
        Ok(Layers::default())
    }

    /// Takes a table of layers, durably. From then on programs are refused that know none.
    ///
    /// # Errors
    /// Errors of the system.
    fn set_layers(&self, layers: &Layers) -> Result<()> {
        let _ = layers;
        Err(BlkError::Refused {
            target: self.name().to_owned(),
            reason: "it has no snapshots".to_owned(),
        })
    }

    /// Use of its space.
    fn usage(&self) -> Usage;

    /// Bytes that it still has space for, as it said last, if that is known.
    fn free(&self) -> Option<u64> {
        None
    }

    /// A volume uses this target. One elsewhere asks it before it counts as gone.
    fn seated(&self, seating: Weak<dyn Seating>) {
        let _ = seating;
    }
}

/// The places of a volume's targets.
pub trait Seating: Send + Sync {
    /// True if the volume does not use `target` any more, which has not answered within its limit. False if requests need
    /// it: the call goes on, and asks again.
    fn gives_up(&self, target: &dyn Target, reason: &str) -> bool;

    /// True if `target` takes its place, and it is not known yet what it holds.
    fn is_arriving(&self, target: &dyn Target) -> bool;
}

struct State {
    superblock: Superblock,
    /// The table of layers, and in which of its two places the medium has it.
    layers: (Layers, usize),
    /// The superblock is not on the medium as it is here.
    changed: bool,
    table: Table,
    space: Space,
    /// Blocks whose entries have changed since the last sync began.
    touched: Blocks,
    /// Blocks whose entries had changed when a sync failed.
    doubtful: BTreeSet<u64>,
    /// All targets have made durable what counts up to this generation.
    released: u64,
    /// Blocks whose entries keep older generations until more is released, but for those of an earlier owner.
    kept: Blocks,
}

/// A record that is to be written, and its space.
struct Record<'a> {
    extent: Extent,
    header: [u8; record::HEADER],
    data: &'a [u8],
}

/// Up to which generation a store knows at first that what counts is durable at all targets.
fn first_released(role: Role) -> u64 {
    match role.layout().keeps_flushed() {
        true => 0,
        false => AT_ONCE,
    }
}

/// The groups of the settled index that a call has looked at, by their numbers.
type Looked = BTreeMap<u64, Entries>;

/// A step that changes a block's entry.
#[derive(Clone, Copy)]
enum Intent {
    Prepare { slot: Slot, keep: u64 },
    Commit { generation: u64 },
}

impl Intent {
    /// The entry behind the step. None if it cannot be made of `old`.
    fn applied(self, old: &Entry, released: u64) -> Option<Entry> {
        match self {
            Self::Prepare { slot, keep } => old.prepare(slot, keep, released),
            Self::Commit { generation } => old.commit(generation, released),
        }
    }
}

/// Locks for groups.
const GROUP_LOCKS: usize = 64;
/// Most damaged entries that are counted.
const DAMAGED_MAX: usize = 1 << 20;
/// Syncs that a step waits for at most.
const SYNCS_MAX: u32 = 8;

/// A target in this process.
pub struct Store {
    name: String,
    medium: Box<dyn Medium>,
    errors: SectorErrors,
    /// Offset of the first record, and the end of the space for new ones.
    bounds: (u64, u64),
    /// Where the records of the medium can be.
    last: u64,
    shape: Shape,
    /// Where the records of block 0 belong.
    place: Place,
    /// Blocks that it can hold now: those of the volume, or with layers all for which the index has room.
    blocks: AtomicU64,
    /// Damaged entries that were found.
    damaged: Mutex<BTreeSet<u64>>,
    state: Mutex<State>,
    /// Held while the sector of a group is made and written. Taken after `entries`, and before `state`.
    groups: Vec<Mutex<()>>,
    /// Shared from the look at an entry to its replacement. A sync excludes these while it changes entries itself. Taken
    /// before `state`.
    entries: RwLock<()>,
    /// Held during a sync, which keeps freed space until its end. Taken before `entries`.
    syncing: Mutex<()>,
    /// Steps need not sync before twice as much rests.
    is_synced_by_owner: AtomicBool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Properties of a new target.
#[derive(Debug, Clone, Copy)]
pub struct NewTarget {
    /// Size of the volume.
    pub geometry: Geometry,
    /// Part of each block that the target holds.
    pub role: Role,
    /// The volume.
    pub volume: Id,
    /// True for a target of a new volume, false for a new target of an old one.
    pub complete: bool,
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half changed: entries are replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, block: u64) -> Place {
        Place {
            block,
            ..self.place
        }
    }

    fn io(&self, error: io::Error) -> BlkError {
        BlkError::io(&self.name, error)
    }

    /// Held while an entry is looked at and replaced.
    fn shared(&self) -> RwLockReadGuard<'_, ()> {
        // The lock protects no data of its own.
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excludes all changes of entries.
    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the entries of blocks whose groups are in change, on the medium and then in memory, and frees what only the
    /// old ones refer to. If it fails, the medium's entries are unknown. Their space stays in use, because they may refer to
    /// it.
    fn replace(&self, changes: &[Change]) -> Result<()> {
        let _groups = self.lock_groups(changes);
        let sectors = self.state().table.sectors_with(changes);
        self.write_sectors(&sectors)?;
        let mut state = self.state();
        state.table.enter(changes, &sectors);
        let blocks = changes.iter().map(|change| change.block);
        state.touched.extend(blocks);
        for Change { old, new, .. } in changes {
            for slot in old.slots.iter().flatten() {
                let mut kept = new.slots.iter().flatten();
                if let Some(extent) = slot.extent()
                    && !kept.any(|other| other.shares_record(slot))
                {
                    state.space.give(extent);
                }
            }
        }
        Ok(())
    }

    /// Writes sectors of groups in change, adjacent ones by one call.
    fn write_sectors(&self, sectors: &Sectors) -> Result<()> {
        for (slot, bytes) in sectors.runs() {
            let written = self.medium.write(self.shape.slot_at(slot), bytes);
            written.map_err(|error| self.io(error))?;
        }
        Ok(())
    }

    /// What a step changes, if anything. [`None`] within: a sync under way must end first. The caller shares the entries.
    fn change(
        &self,
        block: u64,
        intent: Intent,
        (looked, with): (&Looked, Company),
    ) -> Result<Option<Option<Change>>> {
        self.check(block)?;
        let (known, is_in_change, released) = {
            let state = self.state();
            let (known, is_in_change) = state.table.look(block);
            (known, is_in_change, state.released)
        };
        let settled = match (known, looked.get(&(block / GROUP))) {
            (Some(_), _) => None,
            (None, Some(entries)) => Some(*entries),
            (None, None) => Some(self.settled(block / GROUP)?),
        };
        let settled_entry = settled.map(|entries| entries[nth(block)]);
        let old = known.or(settled_entry).unwrap_or_default();
        let new = match (intent.applied(&old, released), intent) {
            (Some(new), _) => new,
            (None, Intent::Prepare { .. }) => return Ok(None),
            (None, Intent::Commit { generation }) => {
                return Err(BlkError::Absent {
                    target: self.name.clone(),
                    block,
                    generation,
                });
            }
        };
        let has_changed = new != old;
        if released != AT_ONCE && new.has_more() {
            self.state().kept.insert(block);
        }
        if has_changed && !is_in_change {
            let group = block / GROUP;
            let mut state = self.state();
            let begun = match settled {
                Some(entries) => state.table.begin(group, entries, with),
                None => state.table.begin_new(group, with),
            };
            if !begun {
                return Ok(None);
            }
        }
        Ok(Some(has_changed.then_some(Change { block, old, new })))
    }

    /// Carries out the last part of a step: the change of the entry.
    fn enter(&self, block: u64, intent: Intent) -> Result<()> {
        let alone = (&Looked::new(), Company::Others);
        for _ in 0..SYNCS_MAX {
            let shared = self.shared();
            if let Some(change) = self.change(block, intent, alone)? {
                return self.replace(change.as_slice());
            }
            drop(shared);
            // Waits for the end of the sync. Without one its own makes space in the entry.
            let syncing = self.syncing();
            if self.change(block, intent, alone)?.is_none() {
                self.sync(&syncing)?;
            }
        }
        // All groups in change have something that cannot be dropped.
        Err(BlkError::Full {
            target: self.name.clone(),
            wanted: 0,
            free: self.state().space.available(),
            capacity: self.bounds.1 - self.bounds.0,
        })
    }

    /// Takes space for a half block. Returns what [`Target::prepare`] then writes.
    fn plan<'a>(
        &self,
        block: u64,
        half: &'a Half,
        room: &mut Room,
    ) -> Result<(Slot, Option<Record<'a>>)> {
        self.check(block)?;
        let length = record::length(half);
        let record = if !half.kind.has_bytes() {
            None
        } else {
            Some(Record {
                extent: self.take_of(room, length)?,
                header: record::header(self.place(block), half),
                data: &half.data,
            })
        };
        let extent = record.as_ref().map(|record| Extent {
            length,
            ..record.extent
        });
        Ok((Slot::new(half.generation, extent, half.kind), record))
    }

    fn write_record(&self, record: &Record<'_>) -> Result<()> {
        let parts = [&record.header[..], record.data];
        let written = self.medium.write_parts(record.extent.offset, &parts);
        written.map_err(|error| {
            self.state().space.give(record.extent);
            self.io(error)
        })
    }

    /// What the entry says of a half block.
    fn find(&self, block: u64, generation: u64, looked: &mut Looked) -> Result<Slot> {
        let slot = self.entry_of(block, looked)?.get(generation);
        let slot = slot.ok_or_else(|| BlkError::Absent {
            target: self.name.clone(),
            block,
            generation,
        })?;
        if slot.kind == Kind::Lost {
            return Err(BlkError::Absent {
                target: self.name.clone(),
                block,
                generation,
            });
        }
        Ok(slot)
    }

    fn read(&self, block: u64, generation: u64, extent: Extent) -> Result<Half> {
        // Cannot be cut: the length was checked when the entry was read or made.
        let length = usize::try_from(extent.length).unwrap_or(0);
        let bytes = self.medium.read_new(extent.offset, length);
        let bytes = bytes.map_err(|error| match self.errors.are_few(&error) {
            true => BlkError::Unreadable {
                target: self.name.clone(),
                block,
                error,
            },
            false => self.io(error),
        })?;
        self.parse(block, generation, &bytes.into())
    }

    fn parse(&self, block: u64, generation: u64, bytes: &Bytes) -> Result<Half> {
        record::parse(self.place(block), generation, bytes).map_err(|fault| BlkError::Corrupt {
            target: self.name.clone(),
            block,
            fault: fault.to_owned(),
        })
    }
}

impl Target for Store {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        self.state().superblock.identity
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        let all = 0..self.blocks.load(Ordering::Acquire);
        let mut held = Vec::new();
        let next = self.each_group(blocks.start, |group, entries| {
            for (block, entry) in (group * GROUP..).zip(entries) {
                if blocks.contains(&block) && all.contains(&block) {
                    held.extend(Self::held_in(block, entry));
                }
            }
            held.len() < PART_MAX && (group + 1) * GROUP < blocks.end
        })?;
        Ok(Part { held, next })
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        let state = self.state();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut group = from / GROUP;
        while ranges.len() < RANGES_MAX {
            let Some(next) = state.table.next(group, true) else {
                return Ok(Changed {
                    ranges,
                    next: u64::MAX,
                });
            };
            group = next + 1;
            match ranges.last_mut() {
                Some(last) if last.end == next * GROUP => last.end = group * GROUP,
                _ => ranges.push(next * GROUP..group * GROUP),
            }
        }
        let next = group * GROUP;
        Ok(Changed { ranges, next })
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        let _syncing = self.syncing();
        let mut next = self.state().superblock;
        let geometry = next.identity.geometry;
        if blocks <= geometry.blocks() {
            return Ok(());
        }
        if blocks > next.shape.room {
            return Err(BlkError::NoRoom {
                target: self.name.clone(),
                blocks,
                room: next.shape.room,
            });
        }
        next.identity.geometry = Geometry::new(geometry.block_size(), blocks)?;
        self.store_superblock(next)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        let mut none = Room::default();
        let (mut slot, mut record) = self.plan(block, half, &mut none)?;
        if let Some(first) = &record
            && let Err(error) = self.write_record(first)
        {
            if !error.is_full() {
                return Err(error);
            }
            // The medium has no space for a new range. A sync makes older ones usable.
            self.sync(&self.syncing())?;
            self.sync(&self.syncing())?;
            (slot, record) = self.plan(block, half, &mut none)?;
            record.map_or(Ok(()), |record| self.write_record(&record))?;
        }
        self.enter(block, Intent::Prepare { slot, keep })
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.enter(block, Intent::Commit { generation })
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        let slot = self.find(block, generation, &mut Looked::new())?;
        match slot.extent() {
            Some(extent) => self.read(block, generation, extent),
            None => Ok(without_bytes(&slot)),
        }
    }

    fn begin_all(&self, steps: &[Step<'_>]) -> Vec<Begun> {
        self.run(steps).into_iter().map(Begun::Ended).collect()
    }

    fn flush(&self) -> Result<()> {
        self.sync(&self.syncing())
    }

    fn begin_release(&self, generation: u64) -> Begun {
        self.release(generation);
        Begun::Ended(Ok(None))
    }

    fn flushes_at_once(&self) -> bool {
        self.medium.syncs_at_once()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        if epoch > EPOCH_MAX {
            return Err(BlkError::Refused {
                target: self.name.clone(),
                reason: format!("epoch {epoch}: the highest is {EPOCH_MAX}"),
            });
        }
        if self.is_marked(epoch, mark) {
            // An owner that has lost its connection need not wait for the disk.
            return Ok(());
        }
        // No other sync may be the one that tells of a failure.
        let _syncing = self.syncing();
        let mut next = {
            let state = self.state();
            let mut next = state.superblock;
            if mark == Mark::Equal {
                next.tail = state.space.tail();
                next.used = state.space.used();
            }
            next
        };
        next.identity.marked(epoch, mark);
        self.store_superblock(next)?;
        if mark == Mark::Owned {
            // What an earlier owner had under way, this one has to decide about.
            self.state().kept = Blocks::default();
        }
        if matches!(mark, Mark::Wrapping(_)) {
            // Also in the other copy: the key of before opens it no more.
            let now = self.state().superblock;
            self.store_superblock(now)?;
        }
        if mark == Mark::Equal {
            self.forget_changes();
        }
        Ok(())
    }

    fn layers(&self) -> Result<Layers> {
        Ok(self.state().layers.0.clone())
    }

    fn set_layers(&self, layers: &Layers) -> Result<()> {
        self.store_layers(layers)
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.state().space.used(),
            damaged: self.damaged().len() as u64,
        }
    }

    fn free(&self) -> Option<u64> {
        let available = self.state().space.available();
        Some(self.medium.free().unwrap_or(u64::MAX).min(available))
    }
}

#[cfg(test)]
mod tests;
