//! The report of a run.

use serde::Serialize;

/// What a run measured. Rates are of the measured part, counters of the whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Number of flows.
    pub flows: usize,
    /// End of the run.
    pub time_ns: u64,
    /// Events of the simulator.
    pub events: u64,
    /// Packets times links.
    pub transmissions: u64,
    /// Hash of all events. Two runs with one seed have the same.
    pub trace_hash: String,
    /// Records that the trace does not keep.
    pub trace_omitted: u64,
    /// All packets.
    pub packets: Packets,
    /// Packets sent that are neither delivered, dropped nor in flight. 0, or the lab is wrong.
    pub unaccounted: i64,
    /// Dropped packets by reason.
    pub drops: Drops,
    /// Payload delivered in order, as a part of what the busiest link could carry.
    pub utilisation: f64,
    /// The same in Gb/s, over all flows.
    pub goodput_gbps: f64,
    /// Queue of the busiest port of a switch.
    pub queue_bytes: Queue,
    /// Most bytes in the shared buffer of a switch.
    pub buffer_peak_bytes: u64,
    /// Jain's index of the flows' rates: 1 is fair. None if fewer than two flows ran for the whole measured part or ended.
    pub jain: Option<f64>,
    /// Duration of flows with an end, as a multiple of the duration on an empty network.
    pub slowdown: Option<Slowdown>,
    /// Events of congestion control, by type.
    pub control: Vec<Control>,
    /// Mean instructions per event, if the algorithm counts them.
    pub instructions_per_event: Option<f64>,
    /// Other counters.
    pub counters: Counters,
    /// The first flows.
    pub per_flow: Vec<FlowReport>,
    /// Rates and queues over time, if the scenario asks for them.
    pub samples: Vec<Sample>,
    /// The first processes that failed, and why.
    pub process_failures: Vec<ProcessFailure>,
}

/// A process that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessFailure {
    /// When.
    pub time_ns: u64,
    /// Its host.
    pub host: u32,
    /// Its number.
    pub process: u32,
    /// Why.
    pub reason: String,
}

/// All packets, by fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Created by hosts and switches.
    pub sent: u64,
    /// Arrived at their host or neighbour.
    pub delivered: u64,
    /// Lost.
    pub dropped: u64,
    /// In a queue or on a link at the end of the run.
    pub in_flight: u64,
}

/// Dropped packets by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// A queue was full.
    pub buffer: u64,
    /// The headroom of a lossless priority was full.
    pub headroom: u64,
    /// A link was down.
    pub link_down: u64,
    /// The scenario loses them.
    pub injected: u64,
    /// Too many packets were in flight.
    pub limit: u64,
}

/// Bytes in a queue over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Mean.
    pub mean: u64,
    /// Not exceeded for 99 % of the time.
    pub p99: u64,
    /// Largest.
    pub peak: u64,
}

/// Slowdown of flows: percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slowdown {
    /// Median.
    pub p50: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
}

/// Events of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Control {
    /// The type.
    pub kind: &'static str,
    /// Calls of the algorithm.
    pub handled: u64,
    /// Merged into an event that waited.
    pub merged: u64,
    /// Lost.
    pub lost: u64,
}

/// Other counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Data packets in order, once per flow.
    pub accepted: u64,
    /// Data packets that the receiver knew.
    pub duplicates: u64,
    /// Data packets beyond a gap.
    pub beyond_gap: u64,
    /// Packets that switches marked.
    pub marked: u64,
    /// CNPs that arrived.
    pub cnps: u64,
    /// Pauses by PFC.
    pub pauses: u64,
    /// Time-outs of senders.
    pub timeouts: u64,
    /// NACKs that a sender obeyed.
    pub go_backs: u64,
    /// Responses to forgotten probes.
    pub stale_responses: u64,
    /// Requests for a probe while one was on its way.
    pub probes_refused: u64,
    /// Events that were handled with the overload bit.
    pub overloaded: u64,
    /// Most events in the queue of a host.
    pub events_peak: u32,
    /// Failed processes.
    pub failures: u64,
    /// Most packets in flight.
    pub packets_peak: u32,
}

/// One flow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlowReport {
    /// Sender.
    pub from: u32,
    /// Receiver.
    pub to: u32,
    /// Whether it ended: all bytes were delivered and acknowledged.
    pub is_done: bool,
    /// Whether it failed after too many time-outs.
    pub has_failed: bool,
    /// Payload delivered in order.
    pub delivered_bytes: u64,
    /// Mean rate of the payload in the measured part.
    pub gbps: f64,
    /// From its start to the arrival of its last byte.
    pub duration_ps: Option<u64>,
    /// The same on an empty network.
    pub ideal_ps: Option<u64>,
    /// Packets sent again.
    pub resent: u32,
    /// Time-outs.
    pub timeouts: u32,
    /// Probes sent.
    pub probes: u32,
    /// CNPs that arrived.
    pub cnps: u32,
    /// Decisions with rate 0, and with a rate above the maximum.
    pub rate_zero: u32,
    /// See before.
    pub rate_above: u32,
    /// Rate at the end, as a fraction of [`RATE_MAX`](crate::RATE_MAX).
    pub rate: u32,
}

/// Rates and queues at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// When.
    pub time_ns: u64,
    /// Largest queue of a port of a switch.
    pub queue_bytes: u64,
    /// Rates of the first flows.
    pub rates: Vec<u32>,
    /// Payload that the first flows have delivered.
    pub delivered: Vec<u64>,
}

/// Jain's index of fairness. None without rates.
#[must_use]
pub fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    let number = f64::from(u32::try_from(rates.len()).unwrap_or(u32::MAX));
    (squares > 0.0).then(|| sum * sum / (number * squares))
}

/// The value at a percentage of sorted values: the nearest rank.
#[must_use]
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_over_n_for_a_single_winner() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[7.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[1.0, 3.0]), Some(0.8));
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 100.0);
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&[4.0], 50), 4.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }
}
