//! The receive side of a rank in a call: where the block of each source goes.

use crate::wire::runs::{Run, Runs};
use crate::wire::{Block, Blocks, Record};

/// Destinations of the blocks, by source. Buffers below 4 GiB take 8 bytes per source, and runs of blocks a bit per source.
#[derive(Debug)]
pub(super) struct Slots {
    /// The sources in ascending order; empty if slot `i` is that of source `i`.
    sources: Vec<u32>,
    places: Places,
}

/// Offset and length of each block.
#[derive(Debug)]
enum Places {
    Narrow(Vec<[u32; 2]>),
    Wide(Vec<[u64; 2]>),
    Runs(RunSlots),
}

/// Slots of runs in ascending order of their sources.
#[derive(Debug)]
struct RunSlots {
    /// The first run. Most collectives have no other.
    first: Run,
    /// All runs, if there are several, and the number of blocks before each.
    several: Vec<Run>,
    before: Vec<u32>,
    /// A bit per block that has been taken.
    taken: Taken,
    len: usize,
}

/// Bits that are set once. The first ones take no memory of their own.
#[derive(Debug)]
struct Taken {
    few: [u64; FEW],
    /// The others.
    many: Vec<u64>,
}

/// Words of [`Taken::few`].
const FEW: usize = 4;

impl Taken {
    #[inline]
    fn new(bits: usize) -> Self {
        let many = match bits.div_ceil(64).saturating_sub(FEW) {
            0 => Vec::new(),
            words => vec![0; words],
        };
        Self {
            few: [0; FEW],
            many,
        }
    }

    /// Takes a slot of a run for a block of this length.
    #[inline(always)]
    fn take(&mut self, slot: u32, run: &Run, length: u64) -> Result<(), Unfit> {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        let taken = self.word(word);
        if *taken & bit != 0 {
            return Err(Unfit::Taken);
        }
        if run.length != length {
            return Err(Unfit::Length(run.length));
        }
        *taken |= bit;
        Ok(())
    }

    /// Takes the slots `first`, `first + apart`, and so on; all or none.
    #[inline(always)]
    fn take_all(&mut self, first: u32, apart: u32, count: u32) -> bool {
        let low = first % 64;
        let beyond = u64::from(count.wrapping_sub(1)) * u64::from(apart) + u64::from(low);
        if beyond >= 64 {
            return self.take_words(first, apart, count);
        }
        let mask = match apart {
            1 => u64::MAX >> (64 - count) << low,
            _ => (0..count).fold(0, |mask, at| mask | 1 << (low + at * apart)),
        };
        let word = self.word(first as usize / 64);
        let is_free = *word & mask == 0;
        if is_free {
            *word |= mask;
        }
        is_free
    }

    /// As [`Taken::take_all`], for slots in several words.
    #[inline(never)]
    fn take_words(&mut self, first: u32, apart: u32, count: u32) -> bool {
        // Words, and their bits: neighbours share a word.
        let words = || {
            let (mut at, mut left) = (first, count);
            std::iter::from_fn(move || {
                let low = at % 64;
                let bits = if apart == 1 {
                    left.min(64 - low)
                } else {
                    left.min(1)
                };
                let word = at as usize / 64;
                left -= bits;
                at += if apart == 1 { bits } else { apart };
                let mask = u64::MAX.checked_shr(64 - bits)?;
                Some((word, mask << low))
            })
        };
        if words().any(|(word, mask)| *self.word(word) & mask != 0) {
            return false;
        }
        words().for_each(|(word, mask)| *self.word(word) |= mask);
        true
    }

    #[inline]
    fn word(&mut self, word: usize) -> &mut u64 {
        match word.checked_sub(FEW) {
            None => &mut self.few[word],
            Some(word) => &mut self.many[word],
        }
    }
}

/// Length of a slot whose block has been taken. No buffer has such a block.
const TAKEN: u64 = u64::MAX;
const TAKEN_NARROW: u32 = u32::MAX;

/// Equally spaced sources: the first and the last, their distance and number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) apart: u32,
    pub(super) count: u32,
}

/// A block that does not fit its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Nothing is expected from the source.
    Source,
    /// The block was there already.
    Taken,
    /// A block of this length is expected.
    Length(u64),
}

