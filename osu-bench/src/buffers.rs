//! The buffers of an iteration: one permanent pair, or temporary ones.
//!
//! A buffer is temporary only if its memory is new: one that malloc hands out again at the same address is met by a
//! registration cache as an old acquaintance. Hence [`TempBuffers::Mmap`] unmaps for good, and [`TempBuffers::Malloc`]
//! pins glibc's threshold, which would otherwise rise above the buffer's size after its first release.

use anyhow::{Context as _, Result, bail};
use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;
use xgvmi_ucp::buffer::Buffer;

/// Source of the buffers of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TempBuffers {
    /// One pair, allocated before the first size and large enough for the last, as in OSU's benchmark.
    None,
    /// posix_memalign and free in each iteration. From 128 KiB on the memory is new, below it is often the
    /// same.
    Malloc,
    /// mmap and munmap in each iteration: always new memory, often at the same address.
    Mmap,
    /// This many pairs, allocated before the first iteration and used in turn: a working set.
    Ring(usize),
}

/// Maximum number of pairs in a ring: 2 MiB each at the default sizes with one rank pair, so 8 GiB with 4
/// ranks.
const RING_MAX: usize = 1024;

/// glibc's initial mmap threshold (malloc.c, DEFAULT_MMAP_THRESHOLD).
const MMAP_THRESHOLD: libc::c_int = 128 << 10;

impl fmt::Display for TempBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Malloc => f.write_str("malloc"),
            Self::Mmap => f.write_str("mmap"),
            Self::Ring(pairs) => write!(f, "ring:{pairs}"),
        }
    }
}

impl FromStr for TempBuffers {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "none" => Ok(Self::None),
            "malloc" => Ok(Self::Malloc),
            "mmap" => Ok(Self::Mmap),
            _ => {
                let pairs = text
                    .strip_prefix("ring:")
                    .ok_or(())?
                    .parse()
                    .map_err(|_| ())?;
                if (1..=RING_MAX).contains(&pairs) {
                    Ok(Self::Ring(pairs))
                } else {
                    Err(())
                }
            }
        }
    }
}

/// Send and receive buffer of one iteration.
#[derive(Debug)]
pub struct Pair {
    /// Blocks to each rank.
    pub send: Memory,
    /// Blocks from each rank.
    pub receive: Memory,
}

/// Page-aligned memory of one of two kinds.
#[derive(Debug)]
pub enum Memory {
    /// From mmap.
    Mapped(Buffer),
    /// From malloc.
    Heap(Heap),
}

/// Provides a pair for each iteration.
#[derive(Debug)]
pub struct Supply {
    kind: TempBuffers,
    bytes: usize,
    /// Permanent pairs, for `none` and `ring`.
    kept: Vec<Pair>,
}

impl Supply {
    /// Buffers of `bytes` each.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(kind: TempBuffers, bytes: usize) -> Result<Self> {
        let pairs = match kind {
            TempBuffers::None => 1,
            TempBuffers::Ring(pairs) => pairs,
            TempBuffers::Mmap => 0,
            TempBuffers::Malloc => {
                pin_threshold();
                0
            }
        };
        let kept = (0..pairs)
            .map(|_| Pair::mapped(bytes))
            .collect::<Result<Vec<Pair>>>()?;
        Ok(Self { kind, bytes, kept })
    }

    /// The pair of the next iteration, with touched pages.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn take(&mut self) -> Result<Pair> {
        match self.kind {
            TempBuffers::None | TempBuffers::Ring(_) if self.kept.is_empty() => {
                bail!("all pairs of buffers are in use")
            }
            // The least recently used pair.
            TempBuffers::None | TempBuffers::Ring(_) => Ok(self.kept.remove(0)),
            TempBuffers::Mmap => Pair::mapped(self.bytes),
            TempBuffers::Malloc => Ok(Pair {
                send: Memory::Heap(Heap::new(self.bytes)?),
                receive: Memory::Heap(Heap::new(self.bytes)?),
            }),
        }
    }

    /// Returns a pair and releases it if it is temporary.
    pub fn give(&mut self, pair: Pair) {
        match self.kind {
            TempBuffers::None | TempBuffers::Ring(_) => self.kept.push(pair),
            TempBuffers::Mmap | TempBuffers::Malloc => drop(pair),
        }
    }
}

