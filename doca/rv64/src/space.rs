//! The address space: ranges of memory with rights, guard pages and windows, and a cache of recent ranges.

use crate::trap::{Fault, Refusal};

/// Size of a page. Guards are multiples of it.
pub const PAGE: u64 = 4096;

/// Most ranges of an address space.
pub const RANGES_MAX: usize = 1 << 18;

/// What a program may do with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights {
    /// Loads.
    pub read: bool,
    /// Stores. Atomic operations need both.
    pub write: bool,
    /// Instructions.
    pub execute: bool,
}

impl Rights {
    /// Loads only.
    pub const READ: Self = Self::new(true, false, false);
    /// Loads and stores.
    pub const READ_WRITE: Self = Self::new(true, true, false);
    /// Loads and instructions.
    pub const READ_EXECUTE: Self = Self::new(true, false, true);

    /// Rights from three answers.
    #[must_use]
    pub const fn new(read: bool, write: bool, execute: bool) -> Self {
        Self {
            read,
            write,
            execute,
        }
    }
}

/// What is behind a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory, from this place of the arena.
    Memory(usize),
    /// A window of the environment, with the environment's number.
    Window(u32),
    Guard,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) rights: Rights,
    pub(crate) backing: Backing,
}

impl Range {
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.length
    }

    /// Bytes from `address`, which is inside, to the end.
    fn left(&self, address: u64) -> u64 {
        self.length - (address - self.start)
    }
}

/// A recently used range of memory.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    start: u64,
    /// Addresses from the start at which 8 bytes fit; 0 for an empty entry.
    room: u64,
    offset: usize,
}

/// Entries for each kind of access. The page of an address selects one.
const RECENT: usize = 64;

/// How an access to memory goes on that the cache cannot serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    Fault(Fault),
    /// The whole access is in a window.
    Window {
        window: u32,
        offset: u64,
    },
}

/// An address space. All memory of it is one allocation, which [`Machine::new`](crate::Machine::new) makes.
#[derive(Debug)]
pub struct Space {
    arena: Vec<u8>,
    /// Sorted by start, without overlap.
    ranges: Vec<Range>,
    reads: [Recent; RECENT],
    writes: [Recent; RECENT],
    /// First and last address of stores to instructions that have not been decoded again.
    stale: Option<(u64, u64)>,
    /// First address and bytes of memory whose accesses the environment learns of. They are not served by the cache.
    watched: (u64, u64),
}

