//! Runs: equally spaced blocks for equally spaced ranks. They describe an even collective in a few bytes, whatever the number
//! of its members.

use super::block::{Block, Narrow};
use xgvmi_daemon::codec::{BadMessage, Reader, put_varint};

/// Equal blocks for the ranks `peer`, `peer + step`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) peer: u32,
    pub(crate) step: u32,
    pub(crate) count: u32,
    /// Place of the first block, from the start of the buffer, and distance to the next one.
    pub(crate) offset: u64,
    pub(crate) stride: u64,
    /// Length of each block.
    pub(crate) length: u64,
}

/// Runs in ascending order of their ranks. [`Runs::read`] has checked those of a message, and keeps the first one: most
/// collectives have no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Runs<'a> {
    first: Run,
    more: More<'a>,
    runs: u32,
    blocks: u64,
}

/// The runs after the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More<'a> {
    /// As the message holds them.
    Wire(&'a [u8]),
    List(&'a [Run]),
}

impl Run {
    /// The last rank.
    pub(super) fn last(&self) -> u32 {
        self.peer + self.step * (self.count - 1)
    }

    /// First byte after all blocks.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.stride * u64::from(self.count - 1) + self.length
    }

    /// Block `index`.
    #[inline]
    pub(crate) fn block(&self, index: u32) -> Block {
        Block {
            peer: self.peer + self.step * index,
            offset: self.offset + self.stride * u64::from(index),
            length: self.length,
        }
    }

    /// Index of the block for a rank.
    #[inline]
    pub(crate) fn index_of(&self, peer: u32) -> Option<u32> {
        let distance = peer.checked_sub(self.peer)?;
        let index = match self.step {
            1 => distance,
            step if distance.is_multiple_of(step) => distance / step,
            _ => return None,
        };
        (index < self.count).then_some(index)
    }

    /// Blocks `first`, `first + apart`, and so on.
    pub(crate) fn part(&self, first: u32, apart: u32, count: u32) -> Self {
        let Block { peer, offset, .. } = self.block(first);
        Self {
            peer,
            step: self.step * apart,
            count,
            offset,
            stride: self.stride * u64::from(apart),
            length: self.length,
        }
    }

    /// Appends the run to a message.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        for number in [self.peer, self.step, self.count] {
            put_varint(bytes, number.into());
        }
        for number in [self.offset, self.stride, self.length] {
            put_varint(bytes, number);
        }
    }

    /// Reads a run of [`Run::put`]. The last rank is a 32-bit number, and the end of the last block a 64-bit number.
    #[inline]
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let run = Self {
            peer: reader.number32(BAD_RUN),
            step: reader.number32(BAD_RUN),
            count: reader.number32(BAD_RUN),
            offset: reader.number(),
            stride: reader.number(),
            length: reader.number(),
        };
        let more = u64::from(run.count.wrapping_sub(1));
        // The product of two 32-bit numbers and a third one are a 64-bit number.
        let last = u64::from(run.peer) + u64::from(run.step) * more;
        let end = run.stride.checked_mul(more).and_then(|last| {
            let last = run.offset.checked_add(last)?;
            last.checked_add(run.length)
        });
        reader.sound()?;
        let is_there = run.count > 0 && run.step > 0 && last <= u64::from(u32::MAX);
        match end {
            Some(_) if is_there => Ok(run),
            _ => Err(reader.fault(BAD_RUN)),
        }
    }
}

const BAD_RUN: &str = "with a run of blocks that does not exist";

/// No blocks.
const NONE: Run = Run {
    peer: 0,
    step: 1,
    count: 0,
    offset: 0,
    stride: 0,
    length: 0,
};

