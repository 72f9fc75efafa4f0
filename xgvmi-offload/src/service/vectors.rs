//! The allreduces of this SP's ranks, and this SP's memory for their segments.

use super::transport::Transport;
use super::windows::{Division, Range, Window};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::{Block, Collective, Delivered};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// Maximum memory of a job for segments at this SP.
const STAGED_MAX: usize = 256 << 20;

/// Minimum size of a buffer for segments.
const STAGED_MIN: usize = 4 << 10;

/// Allreduces that run one after the other: a local rank and a communicator; and for a persistent call its number, as the
/// members may start two of these in different orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) local: usize,
    pub(super) communicator: u32,
    pub(super) persistent: Option<u32>,
}

/// The allreduces of this SP's ranks.
#[derive(Debug)]
pub(super) struct Reducing<T: Transport> {
    /// The first of each line is under way.
    pub(super) lines: HashMap<Line, VecDeque<Vector<T>>>,
    pub(super) count: usize,
    /// Free buffers by size.
    free: BTreeMap<usize, Vec<Staged<T>>>,
    staged_bytes: usize,
    /// Bytes of the vectors of `lines`, about.
    pub(super) vector_bytes: usize,
}

/// A buffer of this SP for segments.
#[derive(Debug)]
pub(super) struct Staged<T: Transport> {
    pub(super) memory: T::Memory,
    pub(super) key: T::Packed,
    size: usize,
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
    pub(super) results: Vec<(u32, Rc<Staged<T>>)>,
    pub(super) since: Instant,
    /// Bytes that its message has made this SP keep, about.
    pub(super) bytes: usize,
}

/// What a rank has of a step when the step is complete.
#[derive(Debug)]
pub(super) struct Stepped<T: Transport> {
    pub(super) collective: Collective,
    pub(super) local: usize,
    pub(super) staged: Option<Rc<Staged<T>>>,
    pub(super) short: Vec<Delivered>,
    pub(super) bytes: Vec<u8>,
}

impl Line {
    /// The line of a call that starts.
    pub(super) fn new(local: usize, collective: Collective, turn: Option<u32>) -> Self {
        Self {
            local,
            communicator: collective.communicator,
            persistent: turn.is_none().then_some(collective.sequence),
        }
    }
}

impl<T: Transport> Reducing<T> {
    pub(super) fn new() -> Self {
        Self {
            lines: HashMap::new(),
            count: 0,
            free: BTreeMap::new(),
            staged_bytes: 0,
            vector_bytes: 0,
        }
    }

    /// Bytes that messages of ranks have made this SP keep, about.
    pub(super) fn bytes(&self) -> usize {
        self.staged_bytes + self.vector_bytes
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

    /// A buffer of `length` bytes or more.
    pub(super) fn stage(&mut self, transport: &T, length: u64) -> Result<Rc<Staged<T>>> {
        let size = usize::try_from(length)
            .ok()
            .filter(|length| *length <= STAGED_MAX)
            .map_or(usize::MAX, |length| {
                length.next_power_of_two().max(STAGED_MIN)
            });
        if let Some(staged) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Ok(Rc::new(staged));
        }
        while size > STAGED_MAX - self.staged_bytes {
            let Some(other) = self.free.values_mut().find_map(Vec::pop) else {
                return Err(failed(format!(
                    "an allreduce needs {length} bytes, and others have {} of {STAGED_MAX}: let fewer of them run at once",
                    self.staged_bytes
                )));
            };
            self.staged_bytes -= other.size;
            transport.unmap(other.memory)?;
        }
        let memory = transport.stage(size)?;
        self.staged_bytes += size;
        let key = transport.pack(&memory)?;
        Ok(Rc::new(Staged { memory, key, size }))
    }

    /// A buffer is free again.
    pub(super) fn put_back(&mut self, staged: Rc<Staged<T>>) -> Result<()> {
        let staged = sole(staged)?;
        self.free.entry(staged.size).or_default().push(staged);
        Ok(())
    }
}

impl<T: Transport> Vector<T> {
    pub(super) fn step(&self, step: u32) -> Collective {
        Collective {
            step,
            ..self.collective
        }
    }

    /// One block per member; `of` returns offset and length for a member and its segment.
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
        members.map(block).collect()
    }
}

/// The value of the last reference.
pub(super) fn sole<V>(shared: Rc<V>) -> Result<V> {
    Rc::into_inner(shared).ok_or_else(|| failed("a buffer of a complete step is in use"))
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
