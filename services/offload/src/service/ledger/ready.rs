//! Blocks that the device may read now. Those of neighbouring sources for one rank are a batch: a batch takes the memory and
//! the work of one block until its reads start, and its end is that of its last read.

use super::{CallId, Ledger, OfferId, Seat};
use crate::service::actions::{Action, Transfer};
use crate::service::incoming::Source;
use slab::Slab;
use std::collections::VecDeque;

/// Blocks of neighbouring sources of an offer for one rank, of the same length.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Batch {
    pub(in crate::service) offer: u32,
    /// Index of the first source among the offer's parts, and number of sources.
    pub(in crate::service) part: u32,
    pub(in crate::service) count: u32,
    pub(in crate::service) local: u32,
    pub(in crate::service) call: u32,
    /// Offset in each source's buffer.
    pub(in crate::service) from: u64,
    /// Offset of the first block in the destination's receive buffer, and distance to the next one.
    pub(in crate::service) to: u64,
    pub(in crate::service) stride: u64,
    pub(in crate::service) length: u64,
}

/// The blocks of a batch that were not started.
#[derive(Debug)]
pub(in crate::service) struct Unread<'a> {
    /// Number of the batch.
    pub(in crate::service) id: u32,
    /// These blocks.
    pub(in crate::service) batch: Batch,
    /// Their sources.
    pub(in crate::service) sources: &'a [Source],
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
    /// The next blocks that the device may read. Report the start of the first ones with [`Ledger::started`], and the
    /// completion of each with [`Ledger::transferred`].
    #[inline]
    pub(in crate::service) fn unread(&self) -> Option<Unread<'_>> {
        let id = *self.ready.order.front()?;
        let Open { batch, started, .. } = &self.ready.open[id as usize];
        let sources = &self.offers[batch.offer as usize].sources;
        let part = batch.part + started;
        let count = batch.count - started;
        Some(Unread {
            id,
            batch: Batch {
                part,
                count,
                to: batch.to + batch.stride * u64::from(*started),
                ..*batch
            },
            sources: &sources[part as usize..][..count as usize],
        })
    }

    /// Reads of the first blocks that [`Ledger::unread`] returns have been started.
    #[inline]
    pub(in crate::service) fn started(&mut self, id: u32, count: u32) {
        let open = &mut self.ready.open[id as usize];
        open.started += count;
        self.ready.blocks -= count as usize;
        if open.started == open.batch.count {
            self.ready.order.pop_front();
        }
    }

    /// The first block that [`Ledger::unread`] returns. Its read starts now.
    pub(in crate::service) fn next_transfer(&mut self) -> Option<Transfer> {
        let Unread { id, batch, .. } = self.unread()?;
        let transfer = self.transfer(id, batch.part);
        self.started(id, 1);
        transfer
    }

    /// A block of a batch, by its source.
    pub(in crate::service) fn transfer(&self, id: u32, part: u32) -> Option<Transfer> {
        let Open { batch, .. } = self.ready.open.get(id as usize)?;
        let source = self
            .offers
            .get(batch.offer as usize)?
            .sources
            .get(part as usize)?;
        Some(Transfer {
            from: source.base.wrapping_add(batch.from),
            to: batch.to + batch.stride * u64::from(part - batch.part),
            length: batch.length,
            offer: batch.offer,
            part,
            local: batch.local,
            call: batch.call,
            shared: source.shared,
            batch: id,
        })
    }

    /// Number of blocks that the device may read now.
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

    /// The device has read blocks of a batch. Returns the number of blocks and of bytes of the batch if they were the last.
    #[inline]
    pub(in crate::service) fn transferred(&mut self, id: u32, count: u32) -> Option<(u64, u64)> {
        let id = id as usize;
        let open = &mut self.ready.open[id];
        open.left -= count;
        if open.left > 0 {
            return None;
        }
        self.ended(id)
    }

    fn ended(&mut self, id: usize) -> Option<(u64, u64)> {
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
