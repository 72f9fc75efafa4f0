//! Offloaded collectives beside those of stock UCC on the hosts, on the same link and with the same costs of keys.

mod ours;
mod stock;

use super::config::{Config, ConfigError, Software};
use super::costs::CostTable;
use super::limits::{NODES, SLOWER, sizes};
use super::predict::{Extent, predict};
use super::scheme::{Features, Scheme};
use super::sweep::in_parallel;
use ours::Offloaded;
use serde::Serialize;

/// Ranks per node beside those of the machine.
const ALONE: u32 = 1;

/// Calls whose times differ less break even: such differences come from the schedule.
const EVEN: f64 = 1.02;

/// A collective on both sides.
struct Collective {
    name: &'static str,
    /// Largest size: of a block, or of a vector.
    size_max: u64,
    ours: fn(&Config, &CostTable) -> Result<Offloaded, ConfigError>,
    ucc_ns: fn(&Config, &CostTable) -> f64,
}

/// The collectives. Below 129 bytes UCC's alltoall is Bruck's; blocks of an SP then travel in messages, which this model does
/// not simulate.
const COLLECTIVES: [Collective; 4] = [
    Collective {
        name: "alltoallv",
        size_max: 1 << 20,
        ours: alltoallv,
        ucc_ns: stock::alltoallv_ns,
    },
    Collective {
        name: "allgather",
        size_max: 1 << 20,
        ours: |config, table| Ok(ours::allgather(config, table)),
        ucc_ns: stock::allgather_ns,
    },
    Collective {
        name: "allreduce",
        size_max: 64 << 20,
        ours: |config, table| Ok(ours::allreduce(config, table)),
        ucc_ns: stock::allreduce_ns,
    },
    Collective {
        name: "bcast",
        size_max: 64 << 20,
        ours: |config, table| Ok(ours::broadcast(config, table)),
        ucc_ns: stock::broadcast_ns,
    },
];

/// Both on one machine at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    /// Name of the collective.
    pub collective: &'static str,
    /// Nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// SPs per node.
    pub sps: u32,
    /// The SP's cores are slower by this factor.
    pub slower: f64,
    /// Bytes of a block, or of the vector.
    pub size: u64,
    /// Time of the offloaded call, and the part of it in which a rank cannot compute, in microseconds.
    pub us: f64,
    /// See above.
    pub busy_us: f64,
    /// Time of UCC's call, in all of which a rank cannot compute.
    pub ucc_us: f64,
    /// The first over the last.
    pub of_ucc: f64,
    /// The same of call and computation together, if a rank computes as long as UCC's call takes.
    pub of_ucc_with_overlap: f64,
}

/// Sizes at which the offload does not lose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossing {
    /// Name of the collective.
    pub collective: &'static str,
    /// Nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// All ranks.
    pub ranks: u64,
    /// The SP's cores are slower by this factor.
    pub slower: f64,
    /// From the first to the second size both break even, or the offloaded call wins; 0 if it always loses.
    pub from: u64,
    /// See above.
    pub to: u64,
    /// The same with computation.
    pub from_with_overlap: u64,
    /// See above.
    pub to_with_overlap: u64,
    /// The largest size of all.
    pub most: u64,
    /// Least ratio of all sizes, and the same with computation.
    pub least: f64,
    /// See above.
    pub least_with_overlap: f64,
}

