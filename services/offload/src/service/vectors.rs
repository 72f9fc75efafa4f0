//! The allreduces of this SP's ranks.

use super::actions::Short;
use super::counters::Moment;
use super::imports::Lent;
use super::ledger::Ledger;
use super::segments::{Segments, Staged};
use super::spacing::Member;
use super::transport::Transport;
use super::trees::Tree;
use super::turns::{Line, Turns};
use super::windows::{Division, Range};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::runs::Run;
use crate::wire::{
    Block, Blocks, Collective, Contribution, Delivered, REDUCE_STEPS, Record, TargetRef, blocks_of,
};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// The allreduces of this SP's ranks.
#[derive(Debug)]
pub(super) struct Reducing<T: Transport> {
    /// The first of each line is under way.
    pub(super) lines: HashMap<Line, VecDeque<Vector<T>>>,
    /// Ordinary allreduces that have overtaken an earlier one, by line and turn.
    early: HashMap<(Line, u32), Vector<T>>,
    pub(super) turns: Turns,
    pub(super) count: usize,
    /// Memory for segments.
    pub(super) segments: Segments<T>,
    /// Bytes of the vectors of `lines`, about.
    pub(super) vector_bytes: usize,
}

/// A step of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The ranks of an SP are reduced.
    Own,
    /// The SPs are reduced, each segment at one of them.
    Scatter,
    /// The results are distributed.
    Gather,
}

impl Phase {
    /// Window and phase of a step.
    pub(super) fn of(step: u32) -> (u32, Self) {
        let at = step - 1;
        let phase = match at % REDUCE_STEPS {
            0 => Self::Own,
            1 => Self::Scatter,
            _ => Self::Gather,
        };
        (at / REDUCE_STEPS, phase)
    }
}

/// The members that get the result.
#[derive(Debug)]
pub(super) enum Goal {
    /// These get all of it.
    All(Vec<Run>),
    Root(u32),
    /// Each gets a range, in ascending order of the ranks.
    Ranges(Vec<Block>),
}

impl Goal {
    /// # Errors
    /// The result is for a rank that is no member, or for a range that does not exist.
    pub(super) fn new(entry: &Contribution<'_>) -> std::result::Result<Self, &'static str> {
        let is_member = |rank| Ledger::has_member(entry.members, rank);
        Ok(match entry.target {
            TargetRef::All => Self::All(match entry.members {
                Blocks::Runs(runs) => runs.iter().collect(),
                Blocks::Narrow(records) => records.iter().map(Record::block).map(run).collect(),
                Blocks::Wide(records) => records.iter().map(Record::block).map(run).collect(),
            }),
            TargetRef::Root(root) if is_member(root) => Self::Root(root),
            TargetRef::Root(_) => return Err("its root is not a member"),
            TargetRef::Ranges(blocks) => {
                // Runs name many blocks in a few bytes.
                if blocks.len() > entry.members.len() {
                    return Err("its result has more ranges than members");
                }
                let blocks: Vec<Block> = match blocks {
                    Blocks::Narrow(records) => records.iter().map(Record::block).collect(),
                    Blocks::Wide(records) => records.iter().map(Record::block).collect(),
                    Blocks::Runs(runs) => blocks_of(runs).collect(),
                };
                let is_inside = |block: &Block| {
                    let end = block.offset.checked_add(block.length);
                    end.is_some_and(|end| end <= entry.length) && is_member(block.peer)
                };
                if !blocks.iter().all(is_inside) || !blocks.is_sorted_by(|a, b| a.peer < b.peer) {
                    return Err("a range of its result does not exist");
                }
                Self::Ranges(blocks)
            }
        })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(runs) => size_of_val(&runs[..]),
            Self::Root(_) => 0,
            Self::Ranges(blocks) => size_of_val(&blocks[..]),
        }
    }

    /// The range of the vector that a member gets.
    pub(super) fn range_of(&self, rank: u32, length: u64) -> Range {
        match self {
            Self::All(_) => Range { offset: 0, length },
            Self::Root(root) if *root == rank => Range { offset: 0, length },
            Self::Root(_) => Range::default(),
            Self::Ranges(blocks) => {
                let found = blocks.binary_search_by_key(&rank, |block| block.peer);
                found.map_or(Range::default(), |at| Range {
                    offset: blocks[at].offset,
                    length: blocks[at].length,
                })
            }
        }
    }

    /// The blocks that the owner of a segment sends, with offsets in the segment.
    pub(super) fn sends(&self, mine: Option<Range>) -> Vec<Run> {
        let Some(mine) = mine.filter(|mine| mine.length > 0) else {
            return Vec::new();
        };
        let all = |run: Run| Run {
            offset: 0,
            stride: 0,
            length: mine.length,
            ..run
        };
        match self {
            Self::All(runs) => runs.iter().copied().map(all).collect(),
            Self::Root(root) => vec![run(Block {
                peer: *root,
                offset: 0,
                length: mine.length,
            })],
            Self::Ranges(blocks) => {
                let parts = blocks.iter().map(|block| {
                    let range = Range {
                        offset: block.offset,
                        length: block.length,
                    };
                    let (offset, length) = range.common(&mine);
                    run(Block {
                        peer: block.peer,
                        offset: offset - mine.offset,
                        length,
                    })
                });
                parts.filter(|run| run.length > 0).collect()
            }
        }
    }
}

