//! The report of a run.

use crate::algorithm::{EVENT_TYPES, EventType};
use crate::counts::{Counts, Reason};
use crate::packet::Kind;
use crate::sim::{Flow, Lab, NEVER, State};
use crate::units::PS_PER_NS;
use serde::Serialize;

/// Flows that a report lists one by one.
const FLOWS_LISTED: usize = 4_096;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

/// Bytes in ps, as Gb/s.
fn gbps(bytes: u64, ps: u64) -> f64 {
    ratio(bytes.saturating_mul(8_000), ps)
}

fn total(kinds: &[u64]) -> u64 {
    kinds.iter().sum()
}

pub(crate) fn report(lab: &Lab) -> Report {
    let counts = &lab.counts;
    let span = lab.now_ps().saturating_sub(lab.measured_from_ps);
    let (utilisation, queue) = busiest(lab, span);
    let packets = Packets {
        sent: total(&counts.sent),
        delivered: total(&counts.delivered),
        dropped: counts.dropped.iter().map(|kind| total(kind)).sum(),
        in_flight: u64::from(lab.packets.live()),
    };
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    // Delivered probes live on as responses, which count as sent.
    let unaccounted = signed(packets.sent)
        - signed(packets.delivered)
        - signed(packets.dropped)
        - signed(packets.in_flight);
    let handled = total(&counts.handled);
    Report {
        algorithm: lab.name.clone(),
        flows: lab.flows.len(),
        time_ns: lab.now_ps() / PS_PER_NS,
        events: counts.calendar,
        transmissions: counts.transmissions,
        trace_hash: format!("{:016x}", lab.trace.hash()),
        trace_omitted: lab.trace.omitted(),
        packets,
        unaccounted,
        drops: Drops {
            buffer: counts.dropped_for(Reason::Buffer),
            headroom: counts.dropped_for(Reason::Headroom),
            link_down: counts.dropped_for(Reason::LinkDown),
            injected: counts.dropped_for(Reason::Injected),
            limit: counts.dropped_for(Reason::Limit),
        },
        utilisation,
        goodput_gbps: gbps(lab.flows.iter().map(measured).sum(), span),
        queue_bytes: queue,
        buffer_peak_bytes: lab
            .buffers
            .iter()
            .map(|buffer| buffer.peak)
            .max()
            .unwrap_or(0),
        jain: fairness(lab),
        slowdown: slowdown(&lab.flows),
        control: EVENT_TYPES
            .iter()
            .map(|kind| control(counts, *kind))
            .collect(),
        instructions_per_event: (counts.instructions > 0)
            .then(|| ratio(counts.instructions, handled)),
        counters: counters(lab),
        per_flow: lab
            .flows
            .iter()
            .take(FLOWS_LISTED)
            .map(|flow| per_flow(flow, span))
            .collect(),
        samples: lab.samples.clone(),
    }
}

fn control(counts: &Counts, kind: EventType) -> Control {
    let name = match kind {
        EventType::Cnp => "cnp",
        EventType::Tx => "tx",
        EventType::Ack => "ack",
        EventType::Nack => "nack",
        EventType::Rtt => "rtt",
    };
    Control {
        kind: name,
        handled: counts.handled[kind.index()],
        merged: counts.merged[kind.index()],
        lost: counts.lost[kind.index()],
    }
}

fn counters(lab: &Lab) -> Counters {
    let counts = &lab.counts;
    Counters {
        accepted: counts.accepted,
        duplicates: counts.duplicates,
        beyond_gap: counts.beyond_gap,
        marked: counts.marked,
        cnps: counts.delivered[Kind::Cnp as usize],
        pauses: counts.pauses,
        timeouts: counts.timeouts,
        go_backs: counts.go_backs,
        stale_responses: counts.stale_responses,
        probes_refused: counts.probes_refused,
        overloaded: counts.overloaded,
        events_peak: counts.events_peak,
        failures: counts.failures,
        packets_peak: lab.packets.peak(),
    }
}

/// Payload delivered in the measured part.
fn measured(flow: &Flow) -> u64 {
    flow.delivered - flow.delivered_before
}

fn per_flow(flow: &Flow, span: u64) -> FlowReport {
    let is_finished = flow.finish_ps != NEVER;
    FlowReport {
        from: flow.from,
        to: flow.to,
        is_done: flow.state == State::Done,
        has_failed: flow.state == State::Failed,
        delivered_bytes: flow.delivered,
        gbps: gbps(measured(flow), span),
        duration_ps: is_finished.then(|| flow.finish_ps - flow.start_ps),
        ideal_ps: (flow.bytes > 0).then_some(flow.ideal_ps),
        resent: flow.resent,
        timeouts: flow.timeouts,
        probes: flow.probes,
        cnps: flow.cnps,
        rate_zero: flow.rate_zero,
        rate_above: flow.rate_above,
        rate: flow.rate,
    }
}

/// The port of a switch that carried the largest part of the payload that it could: that part, and its queue.
fn busiest(lab: &Lab, span: u64) -> (f64, Queue) {
    let mut carried = vec![0; lab.ports.len()];
    for flow in &lab.flows {
        for port in &lab.paths[flow.forward as usize..][..flow.links as usize] {
            carried[*port as usize] += measured(flow);
        }
    }
    let mtu = u64::from(lab.settings.mtu);
    let wire = mtu + u64::from(lab.settings.header);
    let mut best = (0.0, 0, None);
    for (port, bytes) in lab.ports.iter().zip(carried) {
        // A link carries this payload at most.
        let most = u128::from(port.mbps) * u128::from(span) * u128::from(mtu)
            / (u128::from(wire) * 8_000_000);
        let part = ratio(bytes, u64::try_from(most).unwrap_or(u64::MAX));
        let is_switch = port.queue.is_recorded();
        if is_switch && (part, port.queue.mean()) >= (best.0, best.1) {
            best = (part, port.queue.mean(), Some(port));
        }
    }
    let (part, mean, port) = best;
    let queue = Queue {
        mean,
        p99: port.map_or(0, |port| port.queue.percentile(99)),
        peak: port.map_or(0, |port| port.queue.peak()),
    };
    (part, queue)
}

/// Of the flows that ran for the whole measured part; without such flows, of those that ended.
fn fairness(lab: &Lab) -> Option<f64> {
    let whole =
        |flow: &&Flow| flow.start_ps <= lab.measured_from_ps && flow.finish_ps >= lab.now_ps();
    let rates: Vec<f64> = lab
        .flows
        .iter()
        .filter(whole)
        .map(|flow| ratio(measured(flow), 1))
        .collect();
    if rates.len() > 1 {
        return jain(&rates);
    }
    let ended = lab.flows.iter().filter(|flow| flow.finish_ps != NEVER);
    let rates: Vec<f64> = ended
        .map(|flow| ratio(flow.bytes, flow.finish_ps - flow.start_ps))
        .collect();
    if rates.len() > 1 { jain(&rates) } else { None }
}

fn slowdown(flows: &[Flow]) -> Option<Slowdown> {
    let ended = flows
        .iter()
        .filter(|flow| flow.finish_ps != NEVER && flow.ideal_ps > 0);
    let mut all: Vec<f64> = ended
        .map(|flow| ratio(flow.finish_ps - flow.start_ps, flow.ideal_ps))
        .collect();
    all.sort_by(f64::total_cmp);
    (!all.is_empty()).then(|| Slowdown {
        p50: percentile(&all, 50),
        p95: percentile(&all, 95),
        p99: percentile(&all, 99),
    })
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
