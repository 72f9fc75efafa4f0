//! The packet-level lab as the network of the model: a fat tree with queues, pauses and congestion control, in place of a
//! fabric that never blocks.

use super::config::Config;
use pcc_lab::scenario::{Class, Row, Traffic};
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

/// A non-blocking fat tree for the nodes of the configuration, whose longest path has the configuration's latency.
fn network(config: &Config, control: Control) -> String {
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
    format!(
        "duration_us = {LIMIT_US}\nalgorithm.name = '{}'\nlimits.trace = 0\nswitch.latency_ns = 0\nhost.header_bytes = 26
topology = {{ shape = 'fat_tree', k = {ports}, gbps = {gbps}, delay_ns = {delay} }}\n",
        control.name()
    )
}

/// Time of recorded traffic on the fat tree, in microseconds: from the first start to the last acknowledgement.
///
/// # Errors
/// The lab's limits.
pub(super) fn replay(config: &Config, control: Control, rows: &[Row]) -> Result<f64, Refusal> {
    let text = format!("{}traffic = []\n", network(config, control));
    let mut scenario = Scenario::from_toml(&text)?;
    scenario.traffic.push(Traffic::Replay {
        rows: rows.to_vec(),
        class: Class::default(),
    });
    let report = Lab::new(&scenario)?.run();
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    let us = report.time_ns as f64 / 1e3;
    Ok(us)
}

/// The same where only the receivers' ports are a limit.
#[must_use]
pub(super) fn replay_unblocked(config: &Config, rows: &[Row]) -> f64 {
    let mut rows = rows.to_vec();
    rows.sort_unstable_by_key(|row| row.0);
    let mut ends = std::collections::BTreeMap::new();
    for Row(start_ns, _, to, bytes) in rows {
        #[expect(clippy::cast_precision_loss, reason = "times and sizes of a call")]
        let (start_ns, bits) = (start_ns as f64, (bytes * 8) as f64);
        let end: &mut f64 = ends.entry(to).or_default();
        *end = end.max(start_ns) + bits / config.link_gbps;
    }
    let last = ends.into_values().fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a latency")]
    let latency = config.latency_ns as f64;
    (last + latency) / 1e3
}

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
    /// The network of the configuration.
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
        let mut text = format!(
            "{}[[traffic]]\nkind = 'connections'\npairs = [",
            network(config, control)
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