impl Space {
    /// A space whose memory has `bytes` bytes, all 0.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            arena: vec![0; bytes],
            ranges: Vec::new(),
            reads: [Recent::default(); RECENT],
            writes: [Recent::default(); RECENT],
            stale: None,
            watched: (0, 0),
        }
    }

    /// Address in this process of a place of the arena.
    pub(crate) fn place(&self, at: usize) -> usize {
        self.arena.as_ptr().addr().wrapping_add(at)
    }

    /// Adds a range. Returns the one that overlaps, or `None` if a bound is exceeded.
    pub(crate) fn map(&mut self, range: Range) -> Result<(), Option<(u64, u64)>> {
        let end = range.start.checked_add(range.length).ok_or(None)?;
        if range.length == 0 || self.ranges.len() >= RANGES_MAX {
            return Err(None);
        }
        if let Backing::Memory(offset) = range.backing {
            let length = usize::try_from(range.length).map_err(|_| None)?;
            if offset
                .checked_add(length)
                .is_none_or(|end| end > self.arena.len())
            {
                return Err(None);
            }
        }
        let at = self
            .ranges
            .partition_point(|other| other.start < range.start);
        let before = at.checked_sub(1).and_then(|at| self.ranges.get(at));
        let overlap = before.filter(|other| other.start + other.length > range.start);
        let overlap = overlap.or_else(|| self.ranges.get(at).filter(|other| other.start < end));
        if let Some(other) = overlap {
            return Err(Some((other.start, other.length)));
        }
        self.ranges.insert(at, range);
        Ok(())
    }

    /// Removes the range that starts at `start`.
    pub(crate) fn unmap(&mut self, start: u64) -> Option<Range> {
        let at = self
            .ranges
            .binary_search_by_key(&start, |range| range.start)
            .ok()?;
        self.reads = [Recent::default(); RECENT];
        self.writes = [Recent::default(); RECENT];
        Some(self.ranges.remove(at))
    }

    /// First address, bytes and rights of each range of memory, in the order of the addresses: for core dumps. Guard pages and
    /// windows are left out.
    pub fn memory_ranges(&self) -> impl Iterator<Item = (u64, u64, Rights)> {
        let is_memory = |range: &&Range| matches!(range.backing, Backing::Memory(_));
        let memory = self.ranges.iter().filter(is_memory);
        memory.map(|range| (range.start, range.length, range.rights))
    }

    pub(crate) fn watch(&mut self, start: u64, bytes: u64) {
        self.watched = (start, bytes);
        self.reads = [Recent::default(); RECENT];
        self.writes = [Recent::default(); RECENT];
    }

    pub(crate) fn is_watched(&self, address: u64) -> bool {
        address.wrapping_sub(self.watched.0) < self.watched.1
    }

    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    fn range(&self, address: u64) -> Result<Range, Refusal> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        match range.filter(|range| range.holds(address)) {
            None => Err(Refusal::Unmapped),
            Some(range) if range.backing == Backing::Guard => Err(Refusal::Guard),
            Some(range) => Ok(*range),
        }
    }

    /// Reads from a recently used range.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let at = recent(&self.reads[slot(address)], address)?;
        self.arena.get(at..)?.first_chunk::<N>().copied()
    }

    /// Writes to a recently used range. Returns false if it is none.
    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> bool {
        let Some(at) = recent(&self.writes[slot(address)], address) else {
            return false;
        };
        match self
            .arena
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut::<N>())
        {
            Some(place) => {
                *place = bytes;
                true
            }
            None => false,
        }
    }

    /// A load that [`load`](Self::load) did not serve, of 1 to 8 bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn load_slowly(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Miss> {
        self.check(address, bytes.len(), |rights| rights.read)?;
        self.remember(address, false);
        self.copy_out(address, bytes).map_err(Miss::Fault)
    }

    /// A store that [`store`](Self::store) did not serve, of 1 to 8 bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn store_slowly(&mut self, address: u64, bytes: &[u8]) -> Result<(), Miss> {
        self.check(address, bytes.len(), |rights| rights.write)?;
        self.remember(address, true);
        self.copy_in(address, bytes).map_err(Miss::Fault)
    }

    /// Whether an atomic operation may be executed on memory here. It is aligned, so it is in one range or in none.
    pub(crate) fn check_atomic(&self, address: u64, size: usize) -> Result<(), Miss> {
        self.check(address, size, |rights| rights.read && rights.write)
    }

    /// Checks each byte of an access. `Ok` means that all of it is memory.
    fn check(&self, address: u64, size: usize, allowed: fn(Rights) -> bool) -> Result<(), Miss> {
        let size = size as u64;
        let mut done = 0;
        while done < size {
            let here = address.wrapping_add(done);
            let fault = |refusal| {
                Miss::Fault(Fault {
                    address: here,
                    refusal,
                })
            };
            let range = self.range(here).map_err(fault)?;
            if !allowed(range.rights) {
                return Err(fault(Refusal::Rights));
            }
            let left = range.left(here);
            if let Backing::Window(window) = range.backing {
                return Err(match done {
                    0 if left >= size => Miss::Window {
                        window,
                        offset: here - range.start,
                    },
                    // The first address that is not in the window, or the window behind memory.
                    0 => Miss::Fault(Fault {
                        address: here.wrapping_add(left),
                        refusal: Refusal::Window,
                    }),
                    _ => fault(Refusal::Window),
                });
            }
            done += left;
        }
        Ok(())
    }

    /// Adds the range of an address to the cache. Stores to instructions always take the slow path.
    fn remember(&mut self, address: u64, write: bool) {
        if self.is_watched(address) {
            return;
        }
        let Ok(Range {
            start,
            length,
            rights,
            backing: Backing::Memory(offset),
        }) = self.range(address)
        else {
            return;
        };
        if write && rights.execute {
            return;
        }
        let recents = if write {
            &mut self.writes
        } else {
            &mut self.reads
        };
        recents[slot(address)] = Recent {
            start,
            room: length.saturating_sub(7),
            offset,
        };
    }

    /// The memory at an address: its range, and its bytes to the end of the range.
    fn memory(&self, address: u64) -> Result<(Range, std::ops::Range<usize>), Fault> {
        let fault = |refusal| Fault { address, refusal };
        let range = self.range(address).map_err(fault)?;
        let Backing::Memory(offset) = range.backing else {
            return Err(fault(Refusal::Window));
        };
        let place = |bytes: u64| usize::try_from(bytes).map_err(|_| fault(Refusal::Unmapped));
        let at = offset + place(address - range.start)?;
        Ok((range, at..offset + place(range.length)?))
    }

    fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let (_, place) = self.memory(address.wrapping_add(done as u64))?;
            let count = place.len().min(bytes.len() - done);
            bytes[done..done + count].copy_from_slice(&self.arena[place][..count]);
            done += count;
        }
        Ok(())
    }

    fn copy_in(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let here = address.wrapping_add(done as u64);
            let (range, place) = self.memory(here)?;
            let count = place.len().min(bytes.len() - done);
            self.arena[place][..count].copy_from_slice(&bytes[done..done + count]);
            if range.rights.execute {
                let (first, last) = self.stale.unwrap_or((here, here));
                self.stale = Some((first.min(here), last.max(here + (count as u64 - 1))));
            }
            done += count;
        }
        Ok(())
    }

    /// Copies memory that the program may load. A window counts as a fault.
    ///
    /// # Errors
    /// The first address that the program may not load; `bytes` is unchanged or has the bytes before it.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), |rights| rights.read)
            .map_err(|miss| miss.fault(address))?;
        self.copy_out(address, bytes)
    }

    /// Copies to memory that the program may store to. A window counts as a fault.
    ///
    /// # Errors
    /// The first address that the program may not store to; nothing is written.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), |rights| rights.write)
            .map_err(|miss| miss.fault(address))?;
        self.copy_in(address, bytes)
    }

    /// As [`read`](Self::read), whatever the program's rights are: for debuggers.
    ///
    /// # Errors
    /// The first address without memory.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), |_| true)
            .map_err(|miss| miss.fault(address))?;
        self.copy_out(address, bytes)
    }

    /// As [`write`](Self::write), whatever the program's rights are: for loaders and debuggers. Harts see changed instructions
    /// at once.
    ///
    /// # Errors
    /// The first address without memory; nothing is written.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), |_| true)
            .map_err(|miss| miss.fault(address))?;
        self.copy_in(address, bytes)
    }

    /// Two bytes of an instruction.
    pub(crate) fn fetch(&self, address: u64) -> Result<u16, Fault> {
        let (range, place) = self.memory(address)?;
        let fault = |address, refusal| Fault { address, refusal };
        if !range.rights.execute {
            return Err(fault(address, Refusal::Rights));
        }
        let bytes = self.arena[place].first_chunk::<2>();
        bytes
            .map(|bytes| u16::from_le_bytes(*bytes))
            .ok_or(fault(address.wrapping_add(1), Refusal::Unmapped))
    }

    /// Addresses of changed instructions since the last call: the first and the last.
    #[inline]
    pub(crate) fn take_stale(&mut self) -> Option<(u64, u64)> {
        self.stale.take()
    }
}