impl Slots {
    /// The slots of a receive side; `None` if a source occurs twice.
    pub(super) fn new(receives: Blocks<'_>) -> Option<Self> {
        if let Blocks::Runs(runs) = receives {
            return Some(Self::of_runs(runs));
        }
        let narrow = |block: Block| {
            // The form holds no larger numbers.
            let number = |number: u64| u32::try_from(number).expect("32 bits");
            [number(block.offset), number(block.length)]
        };
        let (sources, places) = match receives {
            Blocks::Narrow(records) => {
                let (sources, places) = gather(records, narrow)?;
                (sources, Places::Narrow(places))
            }
            Blocks::Wide(records) => {
                let (sources, places) = gather(records, |block| [block.offset, block.length])?;
                (sources, Places::Wide(places))
            }
            Blocks::Runs(_) => return None,
        };
        Some(Self { sources, places })
    }

    /// The slots of runs.
    #[inline]
    pub(super) fn of_runs(runs: Runs<'_>) -> Self {
        Self {
            sources: Vec::new(),
            places: Places::Runs(RunSlots::new(runs)),
        }
    }

    /// The slots of a run.
    #[inline]
    pub(super) fn of_run(run: &Run) -> Self {
        Self {
            sources: Vec::new(),
            places: Places::Runs(RunSlots::of_run(run)),
        }
    }

    /// Number of sources.
    pub(super) fn len(&self) -> usize {
        match &self.places {
            Places::Narrow(places) => places.len(),
            Places::Wide(places) => places.len(),
            Places::Runs(slots) => slots.len,
        }
    }

    /// The runs of the slots; empty if the slots are no runs.
    pub(super) fn runs(&self) -> &[Run] {
        match &self.places {
            Places::Runs(slots) => slots.all(),
            _ => &[],
        }
    }

    /// Number of bytes of the short blocks before the one of a source, if the slots are runs.
    pub(super) fn short_before(&self, source: u32, direct_min: u64) -> Option<u64> {
        let mut before = 0;
        let is_short = |run: &&Run| run.length < direct_min;
        for run in self.runs().iter().filter(is_short) {
            if let Some(index) = run.index_of(source) {
                return Some(before + run.length * u64::from(index));
            }
            before += run.length * u64::from(run.count);
        }
        None
    }

    /// Takes the slot of a source's block of `length` bytes; returns the block's offset in the receive buffer.
    #[inline(always)]
    pub(super) fn take(&mut self, source: u32, length: u64) -> Result<u64, Unfit> {
        match &mut self.places {
            Places::Runs(slots) if slots.several.is_empty() => slots.take_of_first(source, length),
            _ => self.take_of_many(source, length),
        }
    }

    /// Takes the slots of equally spaced sources, if they are equally spaced as well and free. Each block has `length` bytes.
    /// Returns the first block's offset in the receive buffer, and the distance to the next one.
    pub(super) fn take_all(&mut self, sources: Sources, length: u64) -> Option<(u64, u64)> {
        match &mut self.places {
            Places::Runs(slots) if slots.several.is_empty() => {
                take_of_run(&slots.first, 0, &mut slots.taken, sources, length)
            }
            _ => self.take_all_of_many(sources, length),
        }
    }

    #[inline(never)]
    fn take_all_of_many(&mut self, sources: Sources, length: u64) -> Option<(u64, u64)> {
        let Places::Runs(slots) = &mut self.places else {
            return None;
        };
        let (run, before) = slots.run_of(sources.first)?;
        take_of_run(&run, before, &mut slots.taken, sources, length)
    }

    fn take_of_many(&mut self, source: u32, length: u64) -> Result<u64, Unfit> {
        if let Places::Runs(slots) = &mut self.places {
            return slots.take(source, length);
        }
        let at = if self.sources.is_empty() {
            source as usize
        } else {
            let found = self.sources.binary_search(&source);
            found.map_err(|_| Unfit::Source)?
        };
        match &mut self.places {
            Places::Narrow(places) => {
                let [offset, expected] = places.get_mut(at).ok_or(Unfit::Source)?;
                if u64::from(*expected) != length || *expected == TAKEN_NARROW {
                    return Err(unfit(*expected == TAKEN_NARROW, (*expected).into()));
                }
                *expected = TAKEN_NARROW;
                Ok((*offset).into())
            }
            Places::Wide(places) => {
                let [offset, expected] = places.get_mut(at).ok_or(Unfit::Source)?;
                if *expected != length || *expected == TAKEN {
                    return Err(unfit(*expected == TAKEN, *expected));
                }
                *expected = TAKEN;
                Ok(*offset)
            }
            Places::Runs(_) => Err(Unfit::Source),
        }
    }
}