/// A run of one block.
fn run(block: Block) -> Run {
    Run {
        peer: block.peer,
        step: 1,
        count: 1,
        offset: block.offset,
        stride: 0,
        length: block.length,
    }
}

/// A rank's part in a reduction.
#[derive(Debug)]
pub(super) struct Vector<T: Transport> {
    pub(super) collective: Collective,
    pub(super) rank: u32,
    pub(super) local: usize,
    pub(super) reduction: Reduction,
    pub(super) division: Division,
    /// Length of the vector with its parts in other lanes; 0 with one lane.
    pub(super) whole: u64,
    /// Number of members, and their SPs. The first rank of each stands for the others.
    pub(super) members: u32,
    pub(super) groups: Rc<[Member]>,
    /// Whether the SPs form a tree, and its branches.
    pub(super) climbs: bool,
    pub(super) radix: usize,
    /// This SP's place among them.
    pub(super) place: usize,
    /// The members at this SP, if this rank stands for them.
    pub(super) ours: Vec<u32>,
    pub(super) goal: Goal,
    /// Addresses of the send buffer and of the receive buffer in the rank's address space.
    pub(super) base: u64,
    pub(super) receive_base: u64,
    /// `None` in place.
    pub(super) send: Option<Lent<T>>,
    pub(super) receive: Option<Lent<T>>,
    /// The elements of a short vector; after steps 1 and 2 what they have made of these.
    pub(super) short: Option<Vec<u8>>,
    /// Windows that have begun, and windows that are complete.
    pub(super) begun: u32,
    pub(super) complete: u32,
    /// Results of steps 1 and 2, by window.
    pub(super) sums: Vec<(u32, Staged<T>)>,
    pub(super) results: Vec<(u32, Staged<T>)>,
    /// The short parts of the result.
    pub(super) pieces: Short,
    pub(super) since: Moment,
    /// Bytes that its message has made this SP keep, about.
    pub(super) bytes: usize,
}

/// What a rank has of a step when the step is complete.
#[derive(Debug)]
pub(super) struct Stepped {
    pub(super) collective: Collective,
    pub(super) local: usize,
    pub(super) short: Vec<Delivered>,
    pub(super) bytes: Vec<u8>,
}

impl<T: Transport> Reducing<T> {
    pub(super) fn new() -> Self {
        Self {
            lines: HashMap::new(),
            early: HashMap::new(),
            turns: Turns::default(),
            count: 0,
            segments: Segments::new(),
            vector_bytes: 0,
        }
    }

    /// Bytes that messages of ranks have made this SP keep, about.
    pub(super) fn bytes(&self) -> usize {
        self.segments.bytes() + self.vector_bytes
    }

    /// An allreduce of a line has come, and those that it follows have come too. Returns true if the line was empty.
    fn push(&mut self, line: Line, vector: Vector<T>) -> bool {
        let line = self.lines.entry(line).or_default();
        line.push_back(vector);
        line.len() == 1
    }

    /// A persistent allreduce has come. Returns true if the line was empty.
    pub(super) fn add(&mut self, line: Line, vector: Vector<T>) -> bool {
        self.count(&vector);
        self.push(line, vector)
    }

    /// An ordinary allreduce has come. Returns true if the line has begun, and an error if its turn was there already.
    pub(super) fn add_in_turn(
        &mut self,
        line: Line,
        (turn, open): (u32, u32),
        vector: Vector<T>,
    ) -> std::result::Result<bool, &'static str> {
        let next = self.turns.next(line, turn, open);
        let is_late = turn.wrapping_sub(*next) > u32::MAX / 2;
        if is_late || self.early.contains_key(&(line, turn)) {
            return Err("it has started two allreduces as the same one of a communicator");
        }
        self.count(&vector);
        self.early.insert((line, turn), vector);
        let mut begins = false;
        loop {
            let next = self.turns.next(line, turn, open);
            let Some(vector) = self.early.remove(&(line, *next)) else {
                return Ok(begins);
            };
            *next = next.wrapping_add(1);
            begins |= self.push(line, vector);
        }
    }

    fn count(&mut self, vector: &Vector<T>) {
        self.count += 1;
        self.vector_bytes += vector.bytes;
    }

    /// The line of a call under way.
    pub(super) fn line_of(&self, local: usize, collective: Collective) -> Line {
        let persistent = Line::new(local, collective, None);
        if self.lines.contains_key(&persistent) {
            persistent
        } else {
            Line {
                persistent: None,
                ..persistent
            }
        }
    }
}

