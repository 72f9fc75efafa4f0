//! Access by whole sectors, past the system's cache.
//!
//! Records and parts of the index may share a sector. A write of a part reads the rest of the sector and writes all of it, in
//! turn with other writes of the same sector. A medium writes a sector as a whole or not at all, so what else is there stays,
//! also at a loss of power. The system's cache does the same, by pages.

use super::medium::Medium;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Alignment of buffers.
const ALIGN: usize = 4096;
/// Buffers that are kept, and the longest of them.
const KEPT: usize = 8;
const KEPT_LENGTH: usize = 2 << 20;
/// Locks for sectors that are written in part.
const LOCKS: usize = 64;

/// A medium that takes whole sectors only, in aligned memory.
#[derive(Debug)]
pub struct WholeSectors<M> {
    medium: M,
    sector: usize,
    /// Held while a sector is written in part. Each has the sector that was written last, whose number it would lock.
    edges: Vec<Mutex<Option<Edge>>>,
    buffers: Mutex<Vec<Buffer>>,
}

/// A sector as it is on the medium.
#[derive(Debug)]
struct Edge {
    number: u64,
    bytes: Vec<u8>,
}

type Locked<'a> = MutexGuard<'a, Option<Edge>>;

/// Memory of which `bytes` are aligned.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn bytes(&mut self, length: usize) -> &mut [u8] {
        if self.0.len() < length + ALIGN {
            self.0.resize(length + ALIGN, 0);
        }
        let start = self.0.as_ptr().align_offset(ALIGN);
        &mut self.0[start..start + length]
    }
}

impl<M: Medium> WholeSectors<M> {
    /// A medium with sectors of so many bytes, a power of two up to 4096.
    pub fn new(medium: M, sector: usize) -> Self {
        Self {
            medium,
            sector,
            edges: (0..LOCKS).map(|_| Mutex::default()).collect(),
            buffers: Mutex::default(),
        }
    }

    /// The sectors of a range of bytes.
    fn sectors(&self, offset: u64, length: usize) -> Range<u64> {
        let sector = self.sector as u64;
        offset / sector..(offset + length as u64).div_ceil(sector)
    }

