//! The trace of a run: what happened to flows and ports, and a hash of every event.

use serde::Serialize;

/// What a record says. `value` is described with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// Flow: it starts. Value: its bytes.
    Start,
    /// Flow: its last byte was delivered. Value: its duration in ns.
    Finish,
    /// Flow: too many time-outs without progress. Value: the number of the first packet that was not acknowledged.
    Fail,
    /// Flow: a new rate. Value: the rate.
    Rate,
    /// Flow: the algorithm returned rate 0, and the limiter keeps its lowest one. Value: that rate.
    RateZero,
    /// Flow: the algorithm returned a rate above the port's speed, and the limiter keeps the speed. Value: the rate.
    RateAboveMaximum,
    /// Flow: the algorithm has not asked for a probe. Value: events that it has handled.
    NoProbe,
    /// Flow: it has slot 15, because rdma_cm has not connected it. The algorithm is not called. Value: 15.
    InternalSlot,
    /// Flow: a packet was lost. Value: its sequence number.
    Drop,
    /// Flow: an event did not reach the algorithm. Value: the type of the event.
    EventLost,
    /// Flow: a time-out of the sender. Value: the sequence number to which it goes back.
    Timeout,
    /// Flow: the sender goes back after a NACK. Value: the sequence number.
    GoBack,
    /// Flow: no progress, since its port is down. Value: packets delivered.
    StarvedPortDown,
    /// Flow: no progress, since PFC pauses its port. Value: packets delivered.
    StarvedPaused,
    /// Flow: no progress, since its rate is low. Value: the rate.
    StarvedRate,
    /// Flow: no progress, since packets were lost and the sender waits. Value: packets delivered.
    StarvedLoss,
    /// Flow: no progress, since its packets wait in queues. Value: packets delivered.
    StarvedQueue,
    /// Port: it pauses its neighbour. Value: the priority.
    Pause,
    /// Port: it ends the pause. Value: the priority.
    Resume,
    /// Port: its link is down. Value: the number of packets in its queues, which are lost.
    PortDown,
    /// Port: its link is up. Value: Mb/s.
    PortUp,
    /// Port: its link has a new speed. Value: Mb/s.
    PortSpeed,
    /// Host: the active process has failed. Value: the number of the process.
    ProcessFailed,
    /// Host: a standby is active. Value: the number of the process.
    ProcessActive,
    /// Host: no process is left. The internal algorithm controls the flows. Value: 15.
    InternalActive,
}

/// One line of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Record {
    /// When.
    pub time_ps: u64,
    /// What.
    pub kind: RecordKind,
    /// Number of the flow, port or host.
    pub subject: u32,
    /// See the kind.
    pub value: u64,
}

/// The records of a run, up to a limit, and the hash of all its events.
#[derive(Debug)]
pub struct Trace {
    records: Vec<Record>,
    limit: usize,
    omitted: u64,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            records: Vec::new(),
            limit: limit as usize,
            omitted: 0,
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// The first records, as many as the limit allows.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Records beyond the limit.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Hash of all events and records, in their order.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    pub(crate) fn record(&mut self, time_ps: u64, kind: RecordKind, subject: u32, value: u64) {
        self.mix(value << 8 | kind as u64);
        if self.records.len() == self.limit {
            self.omitted += 1;
            return;
        }
        self.records.push(Record {
            time_ps,
            kind,
            subject,
            value,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_is_bounded_and_its_hash_is_not() {
        let mut short = Trace::new(2);
        let mut long = Trace::new(10);
        for value in 0..5 {
            short.record(1, RecordKind::Rate, 0, value);
            long.record(1, RecordKind::Rate, 0, value);
        }
        assert_eq!((short.records().len(), short.omitted()), (2, 3));
        assert_eq!((long.records().len(), long.omitted()), (5, 0));
        assert_eq!(short.hash(), long.hash());
        let before = long.hash();
        long.record(1, RecordKind::Drop, 0, 4);
        assert_ne!(long.hash(), before);
    }
}
