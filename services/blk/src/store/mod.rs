//! A target: one half of each block, on a file or in memory.
//!
//! ```text
//! two superblocks | index: three slots for each block | data: records of half blocks, in units of 64 bytes
//! ```
//!
//! A write goes to free space. Then one store of 64 bytes into the index makes it visible beside the generation before
//! it ([`Target::prepare`]). A second one settles it ([`Target::commit`]). Steps of several blocks store
//! what is adjacent together ([`Target::begin_all`]). A process that is killed
//! between any two instructions therefore leaves the old generation, or both. [`Target::flush`] makes everything
//! durable. The last generation that was durable stays until then, so that a loss of power leaves it. Space is allocated
//! as blocks are written; freed space is used again after the next flush but one, or when much of it rests.
//!
//! An entry of the index that cannot be read is damaged, also one of zeros: it says nothing about the block. After a failed
//! sync nothing that was written before counts as durable until it was written again, which the next sync and the next
//! opening do.

mod batch;
mod index;
mod layout;
mod medium;
mod space;
mod superblock;
mod sync;

pub use index::KEEP_ALL;
pub use medium::{FileMedium, Medium, MemoryMedium};
pub(crate) use superblock::{COUNTER_BITS, EPOCH_MAX};
pub use superblock::{Identity, Mark, Standing};

use crate::block::Kind;
use crate::error::{BlkError, Result};
use crate::geometry::{Geometry, GeometryError, Id, Role};
use crate::record::{self, Half, Place};
use index::{ENTRY, Entry, Slot};
use layout::{INDEX_AT, check_size, data_start, read_index, write_doubtful, write_empty_index};
use space::{Extent, Space};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use superblock::{PAGE, Superblock};

/// Free ranges of at least this length are given back to the file system.
const RELEASE_MIN: u64 = 64 << 10;

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
    /// Entries of the index that were damaged when the target was opened.
    pub damaged: u64,
}

