//! Creates and opens a store.

use super::blocks::Blocks;
use super::file::FileMedium;
use super::index::Slot;
use super::layout::{GROUP, PAGE, SECTOR, Shape, check_size, last_byte};
use super::medium::Medium;
use super::sectors::SectorErrors;
use super::space::{Extent, Space, fits};
use super::superblock::{Members, Superblock};
use super::table::{Table, sector};
use super::units::Units;
use super::{
    GROUP_LOCKS, Identity, NewTarget, Standing, State, Store, Trusted, first_released, layered,
};
use crate::error::{BlkError, Result};
use crate::geometry::{Id, Layout};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

/// Bytes of the index per call.
const CHUNK: usize = 1 << 20;

/// Sectors without groups.
pub(super) fn empty_sectors(slots: std::ops::Range<u64>) -> Vec<u8> {
    slots.flat_map(|slot| sector(slot, None)).collect()
}

impl Store {
    /// Makes a target of an empty medium. `capacity` limits its data in bytes. The volume cannot grow.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create(
        name: &str,
        medium: Box<dyn Medium>,
        new: NewTarget,
        capacity: Option<u64>,
    ) -> Result<Self> {
        let shape = Shape::with_room(new.geometry.blocks());
        Self::create_with(name, medium, new, shape, capacity)
    }

    /// As [`Store::create`], with an index of a shape.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create_with(
        name: &str,
        medium: Box<dyn Medium>,
        new: NewTarget,
        shape: Shape,
        capacity: Option<u64>,
    ) -> Result<Self> {
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
            equal: 0,
            room: shape.room,
            members: Members::default(),
            wrapping: None,
            trusted: Trusted {
                roles: match new.role.layout() {
                    Layout::HALVES => 0,
                    layout => layout.all(),
                },
                ..Trusted::default()
            },
        };
        let mut superblock = Superblock {
            identity,
            sequence: 0,
            shape,
            ready: shape.first_slots(new.geometry),
            tail: shape.data_at(),
            used: 0,
            has_suspects: false,
            has_layers: false,
        };
        check_size(
            name,
            medium.size(),
            (superblock.shape, superblock.identity.geometry),
        )?;
        // Before the superblocks: a target that is there has an index.
        write_empty_index(medium.as_ref(), &superblock)
            .and_then(|()| medium.sync())
            .map_err(|error| BlkError::io(name, error))?;
        for sequence in 0..2 {
            superblock.sequence = sequence;
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
        check_size(
            name,
            medium.size(),
            (superblock.shape, superblock.identity.geometry),
        )?;
        let layers = layered::read(&superblock, &pages).map_err(|fault| BlkError::NotATarget {
            target: name.to_owned(),
            fault,
        })?;
        let shape = superblock.shape;
        let start = shape.data_at();
        let last = last_byte(medium.size()).max(start);
        let end = start.saturating_add(capacity.unwrap_or(last)).min(last);
        let table = read_table(medium.as_ref(), &superblock, (start, last)).map_err(failed)?;
        let space = space(&superblock, &table, (start, end));
        let mut known = superblock;
        known.has_suspects |= !table.bad.is_empty();
        let store = Self {
            name: name.to_owned(),
            medium,
            errors: SectorErrors::default(),
            bounds: (start, end),
            last,
            shape,
            place: superblock.identity.place(0),
            blocks: AtomicU64::new(superblock.reach()),
            damaged: Mutex::default(),
            state: Mutex::new(State {
                layers,
                changed: known != superblock,
                superblock: known,
                table,
                space,
                touched: Blocks::default(),
                doubtful: BTreeSet::new(),
                released: first_released(superblock.identity.role),
                kept: Blocks::default(),
            }),
            groups: (0..GROUP_LOCKS).map(|_| Mutex::new(())).collect(),
            entries: RwLock::new(()),
            syncing: Mutex::new(()),
            is_synced_by_owner: AtomicBool::new(false),
        };
        store.look_at_damage();
        // What the last process wrote is durable from here on, or the target is not used.
        store.write_all_again()?;
        store.medium.sync().map_err(failed)?;
        Ok(store)
    }

    fn look_at_damage(&self) {
        let state = self.state();
        let blocks = self.blocks.load(Ordering::Acquire);
        let mut damaged = self.damaged();
        for (number, group) in &state.table.groups {
            for (block, entry) in (number * GROUP..blocks).zip(&group.entries) {
                if entry.damaged {
                    damaged.insert(block);
                }
            }
        }
        for group in &state.table.suspects {
            damaged.extend((group * GROUP..(group + 1) * GROUP).filter(|block| *block < blocks));
        }
    }

    /// Writes again what an opening cannot rely on: records of entries that say something beside the newest generation, or are
    /// damaged beside it, and the index as far as it was written since the targets were equal. A sync of the last process may
    /// have failed, and the next one then succeeds without what that one has left out.
    fn write_all_again(&self) -> Result<()> {
        let (superblock, map, ready) = {
            let state = self.state();
            let table = &state.table;
            let map: Vec<(u64, [u8; SECTOR])> = table
                .units
                .used_sectors()
                .into_iter()
                .map(|number| (number, table.units.to_bytes(number)))
                .collect();
            (state.superblock, map, state.superblock.ready)
        };
        self.write_records_again()?;
        self.write_layers_again()?;
        if superblock.is_closed() {
            return Ok(());
        }
        for (number, bytes) in map {
            let written = self.medium.write(superblock.shape.map_at(number), &bytes);
            written.map_err(|error| self.io(error))?;
        }
        let chunk = (CHUNK / SECTOR) as u64;
        for from in (0..ready).step_by(CHUNK / SECTOR) {
            let count = chunk.min(ready - from);
            let mut bytes = vec![0; usize::try_from(count).unwrap_or(0) * SECTOR];
            let at = superblock.shape.slot_at(from);
            self.medium
                .read(at, &mut bytes)
                .and_then(|()| self.medium.write(at, &bytes))
                .map_err(|error| self.io(error))?;
        }
        Ok(())
    }

    fn write_records_again(&self) -> Result<()> {
        let doubtful = {
            let state = self.state();
            let mut doubtful = Vec::new();
            for (number, group) in &state.table.groups {
                for (block, entry) in (number * GROUP..).zip(&group.entries) {
                    let slots = entry.slots.iter().flatten().count();
                    if slots > 1 || (entry.damaged && slots > 0) {
                        doubtful.push((block, *entry));
                    }
                }
            }
            doubtful
        };
        for (block, entry) in doubtful {
            self.write_records_of(block, &entry, |_: &Slot| true)
                .map_err(|error| self.io(error))?;
        }
        Ok(())
    }

    /// Creates a target in a new file, or on an empty block device. The volume can grow.
    ///
    /// # Errors
    /// The file exists, the device holds something, is in use or too small, or errors of the system.
    pub fn create_file(path: &Path, new: NewTarget, capacity: Option<u64>) -> Result<Self> {
        Self::create_over(path, (new, capacity), false)
    }

    /// As [`Store::create_file`]. With `force` what a device holds is lost.
    ///
    /// # Errors
    /// As [`Store::create_file`].
    pub fn create_over(
        path: &Path,
        (new, capacity): (NewTarget, Option<u64>),
        force: bool,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let reason = "it is in use: unmount it, or end the process that has it";
                BlkError::io(&name, io::Error::other(reason))
            }
            _ => BlkError::io(&name, error),
        };
        let medium = FileMedium::create(path, force).map_err(failed)?;
        let shape = Shape::that_grows(new.geometry);
        // Before it loses what it has.
        check_size(&name, medium.size(), (shape, new.geometry))?;
        medium.wipe().map_err(failed)?;
        Self::create_with(&name, Box::new(medium), new, shape, capacity)
    }

    /// Opens the target in a file or on a block device.
    ///
    /// # Errors
    /// It holds no target, another process uses it, or errors of the system.
    pub fn open_file(path: &Path, capacity: Option<u64>) -> Result<Self> {
        Self::open_past(path, capacity, false)
    }

    /// As [`Store::open_file`]. With `direct` past the system's cache.
    ///
    /// # Errors
    /// As [`Store::open_file`], or the file system has no O_DIRECT.
    pub fn open_past(path: &Path, capacity: Option<u64>, direct: bool) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => BlkError::InUse {
                target: name.clone(),
            },
            _ => BlkError::io(&name, error),
        };
        let medium: Box<dyn Medium> = match direct {
            true => Box::new(FileMedium::open_direct(path).map_err(failed)?),
            false => Box::new(FileMedium::open(path).map_err(failed)?),
        };
        Self::open(&name, medium, capacity)
    }
}

