//! Stock UCC's algorithms on the hosts, with its own choice by length.
//!
//! Facts of UCC 1.9, below `src/components/tl/ucp`: the strings `*_DEFAULT_ALG_SELECT_STR` of each collective's header, and the
//! radices in `tl_ucp.c`. An alltoallv is pairwise, and a rank has one send and one receive under way
//! (`ALLTOALLV_PAIRWISE_NUM_POSTS` is 1), so each step waits for its block. An alltoall is the same from 129 bytes per block
//! on. Ranks of k-nomial algorithms meet those at distance 1, k, k^2 and so on (`coll_patterns/recursive_knomial.h`); if
//! their number is no multiple of a power of k, the further ones send to one of the others before, and receive after.
//!
//! UCC moves no further step while the program computes.

use super::{real, reduce_ns};
use crate::config::{Config, Software};
use crate::costs::{Cost, CostTable};

/// From this length on UCX sends a request first, and the receiver reads the block. UCX computes the length at run time; this is
/// an assumption.
const RENDEZVOUS_FROM: u64 = 8 << 10;

/// From these lengths of the whole data on UCC takes the algorithm for long data.
const LONG_ALLREDUCE: u64 = 4 << 10;
const LONG_ALLGATHER: u64 = 4 << 10;
const LONG_BROADCAST: u64 = 32 << 10;

/// Radix of a short broadcast, and of a short allreduce.
const RADIX: u64 = 4;
/// Radices of the others. UCC takes 2 if the launcher has bound ranks to sockets, otherwise 4; here the faster one counts.
const RADICES: [u64; 2] = [2, 4];

/// The ranks that send in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Senders {
    /// All, to each other.
    All,
    /// Multiples of the next distance: a tree from the largest distance down.
    Multiples,
    /// Those below the distance: a tree from the smallest distance up.
    First,
}

/// Messages of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Round {
    /// Of the busiest rank.
    peers: u64,
    /// Those that leave the busiest node, and those that do not.
    leaving: u64,
    of_node: u64,
}

/// A k-nomial pattern.
#[derive(Debug)]
struct Pattern {
    /// By rising distance.
    rounds: Vec<Round>,
    /// Ranks beyond the largest multiple of a power of the radix.
    extra: u64,
}

impl Pattern {
    fn new(config: &Config, radix: u64, senders: Senders) -> Self {
        let ranks = config.ranks();
        let mut power = 1;
        while power * radix <= ranks {
            power *= radix;
        }
        // A tree needs no partner of equal rank.
        let full = match senders {
            Senders::Multiples => ranks,
            Senders::All | Senders::First => ranks / power * power,
        };
        let distances = std::iter::successors(Some(1), |distance| Some(distance * radix));
        let rounds = distances.take_while(|distance| *distance < full);
        let rounds = rounds.map(|distance| Round::new(config, full, (distance, radix), senders));
        Self {
            rounds: rounds.collect(),
            extra: ranks - full,
        }
    }

    /// Before and after the rounds: the further ranks.
    fn extra_ns(&self, config: &Config, bytes: u64) -> f64 {
        match self.extra {
            0 => 0.0,
            extra => {
                let leaving = extra.min(config.ppn.into());
                Round::pairs(leaving, 0).ns(config, bytes)
            }
        }
    }
}

impl Round {
    /// One message of each rank.
    fn pairs(leaving: u64, of_node: u64) -> Self {
        Self {
            peers: 1,
            leaving,
            of_node,
        }
    }

    /// Reduces what has come.
    fn reduce_ns(&self, config: &Config, bytes: u64) -> f64 {
        let received = self.peers * bytes;
        let of_node = real(u64::from(config.ppn) * received) / config.assumptions.memory_gb_s;
        reduce_ns(config, real(received)).max(of_node)
    }

    fn new(config: &Config, full: u64, (distance, radix): (u64, u64), senders: Senders) -> Self {
        let local = u64::from(config.ppn);
        let mut busiest = Self::pairs(0, 0);
        busiest.peers = 0;
        for node in 0..u64::from(config.nodes) {
            let (mut leaving, mut of_node) = (0, 0);
            for rank in (node * local..(node + 1) * local).filter(|rank| *rank < full) {
                let span = distance * radix;
                let sends = match senders {
                    Senders::All => true,
                    Senders::Multiples => rank % span == 0,
                    Senders::First => rank < distance,
                };
                if !sends {
                    continue;
                }
                let first = rank / span * span + rank % distance;
                let peers = (0..radix).map(|step| first + step * distance);
                let peers = peers.filter(|peer| *peer < full && *peer != rank);
                let (mut count, mut away) = (0, 0);
                for peer in peers {
                    count += 1;
                    away += u64::from(peer / local != node);
                }
                busiest.peers = busiest.peers.max(count);
                leaving += away;
                of_node += count - away;
            }
            busiest.leaving = busiest.leaving.max(leaving);
            busiest.of_node = busiest.of_node.max(of_node);
        }
        busiest
    }

