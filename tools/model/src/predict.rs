//! From an input to a number: which nodes are simulated, how many calls, and what they come to.

use super::config::{Config, ConfigError};
use super::costs::CostTable;
use super::engine::{Call, Engine};
use super::fabric::{Control, Fabric};
use super::keys::KeyWork;

/// How much of the machine is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every node and every block.
    Full,
    /// One node and every block that it sends or receives: all nodes are alike, so this loses nothing where there is
    /// no skew. With skew, all nodes have the same.
    OneNode,
    /// One node, in rings of this many nodes and half of it; the time per further node is the difference. Keys and
    /// HOST_ARRIVE have the size that the whole machine gives them. Where the machine is not larger, this is `OneNode`.
    /// Nodes of many ranks make smaller rings: of at most 2,048 ranks, and at least four nodes.
    Ring(u32),
}

impl Extent {
    /// What sweeps use: beyond it the time per node does not change any more (a test compares).
    pub const SWEEP: Self = Self::Ring(64);
}

/// Ranks of a ring beyond which the time per node does not change any more, and least nodes of a ring.
const RING_RANKS: u32 = 2048;
const RING_LEAST: u32 = 4;

/// What a call takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Mean over ranks and calls after the first, in microseconds: what the benchmark's "Avg Latency" is.
    pub us: f64,
    /// The first call in a new job, likewise.
    pub first_us: f64,
    /// Until the last rank has returned, in microseconds.
    pub last_us: f64,
    /// Bytes that a node's SPs read, on the nodes and between them, in one call.
    pub node_bytes: u64,
    /// Share of the time that the busiest port was sending.
    pub port_share: f64,
    /// Share of the time that the busiest SP worked on messages.
    pub messages_share: f64,
    /// Share of the time that the busiest SP waited for key commands.
    pub keys_share: f64,
    /// Share of the time that a rank spent on its keys, if nothing holds its commands up.
    pub host_keys_share: f64,
}

/// From this share of the time on, a resource is full: the rest is the start and the end of a call.
const FULL: f64 = 0.85;

/// From this share on, keys are what is worth saving where nothing is full.
const NOTABLE: f64 = 0.1;

/// What holds a call up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bottleneck {
    /// The port sends nearly all the time.
    Port,
    /// The SP's core works on messages nearly all the time.
    Messages,
    /// Nothing is full, and key work takes a tenth of the time or more.
    Keys,
    /// Nothing is full, and it is not keys: the SPs wait for answers, with too few credits to have more on the way.
    Credits,
}

impl Bottleneck {
    /// A word for a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Port => "link",
            Self::Messages => "messages",
            Self::Keys => "keys",
            Self::Credits => "credits",
        }
    }
}

impl Prediction {
    /// What holds the call up.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        if self.port_share >= FULL {
            Bottleneck::Port
        } else if self.messages_share >= FULL {
            Bottleneck::Messages
        } else if self.keys_share + self.host_keys_share >= NOTABLE {
            Bottleneck::Keys
        } else {
            Bottleneck::Credits
        }
    }
}

/// How much better than indirection, by the two definitions in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// `(T_ind - T) / T_ind`, in percent.
    pub time_saved_percent: f64,
    /// `T_ind / T - 1`, in percent.
    pub speedup_percent: f64,
}

impl Gain {
    /// Of a time over that of indirection.
    #[must_use]
    pub fn of(us: f64, indirection_us: f64) -> Self {
        Self {
            time_saved_percent: (indirection_us - us) / indirection_us * 100.0,
            speedup_percent: (indirection_us / us - 1.0) * 100.0,
        }
    }
}