impl Miss {
    /// The fault of an access that memory alone may serve.
    fn fault(self, address: u64) -> Fault {
        match self {
            Self::Fault(fault) => fault,
            Self::Window { .. } => Fault {
                address,
                refusal: Refusal::Window,
            },
        }
    }
}

#[inline(always)]
fn slot(address: u64) -> usize {
    (address >> 12) as usize & (RECENT - 1)
}

/// The place in the arena of an address at which 8 bytes fit.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a distance in memory of this process"
)]
#[inline(always)]
fn recent(recent: &Recent, address: u64) -> Option<usize> {
    let distance = address.wrapping_sub(recent.start);
    (distance < recent.room).then(|| recent.offset.wrapping_add(distance as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space::new(0x3000);
        let mut map = |start, length, rights, backing| {
            space
                .map(Range {
                    start,
                    length,
                    rights,
                    backing,
                })
                .unwrap();
        };
        map(0x1000, 0x1000, Rights::READ_EXECUTE, Backing::Memory(0));
        map(0x2000, 0x1000, Rights::READ_WRITE, Backing::Memory(0x1000));
        map(0x3000, 0x1000, Rights::default(), Backing::Guard);
        map(0x5000, 0x100, Rights::READ_WRITE, Backing::Window(7));
        map(0x5100, 0x1000, Rights::READ_WRITE, Backing::Memory(0x2000));
        space
    }

    fn fault(address: u64, refusal: Refusal) -> Fault {
        Fault { address, refusal }
    }

    #[test]
    fn ranges_do_not_overlap_and_are_bounded() {
        let mut space = space();
        let range = |start, length| Range {
            start,
            length,
            rights: Rights::READ,
            backing: Backing::Guard,
        };
        assert_eq!(space.map(range(0x1fff, 1)), Err(Some((0x1000, 0x1000))));
        assert_eq!(space.map(range(0xfff, 2)), Err(Some((0x1000, 0x1000))));
        assert_eq!(space.map(range(0, u64::MAX)), Err(Some((0x1000, 0x1000))));
        assert_eq!(space.map(range(u64::MAX, 2)), Err(None));
        assert_eq!(space.map(range(0x4000, 0)), Err(None));
        let beyond = Range {
            backing: Backing::Memory(0x2fff),
            ..range(0x4000, 2)
        };
        assert_eq!(space.map(beyond), Err(None));
        assert_eq!(space.map(range(0x4000, 0x1000)), Ok(()));
    }

    #[test]
    fn accesses_may_span_ranges_of_memory() {
        let mut space = space();
        space.poke(0x1ffc, &[1, 2, 3, 4]).unwrap();
        space.poke(0x2000, &[5, 6, 7, 8]).unwrap();
        let mut bytes = [0; 8];
        space.load_slowly(0x1ffc, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        // A store that begins in memory without the right writes nothing.
        let refused = Miss::Fault(fault(0x1ffc, Refusal::Rights));
        assert_eq!(space.store_slowly(0x1ffc, &[9; 8]), Err(refused));
        assert_eq!(
            space.load::<4>(0x2000),
            None,
            "the slot of this page is empty"
        );
        space.load_slowly(0x2000, &mut bytes[..4]).unwrap();
        assert_eq!(space.load::<4>(0x2000), Some([5, 6, 7, 8]));
        // The last seven addresses take the slow path.
        assert_eq!(space.load::<4>(0x2ff9), None);
    }

    #[test]
    fn refusals_name_the_first_address() {
        let mut space = space();
        let mut load = |address, size: usize| space.load_slowly(address, &mut [0; 8][..size]);
        let refused = |address, refusal| Err(Miss::Fault(fault(address, refusal)));
        assert_eq!(load(0x2ffc, 8), refused(0x3000, Refusal::Guard));
        assert_eq!(load(0x4ffc, 8), refused(0x4ffc, Refusal::Unmapped));
        assert_eq!(load(0x50fc, 8), refused(0x5100, Refusal::Window));
        assert_eq!(load(u64::MAX, 2), refused(u64::MAX, Refusal::Unmapped));
        assert_eq!(
            load(0x50f8, 8),
            Err(Miss::Window {
                window: 7,
                offset: 0xf8
            })
        );
        assert_eq!(
            space.read(0x50f8, &mut [0]),
            Err(fault(0x50f8, Refusal::Window))
        );
    }

    #[test]
    fn a_removed_range_leaves_the_cache() {
        let mut space = space();
        space.store_slowly(0x2008, &[1; 8]).unwrap();
        assert!(space.store(0x2010, [2; 8]));
        assert!(space.unmap(0x2000).is_some());
        assert!(!space.store(0x2010, [2; 8]));
        assert!(space.unmap(0x2000).is_none());
    }

    #[test]
    fn changed_instructions_are_reported_once() {
        let mut space = space();
        space.poke(0x1010, &[0; 4]).unwrap();
        space.poke(0x1002, &[0; 2]).unwrap();
        space.poke(0x2000, &[0; 2]).unwrap();
        assert_eq!(space.take_stale(), Some((0x1002, 0x1013)));
        assert_eq!(space.take_stale(), None);
    }
}
