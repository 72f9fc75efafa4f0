//! The allreduces of this SP's ranks.

use super::segments::{Segments, Staged};
use super::transport::Transport;
use super::turns::{Line, Turns};
use super::windows::{Division, Range, Window};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::{Block, Collective, Delivered};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

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

/// A rank's part in an allreduce.
#[derive(Debug)]
pub(super) struct Vector<T: Transport> {
    pub(super) collective: Collective,
    pub(super) rank: u32,
    pub(super) local: usize,
    pub(super) reduction: Reduction,
    pub(super) division: Division,
    pub(super) members: Vec<u32>,
    /// This rank's place among the members.
    pub(super) place: usize,
    /// Number of members at this SP.
    pub(super) together: u32,
    /// Address of the send buffer in the rank's address space, and its packed key.
    pub(super) base: u64,
    pub(super) key: T::Packed,
    pub(super) send: Option<T::Memory>,
    pub(super) receive: Option<Rc<T::Memory>>,
    /// The elements of a short vector; later the result.
    pub(super) short: Option<Vec<u8>>,
    /// Windows that have begun, and windows that are complete.
    pub(super) begun: u32,
    pub(super) complete: u32,
    /// Results of this rank's segments, by window.
    pub(super) results: Vec<(u32, Staged<T>)>,
    pub(super) since: Instant,
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
    pub(super) fn step(&self, step: u32) -> Collective {
        Collective {
            step,
            ..self.collective
        }
    }

    /// The blocks that are not empty; `of` returns offset and length for a member and its segment.
    pub(super) fn blocks(
        &self,
        window: &Window,
        of: impl Fn(usize, Option<Range>) -> (u64, u64),
    ) -> Vec<Block> {
        let members = self.members.iter().enumerate();
        let block = |(place, peer): (usize, &u32)| {
            let (offset, length) = of(place, window.segment(place));
            Block {
                peer: *peer,
                offset,
                length,
            }
        };
        members
            .map(block)
            .filter(|block| block.length > 0)
            .collect()
    }
}

/// The value of the last reference.
pub(super) fn sole<V>(shared: Rc<V>) -> Result<V> {
    Rc::into_inner(shared).ok_or_else(|| failed("a buffer of a complete step is in use"))
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
