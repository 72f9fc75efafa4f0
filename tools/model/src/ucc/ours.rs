//! This project's collectives beside its alltoallv: what its service processes (SPs) send, read and reduce.
//!
//! Each resource of a node has a sum: its port, its path inside the adapter, and the cores of its SPs. A call takes the largest
//! one, or the steps that wait for each other if these take longer. The host's processor sends and receives two messages.
//! `docs/OFFLOAD.md` describes the protocol, `xgvmi_offload::figures` has its numbers.

use super::{real, reduce_ns};
use crate::config::{Config, Software};
use crate::costs::{Cost, CostTable};
use crate::messages::{Services, Tree, Windows};
use crate::software::SoftwareCost;
use xgvmi_offload::figures;

/// Time of a call, and the part of it in which a rank cannot compute, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offloaded {
    pub(super) ns: f64,
    pub(super) busy_ns: f64,
}

/// Work of an SP for one end of a message, and for a block.
#[derive(Debug, Clone, Copy)]
struct Work {
    end: f64,
    block: f64,
}

impl Work {
    fn of(config: &Config) -> Self {
        let ucx = Software::UCX;
        let (block, message) = match config.assumptions.software {
            SoftwareCost::Ucx => (0.0, 0.0),
            SoftwareCost::Measured(cost) | SoftwareCost::Earlier(cost) => {
                (cost.us_per_block * 1e3, cost.us_per_message * 1e3)
            }
        };
        let factor = config.assumptions.software_factor;
        Self {
            end: (real(ucx.send_ns + ucx.receive_ns) + message) / 2.0 * factor,
            block: (real(ucx.read_ns + ucx.completion_ns) + block) * factor,
        }
    }
}

/// What a call takes of each resource of a node, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Port, and path inside the adapter.
    port: f64,
    local: f64,
    /// The busiest SP.
    core: f64,
    /// Steps of which each waits for the one before.
    chain: f64,
}

/// A message between two SPs until the receiver's work.
fn message_ns(config: &Config) -> f64 {
    real(Software::UCX.fetch_ns + config.latency_ns)
}

/// A read until its data begins to come.
fn read_ns(config: &Config) -> f64 {
    real(Software::UCX.fetch_ns + 2 * config.latency_ns)
}

/// The whole call of a rank with these buffers.
fn whole(config: &Config, table: &CostTable, load: Load, buffers: &[u64]) -> Offloaded {
    let ucx = Software::UCX;
    let registered = |bytes: &u64| table.ns(Cost::RegMr, *bytes) + table.ns(Cost::DeregMr, *bytes);
    // The buffers are bound in one chain, with the invalidation of the last ones.
    let bound = buffers
        .iter()
        .max()
        .map_or(0.0, |most| table.ns(Cost::Bind, *most));
    let keys: f64 = buffers.iter().map(registered).sum::<f64>() + bound;
    let busy_ns = keys + real(ucx.send_ns + ucx.receive_ns);
    let there_and_back = 2.0 * message_ns(config) + real(ucx.completion_ns);
    let moved = load.port.max(load.local).max(load.core).max(load.chain);
    Offloaded {
        ns: busy_ns + there_and_back + moved,
        busy_ns,
    }
}

/// A broadcast: a tree of the SPs, and copies on each node. A level's reads share the port of the SP above, in the order of its
/// offers.
pub(super) fn broadcast(config: &Config, table: &CostTable) -> Offloaded {
    let bytes = config.block_bytes;
    let services = Services::of_vector(config.machine(), bytes);
    let work = Work::of(config);
    let Tree { levels, below } = Tree::new(services.members);
    let link = config.on_the_wire_ns(bytes);
    let level = 2.0 * work.end
        + message_ns(config)
        + work.block
        + read_ns(config)
        + link * real(figures::BROADCAST_RADIX as u64 - 1);
    let ranks = real(services.ranks);
    let copies = real(u64::from(config.ppn) - 1) * link;
    // At the last SP of the tree, which has no other work while it waits.
    let chain =
        ranks * work.end + real(levels) * level + copies.max(ranks * work.block) + ranks * work.end;
    let load = Load {
        port: real(below) * link,
        local: copies,
        core: (2.0 * ranks + 2.0 * real(below)) * work.end + ranks * work.block,
        chain,
    };
    whole(config, table, load, &[bytes])
}