impl RunSlots {
    /// The caller has checked the number of blocks.
    #[inline]
    fn new(runs: Runs<'_>) -> Self {
        if let Some(run) = runs.only() {
            return Self::of_run(run);
        }
        let several: Vec<Run> = runs.iter().collect();
        let counts = several.iter().map(|run| run.count);
        let before = counts.scan(0, |before, count| {
            Some(std::mem::replace(before, *before + count))
        });
        Self {
            first: *runs.first(),
            before: before.collect(),
            several,
            taken: Taken::new(runs.blocks()),
            len: runs.blocks(),
        }
    }

    #[inline]
    fn of_run(run: &Run) -> Self {
        Self {
            first: *run,
            several: Vec::new(),
            before: Vec::new(),
            taken: Taken::new(run.count as usize),
            len: run.count as usize,
        }
    }

    fn all(&self) -> &[Run] {
        match &self.several[..] {
            [] => std::slice::from_ref(&self.first),
            several => several,
        }
    }

    /// The run that contains a source, if any does, and the number of slots before it.
    fn run_of(&self, source: u32) -> Option<(Run, u32)> {
        if self.several.is_empty() {
            return Some((self.first, 0));
        }
        // It is the last one that begins at the source or before it.
        let after = self.several.partition_point(|run| run.peer <= source);
        let at = after.checked_sub(1)?;
        Some((self.several[at], self.before[at]))
    }

    /// Takes a slot; there are several runs.
    fn take(&mut self, source: u32, length: u64) -> Result<u64, Unfit> {
        let (run, before) = self.run_of(source).ok_or(Unfit::Source)?;
        let run = &run;
        let index = run.index_of(source).ok_or(Unfit::Source)?;
        self.taken.take(before + index, run, length)?;
        Ok(run.offset + run.stride * u64::from(index))
    }

    /// Takes a slot of the only run.
    #[inline(always)]
    fn take_of_first(&mut self, source: u32, length: u64) -> Result<u64, Unfit> {
        let run = &self.first;
        let index = run.index_of(source).ok_or(Unfit::Source)?;
        self.taken.take(index, run, length)?;
        Ok(run.offset + run.stride * u64::from(index))
    }
}

/// Takes the slots of equally spaced sources in a run with this number of slots before it, see [`Slots::take_all`].
#[inline(always)]
fn take_of_run(
    run: &Run,
    before: u32,
    taken: &mut Taken,
    sources: Sources,
    length: u64,
) -> Option<(u64, u64)> {
    if run.length != length {
        return None;
    }
    // Most runs name each rank.
    if run.step == 1 {
        let first = sources.first.checked_sub(run.peer)?;
        if sources.last - run.peer >= run.count {
            return None;
        }
        let apart = match sources.count {
            1 => 1,
            _ => sources.apart,
        };
        let place = (
            run.offset + run.stride * u64::from(first),
            run.stride * u64::from(apart),
        );
        let is_taken = taken.take_all(before + first, apart, sources.count);
        return is_taken.then_some(place);
    }
    let (first, last) = (run.index_of(sources.first)?, run.index_of(sources.last)?);
    let apart = match sources.count {
        1 => 1,
        _ => sources.apart / run.step,
    };
    // Otherwise some of them are between the slots.
    if last.checked_sub(first)? != apart * (sources.count - 1) {
        return None;
    }
    let place = (
        run.offset + run.stride * u64::from(first),
        run.stride * u64::from(apart),
    );
    let is_taken = taken.take_all(before + first, apart, sources.count);
    is_taken.then_some(place)
}

fn unfit(taken: bool, expected: u64) -> Unfit {
    if taken {
        Unfit::Taken
    } else {
        Unfit::Length(expected)
    }
}

/// Sources and places in the order of the sources. The sources are empty if they count from 0.
fn gather<R: Record, P>(records: &[R], place: impl Fn(Block) -> P) -> Option<(Vec<u32>, Vec<P>)> {
    let mut places = Vec::with_capacity(records.len());
    // Usually all ranks of the job take part, in their order.
    for (at, record) in (0..).zip(records) {
        let block = record.block();
        if block.peer != at {
            return gather_sparse(records, place);
        }
        places.push(place(block));
    }
    Some((Vec::new(), places))
}

