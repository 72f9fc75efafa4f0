//! The input of a run: topology, switches, hosts, traffic, faults and the device's unknown properties, as a TOML file.

mod guesses;
mod topology;
mod traffic;

pub use guesses::{GUESSES, Guesses};
pub(crate) use topology::Network;
pub use topology::{LinkSpec, Topology};
pub(crate) use traffic::FlowSpec;
pub use traffic::{Class, Distribution, Row, Traffic, parse_rows};

use crate::native;
use crate::packet::Kind;
use crate::refusal::{Refusal, limits, refuse};
use serde::Deserialize;

/// A run. Each field and table that it does not know is refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of all random choices. Default: 1.
    #[serde(default = "one")]
    pub seed: u64,
    /// End of the run.
    pub duration_us: u64,
    /// Start of the measured part. Default: 0.
    #[serde(default)]
    pub warmup_us: u64,
    /// Period of the recorded rates and queues. Default: 0, none are recorded.
    #[serde(default)]
    pub sample_us: u64,
    /// Hosts, switches and links.
    pub topology: Topology,
    /// Properties of all switches.
    #[serde(default)]
    pub switch: Switch,
    /// Properties of all hosts.
    #[serde(default)]
    pub host: Host,
    /// Properties of the device that no document states.
    #[serde(default)]
    pub guesses: Guesses,
    /// Bounds of memory.
    #[serde(default)]
    pub limits: Limits,
    /// The algorithm of all hosts.
    #[serde(default)]
    pub algorithm: Choice,
    /// Flows.
    pub traffic: Vec<Traffic>,
    /// Changes of links during the run.
    #[serde(default)]
    pub fault: Vec<Fault>,
    /// Packets and events that are lost.
    #[serde(default)]
    pub loss: Vec<Loss>,
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// Reads a scenario. [`check`](crate::check()) tells whether the lab accepts it.
    ///
    /// # Errors
    /// The text is no scenario.
    pub fn from_toml(text: &str) -> Result<Self, Refusal> {
        toml::from_str(text).or_else(|error| {
            let before = error
                .span()
                .map_or("", |span| &text[..span.start.min(text.len())]);
            let line = 1 + before.matches('\n').count();
            let message = error.message().replace('\n', " ");
            refuse(format!("line {line} of the scenario: {message}"))
        })
    }
}

/// Name and parameters of the algorithm.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Choice {
    /// One of [`native::NAMES`]. Default: none.
    pub name: String,
    /// Processes of each host: one is active, the others are standbys. Default: 1.
    pub processes: u32,
    /// Parameters of the algorithms of the lab.
    pub parameters: native::Parameters,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            name: "none".to_owned(),
            processes: 1,
            parameters: native::Parameters::default(),
        }
    }
}

/// Properties of all switches.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// Time from the arrival of a packet to its place in the egress queue. Default: 300.
    pub latency_ns: u64,
    /// Shared buffer. Default: 32768.
    pub buffer_kib: u64,
    /// Queue below which no packet is marked (K_min). Default: 400.
    pub kmin_kib: u64,
    /// Queue above which each packet is marked (K_max). Default: 1600.
    pub kmax_kib: u64,
    /// Probability of a mark just below K_max (P_max). Default: 0.2.
    pub pmax: f64,
    /// Whether the switches mark by their queues. Default: true.
    pub ecn: bool,
    /// Probability of a mark below K_min, and without `ecn`, as rules of a switch set it for tests. Default: 0.
    pub mark_all: f64,
    /// Lossless priorities. Default: 3.
    pub pfc_priorities: Vec<u8>,
    /// A port pauses its neighbour when one priority fills more than this part of the free buffer. Default: 0.125.
    pub pfc_alpha: f64,
    /// The same as a fixed number of KiB, instead of a part. Default: 0, the part counts.
    pub pfc_xoff_kib: u64,
    /// The pause ends when the buffer is this much below its threshold. Default: 8.
    pub pfc_xon_kib: u64,
    /// Reserve of each port and lossless priority for packets that were on their way. Default: what the link needs.
    pub headroom_bytes: Option<u64>,
    /// A queue of other priorities holds at most this part of the free buffer. Default: 1.
    pub drop_alpha: f64,
    /// Weights of the eight priorities: those above 0 share what the others leave, by bytes. Default: none, and the higher
    /// priority comes first.
    pub weights: Option<[u8; 8]>,
    /// Time over which a link's utilisation is averaged for IFA probes: the base round trip. Default: 10000.
    pub telemetry_window_ns: u64,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            latency_ns: 300,
            buffer_kib: 32_768,
            kmin_kib: 400,
            kmax_kib: 1_600,
            pmax: 0.2,
            ecn: true,
            mark_all: 0.0,
            pfc_priorities: vec![3],
            pfc_alpha: 0.125,
            pfc_xoff_kib: 0,
            pfc_xon_kib: 8,
            headroom_bytes: None,
            drop_alpha: 1.0,
            weights: None,
            telemetry_window_ns: 10_000,
        }
    }
}

