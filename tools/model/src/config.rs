//! Input of a prediction: machine, message, scheme, and the assumptions for unpublished quantities.

use super::messages::Services;
use super::scheme::Scheme;
use super::software::{SoftwareCost, Steps};
use thiserror::Error;
use xgvmi_offload::figures;

/// Payload of an InfiniBand packet at the usual MTU, in bytes.
const MTU_BYTES: u64 = 4096;
/// Packet headers: local route 8, base transport 12, invariant and variant CRC 4 and 2 (InfiniBand Architecture
/// Specification, volume 1, chapter 5).
const PACKET_OVERHEAD_BYTES: u64 = 26;

/// Maximum number of ranks per node.
pub(super) const PPN_MAX: u32 = 1024;
/// Maximum number of nodes: four times the largest sweep.
pub(super) const NODES_MAX: u32 = 1 << 16;
/// Maximum number of ranks: a block's place in the schedule is a 32-bit number.
pub(super) const RANKS_MAX: u64 = 1 << 25;
/// Largest block, in bytes. With the ranks above, a buffer's length stays far below 2^63.
pub(super) const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of credits, in effect unlimited.
pub(super) const CREDITS_MAX: u32 = 1 << 24;
/// Longest latency, skew or software step, in nanoseconds: one second.
pub(super) const NS_MAX: u64 = 1_000_000_000;
/// Maximum number of iterations of one prediction.
pub(super) const ITERATIONS_MAX: u32 = 10_000;
/// Fastest link, in Gb/s.
pub(super) const LINK_GBPS_MAX: f64 = 1e9;

/// One prediction's input. All times in nanoseconds, all sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Nodes, each with one host function and one DPU.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// Service processes (SP) per DPU; rank `r` of a node is served by SP `r % sps`.
    pub sps: u32,
    /// Bytes that each rank sends to each other rank.
    pub block_bytes: u64,
    /// Scheme for keys.
    pub scheme: Scheme,
    /// Speed of a node's port in each direction, in Gb/s.
    pub link_gbps: f64,
    /// One-way latency, from the adapter of the sender to arrival.
    pub latency_ns: u64,
    /// Unanswered DPU_RTS messages per SP.
    pub send_credits: u32,
    /// Outstanding RDMA READs per SP.
    pub receive_credits: u32,
    /// Largest delay with which a rank enters a call after the first rank; uniform, drawn from `seed`.
    pub skew_ns: u64,
    /// Random seed of the skew. Without skew it has no effect.
    pub seed: u64,
    /// Iterations after the first; `us` is their mean. Without skew one is sufficient.
    pub iterations: u32,
    /// Unpublished quantities.
    pub assumptions: Assumptions,
}

/// Quantities that neither the slides nor another source gives, with their assumed values.
#[derive(Debug, Clone, PartialEq)]
pub struct Assumptions {
    /// Commands that one function's firmware executes in parallel; `None` means unlimited.
    pub command_lanes: Option<u32>,
    /// When the SP destroys the aliases of a finished call.
    pub alias_release: AliasRelease,
    /// Whether the timed call includes the host's deregistration.
    pub host_release_timed: bool,
    /// Whether blocks between two ranks of a node use the port, or a path inside the adapter with the same
    /// speed.
    pub local_uses_port: bool,
    /// Order in which an SP announces the blocks of its ranks.
    pub send_order: SendOrder,
    /// Whether indirection also registers a umem. The slide lists the rows; the public code does not register
    /// one.
    pub indirection_registers_umem: bool,
    /// The SP's computing time for messages and blocks.
    pub software: SoftwareCost,
    /// The SP's cores are slower by this factor: [`Assumptions::software`] is for a server core.
    pub software_factor: f64,
    /// Vectors that a core of a host adds to others, in GB/s; an SP's core is slower by the factor above.
    pub reduce_gb_s: f64,
    /// What the ranks of a node copy or reduce together, in GB/s: the limit of its memory. Eight channels of DDR4-3200 (JESD79-4)
    /// have 205 GB/s, of which programs get about three quarters.
    pub memory_gb_s: f64,
    /// Longest buffer that UCX's pool serves: one KLM entry, 2 GiB. Others get a KSM key.
    pub stock_bytes_max: u64,
    /// Longest buffer that this project's pool serves: 16 KLM entries of 1 GiB (`PoolPolicy::klm_entries`).
    pub xgvmi_bytes_max: u64,
    /// Bytes per rank of the communicator in HOST_ARRIVE: counts and displacements of both sides, 8 bytes each.
    pub arrive_bytes_per_rank: u64,
}

