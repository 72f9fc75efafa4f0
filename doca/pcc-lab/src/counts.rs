//! Counters of a run: packets by kind and fate, events by type and fate.

use crate::packet::{KINDS, Kind};
use crate::report::Counters;

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A queue or the buffer of a switch is full.
    Buffer,
    /// The headroom of a lossless priority is full.
    Headroom,
    LinkDown,
    /// The scenario loses it.
    Injected,
    /// Too many packets are in flight.
    Limit,
}

/// Number of reasons.
pub(crate) const REASONS: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Events of the calendar.
    pub(crate) calendar: u64,
    /// Packets times links.
    pub(crate) transmissions: u64,
    pub(crate) sent: [u64; KINDS],
    pub(crate) delivered: [u64; KINDS],
    pub(crate) dropped: [[u64; REASONS]; KINDS],
    /// Events by type: handled by the algorithm, merged into one that waited, lost.
    pub(crate) handled: [u64; 5],
    pub(crate) merged: [u64; 5],
    pub(crate) lost: [u64; 5],
    pub(crate) instructions: u64,
    /// All others.
    pub(crate) other: Counters,
}

impl Counts {
    pub(crate) fn drop(&mut self, kind: Kind, reason: Reason) {
        self.dropped[kind as usize][reason as usize] += 1;
    }

    pub(crate) fn dropped_for(&self, reason: Reason) -> u64 {
        self.dropped.iter().map(|kind| kind[reason as usize]).sum()
    }
}