impl Pair {
    fn mapped(bytes: usize) -> Result<Self> {
        let buffer = || Buffer::new(bytes).map(Memory::Mapped);
        Ok(Self {
            send: buffer().context("the buffer to send")?,
            receive: buffer().context("the buffer to receive")?,
        })
    }
}

impl Memory {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(buffer) => buffer.as_slice(),
            Self::Heap(heap) => heap.as_slice(),
        }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(buffer) => buffer.as_mut_slice(),
            Self::Heap(heap) => heap.as_mut_slice(),
        }
    }
}

/// Memory of posix_memalign, freed when dropped.
#[derive(Debug)]
pub struct Heap {
    start: NonNull<u8>,
    length: usize,
}

/// OSU aligns its buffers to pages.
const ALIGNMENT: usize = 4096;

impl Heap {
    fn new(length: usize) -> Result<Self> {
        let mut start = std::ptr::null_mut();
        // SAFETY: a place for a pointer; the alignment is a power of two and a multiple of a pointer's size.
        let rc = unsafe { libc::posix_memalign(&raw mut start, ALIGNMENT, length) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| rc == 0);
        let start =
            start.with_context(|| format!("posix_memalign of {length} bytes: error {rc}"))?;
        // First touch. It also initialises all bytes, so that they may be read.
        // SAFETY: `length` bytes that we own.
        unsafe { start.as_ptr().write_bytes(0, length) };
        Ok(Self { start, length })
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `length` bytes that new() has written, ours until drop.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice(), and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: posix_memalign made it, and it is freed once.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}

/// Setting the threshold also stops glibc from raising it (mallopt(3)).
fn pin_threshold() {
    // SAFETY: takes integers. A libc without this parameter answers 0 and changes nothing.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_written() {
        for text in ["none", "malloc", "mmap", "ring:1", "ring:1024"] {
            assert_eq!(text.parse::<TempBuffers>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "ring",
            "ring:",
            "ring:0",
            "ring:1025",
            "ring:-1",
            "heap",
        ] {
            assert_eq!(text.parse::<TempBuffers>(), Err(()), "{text}");
        }
    }

    #[test]
    fn pairs_take_turns() {
        let addresses = |kind, takes| {
            let mut supply = Supply::new(kind, 4096).unwrap();
            let mut seen = Vec::new();
            for _ in 0..takes {
                let pair = supply.take().unwrap();
                seen.push(pair.send.as_slice().as_ptr().addr());
                supply.give(pair);
            }
            seen
        };
        let one = addresses(TempBuffers::None, 3);
        assert_eq!(one, [one[0]; 3]);
        let ring = addresses(TempBuffers::Ring(3), 6);
        assert_eq!(ring[..3], ring[3..]);
        assert!(ring[0] != ring[1] && ring[1] != ring[2] && ring[0] != ring[2]);
    }

    #[test]
    fn a_pair_that_is_out_is_not_handed_out_again() {
        let mut supply = Supply::new(TempBuffers::None, 4096).unwrap();
        let pair = supply.take().unwrap();
        let error = supply.take().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        supply.give(pair);
        supply.take().unwrap();
    }

    #[test]
    fn temporary_memory_is_page_aligned_and_writable() {
        for kind in [TempBuffers::Mmap, TempBuffers::Malloc] {
            let mut supply = Supply::new(kind, 5000).unwrap();
            let mut pair = supply.take().unwrap();
            for memory in [&mut pair.send, &mut pair.receive] {
                assert_eq!(memory.as_slice().as_ptr().addr() % 4096, 0);
                memory.as_mut_slice().fill(7);
                assert_eq!(memory.as_slice(), [7; 5000]);
            }
            supply.give(pair);
        }
    }
}
