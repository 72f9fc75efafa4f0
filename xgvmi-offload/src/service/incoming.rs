//! Blocks of a received offer, and the ranks that they are for.

use super::actions::{CallId, OfferKey, Short, Wrong};
use super::slots::{Slots, Unfit};
use crate::wire::{Collective, Delivered};

/// A local rank that has entered a call.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) slots: Slots,
    /// Sources whose block is not delivered yet.
    pub(super) receives_left: usize,
    /// Unfinished offers that contain blocks of this rank.
    pub(super) offers_left: usize,
    /// The short blocks that have arrived.
    pub(super) short: Option<Box<Short>>,
}

/// A received offer.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) key: OfferKey,
    pub(super) call: CallId,
    /// Blocks that are not delivered yet.
    pub(super) left: usize,
    pub(super) sources: Vec<Source>,
    pub(super) blocks: Vec<OfferedBlock>,
    /// Position of each short block's bytes in `short`.
    pub(super) short_at: Vec<usize>,
    pub(super) short: Vec<u8>,
}

/// A source of a received offer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) rank: u32,
    /// Address of its buffer in its address space.
    pub(super) base: u64,
    /// Number of its blocks for device reads if they are all the same block, and there are several; otherwise 0.
    pub(super) shared: u32,
}

/// A block of a received offer.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfferedBlock {
    /// Index of the source among the offer's parts.
    pub(super) part: u32,
    /// Local number of the destination.
    pub(super) local: u32,
    /// Offset in the source's buffer.
    pub(super) from: u64,
    /// Offset in the destination's buffer, once the destination is present.
    pub(super) to: u64,
    pub(super) length: u64,
}

/// Result of matching a block with its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// The device may read the block.
    Ready,
    /// The block was in the message.
    Delivered,
}

impl Incoming {
    /// A block and its destination are both present.
    pub(super) fn meet(
        &mut self,
        at: usize,
        participant: &mut Participant,
        collective: Collective,
        rank_of: &[u32],
        direct_min: u64,
    ) -> Result<Met, Wrong> {
        let block = &mut self.blocks[at];
        let source = self.sources[block.part as usize].rank;
        let to = match participant.slots.take(source, block.length) {
            Ok(to) => to,
            Err(Unfit::Source) => return Err(self.members(at, collective, rank_of)),
            Err(Unfit::Length(expected)) => {
                return Err(Wrong::Counts {
                    collective,
                    source_rank: source,
                    destination: rank_of[block.local as usize],
                    sent: block.length,
                    expected,
                });
            }
            Err(Unfit::Taken) => {
                return Err(Wrong::Service {
                    service: self.key.0,
                    offer: self.key.1,
                    what: "the block was there already",
                });
            }
        };
        if block.length >= direct_min {
            block.to = to;
            return Ok(Met::Ready);
        }
        if block.length > 0 {
            let start = self.short_at[at];
            let length = usize::try_from(block.length).expect("below direct_min");
            let short = participant.short.get_or_insert_default();
            short
                .bytes
                .extend_from_slice(&self.short[start..start + length]);
            short.blocks.push(Delivered {
                offset: to,
                length: block.length,
            });
        }
        Ok(Met::Delivered)
    }

    /// The error for a block whose destination expects nothing from its source.
    pub(super) fn members(&self, at: usize, collective: Collective, rank_of: &[u32]) -> Wrong {
        let block = &self.blocks[at];
        Wrong::Members {
            collective,
            source_rank: self.sources[block.part as usize].rank,
            destination: rank_of[block.local as usize],
        }
    }
}
