//! Flows and counters of congestion control: `bf-emu dpa flows`.

use std::path::Path;

use serde::Serialize;

use super::stats::Counts;
use crate::engine;
use crate::fabric::congestion::{Flow, GBPS, RATE_MAX};
use crate::fabric::{FabricError, QPN_BASE};

/// Slot of flows that the connection manager has connected, and of all others.
const SLOT: u8 = 0;
const SLOT_INTERNAL: u8 = 15;

/// What congestion control knows.
#[derive(Clone, Debug, Serialize)]
pub struct CongestionReport {
    /// Cards, by their first functions.
    pub cards: Vec<CardReport>,
    /// Flows that were sent under control.
    pub flows: Vec<FlowReport>,
}

/// A card.
#[derive(Clone, Debug, Serialize)]
pub struct CardReport {
    /// Its first function.
    pub function: String,
    /// A program is active.
    pub is_controlled: bool,
    /// Diagnostic counters.
    pub counters: Counts,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    /// The sender's function.
    pub function: String,
    /// Its queue pair.
    pub qpn: u32,
    /// Slot of the algorithm: 0 or 15.
    pub slot: u8,
    /// Rate of the limiter, a part of 2^20 of the port, and in Gb/s.
    pub rate: u32,
    /// See before.
    pub gbps: f64,
    /// Messages.
    pub messages: u64,
    /// Bytes of data.
    pub payload_bytes: u64,
    /// Bytes with headers.
    pub wire_bytes: u64,
    /// Time that the limiter has given to these messages, of the device.
    pub paced_ns: u64,
    /// Time that the sender has lost because its messages came late, of the device.
    pub late_ns: u64,
    /// Probes that the program has asked for.
    pub probes: u64,
    /// Events that the program has handled.
    pub events: u64,
    /// Events that were lost.
    pub lost_events: u64,
    /// Why no program is called, or what is wrong with its decisions, or nothing.
    pub note: &'static str,
}

impl FlowReport {
    fn new(function: &str, qpn: u32, flow: &Flow) -> Self {
        let rate = flow.rate();
        #[expect(clippy::cast_precision_loss, reason = "a speed")]
        let gbps = f64::from(rate) * GBPS as f64 / f64::from(RATE_MAX);
        Self {
            function: function.to_owned(),
            qpn,
            slot: if flow.by_cm { SLOT } else { SLOT_INTERNAL },
            rate,
            gbps,
            messages: flow.messages,
            payload_bytes: flow.payload,
            wire_bytes: flow.wire,
            paced_ns: flow.paced_ns,
            late_ns: flow.late_ns,
            probes: flow.probes,
            events: flow.events,
            lost_events: flow.lost,
            note: flow.fault(),
        }
    }
}

/// Reads the state of congestion control of the device in a directory.
///
/// # Errors
/// No device exists there.
pub fn flows(state: &Path) -> Result<CongestionReport, FabricError> {
    let fabric = engine::open(state)?;
    let mut locked = fabric.lock();
    let mut report = CongestionReport {
        cards: Vec::new(),
        flows: Vec::new(),
    };
    for (function, identity) in fabric.identities().iter().enumerate() {
        if fabric.card(function) == function {
            let counters = fabric.diagnostics(function);
            report.cards.push(CardReport {
                function: identity.name().to_owned(),
                is_controlled: fabric.control(function).is_some(),
                counters: counters.map(|(what, count)| (what.name(), count)).collect(),
            });
        }
        let tables = locked.peek(function);
        let slots: Vec<u32> = tables.qps.iter().map(|(slot, ..)| slot).collect();
        for qpn in slots.into_iter().map(|slot| slot + QPN_BASE) {
            if let Some(flow) = locked.flow(function, qpn).filter(|flow| flow.messages > 0) {
                let flow = FlowReport::new(identity.name(), qpn, flow);
                report.flows.push(flow);
            }
        }
    }
    Ok(report)
}
