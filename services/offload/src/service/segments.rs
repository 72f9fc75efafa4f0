//! Memory of this SP for the segments of a job's reductions, and for the vectors of those that take a tree.
//!
//! In step 1 of a window an SP reads a segment of all members into memory of its own. Most windows get this memory when
//! their rank enters the step, so that each block is read as soon as it is on offer. Beyond [`EARLY_MAX`] a window waits
//! until the blocks of all members are on offer, and then for its turn. This cannot deadlock. Memory that is taken then
//! is returned when the blocks are read and reduced, before the step is complete, and that waits for no other rank or SP. The
//! other half of the memory is only for such windows, and one of them may always take what it needs. The blocks of all
//! members are on offer sooner or later, whatever other allreduces wait for: no limit of step 1 holds an offer back.
//!
//! A full device refuses memory. A window then waits for its turn, and asks again when another window has returned its own, or
//! when all jobs have given back what no call uses.
//!
//! The result is a segment of one rank, or a vector. It stays until the next step is complete. A rank has at most two of them per
//! line.

use super::actions::CallId;
use super::transport::Transport;
use crate::error::{OffloadError, Result};
use crate::wire::Wide;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Maximum bytes of windows whose members have not all come, and of all windows and free buffers.
const EARLY_MAX: usize = 128 << 20;
const ALL_MAX: usize = 256 << 20;

/// Minimum size of a buffer.
const SIZE_MIN: usize = 4 << 10;

/// A rank in a step.
pub(super) type Place = (CallId, usize);

/// A buffer of this SP for segments.
#[derive(Debug)]
pub(super) struct Staged<T: Transport> {
    pub(super) memory: T::Memory,
    pub(super) key: T::Packed,
    size: usize,
    use_of: Use,
}

/// The use of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Segments of all members.
    Window,
    /// The same; the blocks of all members were on offer when it was taken.
    Complete,
    /// A reduced segment.
    Result,
}

/// Whether a window that has its turn has memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Fine,
    /// The device has refused it.
    Lacking,
    /// All jobs give back what no call uses.
    Asked,
}

/// A step that has no memory: the receive side, and the number of bytes.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) receives: Vec<Wide>,
    pub(super) length: u64,
}

/// The memory of a job.
#[derive(Debug)]
pub(super) struct Segments<T: Transport> {
    /// Free buffers by size, and their bytes.
    free: BTreeMap<usize, Vec<Staged<T>>>,
    free_bytes: usize,
    /// Bytes of windows, the part of them that is [`Use::Complete`], and bytes of results.
    windows: usize,
    complete: usize,
    results: usize,
    /// Steps without memory.
    gathering: HashMap<Place, Gathering>,
    /// Those of them for which all blocks are on offer, in the order of their turns.
    turns: VecDeque<Place>,
    room: Room,
    /// [`EARLY_MAX`] and [`ALL_MAX`]; tests use less.
    pub(super) early_max: usize,
    pub(super) all_max: usize,
}

impl<T: Transport> Segments<T> {
    pub(super) fn new() -> Self {
        Self {
            free: BTreeMap::new(),
            free_bytes: 0,
            windows: 0,
            complete: 0,
            results: 0,
            gathering: HashMap::new(),
            turns: VecDeque::new(),
            room: Room::Fine,
            early_max: EARLY_MAX,
            all_max: ALL_MAX,
        }
    }

    /// Bytes in use, about.
    pub(super) fn bytes(&self) -> usize {
        let receives = |of: &Gathering| size_of_val(&of.receives[..]);
        let gathering: usize = self.gathering.values().map(receives).sum();
        self.windows + self.results + gathering
    }

    /// Bytes of free buffers.
    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Memory for a window whose members may not all have come; `None` if the window has to wait for them.
    ///
    /// # Errors
    /// The device is full.
    pub(super) fn early(&mut self, transport: &T, length: u64) -> Result<Option<Staged<T>>> {
        let size = buffer_size(length);
        if size > self.early_max.saturating_sub(self.windows) {
            return Ok(None);
        }
        self.take(transport, size, Use::Window).map(Some)
    }

    /// Memory for a reduced segment; `None` if the device is full.
    pub(super) fn result(&mut self, transport: &T, length: u64) -> Option<Staged<T>> {
        self.take(transport, buffer_size(length), Use::Result).ok()
    }