/// All collectives, machines and sizes, and where they cross.
///
/// # Errors
/// When a number of `base` is out of range.
pub fn beside_ucc(
    base: &Config,
    table: &CostTable,
) -> Result<(Vec<Beside>, Vec<Crossing>), ConfigError> {
    base.check()?;
    let (mut all, mut crossings) = (Vec::new(), Vec::new());
    let mut of_node = vec![ALONE, base.ppn];
    of_node.dedup();
    let machines = SLOWER
        .iter()
        .flat_map(|slower| NODES.map(|nodes| (*slower, nodes)));
    let machines = machines.flat_map(|machine| of_node.iter().map(move |ppn| (machine, *ppn)));
    let machines = machines.map(|((slower, nodes), ppn)| {
        let mut config = Config {
            nodes,
            ppn,
            scheme: Scheme::Xgvmi(Features::ALL),
            ..base.clone()
        }
        .with_own_credits();
        config.assumptions.software_factor = slower;
        config
    });
    let machines: Vec<Config> = machines.collect();
    let of_machines = COLLECTIVES
        .iter()
        .flat_map(|collective| machines.iter().map(move |config| (collective, config)));
    let of_machines: Vec<(&Collective, &Config)> = of_machines.collect();
    let calls = of_machines.iter().flat_map(|(collective, config)| {
        sizes(collective.size_max).map(|size| (*collective, *config, size))
    });
    let calls: Vec<(&Collective, &Config, u64)> = calls.collect();
    let rows = in_parallel(
        &calls,
        |(collective, config, size)| at(collective, config, table, *size),
        |_, _| {},
    );
    let mut rows = rows.into_iter();
    for (collective, config) in of_machines {
        let rows = rows.by_ref().take(sizes(collective.size_max).count());
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let (from, to) = wins(&rows, |row| row.of_ucc);
        let (from_with_overlap, to_with_overlap) = wins(&rows, |row| row.of_ucc_with_overlap);
        crossings.push(Crossing {
            collective: collective.name,
            nodes: config.nodes,
            ppn: config.ppn,
            ranks: config.ranks(),
            slower: config.assumptions.software_factor,
            from,
            to,
            from_with_overlap,
            to_with_overlap,
            most: collective.size_max,
            least: least(&rows, |row| row.of_ucc),
            least_with_overlap: least(&rows, |row| row.of_ucc_with_overlap),
        });
        all.extend(rows);
    }
    Ok((all, crossings))
}

fn least(rows: &[Beside], ratio: impl Fn(&Beside) -> f64) -> f64 {
    rows.iter().map(ratio).fold(f64::INFINITY, f64::min)
}

/// The first and the last size of the longest run of sizes at which the ratio is at most [`EVEN`]; of equal ones the last.
fn wins(rows: &[Beside], ratio: impl Fn(&Beside) -> f64) -> (u64, u64) {
    let runs = rows.split(|row| ratio(row) > EVEN);
    let longest = runs.max_by_key(|run| run.len()).unwrap_or(&[]);
    match longest {
        [first, .., last] => (first.size, last.size),
        [only] => (only.size, only.size),
        [] => (0, 0),
    }
}

fn at(
    collective: &Collective,
    base: &Config,
    table: &CostTable,
    block_bytes: u64,
) -> Result<Beside, ConfigError> {
    let config = Config {
        block_bytes,
        ..base.clone()
    };
    config.check()?;
    let offloaded = (collective.ours)(&config, table)?;
    let (us, busy_us) = (offloaded.ns / 1e3, offloaded.busy_ns / 1e3);
    let ucc_us = (collective.ucc_ns)(&config, table) / 1e3;
    Ok(Beside {
        collective: collective.name,
        nodes: config.nodes,
        ppn: config.ppn,
        sps: config.sps,
        slower: config.assumptions.software_factor,
        size: block_bytes,
        us,
        busy_us,
        ucc_us,
        of_ucc: us / ucc_us,
        of_ucc_with_overlap: us.max(ucc_us + busy_us) / (2.0 * ucc_us),
    })
}

/// The simulated alltoallv. A rank cannot compute during its two messages, and the work on its keys.
fn alltoallv(config: &Config, table: &CostTable) -> Result<Offloaded, ConfigError> {
    let offloaded = predict(config, table, Extent::SWEEP)?;
    let messages = real(Software::UCX.send_ns + Software::UCX.receive_ns);
    Ok(Offloaded {
        ns: offloaded.us * 1e3,
        busy_ns: offloaded.host_keys_share * offloaded.last_us * 1e3 + messages,
    })
}

