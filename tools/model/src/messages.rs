//! Service processes (SPs) of a call and their messages, as the service divides and sends them. A test compares the numbers
//! with the counts of `cargo xtask bench scale` and `service`.

use xgvmi_offload::figures::{self, Division};

/// The SPs of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Services {
    /// SPs of a node that take part.
    pub(super) of_node: u64,
    /// SPs that exchange messages with each other, and those of them on one node.
    pub(super) members: u64,
    beside: u64,
    /// Ranks that each of them serves.
    pub(super) ranks: u64,
    /// Lanes in which a part of the vector travels.
    pub(super) lanes: u64,
}

impl Services {
    /// Of a call on these nodes, ranks per node and SPs per node that is divided among as many lanes as `parts` allows.
    pub(super) fn new([nodes, ppn, sps]: [u32; 3], parts: u64) -> Self {
        let least = figures::RANKS_PER_SP.into();
        let used = figures::services_used(ppn as usize, sps as usize, least) as u64;
        let (nodes, ppn) = (u64::from(nodes), u64::from(ppn));
        if used < 2 || nodes * used <= ppn {
            return Self {
                of_node: used,
                members: nodes * used,
                beside: used,
                ranks: ppn.div_ceil(used),
                lanes: 1,
            };
        }
        let lanes = parts.clamp(1, used);
        Self {
            of_node: lanes,
            members: nodes,
            beside: 1,
            ranks: ppn,
            lanes,
        }
    }

    /// Of a vector, which is divided among all lanes if it is long.
    pub(super) fn of_vector(machine: [u32; 3], bytes: u64) -> Self {
        Self::new(machine, bytes / figures::SLICE_MIN as u64)
    }

    /// SPs on other nodes with which one exchanges messages.
    pub(super) fn away(&self) -> u64 {
        self.members - self.beside
    }
    /// Messages that one sends to the others and gets from them, if each has this number of blocks for each other.
    pub(super) fn messages(&self, blocks: u64) -> u64 {
        (self.members - 1) * between(blocks)
    }
}

/// Messages between two SPs that have this number of blocks for each other: offers, and their answers. An SP answers the offers
/// that come together with one message.
pub(super) fn between(blocks: u64) -> u64 {
    let offers = blocks.div_ceil(figures::OFFER_BLOCKS as u64);
    2 * (offers + offers.div_ceil(figures::SENDS as u64))
}

/// The tree of a broadcast or barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) levels: u64,
    /// SPs below its root. The root sends a message to each of them and gets one.
    pub(super) below: u64,
}

impl Tree {
    /// Of this number of SPs.
    pub(super) fn new(members: u64) -> Self {
        let radix = figures::BROADCAST_RADIX as u64;
        let (mut levels, mut below, mut reached) = (0, 0, 1);
        while reached < members {
            below += (1..radix).filter(|digit| digit * reached < members).count() as u64;
            reached *= radix;
            levels += 1;
        }
        Self { levels, below }
    }
}

/// Windows of an allreduce at the busiest SP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) count: u64,
    /// Bytes of each, and of a segment.
    pub(super) bytes: u64,
    pub(super) segment: u64,
    pub(super) owners: u64,
    /// Windows of which the SP owns a segment.
    pub(super) owned: u64,
    /// Messages that the SP sends to others and gets from them.
    pub(super) messages: u64,
    /// The SPs form a tree.
    pub(super) is_tree: bool,
}

impl Windows {
    /// Of a vector of this length at so many SPs.
    pub(super) fn new(bytes: u64, members: u64) -> Self {
        let places = usize::try_from(members).expect("a machine has at most 2^32 SPs");
        let division = Division::new(bytes, 1, places, figures::DIRECT_LENGTH);
        let division = division.expect("the configuration bounds sizes");
        let window = |index| division.window(index);
        let is_tree = division.is_tree(figures::DIRECT_LENGTH);
        let owns = |index| u64::from(window(index).segment(0).is_some());
        let others = members - 1;
        // To each owner and back; and from each other SP, whose segments the owner reduces.
        let ends = |owners: u64, owns: u64| owners - owns + owns * others;
        let (mut owned, mut messages) = (0, 0);
        let mut first = 0;
        while first < division.windows() {
            let end = (first + figures::WINDOWS_AT_ONCE).min(division.windows());
            // Each step of a window has an offer. Steps of windows under way together have one answer, if their owner is the same.
            for index in first..end {
                owned += owns(index);
                messages += 2 * ends(window(index).owners(), owns(index));
            }
            let owns_any = (first..end).map(owns).max().unwrap_or(0);
            let owners = window(first).owners();
            messages += 2 * ends(all_owners(owners, members, end - first), owns_any);
            first = end;
        }
        let first = window(0);
        if is_tree {
            // The vectors of the SPs below, and the result for them.
            messages = 4 * Tree::new(members).below;
        }
        Self {
            is_tree,
            count: division.windows().into(),
            bytes: first.length(),
            segment: first.segment(0).map_or(0, |mine| mine.length),
            owners: first.owners(),
            owned,
            messages,
        }
    }
}