/// A call of a target that may still be under way when the next one begins.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// [`Target::prepare`].
    Prepare {
        /// The block.
        block: u64,
        /// Its part.
        half: &'a Half,
        /// The generation that stays beside it, or [`KEEP_ALL`].
        keep: u64,
    },
    /// [`Target::commit`].
    Commit {
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
    /// [`Target::fetch`].
    Fetch {
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
}

/// A step that has begun.
#[derive(Debug)]
#[must_use = "its end is unknown until it is given to finish"]
pub enum Begun {
    /// It has ended. A fetch has a half block.
    Ended(Result<Option<Half>>),
    /// It is under way.
    Sent {
        /// Number of the call on its connection.
        call: u64,
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
}

/// One of the three places of a volume. Calls for the same block must not overlap; others may.
pub trait Target: Send + Sync {
    /// Name for messages.
    fn name(&self) -> &str;

    /// What the target is.
    fn identity(&self) -> Identity;

    /// All generations of all blocks, and all damaged entries, by block.
    ///
    /// # Errors
    /// The target does not answer.
    fn held(&self) -> Result<Vec<Held>>;

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

    /// Use of its space.
    fn usage(&self) -> Usage;

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
}

struct State {
    superblock: Superblock,
    index: Vec<Entry>,
    space: Space,
    /// Blocks whose entries have changed since the last sync began.
    touched: BTreeSet<u64>,
    /// Blocks whose entries had changed when a sync failed.
    doubtful: BTreeSet<u64>,
}

/// A record that is to be written, and its space.
struct Record {
    extent: Extent,
    bytes: Vec<u8>,
}

/// A step that changes a block's entry.
#[derive(Clone, Copy)]
enum Intent {
    Prepare { slot: Slot, keep: u64 },
    Commit { generation: u64 },
}

/// A change of a block's entry.
#[derive(Clone, Copy)]
struct Change {
    block: u64,
    old: Entry,
    new: Entry,
}

/// A half block without data.
fn zero(generation: u64) -> Half {
    Half {
        generation,
        kind: Kind::Zero,
        stored: 0,
        data: Vec::new(),
    }
}

/// A target in this process.
pub struct Store {
    name: String,
    medium: Box<dyn Medium>,
    capacity: u64,
    damaged: u64,
    state: Mutex<State>,
    /// Shared from the look at an entry to its replacement. A sync excludes these while it changes entries itself. Taken
    /// before `state`.
    entries: RwLock<()>,
    /// Held during a sync, which keeps freed space until its end. Taken before `entries`.
    syncing: Mutex<()>,
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
    /// Makes a target of an empty medium. `capacity` limits its data in bytes.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create(
        name: &str,
        medium: Box<dyn Medium>,
        new: NewTarget,
        capacity: Option<u64>,
    ) -> Result<Self> {
        check_size(name, medium.as_ref(), new.geometry)?;
        let random = xgvmi_daemon::random().map_err(|error| BlkError::io(name, error))?;
        let identity = Identity {
            geometry: new.geometry,
            role: new.role,
            volume: new.volume,
            target: Id(random.to_ne_bytes()),
            epoch: 0,
            standing: match new.complete {
                true => Standing::Complete,
                false => Standing::New,
            },
            agreed: 0,
        };
        // Before the superblocks: a target that is there has an index.
        write_empty_index(medium.as_ref(), new.geometry)
            .and_then(|()| medium.sync())
            .map_err(|error| BlkError::io(name, error))?;
        for sequence in 0..2 {
            let superblock = Superblock { identity, sequence };
            medium
                .write(superblock.offset(), &superblock.to_bytes())
                .map_err(|error| BlkError::io(name, error))?;
        }
        medium.sync().map_err(|error| BlkError::io(name, error))?;
        Self::open(name, medium, capacity)
    }

    /// Opens the target on a medium. `capacity` limits the space that new data takes. It hides nothing that is there.
    ///
    /// # Errors
    /// The medium holds no target, or errors of the system.
    pub fn open(name: &str, medium: Box<dyn Medium>, capacity: Option<u64>) -> Result<Self> {
        let failed = |error| BlkError::io(name, error);
        let mut pages = vec![0; 2 * PAGE];
        medium.read(0, &mut pages).map_err(failed)?;
        let superblock = Superblock::parse(&pages).map_err(|fault| BlkError::NotATarget {
            target: name.to_owned(),
            fault,
        })?;
        let geometry = superblock.identity.geometry;
        check_size(name, medium.as_ref(), geometry)?;
        let start = data_start(geometry);
        let last = medium.size().unwrap_or(i64::MAX.cast_unsigned());
        let end = start.saturating_add(capacity.unwrap_or(last)).min(last);
        let index = read_index(medium.as_ref(), geometry, (start, last)).map_err(failed)?;
        // What the last process wrote is durable from here on, or the target is not used.
        write_doubtful(medium.as_ref(), superblock.identity, &index)
            .and_then(|()| medium.sync())
            .map_err(failed)?;
        let damaged = index.iter().filter(|entry| entry.damaged).count() as u64;
        let used = index.iter().flat_map(|entry| entry.slots).flatten();
        let used = used.filter_map(|slot| slot.extent()).map(|extent| Extent {
            length: Space::rounded(extent.length),
            ..extent
        });
        let space = Space::new(start, end, used.collect());
        Ok(Self {
            name: name.to_owned(),
            medium,
            capacity: end - start,
            damaged,
            state: Mutex::new(State {
                superblock,
                index,
                space,
                touched: BTreeSet::new(),
                doubtful: BTreeSet::new(),
            }),
            entries: RwLock::new(()),
            syncing: Mutex::new(()),
        })
    }

    /// Creates a target in a new file.
    ///
    /// # Errors
    /// The file exists, or errors of the system.
    pub fn create_file(path: &Path, new: NewTarget, capacity: Option<u64>) -> Result<Self> {
        let name = path.display().to_string();
        let medium = FileMedium::create(path).map_err(|error| BlkError::io(&name, error))?;
        Self::create(&name, Box::new(medium), new, capacity)
    }

    /// Opens the target in a file.
    ///
    /// # Errors
    /// The file holds no target, another process uses it, or errors of the system.
    pub fn open_file(path: &Path, capacity: Option<u64>) -> Result<Self> {
        let name = path.display().to_string();
        let medium = FileMedium::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => BlkError::InUse {
                target: name.clone(),
            },
            _ => BlkError::io(&name, error),
        })?;
        Self::open(&name, Box::new(medium), capacity)
    }

    /// Everything that the next call depends on beside the medium, as text: for a search of all states.
    #[doc(hidden)]
    #[must_use]
    pub fn searched(&self) -> String {
        let state = self.state();
        let blocks = (&state.touched, &state.doubtful);
        format!(
            "{:?} {:?} {:?} {blocks:?}",
            state.superblock, state.index, state.space
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half changed: entries are replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, state: &State, block: u64) -> Place {
        state.superblock.identity.place(block)
    }

    fn io(&self, error: io::Error) -> BlkError {
        BlkError::io(&self.name, error)
    }

    /// The entry of a block.
    fn entry(&self, block: u64) -> Result<Entry> {
        let state = self.state();
        let index = usize::try_from(block).unwrap_or(usize::MAX);
        state.index.get(index).copied().ok_or_else(|| {
            let geometry = state.superblock.identity.geometry;
            let size = u64::from(geometry.block_size());
            BlkError::Geometry(GeometryError::Bounds {
                offset: block.saturating_mul(size),
                length: size,
                size: geometry.size(),
            })
        })
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

    /// Replaces the entries of consecutive blocks, on the medium and then in memory, and frees what only the old ones refer
    /// to. If it fails, the medium's entries are unknown. Their space stays in use, because they may refer to it.
    fn replace(&self, changes: &[Change]) -> Result<()> {
        let Some(first) = changes.first() else {
            return Ok(());
        };
        let entries = changes.iter();
        let bytes: Vec<u8> = entries
            .flat_map(|change| change.new.to_bytes(change.block))
            .collect();
        self.medium
            .write(INDEX_AT + first.block * ENTRY as u64, &bytes)
            .map_err(|error| self.io(error))?;
        let mut state = self.state();
        for Change { block, old, new } in changes {
            let index = usize::try_from(*block).ok();
            if let Some(entry) = index.and_then(|block| state.index.get_mut(block)) {
                *entry = *new;
            }
            state.touched.insert(*block);
            let kept = |extent: &Extent| {
                let mut slots = new.slots.iter().flatten();
                slots.any(|slot| slot.extent() == Some(*extent))
            };
            for extent in old.slots.iter().flatten().filter_map(Slot::extent) {
                if !kept(&extent) {
                    state.space.give(extent);
                }
            }
        }
        Ok(())
    }

    /// What a step changes, if anything. [`None`] within: a sync under way must end first. The caller shares the entries.
    fn change(&self, block: u64, intent: Intent) -> Result<Option<Option<Change>>> {
        let old = self.entry(block)?;
        let new = match intent {
            Intent::Prepare { slot, keep } => match old.prepare(slot, keep) {
                Some(new) => new,
                None => return Ok(None),
            },
            Intent::Commit { generation } => {
                old.commit(generation).ok_or_else(|| BlkError::Absent {
                    target: self.name.clone(),
                    block,
                    generation,
                })?
            }
        };
        Ok(Some((new != old).then_some(Change { block, old, new })))
    }

    /// Carries out the last part of a step: the change of the entry.
    fn enter(&self, block: u64, intent: Intent) -> Result<()> {
        loop {
            let shared = self.shared();
            if let Some(change) = self.change(block, intent)? {
                return self.replace(change.as_slice());
            }
            drop(shared);
            // Waits for the end of the sync. Without one its own makes space in the entry.
            let syncing = self.syncing();
            if self.change(block, intent)?.is_none() {
                self.sync(&syncing)?;
            }
        }
    }

    /// Takes space for a half block. Returns what [`Target::prepare`] then writes.
    fn plan(&self, block: u64, half: &Half) -> Result<(Slot, Option<Record>)> {
        self.entry(block)?;
        let record = if matches!(half.kind, Kind::Zero | Kind::Lost) {
            None
        } else {
            let place = self.place(&self.state(), block);
            let bytes = record::to_bytes(place, half);
            let extent = self.take(bytes.len() as u64)?;
            Some(Record { extent, bytes })
        };
        let extent = record.as_ref().map(|record| Extent {
            length: record.bytes.len() as u64,
            ..record.extent
        });
        Ok((Slot::new(half.generation, extent, half.kind), record))
    }

    fn write_record(&self, record: &Record) -> Result<()> {
        let written = self.medium.write(record.extent.offset, &record.bytes);
        written.map_err(|error| {
            self.state().space.give(record.extent);
            self.io(error)
        })
    }

    /// Where a half block is. None if it is zero.
    fn find(&self, block: u64, generation: u64) -> Result<Option<Extent>> {
        let slot = self.entry(block)?.get(generation);
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
        Ok(slot.extent())
    }

    fn read(&self, block: u64, generation: u64, extent: Extent) -> Result<Half> {
        // Cannot be cut: the length was checked when the entry was read or made.
        let mut bytes = vec![0; usize::try_from(extent.length).unwrap_or(0)];
        self.medium
            .read(extent.offset, &mut bytes)
            .map_err(|error| self.io(error))?;
        self.parse(block, generation, &bytes)
    }

    fn parse(&self, block: u64, generation: u64, bytes: &[u8]) -> Result<Half> {
        let place = self.place(&self.state(), block);
        record::parse(place, generation, bytes).map_err(|fault| BlkError::Corrupt {
            target: self.name.clone(),
            block,
            fault: fault.to_owned(),
        })
    }

    /// Takes space for a record. If none is left but what was freed since the last sync, waits for the sync of another
    /// thread, or syncs. Syncs also if much was freed.
    fn take(&self, length: u64) -> Result<Extent> {
        let is_due = self.state().space.is_sync_due();
        if !is_due && let Some(extent) = self.state().space.take(length) {
            return Ok(extent);
        }
        let syncing = self.syncing();
        if self.state().space.is_sync_due() {
            self.sync(&syncing)?;
        }
        // The first sync makes newer generations durable, the second one the entries without the older ones.
        for _ in 0..2 {
            if let Some(extent) = self.state().space.take(length) {
                return Ok(extent);
            }
            self.sync(&syncing)?;
        }
        let mut state = self.state();
        state.space.take(length).ok_or_else(|| BlkError::Full {
            target: self.name.clone(),
            wanted: length,
            free: state.space.available(),
            capacity: self.capacity,
        })
    }
}

/// What an entry says.
fn held_in(block: u64, entry: &Entry) -> impl Iterator<Item = Held> + use<> {
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

impl Store {
    /// Generations of at most `count` blocks from block `from` on.
    pub(crate) fn held_from(&self, from: u64, count: u64) -> Vec<Held> {
        let bound = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let state = self.state();
        let entries = (from..).zip(state.index.iter().skip(bound(from)).take(bound(count)));
        entries
            .flat_map(|(block, entry)| held_in(block, entry))
            .collect()
    }
}

impl Target for Store {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        self.state().superblock.identity
    }

    fn held(&self) -> Result<Vec<Held>> {
        Ok(self.held_from(0, u64::MAX))
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        let (mut slot, mut record) = self.plan(block, half)?;
        if let Some(first) = &record
            && let Err(error) = self.write_record(first)
        {
            if !error.is_full() {
                return Err(error);
            }
            // The medium has no space for a new range. A sync makes older ones usable.
            self.sync(&self.syncing())?;
            self.sync(&self.syncing())?;
            (slot, record) = self.plan(block, half)?;
            record.map_or(Ok(()), |record| self.write_record(&record))?;
        }
        self.enter(block, Intent::Prepare { slot, keep })
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.enter(block, Intent::Commit { generation })
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        match self.find(block, generation)? {
            Some(extent) => self.read(block, generation, extent),
            None => Ok(zero(generation)),
        }
    }

    fn begin_all(&self, steps: &[Step<'_>]) -> Vec<Begun> {
        match steps {
            [step] => vec![self.begin(*step)],
            steps => self.run(steps).into_iter().map(Begun::Ended).collect(),
        }
    }

    fn flush(&self) -> Result<()> {
        self.sync(&self.syncing())
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
        // No other sync may be the one that tells of a failure.
        let _syncing = self.syncing();
        let mut state = self.state();
        let mut next = state.superblock;
        next.sequence += 1;
        next.identity.marked(epoch, mark);
        let written = self.medium.write(next.offset(), &next.to_bytes());
        written.map_err(|error| self.io(error))?;
        if let Err(error) = self.medium.sync() {
            state.doubt();
            return Err(self.io(error));
        }
        state.superblock = next;
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.state().space.used(),
            damaged: self.damaged,
        }
    }
}

#[cfg(test)]
mod tests;