/// Predicts.
///
/// # Errors
/// When a number is out of its range.
pub fn predict(
    config: &Config,
    table: &CostTable,
    extent: Extent,
) -> Result<Prediction, ConfigError> {
    config.check()?;
    let extent = match extent {
        Extent::Ring(ring) => {
            Extent::Ring(ring.min(((RING_RANKS / config.ppn) & !1).max(RING_LEAST)))
        }
        other => other,
    };
    Ok(match extent {
        Extent::Full => run(config, table, config.nodes, config.nodes),
        Extent::Ring(ring) if ring < config.nodes => {
            if ring < 2 || ring % 2 != 0 {
                return Err(ConfigError::Ring {
                    ring,
                    nodes: config.nodes,
                });
            }
            let half = run(config, table, ring / 2, 1);
            run(config, table, ring, 1).extended(&half, config, ring)
        }
        Extent::OneNode | Extent::Ring(_) => run(config, table, config.nodes, 1),
    })
}

/// Predicts with all nodes on a fat tree in the lab.
///
/// # Errors
/// When a number is out of its range, or the machine is beyond the limits of the lab.
pub fn predict_on(
    config: &Config,
    table: &CostTable,
    control: Control,
) -> Result<Prediction, FabricError> {
    config.check()?;
    let fabric = Fabric::new(config, control)?;
    let engine = Engine::new(config, config.nodes, config.nodes).on(fabric);
    Ok(run_in(engine, config, table))
}

/// Why there is no prediction with the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A number of the machine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What the lab does not accept.
    #[error("the lab as network: {0}")]
    Lab(#[from] pcc_lab::Refusal),
}

fn run(config: &Config, table: &CostTable, ring: u32, simulated: u32) -> Prediction {
    run_in(Engine::new(config, ring, simulated), config, table)
}

fn run_in(mut engine: Engine<'_>, config: &Config, table: &CostTable) -> Prediction {
    let work = KeyWork::of(config, table, true);
    let later = KeyWork::of(config, table, false);
    let first = engine.call(work.clone());
    // A call of the same work that begins as the first one takes as long.
    let calls: Vec<Call> = match work == later && config.skew_ns == 0 && engine.is_idle() {
        true => vec![first.clone(); config.iterations as usize],
        false => (0..config.iterations)
            .map(|_| engine.call(later.clone()))
            .collect(),
    };
    let mean = |of: &dyn Fn(&Call) -> f64| {
        calls.iter().map(of).sum::<f64>() / f64::from(config.iterations)
    };
    let share = |of: fn(&Call) -> u64| mean(&|call| us(of(call)) / us(call.span_ps));
    Prediction {
        us: mean(&mean_us),
        first_us: mean_us(&first),
        last_us: mean(&|call| us(call.span_ps)),
        node_bytes: calls[0].blocks_read[0] * config.block_bytes,
        port_share: share(|call| call.port_ps),
        messages_share: share(|call| call.messages_ps),
        keys_share: share(|call| call.keys_ps),
        host_keys_share: later.host_ns() / 1000.0 / mean(&|call| us(call.span_ps)),
    }
}

impl Prediction {
    /// Goes on from `ring` nodes' traffic to all nodes' with what the second half of the ring added.
    fn extended(self, half: &Self, config: &Config, ring: u32) -> Self {
        let further = f64::from(config.nodes - ring) / f64::from(ring / 2);
        let on = |at: f64, at_half: f64| at + (at - at_half) * further;
        let last_us = on(self.last_us, half.last_us);
        let share = |at: f64, at_half: f64| on(at * self.last_us, at_half * half.last_us) / last_us;
        Self {
            us: on(self.us, half.us),
            first_us: on(self.first_us, half.first_us),
            last_us,
            node_bytes: u64::from(config.ppn) * (config.ranks() - 1) * config.block_bytes,
            port_share: share(self.port_share, half.port_share),
            messages_share: share(self.messages_share, half.messages_share),
            keys_share: share(self.keys_share, half.keys_share),
            host_keys_share: share(self.host_keys_share, half.host_keys_share),
        }
    }
}

fn mean_us(call: &Call) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a mean of at most a few million"
    )]
    let ranks = call.rank_ps.len() as f64;
    call.rank_ps.iter().map(|ps| us(*ps)).sum::<f64>() / ranks
}

fn us(ps: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "2^53 ps are two hours")]
    let ps = ps as f64;
    ps / 1e6
}