    /// All messages of a round, which the ranks of a node send at once through its port. Messages within a node have no latency;
    /// a rank copies with the port's speed, all together with that of the memory.
    fn ns(&self, config: &Config, bytes: u64) -> f64 {
        let ucx = Software::UCX;
        let own = real(ucx.send_ns + ucx.receive_ns + ucx.completion_ns) * real(self.peers);
        let link = config.on_the_wire_ns(bytes);
        let of_node = real(self.of_node * bytes) / config.assumptions.memory_gb_s;
        let copies = of_node.max(link * real(self.peers));
        if self.leaving == 0 {
            return own + copies;
        }
        own + way_ns(config, bytes) + copies.max(link * real(self.leaving))
    }
}

/// A message's way to another node without its bytes and the work of the ranks.
fn way_ns(config: &Config, bytes: u64) -> f64 {
    let (ucx, latency) = (Software::UCX, real(config.latency_ns));
    let message = real(ucx.fetch_ns) + latency;
    match bytes >= RENDEZVOUS_FROM {
        true => message + real(ucx.read_ns + ucx.fetch_ns) + 2.0 * latency,
        false => message,
    }
}

/// Registration of buffers, if the longest message is read.
fn keys_ns(table: &CostTable, message: u64, buffers: &[u64]) -> f64 {
    if message < RENDEZVOUS_FROM {
        return 0.0;
    }
    let ns = |bytes: &u64| [Cost::RegMr, Cost::DeregMr].map(|cost| table.ns(cost, *bytes));
    buffers.iter().flat_map(ns).sum()
}

/// A pairwise alltoallv. The ranks of a node share the port: either it is busy, or each rank waits for the steps of its blocks.
pub(super) fn alltoallv_ns(config: &Config, table: &CostTable) -> f64 {
    let ucx = Software::UCX;
    let bytes = config.block_bytes;
    let block = config.on_the_wire_ns(bytes);
    let own = real(ucx.send_ns + ucx.receive_ns + ucx.completion_ns) + block;
    let step = (own + way_ns(config, bytes)).max(block * f64::from(config.ppn));
    let buffer = config.buffer_bytes();
    let (all, local) = (config.ranks(), u64::from(config.ppn));
    keys_ns(table, bytes, &[buffer, buffer]) + step * real(all - local) + own * real(local - 1)
}

/// An allreduce: k-nomial exchanges of the whole vector, or a reduce-scatter and an allgather.
pub(super) fn allreduce_ns(config: &Config, table: &CostTable) -> f64 {
    let bytes = config.block_bytes;
    let keys = |message| keys_ns(table, message, &[bytes, bytes]);
    if bytes >= LONG_ALLREDUCE {
        return best(|radix| {
            let (ns, message) = scattered(config, radix, bytes);
            keys(message) + ns
        });
    }
    let pattern = Pattern::new(config, RADIX, Senders::All);
    let round = |round: &Round| round.ns(config, bytes) + round.reduce_ns(config, bytes);
    let rounds: f64 = pattern.rounds.iter().map(round).sum();
    let extra = pattern.extra_ns(config, bytes);
    let reduced = reduce_ns(config, real(bytes));
    keys(bytes)
        + rounds
        + if extra > 0.0 {
            2.0 * extra + reduced
        } else {
            0.0
        }
}

/// A reduce-scatter and an allgather with one radix, and the longest message.
fn scattered(config: &Config, radix: u64, bytes: u64) -> (f64, u64) {
    let pattern = Pattern::new(config, radix, Senders::All);
    let parts = parts(&pattern.rounds, bytes);
    let mut ns = 2.0 * pattern.extra_ns(config, bytes);
    if pattern.extra > 0 {
        ns += reduce_ns(config, real(bytes));
    }
    for (round, part) in pattern.rounds.iter().zip(&parts) {
        ns += 2.0 * round.ns(config, *part) + round.reduce_ns(config, *part);
    }
    let longest = if pattern.extra > 0 {
        bytes
    } else {
        parts.first().copied().unwrap_or(0)
    };
    (ns, longest)
}

/// Length of a message in each round, by which the rest is divided.
fn parts(rounds: &[Round], bytes: u64) -> Vec<u64> {
    let mut rest = bytes;
    let next = |round: &Round| {
        rest = rest.div_ceil(round.peers + 1);
        rest
    };
    rounds.iter().map(next).collect()
}

