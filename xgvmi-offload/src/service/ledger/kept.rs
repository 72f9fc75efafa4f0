//! Memory that messages of peers make an SP keep, about: it is counted until the end of their calls.

use super::{Call, CallId, Ledger};
use crate::service::outbox::Outbox;

/// Bytes that a part of an offer, and a rank in a call, take beside their blocks: keys and handles of UCX.
pub(super) const PART: usize = 256;
pub(super) const RANK: usize = 512;

/// Bytes of a local rank that has not entered a call, here and in the tables of the caller.
const SEAT: usize = 128;

/// Bytes of a call without ranks.
pub(super) fn of_call(ranks: usize, services: usize) -> usize {
    size_of::<Call>() + ranks * SEAT + services * size_of::<Outbox>()
}

impl Ledger {
    /// Bytes that messages of peers have made this SP keep, about. They are counted until the end of their call.
    pub(in crate::service) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts bytes until the end of a call.
    pub(super) fn keep(&mut self, call: CallId, bytes: usize) {
        self.states[call].bytes += bytes;
        self.bytes += bytes;
    }
}
