//! Many predictions: the grid of the report, and the sensitivity to each input.

use super::config::{AliasRelease, Config, ConfigError, SendOrder};
use super::costs::{Cost, CostTable};
use super::predict::{Extent, Gain, Prediction, predict};
use super::scheme::{Features, Scheme};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One input with its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The input.
    pub config: Config,
    /// The prediction.
    pub prediction: Prediction,
    /// The same machine and size with indirection.
    pub indirection: Prediction,
}

impl Point {
    /// Gain over indirection in a call that is not the first.
    #[must_use]
    pub fn gain(&self) -> Gain {
        Gain::of(self.prediction.us, self.indirection.us)
    }

    /// Gain over indirection in the first call of a job.
    #[must_use]
    pub fn first_gain(&self) -> Gain {
        Gain::of(self.prediction.first_us, self.indirection.first_us)
    }
}

/// Predicts every scheme on every machine, with one thread per core. The order is the input's.
///
/// `progress` receives the number of finished points and the total.
///
/// # Errors
/// The first input out of range.
pub fn points(
    machines: &[Config],
    schemes: &[Scheme],
    table: &CostTable,
    extent: Extent,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<Point>, ConfigError> {
    machines.iter().try_for_each(Config::check)?;
    let all = in_parallel(
        machines,
        |machine| of_machine(machine, schemes, table, extent),
        progress,
    );
    let mut points = Vec::new();
    for of_machine in all {
        points.extend(of_machine?);
    }
    Ok(points)
}

/// The results of items in their order, with one thread per core. `progress` receives the number of finished items and the total.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    progress: impl Fn(usize, usize) + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0..items.len()).map(|_| None).collect::<Vec<Option<R>>>());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else {
                        return;
                    };
                    let found = work(item);
                    // A poisoned lock means that another thread panicked. `scope` propagates it.
                    if let Ok(mut done) = done.lock() {
                        done[at] = Some(found);
                        progress(done.iter().flatten().count(), items.len());
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_default();
    done.into_iter().flatten().collect()
}

fn of_machine(
    machine: &Config,
    schemes: &[Scheme],
    table: &CostTable,
    extent: Extent,
) -> Result<Vec<Point>, ConfigError> {
    let with = |scheme| Config {
        scheme,
        ..machine.clone()
    };
    let indirection = predict(&with(Scheme::Ksm), table, extent)?;
    schemes
        .iter()
        .map(|scheme| {
            let config = with(*scheme);
            let prediction = match scheme {
                Scheme::Ksm => indirection,
                _ => predict(&config, table, extent)?,
            };
            Ok(Point {
                config,
                prediction,
                indirection,
            })
        })
        .collect()
}

/// Block sizes of the grid: 8 KiB to 1 MiB.
pub(super) const SIZES: [u64; 8] = [
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

/// Numbers of nodes of the grid.
pub(super) const NODES: [u32; 8] = [2, 8, 32, 128, 512, 2048, 8192, 16_384];

/// Numbers of SPs of the grid, at [`SPS_AT_NODES`]; elsewhere 4.
pub(super) const SPS: [u32; 5] = [1, 2, 4, 8, 16];

/// Number of nodes at which the grid varies the SPs.
pub(super) const SPS_AT_NODES: [u32; 3] = [32, 2048, 16_384];

/// The machines of the grid: 32 ranks per node at 400 Gb/s, and the slides' machine also at 200 Gb/s.
#[must_use]
pub fn grid() -> Vec<Config> {
    let mut machines = Vec::new();
    for nodes in NODES {
        for sps in SPS {
            if sps != 4 && !SPS_AT_NODES.contains(&nodes) {
                continue;
            }
            for gbps in [400.0, 200.0] {
                if gbps < 400.0 && (nodes, sps) != (32, 4) {
                    continue;
                }
                machines.extend(SIZES.map(|size| Config {
                    nodes,
                    sps,
                    link_gbps: gbps,
                    ..Config::slides(size, Scheme::Ksm)
                }));
            }
        }
    }
    machines
}

/// The slides' results: block size, and percent better than indirection.
pub const REPORTED: [(u64, f64); 2] = [(16 << 10, 34.0), (32 << 10, 17.0)];

/// One changed input and its effect on the slides' two sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Variation {
    /// The input and its value.
    pub what: String,
    /// UCX's pool (the slides' pool) at the sizes of [`REPORTED`].
    pub points: Vec<Point>,
}

type Change = fn(&mut Config);

