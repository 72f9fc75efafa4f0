//! The allreduces of this SP's ranks.

use super::segments::{Segments, Staged};
use super::transport::Transport;
use super::windows::{Division, Range, Window};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::{Block, Collective, Delivered};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// A local rank and a communicator.
pub(super) type Line = (usize, u32);

/// The allreduces of this SP's ranks.
#[derive(Debug)]
pub(super) struct Reducing<T: Transport> {
    /// The first of each line is under way.
    pub(super) lines: HashMap<Line, VecDeque<Vector<T>>>,
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
            count: 0,
            segments: Segments::new(),
            vector_bytes: 0,
        }
    }

    /// Bytes that messages of ranks have made this SP keep, about.
    pub(super) fn bytes(&self) -> usize {
        self.segments.bytes() + self.vector_bytes
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