/// Time in which a core of a host adds `bytes` of vectors to others.
fn reduce_ns(config: &Config, bytes: f64) -> f64 {
    bytes / config.assumptions.reduce_gb_s
}

#[expect(
    clippy::cast_precision_loss,
    reason = "nanoseconds, bytes and ranks, far below 2^52"
)]
fn real(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: u32, block_bytes: u64) -> Config {
        Config {
            nodes,
            ppn: 4,
            sps: 1,
            ..Config::slides(block_bytes, Scheme::Xgvmi(Features::ALL))
        }
    }

    fn alltoallv_at(config: &Config, size: u64) -> Beside {
        let table = CostTable::slides().expect("the committed file");
        at(&COLLECTIVES[0], config, &table, size).expect("in range")
    }

    #[test]
    fn long_blocks_are_limited_by_the_link_and_computation_hides_the_offload() {
        let long = alltoallv_at(&machine(8, 1), 1 << 20);
        assert!((0.95..1.1).contains(&long.of_ucc), "{long:?}");
        assert!((0.5..0.6).contains(&long.of_ucc_with_overlap), "{long:?}");
        assert!(long.busy_us < long.us / 2.0, "{long:?}");
        let slow = Config {
            ppn: 32,
            ..machine(4, 1)
        };
        let mut slower = slow.clone();
        slower.assumptions.software_factor = 4.0;
        let us = |config: &Config| alltoallv_at(config, 512).of_ucc;
        assert!(us(&slower) > 1.5 * us(&slow));
    }

    #[test]
    fn the_offload_wins_where_it_stays_ahead() {
        let rows = |ratios: &[f64]| {
            let row = |(at, ratio): (usize, &f64)| Beside {
                collective: "bcast",
                nodes: 2,
                ppn: 1,
                sps: 1,
                slower: 1.0,
                size: 512 << at,
                us: 1.0,
                busy_us: 1.0,
                ucc_us: 1.0,
                of_ucc: *ratio,
                of_ucc_with_overlap: 1.0,
            };
            let rows: Vec<Beside> = ratios.iter().enumerate().map(row).collect();
            wins(&rows, |row| row.of_ucc)
        };
        assert_eq!(rows(&[0.5, 1.5, 0.9, 1.0]), (2048, 4096));
        assert_eq!(rows(&[0.5, 0.4]), (512, 1024));
        assert_eq!(rows(&[1.5, 1.1, 0.9, 1.1]), (2048, 2048));
        assert_eq!(rows(&[1.5, 1.1]), (0, 0));
        assert_eq!(rows(&[0.5, 1.5, 0.9]), (2048, 2048));
    }

    /// Whatever the collective, a machine of the least and of the largest size has a time.
    #[test]
    fn all_sizes_have_a_time() {
        let table = CostTable::slides().expect("the committed file");
        for collective in &COLLECTIVES[1..] {
            for (nodes, ppn, sps) in [(1, 2, 1), (2, 1, 4), (3, 5, 2), (7, 9, 16), (1000, 33, 3)] {
                let config = Config {
                    ppn,
                    sps,
                    ..machine(nodes, 1)
                };
                let rows = [1, 513, 4 << 10, 1 << 30]
                    .map(|size| at(collective, &config, &table, size).expect("in range"));
                for row in &rows {
                    let times = [row.us, row.ucc_us, row.of_ucc, row.of_ucc_with_overlap];
                    let fine = times.iter().all(|time| time.is_finite() && *time > 0.0);
                    assert!(fine && row.of_ucc_with_overlap > 0.5, "{row:?}");
                }
                assert!(rows[3].us > rows[2].us && rows[3].ucc_us > rows[2].ucc_us);
            }
        }
    }
}