/// The slides' machine with the default assumptions, and with one input changed at a time.
///
/// # Errors
/// Only if the list contains a mistake.
pub fn sensitivity(base: &Config, table: &CostTable) -> Result<Vec<Variation>, ConfigError> {
    let changes: [(&str, Change); 31] = [
        ("as assumed", |_| {}),
        ("link 100 Gb/s", |c| c.link_gbps = 100.0),
        ("link 200 Gb/s", |c| c.link_gbps = 200.0),
        ("link 252 Gb/s (PCIe 4.0 x16)", |c| c.link_gbps = 252.06),
        ("latency 300 ns", |c| c.latency_ns = 300),
        ("latency 1200 ns", |c| c.latency_ns = 1200),
        ("latency 2400 ns", |c| c.latency_ns = 2400),
        ("SPs 1", |c| c.sps = 1),
        ("SPs 2", |c| c.sps = 2),
        ("SPs 8", |c| c.sps = 8),
        ("SPs 16", |c| c.sps = 16),
        ("receive credits 1", |c| c.receive_credits = 1),
        ("receive credits 16", |c| c.receive_credits = 16),
        ("send credits 1", |c| c.send_credits = 1),
        ("send credits 16", |c| c.send_credits = 16),
        ("SP software x 0", |c| c.assumptions.software_factor = 0.0),
        ("SP software x 2", |c| c.assumptions.software_factor = 2.0),
        ("SP software x 4", |c| c.assumptions.software_factor = 4.0),
        ("1 command at a time per function", |c| {
            c.assumptions.command_lanes = Some(1);
        }),
        ("2 commands at a time per function", |c| {
            c.assumptions.command_lanes = Some(2);
        }),
        ("4 commands at a time per function", |c| {
            c.assumptions.command_lanes = Some(4);
        }),
        ("aliases destroyed before DPU_DONE", |c| {
            c.assumptions.alias_release = AliasRelease::BeforeDone;
        }),
        ("aliases destroyed at the next import", |c| {
            c.assumptions.alias_release = AliasRelease::AtNextImport;
        }),
        ("aliases never destroyed", |c| {
            c.assumptions.alias_release = AliasRelease::Never;
        }),
        ("host deregistration not timed", |c| {
            c.assumptions.host_release_timed = false;
        }),
        ("blocks within a node pass the port", |c| {
            c.assumptions.local_uses_port = true;
        }),
        ("blocks announced rank by rank", |c| {
            c.assumptions.send_order = SendOrder::RankByRank;
        }),
        ("indirection registers a umem too", |c| {
            c.assumptions.indirection_registers_umem = true;
        }),
        ("ranks enter within 5 us", |c| {
            (c.skew_ns, c.iterations) = (5_000, 16);
        }),
        ("ranks enter within 20 us", |c| {
            (c.skew_ns, c.iterations) = (20_000, 16);
        }),
        ("ranks enter within 100 us", |c| {
            (c.skew_ns, c.iterations) = (100_000, 16);
        }),
    ];
    let mut variations = changes
        .iter()
        .map(|(what, change)| variation(what, base, table, *change))
        .collect::<Result<Vec<_>, _>>()?;
    for factor in [0.5, 2.0] {
        for (name, which) in [
            ("host mkey commands", is_host_command as fn(Cost) -> bool),
            ("alias commands", is_alias),
            ("memory registration", is_registration),
        ] {
            let scaled = table.clone().scaled(factor, which);
            let what = format!("{name} x {factor}");
            variations.push(variation(&what, base, &scaled, |_| {})?);
        }
    }
    Ok(variations)
}

/// The two reported results with one input changed.
pub(super) fn variation(
    what: &str,
    base: &Config,
    table: &CostTable,
    change: Change,
) -> Result<Variation, ConfigError> {
    let machines: Vec<Config> = REPORTED
        .iter()
        .map(|(size, _)| {
            let mut config = base.clone();
            config.block_bytes = *size;
            change(&mut config);
            config
        })
        .collect();
    let points = points(
        &machines,
        &[Scheme::Stock],
        table,
        Extent::OneNode,
        |_, _| {},
    )?;
    Ok(Variation {
        what: what.to_owned(),
        points,
    })
}

fn is_alias(cost: Cost) -> bool {
    use Cost as C;
    matches!(
        cost,
        C::AliasKsm | C::UnaliasKsm | C::AliasUmr | C::UnaliasUmr
    )
}

fn is_host_command(cost: Cost) -> bool {
    cost.is_command() && !is_alias(cost)
}

fn is_registration(cost: Cost) -> bool {
    matches!(cost, Cost::RegMr | Cost::DeregMr)
}

/// The schemes of the grid: those of the table, and our pool without any feature.
#[must_use]
pub(super) fn schemes() -> Vec<Scheme> {
    let mut schemes = Scheme::TABLE.to_vec();
    schemes.push(Scheme::Xgvmi(Features::NONE));
    schemes
}
