//! Offers of a call that are not sent.

use crate::draft::{RtsDraft, RtsHead};
use crate::wire::Record;
use crate::wire::runs::Run;
use std::collections::VecDeque;

/// An offer that reaches one of these limits (blocks, bytes of short blocks) takes no further ranks. Its message is
/// then long enough to be efficient and must not become much longer.
pub const OFFER_BLOCKS: usize = 1 << 12;
const OFFER_SHORT_BYTES: usize = 64 << 10;

/// Capacity for full offers that an empty outbox keeps.
const FULL_KEPT: usize = 16;

/// Blocks of one call that wait for a credit or for aggregation.
#[derive(Debug)]
pub(super) struct Queue {
    /// This SP.
    me: u32,
    /// Blocks for each SP.
    pub(super) outboxes: Vec<Outbox>,
    /// Other SPs with blocks, in the order of their offers.
    pub(super) order: VecDeque<u32>,
    pub(super) in_flight: usize,
}

/// Offers to one SP that are not sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Offers that take no further ranks.
    full: VecDeque<RtsDraft>,
    pub(super) draft: RtsDraft,
}

/// The blocks of a rank for one SP.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) runs: Vec<Run>,
    pub(super) short: Vec<u8>,
}

impl Queue {
    /// An empty queue of SP `me` to this number of SPs.
    pub(super) fn new(me: u32, services: usize) -> Self {
        Self {
            me,
            outboxes: (0..services).map(|_| Outbox::default()).collect(),
            order: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// Whether no block waits.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.outboxes[self.me as usize].is_empty()
    }

    /// The queue is empty: releases the memory of bursts.
    pub(super) fn trim(&mut self) {
        for outbox in &mut self.outboxes {
            if outbox.full.capacity() > FULL_KEPT {
                outbox.full = VecDeque::new();
            }
            outbox.draft.trim();
        }
    }

    /// Ends a rank's part of the offer to an SP.
    pub(super) fn end_part(&mut self, to: u32, key: &[u8]) {
        self.outboxes[to as usize].draft.end(key);
        self.added(to);
    }

    /// A rank's blocks were added to the offer to an SP.
    #[inline]
    pub(super) fn added(&mut self, to: u32) {
        let outbox = &mut self.outboxes[to as usize];
        let was_empty = outbox.full.is_empty() && outbox.draft.sources() == 1;
        if outbox.draft.blocks() >= OFFER_BLOCKS || outbox.draft.short_bytes() >= OFFER_SHORT_BYTES
        {
            outbox.full.push_back(std::mem::take(&mut outbox.draft));
        }
        if was_empty && to != self.me {
            self.order.push_back(to);
        }
    }

    /// Takes the next offer: the receiving SP, the sources, and the message. Offers to other SPs come first, and need a
    /// credit.
    pub(super) fn take(
        &mut self,
        head: RtsHead,
        has_credit: bool,
    ) -> Option<(u32, Vec<u32>, Vec<u8>)> {
        if let Some(to) = self.order.front().copied().filter(|_| has_credit) {
            let outbox = &mut self.outboxes[to as usize];
            let (sources, message) = outbox.take(head)?;
            if outbox.is_empty() {
                self.order.pop_front();
            }
            return Some((to, sources, message));
        }
        let outbox = self.outboxes.get_mut(self.me as usize)?;
        let (sources, message) = outbox.take(head)?;
        Some((self.me, sources, message))
    }
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.draft.sources() == 0
    }

    /// Takes the next offer: the sources, and the message.
    fn take(&mut self, head: RtsHead) -> Option<(Vec<u32>, Vec<u8>)> {
        match self.full.pop_front() {
            Some(mut draft) => Some(draft.finish(head)),
            None if self.draft.sources() > 0 => Some(self.draft.finish(head)),
            None => None,
        }
    }
}

/// Whether no two blocks have the same destination.
pub(super) fn sends_once<R: Record>(records: &[R]) -> bool {
    let peer = |record: &R| record.block().peer;
    // Most programs send to the ranks in their order.
    if records.is_sorted_by(|a, b| peer(a) < peer(b)) {
        return true;
    }
    let mut peers: Vec<u32> = records.iter().map(peer).collect();
    peers.sort_unstable();
    peers.is_sorted_by(|a, b| a < b)
}
