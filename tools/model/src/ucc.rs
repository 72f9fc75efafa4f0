//! The offloaded alltoallv beside that of stock UCC on the hosts, on the same link and with the same costs of keys.
//!
//! Facts of UCC 1.9, below `src/components/tl/ucp`: an alltoallv is pairwise, and a rank has one send and one receive under way
//! (`ALLTOALLV_PAIRWISE_NUM_POSTS` is 1 in `tl_ucp.c`; the loops of `alltoallv/alltoallv_pairwise.c`), so each step waits for its
//! block. An alltoall is the same from 129 bytes per block on; below, where it is Bruck's (`ALLTOALL_DEFAULT_ALG_SWITCH` in
//! `alltoall/alltoall.c`), blocks of an SP travel in messages, which this model does not simulate. UCC moves no further step
//! while the program computes.

use super::config::{Config, ConfigError, Software};
use super::costs::{Cost, CostTable};
use super::predict::{Extent, predict};
use super::scheme::{Features, Scheme};
use serde::Serialize;

/// Block sizes, from the shortest block that an SP reads.
const SIZES: [u64; 12] = [
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];
const NODES: [u32; 4] = [2, 8, 32, 128];
/// Factors by which the SP's cores are slower than the hosts'.
const SLOWER: [f64; 2] = [1.0, 4.0];

/// From this length on UCX sends a request first, and the receiver reads the block. UCX computes the length at run time; this is
/// an assumption.
const RENDEZVOUS_FROM: u64 = 8 << 10;

/// Calls whose times differ less break even: such differences come from the schedule.
const EVEN: f64 = 1.02;

/// This project's SP: `--receives`, `--sends`, and the blocks in an offer.
const RECEIVES: u32 = 16;
const SENDS: u32 = 4;
const OFFER_BLOCKS: u32 = 4096;

/// Both on one machine at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    /// Nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// SPs per node.
    pub sps: u32,
    /// The SP's cores are slower by this factor.
    pub slower: f64,
    /// Bytes per block.
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

/// Where the offload no longer loses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossing {
    /// Nodes.
    pub nodes: u32,
    /// All ranks.
    pub ranks: u64,
    /// The SP's cores are slower by this factor.
    pub slower: f64,
    /// From this size on both break even, or the offloaded call wins; 0 if there is none.
    pub from: u64,
    /// The same with computation.
    pub from_with_overlap: u64,
}

/// All machines and sizes, and where they cross.
///
/// # Errors
/// When a number of `base` is out of range.
pub fn beside_ucc(
    base: &Config,
    table: &CostTable,
) -> Result<(Vec<Beside>, Vec<Crossing>), ConfigError> {
    let (mut all, mut crossings) = (Vec::new(), Vec::new());
    for (slower, nodes) in SLOWER
        .iter()
        .flat_map(|slower| NODES.map(|nodes| (*slower, nodes)))
    {
        let mut config = Config {
            nodes,
            scheme: Scheme::Xgvmi(Features::ALL),
            receive_credits: RECEIVES,
            ..base.clone()
        };
        config.assumptions.software_factor = slower;
        let of_sp = config.ppn.div_ceil(config.sps);
        config.send_credits = SENDS * of_sp.saturating_mul(of_sp).min(OFFER_BLOCKS);
        let rows = SIZES.iter().map(|size| at(&config, table, *size));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        crossings.push(Crossing {
            nodes,
            ranks: config.ranks(),
            slower,
            from: wins_from(&rows, |row| row.of_ucc),
            from_with_overlap: wins_from(&rows, |row| row.of_ucc_with_overlap),
        });
        all.extend(rows);
    }
    Ok((all, crossings))
}

/// The least size from which on all ratios are at most [`EVEN`].
fn wins_from(rows: &[Beside], ratio: impl Fn(&Beside) -> f64) -> u64 {
    let wins = rows.iter().rev().take_while(|row| ratio(row) <= EVEN);
    wins.last().map_or(0, |row| row.size)
}

fn at(base: &Config, table: &CostTable, block_bytes: u64) -> Result<Beside, ConfigError> {
    let config = Config {
        block_bytes,
        ..base.clone()
    };
    let offloaded = predict(&config, table, Extent::SWEEP)?;
    let ucc_us = pairwise_ns(&config, table) / 1e3;
    // Two messages, beside the keys.
    let messages = real(Software::UCX.send_ns + Software::UCX.receive_ns) / 1e3;
    let busy_us = offloaded.host_keys_share * offloaded.last_us + messages;
    Ok(Beside {
        nodes: config.nodes,
        ppn: config.ppn,
        sps: config.sps,
        slower: config.assumptions.software_factor,
        size: block_bytes,
        us: offloaded.us,
        busy_us,
        ucc_us,
        of_ucc: offloaded.us / ucc_us,
        of_ucc_with_overlap: offloaded.us.max(ucc_us + busy_us) / (2.0 * ucc_us),
    })
}