impl<'a> Runs<'a> {
    /// Reads a number of runs, and the runs.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, BadMessage> {
        let runs = reader.number32(BAD_RUN);
        if runs == 0 {
            reader.sound()?;
            return Ok(Self::of(&[]));
        }
        let first = Run::read(reader)?;
        if runs == 1 {
            return Ok(Self::one(first));
        }
        let bytes = reader.rest();
        let (mut blocks, mut last) = (u64::from(first.count), first.last());
        for _ in 1..runs {
            let run = Run::read(reader)?;
            if run.peer <= last {
                return Err(reader.fault("with runs that are not in ascending order"));
            }
            last = run.last();
            blocks += u64::from(run.count);
        }
        let length = bytes.len() - reader.rest().len();
        Ok(Self {
            first,
            more: More::Wire(&bytes[..length]),
            runs,
            blocks,
        })
    }

    /// The runs without their message, if there is one at most.
    pub(crate) fn lasting(self) -> Option<Runs<'static>> {
        match self.runs {
            0 => Some(Runs::of(&[])),
            1 => Some(Runs::one(self.first)),
            _ => None,
        }
    }

    /// These runs.
    pub(crate) fn of(runs: &'a [Run]) -> Self {
        Self {
            first: runs.first().copied().unwrap_or(NONE),
            more: More::List(runs.get(1..).unwrap_or_default()),
            runs: u32::try_from(runs.len()).expect("no more than there are ranks"),
            blocks: runs.iter().map(|run| u64::from(run.count)).sum(),
        }
    }

    /// A run.
    #[inline]
    pub(crate) fn one(run: Run) -> Self {
        Self {
            first: run,
            more: More::List(&[]),
            runs: 1,
            blocks: run.count.into(),
        }
    }

    /// The first run; without runs, one of no blocks.
    #[inline]
    pub(crate) fn first(&self) -> &Run {
        &self.first
    }

    /// The run, if there is no other.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Run> {
        (self.runs == 1).then_some(&self.first)
    }

    /// Number of blocks. A few bytes may name many.
    pub(crate) fn blocks(self) -> usize {
        usize::try_from(self.blocks).unwrap_or(usize::MAX)
    }

    /// Number of runs.
    pub(crate) fn runs(self) -> usize {
        self.runs as usize
    }

    /// Number of bytes that the runs take here.
    pub(super) fn bytes(self) -> usize {
        self.runs() * size_of::<Run>()
    }

    /// The runs.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = Run> + Clone + 'a {
        Iter {
            next: self.first,
            left: self.runs,
            more: self.more,
        }
    }
}

/// Iterates over runs.
#[derive(Debug, Clone)]
struct Iter<'a> {
    next: Run,
    left: u32,
    more: More<'a>,
}

impl Iterator for Iter<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        self.left = self.left.checked_sub(1)?;
        let run = self.next;
        if self.left > 0 {
            self.next = self.more.take();
        }
        Some(run)
    }
}

impl More<'_> {
    /// Takes the next run, which is there.
    fn take(&mut self) -> Run {
        match self {
            Self::List(runs) => runs.split_off_first().copied(),
            Self::Wire(bytes) => {
                let mut reader = Reader::new("runs", bytes);
                let run = Run::read(&mut reader).ok();
                *bytes = reader.rest();
                run
            }
        }
        .unwrap_or(NONE)
    }
}

/// Appends the number of runs, and the runs.
pub(super) fn put_runs(bytes: &mut Vec<u8>, runs: &[Run]) {
    put_varint(bytes, runs.len() as u64);
    for run in runs {
        run.put(bytes);
    }
}

/// Whether runs take fewer bytes on the wire than this number of blocks.
pub(super) fn take_fewer_bytes(runs: &[Run], blocks: usize) -> bool {
    let mut bytes = Vec::new();
    put_runs(&mut bytes, runs);
    bytes.len() <= blocks * size_of::<Narrow>()
}

/// Adds a block to a run, if it continues it.
pub(super) fn extend(run: &mut Run, block: &Block) -> bool {
    let (step, stride) = if run.count == 1 {
        let Some(stride) = block.offset.checked_sub(run.offset) else {
            return false;
        };
        (block.peer - run.peer, stride)
    } else {
        (run.step, run.stride)
    };
    let next = run.stride_to(run.count, step, stride);
    if next != Some((block.peer, block.offset)) || block.length != run.length {
        return false;
    }
    (run.step, run.stride) = (step, stride);
    run.count += 1;
    true
}