/// Form of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A management datagram: times only.
    Ccmad,
    /// IFA 1.0: a data packet's format with a marker; the switches append what they know.
    Ifa1,
    /// IFA 2.0: the same with a header of its own.
    Ifa2,
}

/// Properties of all hosts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Payload of a full packet. Default: 4096.
    pub mtu: u16,
    /// Bytes around the payload on the wire: preamble and gap 20, Ethernet 18, IP 20, UDP 8, BTH 12, ICRC 4. Default: 82.
    pub header_bytes: u16,
    /// Bytes of an ACK, NACK, CNP or pause frame on the wire. Default: 84, the smallest frame.
    pub control_bytes: u16,
    /// Packets per acknowledgement. Default: 4.
    pub ack_every: u32,
    /// Time without progress after which a sender goes back. Default: 8000.
    pub timeout_us: u64,
    /// Time-outs without progress after which a flow fails. Default: 7.
    pub retries_max: u32,
    /// Shortest time between two CNPs of a flow. Default: 50, as in the paper of DCQCN.
    pub cnp_interval_us: u64,
    /// Priority of ACK and NACK. Default: 6.
    pub ack_priority: u8,
    /// Priority of CNPs. Default: 6.
    pub cnp_priority: u8,
    /// Form of the probes. Default: ccmad.
    pub probe: Probe,
    /// Flows without progress for this long are recorded, with the reason. Default: 1000.
    pub starvation_us: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            mtu: 4096,
            header_bytes: 82,
            control_bytes: 84,
            ack_every: 4,
            timeout_us: 8_000,
            retries_max: 7,
            cnp_interval_us: 50,
            ack_priority: 6,
            cnp_priority: 6,
            probe: Probe::Ccmad,
            starvation_us: 1_000,
        }
    }
}

/// Bounds of memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Packets in flight. Default: 1048576.
    pub packets: u32,
    /// Records that the trace keeps; its hash covers all. Default: 100000.
    pub trace: u32,
    /// Flows. Default: 65536.
    pub flows: u32,
    /// Samples of rates and queues. Default: 10000.
    pub samples: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packets: 1 << 20,
            trace: 100_000,
            flows: 1 << 16,
            samples: 10_000,
        }
    }
}

/// A change of a link during the run. Links are counted from 0: those of the hosts first, in the order of the hosts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When.
    pub at_us: u64,
    /// Number of the link.
    pub link: u32,
    /// What happens.
    pub change: Change,
    /// The new speed.
    #[serde(default)]
    pub gbps: u64,
}

/// What happens to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It loses all packets.
    Down,
    /// It works again.
    Up,
    /// It has another speed.
    Speed,
}

/// What is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    /// Data packets.
    Data,
    /// Acknowledgements.
    Ack,
    /// Reports of gaps.
    Nack,
    /// Congestion notifications.
    Cnp,
    /// Probes.
    Probe,
    /// Responses to probes.
    Response,
    /// Events on their way to the algorithm.
    Event,
}

impl Lost {
    /// The kind of packet; None for events.
    pub(crate) fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Data => Kind::Data,
            Self::Ack => Kind::Ack,
            Self::Nack => Kind::Nack,
            Self::Cnp => Kind::Cnp,
            Self::Probe => Kind::Probe,
            Self::Response => Kind::Response,
            Self::Event => return None,
        })
    }
}

/// Loss on the last link of a path, by probability.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// What is lost.
    pub kind: Lost,
    /// Probability of each.
    pub probability: f64,
    /// Start. Default: 0.
    #[serde(default)]
    pub from_us: u64,
    /// End. Default: the end of the run.
    #[serde(default = "always")]
    pub to_us: u64,
}

fn always() -> u64 {
    limits::DURATION_US_MAX
}
