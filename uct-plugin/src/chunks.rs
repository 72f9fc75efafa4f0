//! Memory that UCX registered in chunks, with several threads at once: finds the registrations, so
//! one key of the pool can cover all of them.
//!
//! A field of UCX's memory handle points to them. Its offset depends on UCX's version and build.
//! The library searches for it once per memory domain. It reads memory through the kernel, which
//! returns an error for an address where a load would be fatal. A result is valid only if it is, to
//! the byte, a row of libibverbs' registrations of this domain that covers the memory. The same
//! check runs for every handle.

use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use xgvmi_pool::mlx5::ibv_mr;
use xgvmi_pool::{Lkey, PoolPolicy, Region, VirtAddr};

use crate::abi::{INVALID_MKEY, KsmData, MRS_PLACES, MemHandle};
use crate::check::read_word;

/// Maximum number of chunks: the entries of a key of the pool.
const CHUNKS_MAX: usize = PoolPolicy::KLM_ENTRIES as usize;

/// Maximum number of bytes by which the first chunk may start before the memory: UCX aligns it for
/// atomics, to less than a page.
const PREFIX_BYTES_MAX: usize = 4096;

const WORD: usize = size_of::<usize>();

/// Offset of the registrations in the memory handles of one memory domain.
#[derive(Debug, Default)]
pub(crate) struct Place(AtomicUsize);

/// Not searched yet. No registration is at the start of a memory handle.
const UNKNOWN: usize = 0;
/// Searched without success.
const NOWHERE: usize = usize::MAX;

/// Reason why UCX handles the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Refusal {
    /// The memory handle contains them at no known offset.
    #[error("the memory handle contains its registrations at no known offset")]
    Nowhere,
    /// More chunks than a key of the pool can refer to.
    #[error("{count} chunks, a key of the pool takes {CHUNKS_MAX}")]
    Many {
        /// Their number, according to UCX.
        count: u32,
    },
    /// A found chunk is not valid.
    #[error("chunk {chunk} of the memory is not valid")]
    Chunk {
        /// Its number.
        chunk: usize,
    },
}

/// Memory with chunks to search for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// libibverbs' context and protection domain of the memory domain.
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) memh: MemHandle,
    pub(crate) address: usize,
    pub(crate) length: usize,
}

impl Place {
    /// The chunks of a memory handle with the flag for chunks, in ascending order of addresses.
    ///
    /// # Errors
    /// If they are not found, or there are too many.
    ///
    /// # Safety
    /// The memory handle is live, belongs to the memory domain of this place, and has the flag
    /// [`MULTITHREADED`](crate::abi::memh_flags::MULTITHREADED).
    pub(crate) unsafe fn chunks(&self, wanted: &Wanted) -> Result<Vec<Region>, Refusal> {
        let at = match self.0.load(Ordering::Relaxed) {
            NOWHERE => return Err(Refusal::Nowhere),
            UNKNOWN => {
                let through_kernel = |address| read_word(std::ptr::without_provenance(address));
                // Threads that search at the same time find the same offset.
                let (at, found) = look(wanted, through_kernel);
                self.0.store(at, Ordering::Relaxed);
                return found;
            }
            at => at,
        };
        let load = |address: usize| {
            // SAFETY: `at` led to such registrations in a handle of this domain, so it does in each
            // handle with the flag: the reads stay in UCX's and libibverbs' live structures. Their
            // addresses are numbers here because the search produced them.
            Some(unsafe { std::ptr::with_exposed_provenance::<usize>(address).read() })
        };
        parse(wanted, at, load)
    }
}

/// Tries each offset. Returns the one with valid chunks, and the chunks.
fn look(
    wanted: &Wanted,
    read: impl Fn(usize) -> Option<usize> + Copy,
) -> (usize, Result<Vec<Region>, Refusal>) {
    for at in MRS_PLACES {
        match parse(wanted, at, read) {
            Ok(found) => return (at, Ok(found)),
            // It has the right length, but that alone is not enough to remember it.
            Err(Refusal::Many { count }) => return (UNKNOWN, Err(Refusal::Many { count })),
            Err(_) => {}
        }
    }
    (NOWHERE, Err(Refusal::Nowhere))
}