    /// The memory of a window that was reduced, for the result.
    pub(super) fn keep_as_result(&mut self, staged: Staged<T>) -> Staged<T> {
        self.returned(staged.size, staged.use_of);
        self.results += staged.size;
        Staged {
            use_of: Use::Result,
            ..staged
        }
    }

    /// A window that has its turn gets no memory: it asks again.
    ///
    /// # Errors
    /// It has asked again, and no window is in use whose memory comes back.
    pub(super) fn postpone(&mut self, error: OffloadError) -> Result<()> {
        match self.room {
            Room::Asked if self.complete == 0 => return Err(error),
            Room::Asked => {}
            Room::Fine | Room::Lacking => self.room = Room::Lacking,
        }
        Ok(())
    }

    /// Whether a window lacks memory that other jobs may have.
    pub(super) fn lacks_room(&mut self) -> bool {
        let lacks = self.room == Room::Lacking;
        if lacks {
            self.room = Room::Asked;
        }
        lacks
    }

    /// Whether a window asks again.
    pub(super) fn asks_again(&self) -> bool {
        self.room == Room::Asked
    }

    /// A step waits until the blocks of all members are on offer.
    pub(super) fn wait(&mut self, place: Place, gathering: Gathering) {
        self.gathering.insert(place, gathering);
    }

    /// The blocks of all members are on offer: the step waits for its turn.
    pub(super) fn all_on_offer(&mut self, place: Place) {
        self.turns.push_back(place);
    }

    /// The next step that has its turn, and its memory.
    pub(super) fn next(&mut self, transport: &T) -> Result<Option<(Place, Gathering, Staged<T>)>> {
        let Some(place) = self.turns.front().copied() else {
            return Ok(None);
        };
        let length = self.gathering.get(&place).map_or(0, |of| of.length);
        let size = buffer_size(length);
        if self.complete > 0 && size > self.all_max.saturating_sub(self.windows) {
            return Ok(None);
        }
        let staged = self.take(transport, size, Use::Complete)?;
        self.room = Room::Fine;
        self.turns.pop_front();
        let Some(gathering) = self.gathering.remove(&place) else {
            self.put_back(staged);
            return Ok(None);
        };
        Ok(Some((place, gathering, staged)))
    }

    /// A buffer is free again.
    pub(super) fn put_back(&mut self, staged: Staged<T>) {
        let size = staged.size;
        self.returned(size, staged.use_of);
        self.free_bytes += size;
        self.free.entry(size).or_default().push(staged);
    }

    fn returned(&mut self, size: usize, use_of: Use) {
        match use_of {
            Use::Window => self.windows -= size,
            Use::Complete => {
                self.windows -= size;
                self.complete -= size;
            }
            Use::Result => self.results -= size,
        }
    }

    /// Returns free buffers to the system until at most this number of bytes is left.
    pub(super) fn shrink(&mut self, transport: &T, most: usize) -> Result<()> {
        while self.free_bytes > most {
            let Some(other) = self.free.values_mut().rev().find_map(Vec::pop) else {
                return Ok(());
            };
            self.free_bytes -= other.size;
            transport.unmap(other.memory)?;
        }
        Ok(())
    }

    fn take(&mut self, transport: &T, size: usize, use_of: Use) -> Result<Staged<T>> {
        let staged = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(free) => {
                self.free_bytes -= size;
                Staged { use_of, ..free }
            }
            None => {
                let others = self.windows.saturating_add(self.results);
                let most = self.all_max.saturating_sub(others.saturating_add(size));
                self.shrink(transport, most)?;
                let memory = match transport.stage(size) {
                    Err(_) if self.free_bytes > 0 => {
                        self.shrink(transport, 0)?;
                        transport.stage(size)
                    }
                    done => done,
                };
                let memory = memory?;
                let key = transport.pack(&memory)?;
                Staged {
                    memory,
                    key,
                    size,
                    use_of,
                }
            }
        };
        match use_of {
            Use::Window => self.windows += size,
            Use::Complete => {
                self.windows += size;
                self.complete += size;
            }
            Use::Result => self.results += size,
        }
        Ok(staged)
    }
}

/// Size of the buffer for `length` bytes. Few sizes make it likely that a free buffer fits.
fn buffer_size(length: u64) -> usize {
    let size = usize::try_from(length)
        .ok()
        .and_then(usize::checked_next_power_of_two);
    // No system has so much memory: the allocation fails.
    size.unwrap_or(usize::MAX).max(SIZE_MIN)
}