/// Writes the map and the sectors of groups in change of a volume without blocks. The settled index is not there.
fn write_empty_index(medium: &dyn Medium, superblock: &Superblock) -> io::Result<()> {
    let shape = superblock.shape;
    let units = Units::new(shape.map_sectors());
    let map: Vec<u8> = (0..shape.map_sectors())
        .flat_map(|sector| units.to_bytes(sector))
        .collect();
    if !map.is_empty() {
        medium.write(shape.map_at(0), &map)?;
    }
    let chunk = (CHUNK / SECTOR) as u64;
    for from in (0..superblock.ready).step_by(CHUNK / SECTOR) {
        let to = superblock.ready.min(from + chunk);
        medium.write(shape.slot_at(from), &empty_sectors(from..to))?;
    }
    Ok(())
}

fn read_table(
    medium: &dyn Medium,
    superblock: &Superblock,
    bounds: (u64, u64),
) -> io::Result<Table> {
    let shape = superblock.shape;
    let read = |at: u64, sectors: u64| -> io::Result<Vec<u8>> {
        let sectors = usize::try_from(sectors).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = vec![0; sectors * SECTOR];
        for (nth, chunk) in (0..).zip(bytes.chunks_mut(CHUNK)) {
            medium.read(at + nth * CHUNK as u64, chunk)?;
        }
        Ok(bytes)
    };
    let map = read(shape.map_at(0), shape.map_sectors())?;
    let sectors = read(shape.slot_at(0), superblock.ready)?;
    let blocks = superblock.reach();
    let suspects = superblock.has_suspects;
    Ok(Table::parse(
        shape,
        (&map, &sectors),
        (blocks, suspects),
        |extent| fits(extent, bounds),
    ))
}

/// What is known of the space for records.
fn space(superblock: &Superblock, table: &Table, (start, end): (u64, u64)) -> Space {
    let groups = table.groups.values();
    let slots = groups.flat_map(|group| group.entries.iter().flat_map(|entry| entry.slots));
    let extents = slots.flatten().filter_map(|slot| slot.extent());
    let used: Vec<Extent> = extents
        .map(|extent| Extent {
            length: Space::rounded(extent.length),
            ..extent
        })
        .collect();
    if table.units.is_empty() {
        return Space::new(start, end, used);
    }
    let tail = used.iter().map(|extent| extent.end()).max().unwrap_or(0);
    let tail = tail.max(superblock.tail).max(start);
    let known: u64 = used.iter().map(|extent| extent.length).sum();
    Space::unknown(tail, end, superblock.used.max(known))
}