    /// Bytes of so many sectors, which are in memory at once.
    fn length(&self, sectors: &Range<u64>) -> io::Result<usize> {
        let count = usize::try_from(sectors.end - sectors.start);
        let length = count.ok().and_then(|count| count.checked_mul(self.sector));
        length.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn with_buffer<T>(&self, work: impl FnOnce(&mut Buffer) -> io::Result<T>) -> io::Result<T> {
        // No holder panics.
        let buffers = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = buffers().pop();
        let mut buffer = kept.unwrap_or_default();
        let done = work(&mut buffer);
        let mut buffers = buffers();
        if buffers.len() < KEPT && buffer.0.len() <= KEPT_LENGTH {
            buffers.push(buffer);
        }
        done
    }

    fn place(number: u64) -> usize {
        // Cannot be cut: less than the number of locks.
        usize::try_from(number % LOCKS as u64).unwrap_or(0)
    }

    fn lock(&self, place: usize) -> Locked<'_> {
        // What a panic leaves is the sector before, or none.
        self.edges[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets sectors that are written as a whole.
    fn forget(&self, sectors: &Range<u64>) {
        let places = sectors.clone().take(LOCKS).map(Self::place);
        for place in places {
            let mut edge = self.lock(place);
            edge.take_if(|edge| sectors.contains(&edge.number));
        }
    }

    /// Reads a sector that is written in part.
    fn fill(&self, number: u64, edge: Option<&Edge>, bytes: &mut [u8]) -> io::Result<()> {
        match edge {
            Some(edge) if edge.number == number => {
                bytes.copy_from_slice(&edge.bytes);
                Ok(())
            }
            _ => self.medium.read(number * self.sector as u64, bytes),
        }
    }
}

impl<M: Medium> Medium for WholeSectors<M> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let sectors = self.sectors(offset, bytes.len());
        let (start, length) = (sectors.start * self.sector as u64, self.length(&sectors)?);
        // Cannot be cut: less than a sector.
        let from = usize::try_from(offset - start).unwrap_or(0);
        self.with_buffer(|buffer| {
            let whole = buffer.bytes(length);
            self.medium.read(start, whole)?;
            bytes.copy_from_slice(&whole[from..from + bytes.len()]);
            Ok(())
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_parts(offset, &[bytes])
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let count: usize = parts.iter().map(|part| part.len()).sum();
        if count == 0 {
            return Ok(());
        }
        let sectors = self.sectors(offset, count);
        let sector = self.sector;
        let (start, length) = (sectors.start * sector as u64, self.length(&sectors)?);
        // Cannot be cut: less than a sector.
        let from = usize::try_from(offset - start).unwrap_or(0);
        let last = sectors.end - 1;
        // The first and the last one, if the write has a part of them only. A single sector is the first one.
        let is_single = last == sectors.start;
        let has_first = from != 0 || (is_single && count != sector);
        let has_last = !is_single && !(from + count).is_multiple_of(sector);
        let whole = sectors.start + u64::from(has_first)..sectors.end - u64::from(has_last);
        self.forget(&whole);
        let (first_at, last_at) = (Self::place(sectors.start), Self::place(last));
        // In their order: two threads never wait for each other.
        let (mut first, mut behind) = (None, None);
        if has_first && has_last && first_at > last_at {
            behind = Some(self.lock(last_at));
        }
        if has_first {
            first = Some(self.lock(first_at));
        }
        // Both may be under one lock.
        if has_last && behind.is_none() && !(has_first && first_at == last_at) {
            behind = Some(self.lock(last_at));
        }
        self.with_buffer(|buffer| {
            let bytes = buffer.bytes(length);
            if has_first {
                let edge = first.as_ref().and_then(|edge| edge.as_ref());
                self.fill(sectors.start, edge, &mut bytes[..sector])?;
            }
            if has_last {
                let edge = behind.as_ref().or(first.as_ref());
                let edge = edge.and_then(|edge| edge.as_ref());
                self.fill(last, edge, &mut bytes[length - sector..])?;
            }
            let mut at = from;
            for part in parts {
                bytes[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            let written = self.medium.write(start, bytes);
            let keep = |edge: &mut Option<Locked<'_>>, number: u64, bytes: &[u8]| {
                if let Some(edge) = edge {
                    // After an error nobody knows what is there.
                    **edge = written.is_ok().then(|| Edge {
                        number,
                        bytes: bytes.to_vec(),
                    });
                }
            };
            if has_first {
                keep(&mut first, sectors.start, &bytes[..sector]);
            }
            if has_last {
                let edge = match &behind {
                    Some(_) => &mut behind,
                    None => &mut first,
                };
                keep(edge, last, &bytes[length - sector..]);
            }
            written
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.medium.sync()
    }

    fn release(&self, offset: u64, length: u64) {
        // What is in a sector that it has only a part of may be in use.
        let sector = self.sector as u64;
        let start = offset.next_multiple_of(sector);
        let end = (offset + length) / sector * sector;
        if start < end {
            self.medium.release(start, end - start);
        }
    }

    fn syncs_at_once(&self) -> bool {
        self.medium.syncs_at_once()
    }

    fn size(&self) -> Option<u64> {
        self.medium.size()
    }

    fn free(&self) -> Option<u64> {
        self.medium.free()
    }
}

#[cfg(test)]
mod tests {
    use super::super::medium::MemoryMedium;
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A medium that takes what O_DIRECT takes, and counts reads.
    #[derive(Default)]
    struct Strict {
        bytes: MemoryMedium,
        sector: usize,
        reads: AtomicU64,
    }

    impl Strict {
        fn check(&self, offset: u64, bytes: &[u8]) {
            let numbers = [usize::try_from(offset).unwrap(), bytes.len()];
            assert!(numbers.iter().all(|number| number % self.sector == 0));
            assert_eq!(bytes.as_ptr().align_offset(ALIGN) % self.sector, 0);
        }
    }

    impl Medium for Strict {
        fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
            self.check(offset, bytes);
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes.read(offset, bytes)
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.check(offset, bytes);
            self.bytes.write(offset, bytes)
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn release(&self, offset: u64, length: u64) {
            assert!((offset | length).is_multiple_of(self.sector as u64));
        }
    }

    fn strict(sector: usize) -> WholeSectors<Strict> {
        let medium = Strict {
            sector,
            ..Strict::default()
        };
        WholeSectors::new(medium, sector)
    }

    /// Writes one behind the other read nothing but the end of the first one's sector, once.
    #[test]
    fn a_write_behind_the_last_one_reads_nothing() {
        let medium = strict(512);
        let mut at = 8192;
        for length in [2112, 2112, 2112, 128, 64, 4096] {
            medium.write(at, &vec![1; length]).unwrap();
            at += length as u64;
        }
        // The last sector of each write that is the first one there.
        let reads = medium.medium.reads.load(Ordering::Relaxed);
        assert_eq!(reads, 4);
    }

    /// Threads that write parts of the same sectors do not undo each other's.
    #[test]
    fn threads_share_sectors() {
        let medium = strict(512);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let medium = &medium;
                scope.spawn(move || {
                    for round in 0..50 {
                        for place in 0..64 {
                            let at = (place * 4 + u64::from(thread)) * 64;
                            medium.write(at, &[thread + round; 64]).unwrap();
                        }
                    }
                });
            }
        });
        let mut bytes = vec![0; 64 * 256];
        medium.read(0, &mut bytes).unwrap();
        for (at, part) in bytes.chunks(64).enumerate() {
            let thread = u8::try_from(at % 4).unwrap();
            assert_eq!(part, [thread + 49; 64], "{at}");
        }
    }

    proptest! {
        /// It keeps what a medium of bytes keeps.
        #[test]
        fn bytes_come_back(
            large in any::<bool>(),
            writes in proptest::collection::vec((0u64..90_000, 0usize..9000, any::<u8>()), 1..60),
        ) {
            let (medium, plain) = (strict(if large { 4096 } else { 512 }), MemoryMedium::default());
            for (offset, length, byte) in writes {
                let bytes: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0] ^ byte).collect();
                let (one, other) = bytes.split_at(length / 3);
                medium.write_parts(offset, &[one, &[], other]).unwrap();
                plain.write(offset, &bytes).unwrap();
                let mut found = [vec![1; length + 99], vec![2; length + 99]];
                medium.read(offset / 2, &mut found[0]).unwrap();
                plain.read(offset / 2, &mut found[1]).unwrap();
                prop_assert!(found[0] == found[1]);
                medium.release(offset, length as u64);
            }
            let mut found = [vec![1; 100_000], vec![2; 100_000]];
            medium.read(0, &mut found[0]).unwrap();
            plain.read(0, &mut found[1]).unwrap();
            prop_assert!(found[0] == found[1]);
        }
    }
}