fn gather_sparse<R: Record, P>(
    records: &[R],
    place: impl Fn(Block) -> P,
) -> Option<(Vec<u32>, Vec<P>)> {
    let mut blocks: Vec<Block> = records.iter().map(Record::block).collect();
    if !blocks.is_sorted_by(|a, b| a.peer < b.peer) {
        blocks.sort_unstable_by_key(|block| block.peer);
        if !blocks.is_sorted_by(|a, b| a.peer < b.peer) {
            return None;
        }
    }
    let sources = blocks.iter().map(|block| block.peer).collect();
    Some((sources, blocks.into_iter().map(place).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(peer: u32, offset: u32, length: u32) -> [u8; 12] {
        let mut record = [0; 12];
        for (place, word) in record.chunks_exact_mut(4).zip([peer, offset, length]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    fn wide(peer: u32, offset: u64, length: u64) -> [u8; 20] {
        let mut record = [0; 20];
        record[..4].copy_from_slice(&peer.to_le_bytes());
        record[4..12].copy_from_slice(&offset.to_le_bytes());
        record[12..].copy_from_slice(&length.to_le_bytes());
        record
    }

    /// Each slot is found by its source in any order, once, and only with its length.
    #[track_caller]
    fn check(blocks: Blocks<'_>, expect: &[(u32, u64, u64)]) {
        let mut slots = Slots::new(blocks).expect("each source once");
        assert_eq!(slots.len(), expect.len());
        for (source, offset, length) in expect.iter().rev() {
            assert_eq!(slots.take(*source, length + 1), Err(Unfit::Length(*length)));
            assert_eq!(slots.take(*source, *length), Ok(*offset));
            assert_eq!(slots.take(*source, *length), Err(Unfit::Taken));
        }
        assert_eq!(slots.take(77, 0), Err(Unfit::Source));
    }

    #[test]
    fn a_block_finds_its_slot_once() {
        let (a, b) = (narrow(0, 5, 6), narrow(1, 7, 8));
        check(Blocks::Narrow(&[a, b]), &[(0, 5, 6), (1, 7, 8)]);
        check(Blocks::Narrow(&[b, a]), &[(0, 5, 6), (1, 7, 8)]);
        check(Blocks::Narrow(&[b]), &[(1, 7, 8)]);
        check(Blocks::Narrow(&[]), &[]);
        let (a, b) = (wide(0, 1 << 40, 1 << 33), wide(9, 3, 0));
        check(Blocks::Wide(&[a, b]), &[(0, 1 << 40, 1 << 33), (9, 3, 0)]);
        check(Blocks::Wide(&[b, a]), &[(0, 1 << 40, 1 << 33), (9, 3, 0)]);
    }

    #[test]
    fn a_block_of_a_run_finds_its_slot_once() {
        let blocks: Vec<Block> = (0..64)
            .filter(|peer| *peer != 40)
            .map(|peer| Block {
                peer,
                offset: 7 + u64::from(peer) * 16,
                length: 9,
            })
            .collect();
        let bytes = crate::wire::blocks_on_wire(&blocks);
        let runs = crate::wire::blocks_from_wire(&bytes);
        assert!(matches!(runs, Blocks::Runs(_)));
        let expect: Vec<_> = blocks
            .iter()
            .map(|b| (b.peer, b.offset, b.length))
            .collect();
        check(runs, &expect);
        let mut slots = Slots::new(runs).expect("runs");
        assert_eq!(slots.take(40, 9), Err(Unfit::Source));
        let before = [0, 39, 41].map(|source| slots.short_before(source, 512));
        assert_eq!(before, [Some(0), Some(39 * 9), Some(40 * 9)]);
        assert_eq!(
            (slots.short_before(40, 512), slots.short_before(0, 9)),
            (None, None)
        );
    }

    #[test]
    fn a_source_that_occurs_twice_is_refused() {
        let (a, b) = (narrow(0, 0, 0), narrow(1, 0, 0));
        assert!(Slots::new(Blocks::Narrow(&[a, a])).is_none());
        assert!(Slots::new(Blocks::Narrow(&[b, a, b])).is_none());
    }

    #[test]
    fn a_length_that_marks_a_taken_slot_is_no_block() {
        let mut slots = Slots::new(Blocks::Narrow(&[narrow(0, 0, u32::MAX)])).expect("one source");
        assert_eq!(slots.take(0, u32::MAX.into()), Err(Unfit::Taken));
    }
}