/// An allgather is an alltoallv in which an SP reads a block once for all its ranks, and copies it for the others.
pub(super) fn allgather(config: &Config, table: &CostTable) -> Offloaded {
    let bytes = config.block_bytes;
    let (all, ppn) = (config.ranks(), u64::from(config.ppn));
    let services = Services::new(config.machine(), u64::MAX);
    let work = Work::of(config);
    let link = config.on_the_wire_ns(bytes);
    let receivers = ppn.div_ceil(services.of_node);
    let crossing = services.of_node * (all - ppn);
    let blocks = receivers * (all - 1);
    let ends = services.messages(services.ranks * receivers) + 2 * services.ranks;
    let load = Load {
        port: real(crossing) * link,
        local: real(ppn * (all - 1) - crossing) * link,
        core: real(ends) * work.end + real(blocks) * work.block,
        chain: 4.0 * work.end + message_ns(config) + work.block + read_ns(config) + link,
    };
    whole(config, table, load, &[bytes, config.buffer_bytes()])
}

/// An allreduce: SPs reduce the windows of their ranks, then each owner its segment of all, and all read the results.
pub(super) fn allreduce(config: &Config, table: &CostTable) -> Offloaded {
    let bytes = config.block_bytes;
    let services = Services::of_vector(config.machine(), bytes);
    let windows = Windows::new(bytes.div_ceil(services.lanes), services.members);
    let work = Work::of(config);
    let Windows { count, owned, .. } = windows;
    let (members, ranks, sps) = (services.members, services.ranks, real(services.of_node));
    if windows.is_tree {
        let buffers = [bytes, bytes];
        let is_short = windows.bytes < figures::DIRECT_LENGTH;
        let buffers = &buffers[if is_short { 2 } else { 0 }..];
        return whole(config, table, along_a_tree(config, &services), buffers);
    }
    let (window, segment) = (windows.bytes, windows.segment);
    // An SP with one rank has nothing to reduce before the others.
    let own = if ranks > 1 { ranks } else { 0 };
    let link = |bytes: u64| config.on_the_wire_ns(bytes);
    let away = real(services.away()) / real(members);
    let blocks = count * own + owned * members + count * windows.owners * ranks;
    let reduced = real(count * ranks.saturating_sub(1)) * real(window)
        + real(owned * (members - 1)) * real(segment);
    let factor = config.assumptions.software_factor;
    let port = sps * away * (real(owned * members) * link(segment) + real(count) * link(window));
    let local = sps
        * (real(count * (own + ranks - 1)) * link(window)
            + (1.0 - away) * real(count) * link(window));
    let core = real(windows.messages + 2 * ranks) * work.end
        + real(blocks) * work.block
        + reduce_ns(config, reduced) * factor;
    // One window alone: its share of all, and the ways of its three steps.
    let steps = 2.0 * (2.0 * work.end + message_ns(config) + read_ns(config))
        + if own > 0 {
            real(Software::UCX.fetch_ns)
        } else {
            0.0
        };
    let alone = (port + local + core) / real(count) + steps;
    let at_once = real(figures::WINDOWS_AT_ONCE.into());
    let load = Load {
        port,
        local,
        core,
        chain: alone * (real(count) / at_once).max(1.0),
    };
    whole(config, table, load, &[bytes, bytes])
}