/// UCC's call. The ranks of a node share the port: either it is busy, or each rank waits for the steps of its blocks. Blocks within
/// a node have no latency, and the port's speed.
fn pairwise_ns(config: &Config, table: &CostTable) -> f64 {
    let ucx = Software::UCX;
    let block = config.on_the_wire_ns(config.block_bytes);
    let latency = real(config.latency_ns);
    let message = real(ucx.send_ns + ucx.fetch_ns + ucx.receive_ns) + latency;
    let is_rendezvous = config.block_bytes >= RENDEZVOUS_FROM;
    let chain = match is_rendezvous {
        true => message + real(ucx.read_ns + ucx.fetch_ns) + 2.0 * latency + block,
        false => message + block,
    };
    let step = (chain + real(ucx.completion_ns)).max(block * f64::from(config.ppn));
    let keys: f64 = match is_rendezvous {
        true => [Cost::RegMr, Cost::DeregMr]
            .map(|cost| 2.0 * table.ns(cost, config.buffer_bytes()))
            .into_iter()
            .sum(),
        false => 0.0,
    };
    let own = real(ucx.send_ns + ucx.receive_ns + ucx.completion_ns) + block;
    let (all, local) = (config.ranks(), u64::from(config.ppn));
    keys + step * real(all - local) + own * real(local - 1)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "nanoseconds and ranks, far below 2^52"
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

    #[test]
    fn a_pairwise_exchange_takes_the_port_or_the_latency_of_its_steps() {
        let table = CostTable::flat(|_| 0.0);
        let of = |nodes, bytes| pairwise_ns(&machine(nodes, bytes), &table);
        // 85 to send, 350 to fetch, 40 to receive, 20 to complete, and the latency, at each of four steps to the other node.
        let block = machine(2, 1).on_the_wire_ns(512);
        let own = 3.0 * (145.0 + block);
        assert!((of(2, 512) - own - 4.0 * (495.0 + 600.0 + block)).abs() < 1e-6);
        // Blocks of four ranks through one port.
        let long = machine(2, 1).on_the_wire_ns(1 << 20);
        let own = 3.0 * (145.0 + long);
        assert!((of(2, 1 << 20) - own - 4.0 * 4.0 * long).abs() < 1e-6);
        // The read, and its way there and back.
        assert!(of(2, 8 << 10) - of(2, 8191) > 4.0 * 1600.0);
    }

    #[test]
    fn long_blocks_are_limited_by_the_link_and_computation_hides_the_offload() {
        let table = CostTable::slides().expect("the committed file");
        let of = |size| at(&machine(8, 1), &table, size).expect("in range");
        let long = of(1 << 20);
        assert!((0.95..1.1).contains(&long.of_ucc), "{long:?}");
        assert!((0.5..0.6).contains(&long.of_ucc_with_overlap), "{long:?}");
        assert!(long.busy_us < long.us / 2.0, "{long:?}");
        let slow = Config {
            ppn: 32,
            ..machine(4, 1)
        };
        let mut slower = slow.clone();
        slower.assumptions.software_factor = 4.0;
        let us = |config: &Config| at(config, &table, 512).expect("in range").of_ucc;
        assert!(us(&slower) > 1.5 * us(&slow));
    }

    #[test]
    fn the_offload_wins_from_where_it_stays_ahead() {
        let rows = |ratios: &[f64]| {
            let row = |(at, ratio): (usize, &f64)| Beside {
                nodes: 2,
                ppn: 1,
                sps: 1,
                slower: 1.0,
                size: SIZES[at],
                us: 1.0,
                busy_us: 1.0,
                ucc_us: 1.0,
                of_ucc: *ratio,
                of_ucc_with_overlap: 1.0,
            };
            let rows: Vec<Beside> = ratios.iter().enumerate().map(row).collect();
            wins_from(&rows, |row| row.of_ucc)
        };
        assert_eq!(rows(&[0.5, 1.5, 0.9, 1.0]), SIZES[2]);
        assert_eq!(rows(&[0.5, 0.4]), SIZES[0]);
        assert_eq!(rows(&[0.5, 1.1]), 0);
    }
}
