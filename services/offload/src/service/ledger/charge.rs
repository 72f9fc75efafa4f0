//! Memory that messages of peers make an SP keep, about: it is counted until the end of their calls.

use super::{Call, CallId, Ledger};
use crate::service::outbox::Outbox;
use crate::wire::Blocks;

/// Bytes that a part of an offer, and a rank in a call, take beside their blocks: keys and handles of UCX.
const PART: usize = 256;
const RANK: usize = 512;

/// Bytes of a local rank that has not entered a call, here and in the tables of the caller.
const SEAT: usize = 128;

impl Ledger {
    /// Bytes that messages of peers have made this SP keep, about. They are counted until the end of their call.
    pub(in crate::service) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A call has begun.
    pub(super) fn keep_call(&mut self, call: CallId) {
        let seats = self.rank_of.len() * SEAT;
        let outboxes = self.services * size_of::<Outbox>();
        self.keep(call, size_of::<Call>() + seats + outboxes);
    }

    /// A rank has entered a call, with this number of bytes of blocks.
    pub(super) fn keep_rank(&mut self, call: CallId, bytes: usize) {
        self.keep(call, RANK + bytes);
    }

    /// Bytes of the answer to a rank, as far as the place of each block in it is known before.
    pub(super) fn answer_bytes(&self, receives: Blocks<'_>) -> usize {
        let Blocks::Runs(runs) = receives else {
            return 0;
        };
        if runs.only().is_some_and(|run| run.length >= self.direct_min) {
            return 0;
        }
        let short = runs.iter().filter(|run| run.length < self.direct_min);
        let bytes = short.map(|run| run.length.saturating_mul(run.count.into()));
        usize::try_from(bytes.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
    }

    /// An offer of a call has come.
    pub(super) fn keep_offer(&mut self, call: CallId, parts: usize, bytes: usize) {
        self.keep(call, parts * PART + bytes);
    }

    /// Counts bytes until the end of a call.
    fn keep(&mut self, call: CallId, bytes: usize) {
        self.states[call].bytes += bytes;
        self.bytes += bytes;
    }
}