impl<T: Transport> Vector<T> {
    /// A step of a window.
    pub(super) fn step(&self, window: u32, phase: Phase) -> Collective {
        Collective {
            step: window * REDUCE_STEPS + 1 + phase as u32,
            ..self.collective
        }
    }

    /// Whether a step is one of this reduction.
    pub(super) fn is_of(&self, step: Collective) -> bool {
        Collective { step: 0, ..step } == self.collective
    }

    /// This SP and its members.
    pub(super) fn group(&self) -> Member {
        self.groups[self.place]
    }

    /// Whether this rank stands for the members at its SP.
    pub(super) fn stands(&self) -> bool {
        self.group().first == self.rank
    }

    /// Whether it goes along a tree by reads, as it is not short.
    pub(super) fn climbs_long(&self) -> bool {
        self.climbs && self.short.is_none()
    }

    /// Number of vectors that an SP reduces at a step of a tree: its own, and those of the SPs below.
    pub(super) fn with_below(&self) -> usize {
        self.tree().below(self.place).count() + 1
    }

    /// The part of the result that is for this rank, of a short vector.
    pub(super) fn part(&self) -> (Vec<Delivered>, Vec<u8>) {
        let range = self.goal.range_of(self.rank, self.length());
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let bytes = self.short.as_deref().unwrap_or_default();
        let bytes = bytes.get(number(range.offset)..number(range.offset + range.length));
        match bytes.unwrap_or_default() {
            [] => (Vec::new(), Vec::new()),
            bytes => (vec![Delivered::one(0, range.length)], bytes.to_vec()),
        }
    }

    /// The first steps of a vector whose SPs form a tree, if those of this one do not, or the reverse: other members
    /// that enter them give another length.
    pub(super) fn strange(&self) -> impl Iterator<Item = Collective> + '_ {
        let phases = [Phase::Scatter, Phase::Gather];
        let (levels, is_root) = match self.climbs {
            // One rank gets its result in the step of a long vector.
            true => (0..1, matches!(self.goal, Goal::Root(_))),
            false if self.division.windows() > 1 => (0..0, false),
            false => (1..self.tree().level(self.place) + 2, false),
        };
        let steps = levels.flat_map(move |level| phases.map(|phase| (level, phase)));
        let steps = steps.filter(move |(_, phase)| !is_root || *phase == Phase::Scatter);
        steps.map(|(level, phase)| self.step(level, phase))
    }

    /// The tree of the SPs. The first one has the result.
    pub(super) fn tree(&self) -> Tree<'_> {
        Tree {
            members: &self.groups,
            top: 0,
            root: self.groups[0].first,
            radix: self.radix,
        }
    }

    /// The packed key of the send buffer.
    pub(super) fn key(&self) -> &[u8] {
        let from = self.send.as_ref().or(self.receive.as_ref());
        from.map_or(&[], Lent::key)
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.division.length()
    }

    /// Reduces vectors of `length` bytes to the first of them. The result of the last step is that of all members.
    pub(super) fn fold<'a>(&self, all: &'a mut [u8], length: usize, is_last: bool) -> &'a [u8] {
        let result = self.reduction.fold_all(all, length);
        if is_last {
            self.reduction.finish(result, self.members);
        }
        result
    }

    /// Reduces the short vectors that a step has got, if there are any. In a tree, that of this SP is not among them.
    ///
    /// # Errors
    /// Blocks without their bytes.
    pub(super) fn fold_short(&mut self, stepped: Stepped) -> Result<()> {
        if self.short.is_none() || stepped.short.is_empty() {
            return Ok(());
        }
        let climbs = self.climbs;
        let is_own = Phase::of(stepped.collective.step).1 == Phase::Own;
        let is_last = !is_own && (!climbs || self.place == 0);
        let mine = self.short.take().filter(|_| climbs && !is_own);
        // The blocks have arrived in any order.
        let blocks = stepped.short.iter();
        let mut blocks: Vec<(u64, u64)> = blocks
            .flat_map(|of| of.offsets().map(|at| (at, of.length)))
            .collect();
        let mut rest = &stepped.bytes[..];
        let mut parts = Vec::with_capacity(blocks.len());
        for (offset, length) in blocks.drain(..) {
            let part = usize::try_from(length).ok();
            let part = part.and_then(|length| rest.split_off(..length));
            let part = part.ok_or_else(|| failed("a short vector without its bytes"))?;
            parts.push((offset, part));
        }
        parts.sort_unstable_by_key(|(offset, _)| *offset);
        let length = parts.first().map_or(0, |(_, part)| part.len());
        let mut all = mine.unwrap_or_default();
        for (_, part) in parts {
            all.extend_from_slice(part);
        }
        self.fold(&mut all, length, is_last);
        all.truncate(length);
        self.short = Some(all);
        Ok(())
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
