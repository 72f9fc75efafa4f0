//! Blocks that the device may read now. Those of neighbouring sources for one rank are a batch: a batch takes the memory and
//! the work of one block until its reads start, and its end is that of its last read.

use slab::Slab;
use std::collections::VecDeque;

/// Blocks of neighbouring sources of an offer for one rank, of the same length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) offer: u32,
    /// Index of the first source among the offer's parts, and number of sources.
    pub(super) part: u32,
    pub(super) count: u32,
    pub(super) local: u32,
    pub(super) call: u32,
    /// Offset in each source's buffer.
    pub(super) from: u64,
    /// Offset of the first block in the destination's receive buffer, and distance to the next one.
    pub(super) to: u64,
    pub(super) stride: u64,
    pub(super) length: u64,
}

/// A batch, and its blocks that were not started and not delivered.
#[derive(Debug)]
struct Open {
    batch: Batch,
    started: u32,
    left: u32,
}

/// The batches of a job.
#[derive(Debug, Default)]
pub(super) struct Ready {
    open: Slab<Open>,
    /// Those with blocks that were not started, the oldest first.
    order: VecDeque<u32>,
    /// Number of these blocks.
    blocks: usize,
}

impl Ready {
    #[inline]
    pub(super) fn push(&mut self, batch: Batch) {
        let open = Open {
            batch,
            started: 0,
            left: batch.count,
        };
        let id = self.open.insert(open);
        // Each batch takes more memory than 32 bits count.
        self.order
            .push_back(u32::try_from(id).expect("batches in memory"));
        self.blocks += batch.count as usize;
    }

    /// Number of blocks that were not started.
    pub(super) fn len(&self) -> usize {
        self.blocks
    }

    /// Whether all blocks were started and delivered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.order.is_empty() && self.blocks == 0
    }

    /// Nothing is ready: releases the memory of bursts.
    #[inline]
    pub(super) fn trim(&mut self, kept: usize) {
        if self.order.capacity() > kept {
            self.order.shrink_to(kept);
        }
        if self.open.is_empty() && self.open.capacity() > kept {
            self.open = Slab::new();
        }
    }

    /// The oldest batch with blocks that were not started: its number, and these blocks.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<(u32, Batch)> {
        let id = *self.order.front()?;
        let Open { batch, started, .. } = &self.open[id as usize];
        let rest = Batch {
            part: batch.part + started,
            count: batch.count - started,
            to: batch.to + batch.stride * u64::from(*started),
            ..*batch
        };
        Some((id, rest))
    }

    /// Reads of the first blocks of [`Ready::next`] have been started.
    #[inline]
    pub(super) fn started(&mut self, id: u32, count: u32) {
        let open = &mut self.open[id as usize];
        open.started += count;
        self.blocks -= count as usize;
        if open.started == open.batch.count {
            self.order.pop_front();
        }
    }

    /// A batch with blocks that were not delivered.
    pub(super) fn get(&self, id: u32) -> Option<&Batch> {
        Some(&self.open.get(id as usize)?.batch)
    }

    /// Blocks of a batch were delivered. Returns the batch if they were its last ones.
    #[inline]
    pub(super) fn delivered(&mut self, id: u32, count: u32) -> Option<Batch> {
        let open = &mut self.open[id as usize];
        open.left -= count;
        if open.left > 0 {
            return None;
        }
        Some(self.open.remove(id as usize).batch)
    }
}

/// A block under way: its batch, and its source among the parts of the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) batch: u32,
    /// Below 2^31.
    pub(super) part: u32,
    pub(super) is_shared: bool,
}

impl Flight {
    const SHARED: u64 = 1 << 31;

    /// The tag of its read. Those of the next parts follow.
    #[inline]
    pub(super) fn tag(self) -> u64 {
        let shared = if self.is_shared { Self::SHARED } else { 0 };
        u64::from(self.batch) << 32 | shared | u64::from(self.part)
    }

    #[inline]
    pub(super) fn of(tag: u64) -> Self {
        let half = |bits: u64| u32::try_from(bits).expect("32 bits");
        Self {
            batch: half(tag >> 32),
            part: half(tag & (Self::SHARED - 1)),
            is_shared: tag & Self::SHARED != 0,
        }
    }

    /// What the tags of the blocks of one batch have in common, and no others.
    #[inline]
    pub(super) fn lane(tag: u64) -> u64 {
        tag >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_a_block() {
        for batch in [0, 7, u32::MAX] {
            for part in [0, 5, (1 << 31) - 1] {
                for is_shared in [false, true] {
                    let flight = Flight {
                        batch,
                        part,
                        is_shared,
                    };
                    assert_eq!(Flight::of(flight.tag()), flight);
                    let first = Flight { part: 0, ..flight };
                    assert_eq!(first.tag() + u64::from(part), flight.tag());
                    assert_eq!(Flight::lane(flight.tag()), Flight::lane(first.tag()));
                    let other = Flight {
                        is_shared: !is_shared,
                        ..flight
                    };
                    assert_ne!(Flight::lane(flight.tag()), Flight::lane(other.tag()));
                }
            }
        }
    }
}