/// An allreduce along a tree of the SPs: the vectors travel up, and the result down; a short one in messages.
fn along_a_tree(config: &Config, services: &Services) -> Load {
    let bytes = config.block_bytes.div_ceil(services.lanes);
    let work = Work::of(config);
    let Tree { levels, below } = Tree::new(services.members);
    let (ranks, link) = (real(services.ranks), config.on_the_wire_ns(bytes));
    let factor = config.assumptions.software_factor;
    let reduce = |vectors: f64| reduce_ns(config, vectors * real(bytes)) * factor;
    let is_read = bytes >= figures::DIRECT_LENGTH;
    let read = |of: f64| if is_read { of } else { 0.0 };
    let core = (4.0 * real(below) + 2.0 * ranks) * work.end
        + read((2.0 * ranks + real(below)) * work.block)
        + reduce(ranks - 1.0 + real(below));
    let level = 2.0 * work.end + message_ns(config) + link + read(work.block + read_ns(config));
    let own = read(real(Software::UCX.fetch_ns) + ranks * (work.block + 2.0 * link));
    Load {
        port: 2.0 * real(below) * link,
        local: read(real(services.of_node) * 2.0 * ranks * link),
        core,
        // The SP at the end of the tree has its ranks' messages before and after the levels.
        chain: 2.0 * ranks * work.end + own + real(levels) * (2.0 * level + reduce(1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::{Features, Scheme};

    fn machine(nodes: u32, ppn: u32, sps: u32, block_bytes: u64) -> Config {
        Config {
            nodes,
            ppn,
            sps,
            ..Config::slides(block_bytes, Scheme::Xgvmi(Features::ALL))
        }
    }

    fn free() -> CostTable {
        CostTable::flat(|_| 0.0)
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    /// Message to the SP and back, and the rank's work for both.
    const CALL: f64 = 85.0 + 40.0 + 20.0 + 2.0 * 950.0;
    /// Of an SP: one end of a message, a block.
    const END: f64 = 62.5;
    const BLOCK: f64 = 100.0;
    const READ: f64 = 350.0 + 1200.0;

    #[test]
    fn a_broadcast_between_two_nodes_is_one_read() {
        let config = machine(2, 1, 1, 4096);
        let link = config.on_the_wire_ns(4096);
        let level = 2.0 * END + 950.0 + BLOCK + READ + link;
        // The last SP: its rank's arrival, the level, and the note to its rank.
        let expected = CALL + 2.0 * END + level + BLOCK;
        near(broadcast(&config, &free()).ns, expected);
    }

    #[test]
    fn a_broadcast_takes_as_long_as_its_levels() {
        let ns = |nodes| broadcast(&machine(nodes, 1, 1, 64 << 20), &free()).ns;
        let ratio = ns(128) / ns(2);
        assert!((6.9..7.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn an_allreduce_of_two_nodes_is_counted_by_hand() {
        // One window, one owner: a segment of 4 KiB each way.
        let config = machine(2, 1, 1, 4096);
        let link = config.on_the_wire_ns(4096);
        let windows = Windows::new(4096, 2);
        assert_eq!((windows.count, windows.owners, windows.owned), (1, 1, 1));
        assert_eq!(windows.messages, 4);
        // Half of its own two blocks and of the result come from the other node; it reduces one block.
        let port = 0.5 * (2.0 * link + link);
        let local = 0.5 * link;
        let core = (4.0 + 2.0) * END + (2.0 + 1.0) * BLOCK + 409.6;
        let steps = 2.0 * (2.0 * END + 950.0 + READ);
        near(
            allreduce(&config, &free()).ns,
            CALL + port + local + core + steps,
        );
    }

    #[test]
    fn the_port_carries_twice_the_vector_but_its_own_part() {
        // On nodes with one rank, without computation, and with all windows at once the port is the limit.
        for nodes in [2, 8, 64] {
            let mut config = machine(nodes, 1, 1, 64 << 20);
            config.assumptions.software_factor = 0.0;
            config.latency_ns = 0;
            let share = f64::from(nodes - 1) / f64::from(nodes);
            let bound = 2.0 * share * config.on_the_wire_ns(64 << 20);
            let ratio = allreduce(&config, &free()).ns / bound;
            assert!((1.0..1.2).contains(&ratio), "{nodes}: {ratio}");
        }
    }

    #[test]
    fn an_allgather_reads_each_block_once_per_service() {
        let config = machine(2, 16, 2, 1 << 20);
        let link = config.on_the_wire_ns(1 << 20);
        // Two SPs read 16 blocks each; the other copies of 31 blocks for 16 ranks stay inside.
        let found = allgather(&config, &free());
        let local = f64::from(16 * 31 - 2 * 16) * link;
        near(found.ns, CALL + local);
        let one = allgather(&machine(16, 1, 4, 1 << 20), &free()).ns;
        near(one, CALL + 15.0 * link);
    }

    #[test]
    fn slower_cores_and_keys_take_longer() {
        let table = CostTable::slides().expect("the committed file");
        let mut config = machine(8, 32, 4, 64 << 10);
        let calls = [broadcast, allgather, allreduce];
        let before = calls.map(|call| call(&config, &table));
        let without = calls.map(|call| call(&config, &free()));
        config.assumptions.software_factor = 4.0;
        let slower = calls.map(|call| call(&config, &table));
        for at in 0..calls.len() {
            assert!(before[at].busy_ns > without[at].busy_ns);
            assert!(slower[at].ns >= before[at].ns);
            assert!((slower[at].busy_ns - before[at].busy_ns).abs() < 1e-9);
        }
        assert!(slower[2].ns > before[2].ns);
    }
}