/// A broadcast: a k-nomial tree, or a scatter and an allgather.
pub(super) fn broadcast_ns(config: &Config, table: &CostTable) -> f64 {
    let bytes = config.block_bytes;
    if bytes < LONG_BROADCAST || config.ranks() == 2 {
        let pattern = Pattern::new(config, RADIX, Senders::Multiples);
        let rounds = pattern.rounds.iter().map(|round| round.ns(config, bytes));
        return keys_ns(table, bytes, &[bytes]) + rounds.sum::<f64>();
    }
    best(|radix| {
        let scatter = Pattern::new(config, radix, Senders::First);
        let gather = Pattern::new(config, radix, Senders::All);
        let parts = parts(&scatter.rounds, bytes);
        let ns = |pattern: &Pattern| {
            let rounds = pattern.rounds.iter().zip(&parts);
            rounds
                .map(|(round, part)| round.ns(config, *part))
                .sum::<f64>()
        };
        let longest = parts.first().copied().unwrap_or(0);
        let keys = keys_ns(table, longest, &[bytes]);
        keys + ns(&scatter) + ns(&gather) + gather.extra_ns(config, bytes)
    })
}

/// An allgather: k-nomial, or exchanges with the two neighbours in turn; a ring if the number of ranks is odd.
pub(super) fn allgather_ns(config: &Config, table: &CostTable) -> f64 {
    let (bytes, ranks, local) = (config.block_bytes, config.ranks(), u64::from(config.ppn));
    let all = config.buffer_bytes();
    if all < LONG_ALLGATHER {
        return best(|radix| {
            let pattern = Pattern::new(config, radix, Senders::All);
            let mut have = bytes;
            let mut ns = pattern.extra_ns(config, bytes) + pattern.extra_ns(config, all);
            for round in &pattern.rounds {
                ns += round.ns(config, have);
                have *= round.peers + 1;
            }
            ns
        });
    }
    if ranks % 2 == 1 {
        let leaving = u64::from(config.nodes > 1);
        let step = Round::pairs(leaving, local - leaving).ns(config, bytes);
        return keys_ns(table, bytes, &[bytes, all]) + real(ranks - 1) * step;
    }
    // The pairs with an even lower rank, and the others.
    let leaving = match local {
        _ if config.nodes == 1 => [0, 0],
        1 => [1, 1],
        local if local % 2 == 0 => [0, 2],
        _ => [1, 1],
    };
    let pair = leaving.map(|leaving| Round::pairs(leaving, local.saturating_sub(leaving)));
    let steps = ranks / 2;
    let later = (1..steps).map(|step| pair[usize::from(step % 2 == 1)].ns(config, 2 * bytes));
    let message = if steps > 1 { 2 * bytes } else { bytes };
    keys_ns(table, message, &[bytes, all]) + pair[0].ns(config, bytes) + later.sum::<f64>()
}