/// Time at which the SP destroys an uncached alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasRelease {
    /// After it has told the host that the call is complete, before any other work.
    AfterDone,
    /// Before it tells the host.
    BeforeDone,
    /// When the next call imports a key for the same memory.
    AtNextImport,
    /// Not during the run.
    Never,
}

/// Order in which an SP announces the blocks of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOrder {
    /// One block of each rank in turn.
    RoundRobin,
    /// All blocks of the first rank, then of the next.
    RankByRank,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            command_lanes: None,
            alias_release: AliasRelease::AfterDone,
            host_release_timed: true,
            local_uses_port: false,
            send_order: SendOrder::RoundRobin,
            indirection_registers_umem: false,
            software: SoftwareCost::Ucx,
            software_factor: 1.0,
            reduce_gb_s: 10.0,
            memory_gb_s: 150.0,
            stock_bytes_max: 2 << 30,
            xgvmi_bytes_max: 16 * 0x7fff_0000,
            arrive_bytes_per_rank: 32,
        }
    }
}

impl Config {
    /// The slides' machine: 32 nodes of 32 ranks, 4 SPs with 4 sends and 4 receives each, at 400 Gb/s.
    ///
    /// The latency is UCX's own estimate for InfiniBand at this speed (`src/uct/ib/base/ib_iface.c`, 600 ns).
    #[must_use]
    pub fn slides(block_bytes: u64, scheme: Scheme) -> Self {
        Self {
            nodes: 32,
            ppn: 32,
            sps: 4,
            block_bytes,
            scheme,
            link_gbps: 400.0,
            latency_ns: 600,
            send_credits: 4,
            receive_credits: 4,
            skew_ns: 0,
            seed: 1,
            iterations: 1,
            assumptions: Assumptions::default(),
        }
    }

    /// The same machine with the credits of this project's SP: `--receives`, and as many blocks as `--sends` offers have.
    #[must_use]
    pub fn with_own_credits(self) -> Self {
        let of_sp = u64::from(self.ppn.div_ceil(self.sps.max(1)));
        let blocks = of_sp.pow(2).min(figures::OFFER_BLOCKS as u64);
        let credits = |number: u64| {
            u32::try_from(number)
                .unwrap_or(CREDITS_MAX)
                .min(CREDITS_MAX)
        };
        Self {
            receive_credits: credits(figures::RECEIVES as u64),
            send_credits: credits(figures::SENDS as u64 * blocks),
            ..self
        }
    }

    /// Total number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ppn)
    }

    /// Bytes of one rank's send buffer; its receive buffer has the same size.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        // Cannot overflow: RANKS_MAX * BLOCK_BYTES_MAX is 2^55.
        self.ranks() * self.block_bytes
    }

    /// Checks that all numbers are in range.
    ///
    /// # Errors
    /// The first number out of range, with its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |name, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::Range {
                    name,
                    value,
                    min,
                    max,
                })
            }
        };
        within("nodes", self.nodes.into(), 1, NODES_MAX.into())?;
        within("ranks per node", self.ppn.into(), 1, PPN_MAX.into())?;
        within("ranks", self.ranks(), 2, RANKS_MAX)?;
        within("SPs per node", self.sps.into(), 1, PPN_MAX.into())?;
        within("block size", self.block_bytes, 1, BLOCK_BYTES_MAX)?;
        within("latency (ns)", self.latency_ns, 0, NS_MAX)?;
        within("skew (ns)", self.skew_ns, 0, NS_MAX)?;
        let credits = u64::from(CREDITS_MAX);
        within("send credits", self.send_credits.into(), 1, credits)?;
        within("receive credits", self.receive_credits.into(), 1, credits)?;
        within(
            "iterations",
            self.iterations.into(),
            1,
            ITERATIONS_MAX.into(),
        )?;
        let lanes = self.assumptions.command_lanes.unwrap_or(1);
        within("command lanes", lanes.into(), 1, PPN_MAX.into())?;
        let gbps = self.link_gbps;
        if !(1e-3..=LINK_GBPS_MAX).contains(&gbps) {
            return Err(ConfigError::Link { gbps });
        }
        let factor = self.assumptions.software_factor;
        if !(0.0..=1e4).contains(&factor) {
            return Err(ConfigError::SoftwareFactor { factor });
        }
        let assumptions = &self.assumptions;
        for (name, rate) in [
            ("a core reduces", assumptions.reduce_gb_s),
            ("the ranks of a node copy", assumptions.memory_gb_s),
        ] {
            if !(1e-3..=1e6).contains(&rate) {
                return Err(ConfigError::Rate { name, rate });
            }
        }
        Ok(())
    }
}

