//! The packet-level lab as the network of the model: a fat tree with queues, pauses and congestion control, in place of a
//! fabric that never blocks.

use super::config::Config;
use pcc_lab::{Lab, Refusal, Scenario, limits};
use std::collections::VecDeque;
use std::fmt::Write as _;

/// What controls the rates of the queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Nothing; the switches pause senders.
    None,
    /// DCQCN of the lab.
    Dcqcn,
    /// Swift of the lab.
    Swift,
}

impl Control {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Dcqcn, Self::Swift];

    /// Its name in the lab.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Dcqcn => "dcqcn",
            Self::Swift => "swift",
        }
    }
}

/// Longest path of a fat tree in links.
const LINKS: u64 = 6;

/// End of a run in the lab; a call takes milliseconds.
const LIMIT_US: u64 = 10_000_000;

/// A queue pair in each direction between any two service processes of different nodes. `T`: what the caller wants back when
/// a message has arrived.
#[derive(Debug)]
pub(super) struct Fabric<T> {
    lab: Lab,
    nodes: u32,
    sps: u32,
    block_bytes: u64,
    waiting: Vec<VecDeque<T>>,
    outstanding: u64,
}

impl<T> Fabric<T> {
    /// A non-blocking fat tree for the nodes of the configuration. Its longest path has the configuration's latency.
    ///
    /// # Errors
    /// The lab's limits.
    pub(super) fn new(config: &Config, control: Control) -> Result<Self, Refusal> {
        let pairs = u64::from(config.nodes)
            * u64::from(config.nodes - 1)
            * u64::from(config.sps)
            * u64::from(config.sps);
        limits::at_most(
            "queue pairs of service processes",
            pairs,
            u64::from(limits::FLOWS_MAX),
        )?;
        let mut ports = 2;
        while ports * ports * ports / 4 < config.nodes {
            ports += 2;
        }
        let delay = config.latency_ns / LINKS;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the configuration's limits"
        )]
        let gbps = config.link_gbps as u64;
        let mut text = format!(
            "duration_us = {LIMIT_US}\nalgorithm.name = '{}'\nlimits.trace = 0\nswitch.latency_ns = 0\nhost.header_bytes = 26
topology = {{ shape = 'fat_tree', k = {ports}, gbps = {gbps}, delay_ns = {delay} }}\n[[traffic]]\nkind = 'connections'\npairs = [",
            control.name()
        );
        let (nodes, sps) = (config.nodes, config.sps);
        for from in 0..nodes {
            for _ in 0..sps {
                for away in 1..nodes {
                    for _ in 0..sps {
                        let _ = write!(text, "[{from},{}],", (from + away) % nodes);
                    }
                }
            }
        }
        text.push(']');
        let lab = Lab::new(&Scenario::from_toml(&text)?)?;
        Ok(Self {
            lab,
            nodes,
            sps,
            block_bytes: config.block_bytes,
            waiting: (0..pairs).map(|_| VecDeque::new()).collect(),
            outstanding: 0,
        })
    }

    /// Sends a block from a service process of one node to that of another. The lab's time is at `at_ps` or before.
    pub(super) fn send(&mut self, from: (u32, u32), to: (u32, u32), what: T) {
        let away = (to.0 + self.nodes - from.0 - 1) % self.nodes;
        let sender = from.0 * self.sps + from.1;
        let pair = (sender * (self.nodes - 1) + away) * self.sps + to.1;
        let is_sent = self.lab.post_message(pair, self.block_bytes);
        assert!(is_sent, "the lab has a queue pair {pair} with free numbers");
        self.waiting[pair as usize].push_back(what);
        self.outstanding += 1;
    }

    /// Runs up to this time, without one up to the next arrival, or to the first arrival: when, and what has arrived.
    pub(super) fn advance(&mut self, until_ps: Option<u64>) -> Option<(u64, T)> {
        if self.outstanding == 0 && until_ps.is_none() {
            return None;
        }
        let arrival = self.lab.advance(until_ps.unwrap_or(u64::MAX))?;
        self.outstanding -= 1;
        let what = self.waiting[arrival.flow as usize].pop_front()?;
        Some((arrival.time_ps, what))
    }
}