impl Run {
    /// Rank and offset of block `index`, with another step and stride.
    fn stride_to(&self, index: u32, step: u32, stride: u64) -> Option<(u32, u64)> {
        let peer = self.peer.checked_add(step.checked_mul(index)?)?;
        let offset = self.offset.checked_add(stride.checked_mul(index.into())?)?;
        Some((peer, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::BlockList;
    use super::*;

    fn blocks(of: &[(u32, u64, u64)]) -> Vec<Block> {
        let block = |(peer, offset, length): &(u32, u64, u64)| Block {
            peer: *peer,
            offset: *offset,
            length: *length,
        };
        of.iter().map(block).collect()
    }

    fn runs_of(blocks: &[Block]) -> Option<Vec<Run>> {
        match BlockList::from(blocks.to_vec()) {
            BlockList::Runs(runs) => Some(runs),
            BlockList::Listed(_) => None,
        }
    }

    /// The blocks of runs are those that they were made of.
    #[track_caller]
    fn check(given: &[Block], expect: Option<usize>) {
        let runs = runs_of(given);
        assert_eq!(runs.as_ref().map(Vec::len), expect);
        let Some(runs) = runs else { return };
        let mut bytes = Vec::new();
        put_runs(&mut bytes, &runs);
        let mut reader = Reader::new("X", &bytes);
        let read = Runs::read(&mut reader).expect("made by put_runs()");
        assert!(reader.end().is_ok());
        let all = read
            .iter()
            .flat_map(|run| (0..run.count).map(move |at| run.block(at)));
        let filled = given.iter().filter(|block| block.length > 0);
        assert!(all.eq(filled.copied()), "{runs:?}");
        assert_eq!(read.blocks(), given.iter().filter(|b| b.length > 0).count());
    }

    #[test]
    fn even_blocks_are_one_run_whatever_their_number() {
        for count in [4, 16_384] {
            let even: Vec<_> = (0..count).map(|at| (at, u64::from(at) * 8, 8)).collect();
            check(&blocks(&even), Some(1));
            let column: Vec<_> = (0..count).map(|at| (5 + 7 * at, 64, 8)).collect();
            check(&blocks(&column), Some(1));
            // One rank sends nothing to itself.
            let mut others = even.clone();
            others[2].2 = 0;
            check(&blocks(&others), Some(2));
            let mut bytes = Vec::new();
            put_runs(&mut bytes, &runs_of(&blocks(&others)).expect("two"));
            assert!(bytes.len() <= 24, "{}", bytes.len());
        }
    }

    #[test]
    fn uneven_blocks_are_no_runs() {
        let uneven: Vec<_> = (0..100)
            .map(|at| (at, u64::from(at * at), 1 + u64::from(at)))
            .collect();
        check(&blocks(&uneven), None);
        check(
            &blocks(&[(5, 0, 8), (4, 8, 8), (3, 16, 8), (2, 24, 8)]),
            None,
        );
        check(&[], None);
    }

    #[test]
    fn runs_that_do_not_exist_are_refused() {
        let most = u64::from(u32::MAX);
        for (numbers, expect) in [
            (vec![1, 0, 0, 2, 0, 0, 8], BAD_RUN),
            (vec![1, 0, 1, 0, 0, 0, 8], BAD_RUN),
            (vec![1, 2, 1, most, 0, 0, 8], BAD_RUN),
            (vec![1, 0, 1, 2, u64::MAX - 8, 1, 8], BAD_RUN),
            (vec![1, 0, 1, 3, 0, u64::MAX, 8], BAD_RUN),
            (vec![1, most + 1, 1, 1, 0, 0, 8], BAD_RUN),
            (
                vec![2, 0, 1, 4, 0, 0, 8, 3, 1, 4, 0, 0, 8],
                "with runs that are not in ascending order",
            ),
            (vec![3, 0, 1, 4, 0, 0, 8], "too short"),
        ] {
            let mut bytes = Vec::new();
            for number in &numbers {
                put_varint(&mut bytes, *number);
            }
            let error = Runs::read(&mut Reader::new("X", &bytes)).expect_err("no runs");
            assert_eq!(error.fault, expect, "{numbers:?}");
        }
    }

    #[test]
    fn a_part_of_a_run_has_its_blocks() {
        let run = Run {
            peer: 3,
            step: 2,
            count: 9,
            offset: 100,
            stride: 8,
            length: 8,
        };
        assert_eq!(
            (run.index_of(7), run.index_of(8), run.index_of(21)),
            (Some(2), None, None)
        );
        let part = run.part(1, 3, 3);
        let expect = [1, 4, 7].map(|at| run.block(at));
        assert_eq!([0, 1, 2].map(|at| part.block(at)), expect);
        assert_eq!(run.end(), 100 + 8 * 8 + 8);
    }
}
