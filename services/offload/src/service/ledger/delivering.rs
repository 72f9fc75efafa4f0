//! The blocks that the device may read: their sources, their starts and their ends.

use super::{CallId, Ledger, OfferId, Seat};
use crate::service::actions::{Action, Transfer};
use crate::service::incoming::Source;
use crate::service::ready::Batch;

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

impl Ledger {
    /// The next blocks that the device may read. Report the start of the first ones with [`Ledger::started`], and the
    /// completion of each with [`Ledger::transferred`].
    #[inline(always)]
    pub(in crate::service) fn unread(&self) -> Option<Unread<'_>> {
        let (id, batch) = self.ready.next()?;
        let sources = &self.offers[batch.offer as usize].sources;
        Some(Unread {
            id,
            batch,
            sources: &sources[batch.part as usize..][..batch.count as usize],
        })
    }

    /// Reads of the first blocks that [`Ledger::unread`] returns have been started.
    #[inline]
    pub(in crate::service) fn started(&mut self, id: u32, count: u32) {
        self.ready.started(id, count);
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
        let batch = self.ready.get(id)?;
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
        let batch = self.ready.delivered(id, count)?;
        self.ended(&batch)
    }

    fn ended(&mut self, batch: &Batch) -> Option<(u64, u64)> {
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