/// The least time with any radix.
fn best(ns: impl Fn(u64) -> f64) -> f64 {
    RADICES.map(ns).into_iter().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::{Features, Scheme};

    fn machine(nodes: u32, ppn: u32, block_bytes: u64) -> Config {
        Config {
            nodes,
            ppn,
            sps: 1,
            ..Config::slides(block_bytes, Scheme::Xgvmi(Features::ALL))
        }
    }

    fn free() -> CostTable {
        CostTable::flat(|_| 0.0)
    }

    /// 85 to send, 40 to receive, 20 to complete; 350 to fetch, and the latency.
    const OWN: f64 = 145.0;
    const WAY: f64 = 950.0;

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn a_pairwise_exchange_takes_the_port_or_the_latency_of_its_steps() {
        let of = |nodes, bytes| alltoallv_ns(&machine(nodes, 4, bytes), &free());
        let block = machine(2, 4, 1).on_the_wire_ns(512);
        let own = 3.0 * (OWN + block);
        near(of(2, 512), own + 4.0 * (OWN + WAY + block));
        // Blocks of four ranks through one port.
        let long = machine(2, 4, 1).on_the_wire_ns(1 << 20);
        near(of(2, 1 << 20), 3.0 * (OWN + long) + 4.0 * 4.0 * long);
        // The read, and its way there and back.
        assert!(of(2, 8 << 10) - of(2, 8191) > 4.0 * 1600.0);
    }

    #[test]
    fn a_round_counts_the_messages_that_leave_a_node() {
        let round = |nodes, ppn, distance, radix, senders| {
            let config = machine(nodes, ppn, 1);
            let round = Round::new(&config, config.ranks(), (distance, radix), senders);
            (round.peers, round.leaving)
        };
        assert_eq!(round(4, 4, 1, 4, Senders::All), (3, 0));
        assert_eq!(round(4, 4, 4, 4, Senders::All), (3, 12));
        assert_eq!(round(4, 2, 1, 4, Senders::All), (3, 4));
        // Eight ranks: the second round has one partner each.
        assert_eq!(round(8, 1, 4, 4, Senders::All), (1, 1));
        assert_eq!(round(4, 4, 4, 4, Senders::Multiples), (3, 3));
        assert_eq!(round(4, 4, 1, 4, Senders::Multiples), (3, 0));
        assert_eq!(round(4, 4, 4, 4, Senders::First), (3, 12));
        let pattern = Pattern::new(&machine(6, 1, 1), 4, Senders::All);
        assert_eq!((pattern.rounds.len(), pattern.extra), (1, 2));
    }

    /// Two ranks exchange a short vector and reduce it: 512 bytes at 10 bytes per nanosecond.
    #[test]
    fn a_short_allreduce_of_two_ranks_is_one_exchange() {
        let config = machine(2, 1, 512);
        let expected = OWN + WAY + config.on_the_wire_ns(512) + 51.2;
        near(allreduce_ns(&config, &free()), expected);
        // Sixteen ranks on as many nodes: two rounds with three partners.
        let config = machine(16, 1, 512);
        let link = 3.0 * config.on_the_wire_ns(512);
        near(
            allreduce_ns(&config, &free()),
            2.0 * (3.0 * OWN + WAY + link + 153.6),
        );
    }

    /// The bytes that a rank sends, against the known bound of 2(N-1)/N.
    #[test]
    fn a_long_allreduce_sends_twice_the_vector_but_its_own_part() {
        let bytes = 1 << 20;
        for (ranks, radix) in [(2, 2), (8, 2), (8, 4), (16, 4), (64, 2), (1024, 4)] {
            let pattern = Pattern::new(&machine(ranks, 1, bytes), radix, Senders::All);
            let parts = parts(&pattern.rounds, bytes);
            let sent: u64 = pattern
                .rounds
                .iter()
                .zip(&parts)
                .map(|(round, part)| 2 * round.peers * part)
                .sum();
            assert_eq!(sent, 2 * bytes / u64::from(ranks) * u64::from(ranks - 1));
        }
        // And a port sends no more, however many ranks share it: 256 MiB on 8 nodes of 4, without computation.
        let mut config = machine(8, 4, 256 << 20);
        (
            config.assumptions.reduce_gb_s,
            config.assumptions.memory_gb_s,
        ) = (1e6, 1e6);
        let bound = 2.0 * 7.0 / 8.0 * config.on_the_wire_ns(256 << 20);
        let local = 2.0 * 3.0 / 4.0 * config.on_the_wire_ns(256 << 20);
        let found = allreduce_ns(&config, &free());
        assert!((1.0..1.01).contains(&(found / (bound + local))), "{found}");
    }

    #[test]
    fn a_broadcast_has_the_depth_of_its_tree_and_a_long_one_twice_the_data() {
        // Three children of the root on each of three levels.
        let config = machine(64, 1, 512);
        let level = 3.0 * OWN + WAY + 3.0 * config.on_the_wire_ns(512);
        near(broadcast_ns(&config, &free()), 3.0 * level);
        let config = machine(64, 1, 256 << 20);
        let bound = 2.0 * 63.0 / 64.0 * config.on_the_wire_ns(256 << 20);
        let found = broadcast_ns(&config, &free());
        assert!((1.0..1.01).contains(&(found / bound)), "{found} {bound}");
        // Two ranks: one message.
        let config = machine(2, 1, 1 << 20);
        let read = 80.0 + 350.0 + 1200.0;
        let expected = OWN + WAY + read + config.on_the_wire_ns(1 << 20);
        near(broadcast_ns(&config, &free()), expected);
    }

    #[test]
    fn an_allgather_fills_the_port_with_all_that_is_elsewhere() {
        // Four ranks on as many nodes: one block, then two.
        let config = machine(4, 1, 2048);
        let step = |bytes| OWN + WAY + config.on_the_wire_ns(bytes);
        near(allgather_ns(&config, &free()), step(2048) + step(4096));
        // Short: two rounds of radix 2, with one block and two, or one with three partners.
        let config = machine(4, 1, 512);
        let link = |bytes| config.on_the_wire_ns(bytes);
        let by_two = 2.0 * (OWN + WAY) + link(512) + link(1024);
        let by_four = 3.0 * OWN + WAY + 3.0 * link(512);
        near(allgather_ns(&config, &free()), by_two.min(by_four));
        let config = machine(3, 1, 1 << 20);
        let read = 80.0 + 350.0 + 1200.0;
        let step = OWN + WAY + read + config.on_the_wire_ns(1 << 20);
        near(allgather_ns(&config, &free()), 2.0 * step);
        let config = machine(16, 2, 64 << 20);
        let bound = config.on_the_wire_ns(64 << 20) * 30.0;
        let found = allgather_ns(&config, &free());
        assert!((1.0..1.6).contains(&(found / bound)), "{found} {bound}");
    }
}