/// An input out of range.
#[derive(Debug, Clone, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A whole number.
    #[error("{name} is {value}; it must be between {min} and {max}")]
    Range {
        /// The quantity.
        name: &'static str,
        /// The given value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// The link speed.
    #[error("the link has {gbps} Gb/s; it must have between 0.001 and {LINK_GBPS_MAX}")]
    Link {
        /// The given value.
        gbps: f64,
    },
    /// The factor for UCX's software times.
    #[error("the software factor is {factor}; it must be between 0 and 10000")]
    SoftwareFactor {
        /// The given value.
        factor: f64,
    },
    /// The rate of reductions or copies.
    #[error("{name} {rate} GB/s; it must be between 0.001 and 1000000")]
    Rate {
        /// Who does what.
        name: &'static str,
        /// The given value.
        rate: f64,
    },
    /// The ring that represents all nodes.
    #[error("{ring} nodes cannot stand for {nodes}")]
    Ring {
        /// Nodes whose traffic is simulated.
        ring: u32,
        /// Total number of nodes.
        nodes: u32,
    },
}

impl Config {
    /// Nodes, ranks per node and SPs per node.
    pub(super) fn machine(&self) -> [u32; 3] {
        [self.nodes, self.ppn, self.sps]
    }

    /// Time of a message on the link, in nanoseconds.
    pub(super) fn on_the_wire_ns(&self, bytes: u64) -> f64 {
        let packets = bytes.div_ceil(MTU_BYTES);
        #[expect(clippy::cast_precision_loss, reason = "a size in a cost formula")]
        let bits = ((bytes + packets * PACKET_OVERHEAD_BYTES) * 8) as f64;
        bits / self.link_gbps
    }

    /// Computing time of the steps of a block, before the factor for slower cores.
    pub(super) fn steps(&self) -> Steps {
        #[expect(clippy::cast_precision_loss, reason = "tens of nanoseconds")]
        let ns = |ns: u64| ns as f64;
        let ucx = Software::UCX;
        let steps = Steps {
            send: ns(ucx.send_ns),
            receive: ns(ucx.receive_ns),
            read: ns(ucx.read_ns),
            completion: ns(ucx.completion_ns),
        };
        let cost = match self.assumptions.software {
            SoftwareCost::Ucx => return steps,
            SoftwareCost::Measured(cost) | SoftwareCost::Earlier(cost) => cost,
        };
        // The simulator sends two messages per block, so a block pays four halves of a message.
        let message = steps.send + steps.receive + cost.us_per_message * 1e3;
        let half = self.messages_per_block() * message / 4.0;
        Steps {
            send: half,
            receive: half,
            read: steps.read + cost.us_per_block * 1e3,
            ..steps
        }
    }

    /// Messages of this project's SPs in a call, per block: a rank's arrival and completion in each lane, and those between SPs.
    pub(super) fn messages_per_block(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "below 2^52, and a ratio")]
        let real = |number: u64| number as f64;
        let services = Services::new(self.machine(), u64::MAX);
        let receivers = u64::from(self.ppn).div_ceil(services.of_node);
        let between = services.messages(services.ranks * receivers);
        // A message between two SPs is one of both.
        let all = services.members * services.lanes * between / 2;
        let messages = real(2 * self.ranks() * services.lanes + all);
        messages / (real(self.ranks()) * real(self.ranks()))
    }
}

