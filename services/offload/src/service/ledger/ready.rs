//! Blocks that the device may read now. Those of neighbouring sources for one rank are a batch: a batch takes the memory and
//! the work of one block until its reads start, and its end is that of its last read.

use super::{CallId, Ledger, OfferId, Seat};
use crate::service::actions::{Action, Transfer};
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
    pub(super) fn trim(&mut self, kept: usize) {
        if self.order.capacity() > kept {
            self.order.shrink_to(kept);
        }
        if self.open.is_empty() && self.open.capacity() > kept {
            self.open = Slab::new();
        }
    }
}

impl Ledger {
    /// The next block that the device may read. Report its completion with [`Ledger::transferred`].
    #[inline]
    pub(in crate::service) fn next_transfer(&mut self) -> Option<Transfer> {
        let id = *self.ready.order.front()?;
        let open = &mut self.ready.open[id as usize];
        let (batch, at) = (&open.batch, open.started);
        let part = batch.part + at;
        let source = &self.offers[batch.offer as usize].sources[part as usize];
        let transfer = Transfer {
            from: source.base.wrapping_add(batch.from),
            to: batch.to + batch.stride * u64::from(at),
            length: batch.length,
            offer: batch.offer,
            part,
            local: batch.local,
            call: batch.call,
            shared: source.shared,
            batch: id,
        };
        open.started += 1;
        self.ready.blocks -= 1;
        if open.started == batch.count {
            self.ready.order.pop_front();
        }
        Some(transfer)
    }

    /// Number of blocks that [`Ledger::next_transfer`] can return now.
    pub(in crate::service) fn transfers(&self) -> usize {
        self.ready.len()
    }

    /// Source and destination of a transfer, for an error.
    pub(in crate::service) fn ranks_of(&self, transfer: &Transfer) -> Option<(u32, u32)> {
        let offer = self.offers.get(transfer.offer as usize)?;
        let source = offer.sources.get(transfer.part as usize)?;
        let destination = self.rank_of.get(transfer.local as usize)?;
        Some((source.rank, *destination))
    }

    /// The device has read a block. Returns the number of blocks and of bytes of its batch if it was the last one.
    #[inline]
    pub(in crate::service) fn transferred(&mut self, transfer: &Transfer) -> Option<(u64, u64)> {
        let id = transfer.batch as usize;
        let open = &mut self.ready.open[id];
        open.left -= 1;
        if open.left > 0 {
            return None;
        }
        let Open { batch, .. } = self.ready.open.remove(id);
        let local = batch.local as usize;
        if let Some(call) = self.delivered(local, batch.offer as usize, batch.count as usize) {
            self.check_complete(call, local, self.rank_of[local]);
        }
        let blocks = u64::from(batch.count);
        Some((blocks, blocks * batch.length))
    }

    /// Blocks of an offer are delivered to a local rank. Returns the call when they were the rank's last ones.
    fn delivered(&mut self, local: usize, offer: OfferId, count: usize) -> Option<CallId> {
        let incoming = &mut self.offers[offer];
        incoming.left -= count;
        if incoming.left == 0 {
            let key = incoming.key;
            self.actions.push_back(Action::Finish { offer, key });
        }
        let call = incoming.call as usize;
        let Seat::Present(participant) = &mut self.states[call].seats[local] else {
            return None;
        };
        participant.receives_left -= count;
        (participant.receives_left == 0).then_some(call)
    }
}
