//! Counters of an SP since its start, and lengths of its queues.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
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

xgvmi_daemon::status! {
    /// Counters of the data path.
    #[derive(Default)]
    pub(super) struct Moved("xgvmi_sp_") {
        pub(super) counter calls, "Completed calls of single ranks.";
        pub(super) counter blocks, "Blocks moved.";
        pub(super) counter bytes, "Bytes moved.";
        pub(super) counter copies, "Blocks among them that came from another rank of this service.";
        pub(super) value copied_bytes: u64, "Bytes of the copies.";
        pub(super) counter messages, "Active messages sent.";
        pub(super) value call_latency: Histogram, "Time from a rank's arrival to its completion.";
    }
}

/// A time, in microseconds since the start of the data path. The difference of two takes one instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(u64);

impl Moment {
    /// Now.
    pub(super) fn now(start: Instant) -> Self {
        Self(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

impl Moved {
    /// A rank's call is complete.
    #[inline]
    pub(super) fn completed(&mut self, now: Moment, since: Moment) {
        self.call_latency.record_us(now.0.saturating_sub(since.0));
    }

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

xgvmi_daemon::status! {
    /// Lengths of a job's queues.
    #[derive(Copy, Default)]
    pub(super) struct Queues("") {
        pub(super) gauge reads: usize, "RDMA READs.";
        pub(super) gauge messages: usize, "Messages.";
        pub(super) gauge waiting_reads: usize, "Reads that wait for a credit.";
        pub(super) gauge calls: usize, "Calls.";
        pub(super) gauge parked_blocks: usize, "Blocks whose destination has not arrived.";
        pub(super) gauge offers: usize, "Offers that wait for an answer.";
    }
}