/// The chunks at one offset of the memory handle, if they are valid.
fn parse(
    wanted: &Wanted,
    at: usize,
    read: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<Region>, Refusal> {
    let Wanted {
        context,
        pd,
        memh,
        address,
        length,
    } = *wanted;
    let pointer = |address: usize| {
        let pointer = read(address)?;
        (pointer != 0 && pointer % WORD == 0).then_some(pointer)
    };
    let data = pointer(memh.addr() + at).ok_or(Refusal::Nowhere)?;
    let count = half(&read, data.wrapping_add(offset_of!(KsmData, mr_num)));
    let covered = read(data.wrapping_add(offset_of!(KsmData, length)));
    let (Some(count), Some(covered)) = (count, covered) else {
        return Err(Refusal::Nowhere);
    };
    let Some(prefix) = covered
        .checked_sub(length)
        .filter(|prefix| *prefix < PREFIX_BYTES_MAX && *prefix <= address)
    else {
        return Err(Refusal::Nowhere);
    };
    if count == 0 || count as usize > CHUNKS_MAX {
        return Err(Refusal::Many { count });
    }
    let mut regions = Vec::with_capacity(count as usize);
    let end = address + length;
    let mut next = address - prefix;
    for chunk in 0..count as usize {
        let wrong = Refusal::Chunk { chunk };
        // The registrations follow the head.
        let entry = data.wrapping_add(size_of::<KsmData>() + chunk * WORD);
        let mr = pointer(entry).ok_or(wrong)?;
        let word = |at: usize| read(mr.wrapping_add(at)).ok_or(wrong);
        let key = |at: usize| half(&read, mr.wrapping_add(at)).ok_or(wrong);
        let is_of_domain =
            word(offset_of!(ibv_mr, context))? == context && word(offset_of!(ibv_mr, pd))? == pd;
        let len = word(offset_of!(ibv_mr, length))?;
        let (lkey, rkey) = (
            key(offset_of!(ibv_mr, lkey))?,
            key(offset_of!(ibv_mr, rkey))?,
        );
        let is_key = lkey == rkey && lkey >> 8 != 0 && lkey != INVALID_MKEY;
        let is_next = word(offset_of!(ibv_mr, addr))? == next && len <= end - next;
        if !is_of_domain || !is_key || !is_next {
            return Err(wrong);
        }
        // UCX also registered memory before the buffer. That part is not exported.
        let from = next.max(address);
        next += len;
        let region = Region::new(
            VirtAddr::new(from as u64),
            (next.saturating_sub(from)) as u64,
            Lkey::from_raw(lkey),
        );
        regions.push(region.map_err(|_| wrong)?);
    }
    if next == end {
        // To the last byte, no more and no less.
        Ok(regions)
    } else {
        Err(Refusal::Chunk {
            chunk: count as usize,
        })
    }
}

/// The 32 bits at an address, from the aligned word that contains them.
fn half(read: impl Fn(usize) -> Option<usize>, address: usize) -> Option<u32> {
    let bytes = read(address - address % WORD)?.to_ne_bytes();
    let (halves, _) = bytes.as_chunks::<4>();
    halves
        .get(address % WORD / 4)
        .map(|half| u32::from_ne_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::ptr::without_provenance_mut;

    const MEMH: usize = 0x1000;
    const DATA: usize = 0x2000;
    const MR: usize = 0x3000;
    const CONTEXT: usize = 0x7000;
    const PD: usize = 0x8000;
    const ADDRESS: usize = 0x5000_1000;

    /// Words of a process's memory.
    type Words = HashMap<usize, usize>;

    /// A handle with its registrations at an offset: address, length and key of each.
    fn words(at: usize, covered: usize, chunks: &[(usize, usize, u32)]) -> Words {
        let mut words = Words::from([
            (MEMH + at, DATA),
            (DATA, 0xdead_0000),
            // Arbitrary content of the padding between the fields.
            (DATA + 8, 0x55 << 32 | chunks.len()),
            (DATA + 16, covered),
        ]);
        for (number, (address, length, key)) in chunks.iter().enumerate() {
            let (mr, key) = (MR + number * 0x100, *key as usize);
            words.extend([
                (DATA + 24 + number * 8, mr),
                (mr, CONTEXT),
                (mr + 8, PD),
                (mr + 16, *address),
                (mr + 24, *length),
                (mr + 32, key << 32 | 0x77),
                (mr + 40, 0x99 << 32 | key),
            ]);
        }
        words
    }

    fn find(words: &Words, length: usize) -> (usize, Result<Vec<Region>, Refusal>) {
        let wanted = Wanted {
            context: CONTEXT,
            pd: PD,
            memh: without_provenance_mut(MEMH),
            address: ADDRESS,
            length,
        };
        look(&wanted, |address| words.get(&address).copied())
    }

    const CHUNKS: [(usize, usize, u32); 3] = [
        (ADDRESS, 0x2fff_f000, 0x4100),
        (0x8000_0000, 0x8000_0000, 0x4200),
        (0x1_0000_0000, 0x1000, 0x4300),
    ];
    const LENGTH: usize = 0x2fff_f000 + 0x8000_0000 + 0x1000;

    #[test]
    fn chunks_are_found_at_each_known_place() {
        for at in MRS_PLACES {
            let (found_at, chunks) = find(&words(at, LENGTH, &CHUNKS), LENGTH);
            let chunks: Vec<_> = chunks
                .expect("all there")
                .iter()
                .map(|region| (region.addr().get(), region.len(), region.lkey().raw()))
                .collect();
            let expect = CHUNKS.map(|(address, length, key)| (address as u64, length as u64, key));
            assert_eq!((found_at, chunks), (at, expect.to_vec()));
        }
    }

    #[test]
    fn what_lies_in_front_for_alignment_is_left_out() {
        let chunks = [(ADDRESS - 8, 0x1008, 0x4100), (ADDRESS + 0x1000, 5, 0x4200)];
        let (_, found) = find(&words(96, 0x100d, &chunks), 0x1005);
        let found = found.expect("all there");
        assert_eq!(found[0].addr().get(), ADDRESS as u64);
        assert_eq!((found[0].len(), found[1].len()), (0x1000, 5));
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut Words), at: usize, expect: Refusal) {
        let mut words = words(96, LENGTH, &CHUNKS);
        change(&mut words);
        assert_eq!(find(&words, LENGTH), (at, Err(expect)));
    }

    #[test]
    fn what_is_not_as_it_should_be_is_refused() {
        let nowhere = |change: fn(&mut Words)| check_refused(change, NOWHERE, Refusal::Nowhere);
        nowhere(|words| words.clear());
        nowhere(|words| words.extend([(MEMH + 96, DATA + 1)]));
        nowhere(|words| words.extend([(DATA + 16, LENGTH - 1)]));
        nowhere(|words| words.extend([(DATA + 16, LENGTH + PREFIX_BYTES_MAX)]));
        nowhere(|words| words.retain(|address, _| *address != DATA + 24));
        for mr in [MR, MR + 0x100, MR + 0x200] {
            let wrong = |at: usize, value: usize| {
                let change = |words: &mut Words| words.extend([(mr + at, value)]);
                check_refused(change, NOWHERE, Refusal::Nowhere);
            };
            wrong(0, CONTEXT + 8);
            wrong(8, 0);
            wrong(16, ADDRESS + 0x1000);
            wrong(24, 0x1001);
            wrong(24, usize::MAX);
            wrong(32, 0x4400 << 32);
            wrong(40, 0);
        }
        for count in [0, 53, u32::MAX] {
            let change = |words: &mut Words| words.extend([(DATA + 8, count as usize)]);
            check_refused(change, UNKNOWN, Refusal::Many { count });
        }
    }
}