/// Members that own a segment of one of two neighbouring windows, or of one. Owners are spread evenly, and the next window's are their
/// neighbours.
fn all_owners(owners: u64, members: u64, windows: u32) -> u64 {
    match windows {
        1 => owners,
        _ => owners + owners.min(members - owners),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn rows(report: &str) -> Vec<Value> {
        let report: Value = serde_json::from_str(report).expect("a report");
        report["rows"].as_array().expect("rows").clone()
    }

    fn number(row: &Value, name: &str) -> u32 {
        let number = row[name].as_u64().and_then(|number| number.try_into().ok());
        number.expect("a small number")
    }

    #[test]
    fn a_call_has_lanes_on_many_nodes_only() {
        let of = |nodes, ppn, sps, parts| {
            let services = Services::new([nodes, ppn, sps], parts);
            let lanes = (services.of_node, services.lanes);
            (services.members, services.ranks, lanes)
        };
        assert_eq!(of(2, 32, 4, 9), (8, 8, (4, 1)));
        assert_eq!(of(8, 32, 4, 9), (32, 8, (4, 1)));
        assert_eq!(of(9, 32, 4, 9), (9, 32, (4, 4)));
        assert_eq!(of(128, 32, 4, 0), (128, 32, (1, 1)));
        // Few ranks use few SPs.
        assert_eq!(of(128, 8, 4, 9), (128, 8, (1, 1)));
    }

    #[test]
    fn owners_of_two_windows_are_those_of_the_service() {
        for members in 2..=200 {
            let division = Division::new(2 << 18, 1, members, 512).expect("valid");
            let windows = [0, 1].map(|index| division.window(index));
            let owns = |member: &usize| windows.iter().any(|of| of.segment(*member).is_some());
            let counted = (0..members).filter(owns).count() as u64;
            let found = all_owners(windows[0].owners(), members as u64, 2);
            assert_eq!(found, counted, "{members}");
        }
    }

    /// SPs with which one exchanges blocks in a torus of ranks with six partners each, the extents of which are powers of two.
    fn nodes_beside(ranks: u32, nodes: u32) -> u64 {
        let per_node = ranks / nodes;
        let mut extents = [1; 3];
        for at in 0..ranks.ilog2() as usize {
            extents[at % 3] *= 2;
        }
        let beside = |node: u32| {
            let mut found = BTreeSet::new();
            for rank in node * per_node..(node + 1) * per_node {
                let mut apart = 1;
                for extent in extents {
                    let at = rank / apart % extent;
                    for to in [(at + 1) % extent, (at + extent - 1) % extent] {
                        found.insert((rank - at * apart + to * apart) / per_node);
                    }
                    apart *= extent;
                }
            }
            found.remove(&node);
            found.len() as u64
        };
        (0..nodes).map(beside).max().unwrap_or(0)
    }

    #[test]
    fn messages_are_those_that_the_service_sends() {
        let rows = rows(include_str!("../../../docs/results/scale.json"));
        let mut collectives = BTreeSet::new();
        for row in &rows {
            let (ranks, nodes) = (number(row, "ranks"), number(row, "nodes"));
            let services = Services::new([nodes, ranks / nodes, 1], 1);
            let members = services.members;
            let collective = row["collective"].as_str().expect("a name");
            let messages = match collective {
                "alltoall" => services.messages(services.ranks.pow(2)),
                "halo" => nodes_beside(ranks, nodes) * between(services.ranks),
                "broadcast" | "barrier" => 2 * Tree::new(members).below,
                "allreduce" => Windows::new(8, members).messages,
                "allreduce-64k" => Windows::new(64 << 10, members).messages,
                "allreduce-1m" => Windows::new(1 << 20, members).messages,
                other => panic!("the model has no {other}"),
            };
            assert_eq!(
                row["messages_per_sp"].as_f64(),
                Some(messages as f64),
                "{row}"
            );
            collectives.insert(collective);
        }
        assert_eq!((rows.len(), collectives.len()), (35, 7));
    }

    /// Depth, and SPs below the root.
    #[test]
    fn a_broadcast_has_as_many_levels_as_its_tree() {
        for (members, levels) in [(1, 0), (2, 1), (8, 3), (32, 5), (128, 7), (512, 9)] {
            let below = levels;
            assert_eq!(Tree::new(members), Tree { levels, below });
        }
        let (levels, below) = (3, 3);
        assert_eq!(Tree::new(5), Tree { levels, below });
    }
}
