//! From the state of a run to its report.

use super::{Flow, Lab, State};
use crate::algorithm::{EVENT_TYPES, EventType};
use crate::counts::{Counts, Reason};
use crate::packet::Kind;
use crate::report::{
    Control, Counters, Drops, FlowReport, Packets, Queue, Report, Slowdown, jain, percentile,
};
use crate::units::{NEVER, PS_PER_NS};

/// Flows that a report lists one by one.
const FLOWS_LISTED: usize = 4_096;

impl Lab {
    /// The report so far.
    pub fn report(&mut self) -> Report {
        let now = self.now_ps;
        for port in &mut self.ports {
            port.queue.add(now, port.bytes);
        }
        report(self)
    }
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

/// The report so far.
fn report(lab: &Lab) -> Report {
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
        counters: Counters {
            cnps: counts.delivered[Kind::Cnp as usize],
            packets_peak: lab.packets.peak(),
            ..counts.other
        },
        per_flow: lab
            .flows
            .iter()
            .take(FLOWS_LISTED)
            .map(|flow| per_flow(flow, span))
            .collect(),
        samples: lab.samples.clone(),
        process_failures: lab.failures.clone(),
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
    let mtu = u64::from(lab.settings.host.mtu);
    let wire = mtu + u64::from(lab.settings.host.header_bytes);
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

/// Of the flows that ran for the whole measured part; without such flows, of those that ended, if all are alike.
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
    if lab
        .flows
        .iter()
        .any(|flow| flow.bytes != lab.flows[0].bytes)
    {
        return None;
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