/// Software time of a process per message, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Software {
    /// To send a message: buffer, work request and doorbell.
    pub send_ns: u64,
    /// To receive one.
    pub receive_ns: u64,
    /// To post an RDMA READ: work request and doorbell.
    pub read_ns: u64,
    /// To process a completion.
    pub completion_ns: u64,
    /// For the adapter to fetch a posted request. The process does not wait for it.
    pub fetch_ns: u64,
}

impl Software {
    /// UCX's own estimates (`UCT_IB_SEND_OVERHEAD_VALUE` in `src/uct/ib/base/ib_iface.h` and
    /// `UCT_RC_MLX5_IFACE_OVERHEAD` in `src/uct/ib/mlx5/rc/rc_mlx5_common.h`): bcopy 5, cqe 20, db 40,
    /// wqe_fetch 350, wqe_post 40, receive 40. They apply to a server core. Values for a DPU core are not
    /// published.
    pub const UCX: Self = Self {
        send_ns: 5 + 40 + 40,
        receive_ns: 40,
        read_ns: 40 + 40,
        completion_ns: 20,
        fetch_ns: 350,
    };
}

#[cfg(test)]
mod tests {
    use super::super::software::MeasuredCost;
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        let check = |change: fn(&mut Config), expect: &str| {
            let mut config = Config::slides(16 << 10, Scheme::Ksm);
            change(&mut config);
            let error = config.check().expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        };
        assert_eq!(Config::slides(16 << 10, Scheme::Ksm).check(), Ok(()));
        check(|c| c.nodes = 0, "nodes is 0");
        check(|c| c.ppn = PPN_MAX + 1, "ranks per node");
        check(|c| (c.nodes, c.ppn) = (1, 1), "ranks is 1");
        check(|c| (c.nodes, c.ppn) = (NODES_MAX, PPN_MAX), "67108864");
        check(|c| c.sps = 0, "SPs");
        check(|c| c.block_bytes = 0, "block size");
        check(|c| c.send_credits = 0, "send credits");
        check(|c| c.link_gbps = f64::NAN, "Gb/s");
        check(|c| c.link_gbps = 0.0, "Gb/s");
        check(|c| c.assumptions.software_factor = -1.0, "software factor");
        check(|c| c.assumptions.command_lanes = Some(0), "command lanes");
        check(|c| c.assumptions.reduce_gb_s = 0.0, "reduces 0 GB/s");
        check(|c| c.assumptions.memory_gb_s = f64::NAN, "copy NaN GB/s");
    }

    /// The total of a call equals blocks and messages times their costs.
    #[test]
    fn messages_are_shared_by_their_blocks() {
        // 16 ranks on 2 nodes with one SP each: 32 messages of ranks, 4 between the SPs, 256 blocks.
        let mut config = Config {
            nodes: 2,
            ppn: 8,
            sps: 1,
            ..Config::slides(4096, Scheme::Ksm)
        };
        assert!((config.messages_per_block() - 36.0 / 256.0).abs() < 1e-12);
        let before = config.steps();
        config.assumptions.software = SoftwareCost::Measured(MeasuredCost {
            us_per_block: 0.1,
            us_per_message: 1.0,
        });
        let steps = config.steps();
        let message = before.send + before.receive + 1000.0;
        let whole = 2.0 * (steps.send + steps.receive);
        assert!((whole - message * 36.0 / 256.0).abs() < 1e-9);
        assert!((steps.read - before.read - 100.0).abs() < 1e-9);
    }

    #[test]
    fn messages_per_block_are_those_that_the_service_sends() {
        let report = include_str!("../../../docs/results/service.json");
        let report: serde_json::Value = serde_json::from_str(report).expect("a report");
        let mut compared = 0;
        for row in report["rows"].as_array().expect("rows") {
            let Some(counted) = row["messages_per_block"].as_f64() else {
                continue;
            };
            let number = |name: &str| {
                let number = row[name].as_u64().and_then(|of| of.try_into().ok());
                number.expect("a small number")
            };
            let config = Config {
                nodes: 2,
                ppn: number("ranks") / 2,
                sps: number("services_per_node"),
                ..Config::slides(1, Scheme::Free)
            };
            let found = config.messages_per_block();
            assert!((found / counted - 1.0).abs() < 1e-9, "{found}: {row}");
            compared += 1;
        }
        assert_eq!(compared, 10);
    }
}
