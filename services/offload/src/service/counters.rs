//! Counters of an SP since its start, and lengths of its queues.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use xgvmi_daemon::Histogram;

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) jobs_done: u64,
    pub(super) jobs_failed: u64,
    /// Refusals by the short name of their reason.
    pub(super) refusals: BTreeMap<&'static str, u64>,
    /// Counters of completed jobs.
    pub(super) past: Moved,
    /// Processor time for callers and other connections of no job.
    pub(super) on_callers: Duration,
    /// Time from a job's first rank to READY.
    pub(super) setup: Histogram,
}

/// Counters of the data path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moved {
    /// Completed calls, counted per rank.
    pub(super) calls: u64,
    /// Blocks delivered to this SP's ranks, and their bytes.
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    /// Blocks among them that came from another rank of this SP, which had received them first, and their bytes.
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    /// Active messages sent.
    pub(super) messages: u64,
    /// Time from a rank's arrival to its completion.
    pub(super) call_latency: Histogram,
}

impl Moved {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.copies += other.copies;
        self.copied_bytes += other.copied_bytes;
        self.messages += other.messages;
        self.call_latency.add(&other.call_latency);
    }
}

/// Lengths of a job's queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queues {
    pub(super) reads: usize,
    pub(super) messages: usize,
    /// Reads that wait for a credit.
    pub(super) waiting_reads: usize,
    pub(super) calls: usize,
    /// Blocks whose destination has not arrived.
    pub(super) parked_blocks: usize,
    /// Offers that wait for an answer.
    pub(super) offers: usize,
}

impl Queues {
    /// Each queue's name and length.
    pub(super) fn named(self) -> [(&'static str, usize); 6] {
        [
            ("reads", self.reads),
            ("messages", self.messages),
            ("waiting_reads", self.waiting_reads),
            ("calls", self.calls),
            ("parked_blocks", self.parked_blocks),
            ("offers", self.offers),
        ]
    }
}
