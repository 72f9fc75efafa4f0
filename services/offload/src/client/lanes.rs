//! Lanes: how the ranks of a job use several SPs per node.
//!
//! With few nodes, the ranks of a node use its SPs in turn, and each SP exchanges messages with all SPs of all nodes. Of *n* nodes
//! with *k* SPs and *r* ranks each, an SP then has *kn* + *r*/*k* peers.
//!
//! With many nodes, SP *i* of each node belongs to lane *i*. A lane is a job of its own with one SP per node, and each rank
//! connects to the *k* SPs of its node; *k* is that of the node with the fewest. An SP then has *n* + *r* peers: it meets its own node's ranks and one SP of each other
//! node. A read needs no key of another SP, because the ranks of both ends have told the same lane of their buffers. The ranks
//! choose what takes fewer peers.
//!
//! The blocks of an exchange travel in the lanes of their receivers. Other calls take the lanes in turn, and long reductions and
//! broadcasts are divided among all.

use crate::wire::runs::Run;
use crate::wire::{Block, BlockList, Collective};
use std::collections::BTreeMap;

/// Maximum number of lanes: a call has a bit for each.
pub(super) const LANES_MAX: u64 = 64;

/// Minimum length of a lane's part of a reduction or broadcast.
pub const SLICE_MIN: usize = 64 << 10;

/// Elements to which the parts of a vector are aligned.
const SLICE_ELEMENTS: usize = 64;

/// The lanes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lanes {
    count: usize,
    /// The lane in which each rank gets blocks; empty if there is one.
    of: Vec<u8>,
    /// Whether rank *i* has lane *i* modulo their number.
    is_cyclic: bool,
}

/// Number of SPs, of `services` of a node, that serve its ranks. An offer costs an SP the same whatever its number of ranks, so
/// each SP gets `least` ranks or more.
pub fn services_used(ranks: usize, services: usize, least: usize) -> usize {
    (ranks / least.max(1)).clamp(1, services.max(1))
}

/// The part of a call in a lane, in bytes of its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) lane: usize,
    pub(super) start: usize,
    pub(super) length: usize,
    /// Place in the receive buffer of what this rank gets.
    pub(super) received: usize,
}

/// What a rank says of its node: the node's number, the number of its SPs, and the minimum number of ranks of each.
pub(crate) type OnNode = (u64, u32, u32);

impl Lanes {
    /// The lanes of a job with these ranks.
    pub(crate) fn of_nodes(ranks: impl Iterator<Item = OnNode>) -> Self {
        let mut nodes: BTreeMap<u64, (usize, OnNode)> = BTreeMap::new();
        let local = ranks.map(|rank| {
            let (count, _) = nodes.entry(rank.0).or_insert((0, rank));
            *count += 1;
            *count - 1
        });
        let local: Vec<usize> = local.collect();
        // The first rank of a node speaks for it.
        let used = |(count, (_, services, least)): &(usize, OnNode)| {
            services_used(*count, *services as usize, *least as usize)
        };
        let most = nodes.values().map(|(count, _)| *count).max().unwrap_or(0);
        let least = nodes.values().map(used).min().unwrap_or(1);
        // The further SPs of a node rest, at most every other one.
        let are_few = nodes.values().map(used).all(|used| used <= 2 * least);
        let fits = (2..=LANES_MAX).contains(&(least as u64));
        if !(are_few && fits && nodes.len() * least > most) {
            return Self::one();
        }
        let lane = |local: usize| u8::try_from(local % least).unwrap_or(0);
        let of: Vec<u8> = local.into_iter().map(lane).collect();
        let mut cyclic = (0..of.len()).map(lane);
        Self {
            count: least,
            is_cyclic: of.iter().all(|of| cyclic.next() == Some(*of)),
            of,
        }
    }

    /// One lane.
    pub(super) fn one() -> Self {
        Self {
            count: 1,
            of: Vec::new(),
            is_cyclic: true,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The lane in which a rank gets blocks.
    pub(crate) fn of(&self, rank: u32) -> usize {
        self.of.get(rank as usize).map_or(0, |lane| (*lane).into())
    }

    /// The lane of a call that has one only. All members find the same.
    pub(crate) fn turn(&self, collective: Collective) -> usize {
        let number = u64::from(collective.sequence) + u64::from(collective.start);
        let number = collective.communicator.wrapping_add(number);
        usize::try_from(number % self.count as u64).unwrap_or(0)
    }

    /// The parts of a call with a vector of `length` bytes of elements of this size. All members find the same.
    pub(super) fn slices(
        &self,
        collective: Collective,
        length: usize,
        element: usize,
    ) -> Vec<Slice> {
        let first = self.turn(collective);
        let parts = (length / SLICE_MIN).clamp(1, self.count);
        let unit = element.max(1).saturating_mul(SLICE_ELEMENTS);
        let start = |part: usize| match part == parts {
            true => length,
            false => length / parts * part / unit * unit,
        };
        let slice = |part: usize| Slice {
            lane: (first + part) % self.count,
            start: start(part),
            length: start(part + 1) - start(part),
            received: start(part),
        };
        (0..parts).map(slice).collect()
    }

    /// The blocks whose other ends are in a lane.
    pub(crate) fn part(&self, blocks: &BlockList, lane: usize) -> BlockList {
        match blocks {
            BlockList::Runs(runs) if self.is_cyclic && runs.iter().all(|run| run.step == 1) => {
                let runs = runs.iter().filter_map(|run| self.of_run(run, lane));
                BlockList::Runs(runs.collect())
            }
            _ => blocks
                .iter()
                .filter(|block| self.of(block.peer) == lane)
                .collect(),
        }
    }

    fn of_run(&self, run: &Run, lane: usize) -> Option<Run> {
        let count = u32::try_from(self.count).ok()?;
        let lane = u32::try_from(lane).ok()?;
        let first = (lane + count - run.peer % count) % count;
        let blocks = run.count.checked_sub(first)?.div_ceil(count);
        (blocks > 0).then(|| run.part(first, count, blocks))
    }
}

impl Slice {
    /// The ranges of the members' results that are in the slice, from its start.
    pub(super) fn ranges(&self, ranges: &[Block]) -> Vec<Block> {
        let (start, end) = (self.start as u64, (self.start + self.length) as u64);
        let common = ranges.iter().filter_map(|range| {
            let from = range.offset.max(start);
            let to = (range.offset + range.length).min(end);
            (from < to).then(|| Block {
                peer: range.peer,
                offset: from - start,
                length: to - from,
            })
        });
        common.collect()
    }

    /// The part of a rank's receive buffer that gets bytes of the slice: its start, and its length.
    pub(super) fn range_of(&self, ranges: &[Block], rank: u32) -> (usize, usize) {
        let Some(range) = ranges.iter().find(|range| range.peer == rank) else {
            return (0, 0);
        };
        // Inside the buffer.
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (first, end) = (number(range.offset), number(range.offset + range.length));
        let (from, to) = (self.start.max(first), (self.start + self.length).min(end));
        match from < to {
            true => (from - first, to - from),
            false => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks on nodes with this number of SPs each.
    fn lanes(nodes: &[u32], services: impl Fn(u32) -> u32) -> Lanes {
        Lanes::of_nodes(
            nodes
                .iter()
                .map(|node| ((*node).into(), services(*node), 8)),
        )
    }

    fn nodes(count: u32, ranks: u32) -> Vec<u32> {
        (0..count * ranks).map(|rank| rank / ranks).collect()
    }

    #[test]
    fn few_ranks_share_few_services() {
        for (ranks, services, least, used) in [
            (2, 4, 8, 1),
            (8, 4, 8, 1),
            (15, 4, 8, 1),
            (16, 4, 8, 2),
            (32, 4, 8, 4),
            (1000, 4, 8, 4),
            (2, 4, 1, 2),
            (1, 1, 0, 1),
        ] {
            assert_eq!(services_used(ranks, services, least), used, "{ranks}");
        }
    }

    #[test]
    fn many_nodes_have_lanes_and_few_nodes_have_none() {
        for (count, ranks, services, expect) in [
            (1, 64, 4, 1),
            (4, 32, 4, 1),
            (8, 32, 4, 1),
            (9, 32, 4, 4),
            (64, 32, 4, 4),
            (256, 16, 4, 2),
            (256, 15, 4, 1),
            (256, 32, 1, 1),
        ] {
            let lanes = lanes(&nodes(count, ranks), |_| services);
            assert_eq!(lanes.count(), expect, "{count} nodes of {ranks} ranks");
        }
        // A node with fewer SPs than the others.
        for (fewer, expect) in [(1, 1), (2, 2), (3, 3)] {
            let mixed = lanes(&nodes(20, 32), |node| if node == 3 { fewer } else { 4 });
            assert_eq!(mixed.count(), expect, "{fewer} services");
            assert!((0..640).all(|rank| mixed.of(rank) == rank as usize % 32 % expect));
        }
    }

    #[test]
    fn each_block_is_in_the_lane_of_its_rank() {
        let dealt: Vec<u32> = (0..320).map(|rank| rank % 10).collect();
        for nodes in [nodes(10, 32), dealt] {
            let lanes = lanes(&nodes, |_| 4);
            assert_eq!(lanes.count(), 4);
            for (first, count, apart) in [(0, 320, 8), (5, 100, 8), (3, 2, 0), (319, 1, 8)] {
                let blocks: BlockList = (0..count)
                    .map(|at| Block {
                        peer: first + at,
                        offset: u64::from(at) * apart,
                        length: 8,
                    })
                    .collect();
                let mut found = Vec::new();
                for lane in 0..4 {
                    let part = lanes.part(&blocks, lane);
                    assert!(part.iter().all(|block| lanes.of(block.peer) == lane));
                    found.extend(part.iter());
                }
                found.sort_by_key(|block| block.peer);
                assert!(found.into_iter().eq(blocks.iter()), "{first}, {count}");
            }
        }
    }

    #[test]
    fn slices_cover_the_vector_in_different_lanes() {
        let lanes = lanes(&nodes(10, 32), |_| 4);
        for sequence in 0..5 {
            let collective = Collective {
                communicator: 7,
                sequence,
                start: 1,
                step: 0,
            };
            for length in [0, 8, 100_000, 131_072, 200_000, 262_144, 10_000_008] {
                let slices = lanes.slices(collective, length, 8);
                assert_eq!(slices[0].lane, lanes.turn(collective));
                let mut end = 0;
                for slice in &slices {
                    assert_eq!((slice.start, slice.start % 512), (end, 0));
                    end += slice.length;
                }
                assert_eq!(end, length);
                let mut used: Vec<usize> = slices.iter().map(|slice| slice.lane).collect();
                used.sort_unstable();
                used.dedup();
                assert_eq!(used.len(), slices.len());
                assert_eq!(slices.len(), (length / SLICE_MIN).clamp(1, 4));
            }
        }
    }

    #[test]
    fn ranges_of_a_result_are_divided_among_its_slices() {
        let range = |peer, offset, length| Block {
            peer,
            offset,
            length,
        };
        let ranges = [range(3, 0, 100), range(4, 100, 20), range(9, 120, 80)];
        let slice = |start, length| Slice {
            lane: 0,
            start,
            length,
            received: 0,
        };
        let (first, second) = (slice(0, 110), slice(110, 90));
        assert_eq!(first.ranges(&ranges), [range(3, 0, 100), range(4, 100, 10)]);
        assert_eq!(second.ranges(&ranges), [range(4, 0, 10), range(9, 10, 80)]);
        assert_eq!(first.range_of(&ranges, 4), (0, 10));
        assert_eq!(second.range_of(&ranges, 4), (10, 10));
        assert_eq!(second.range_of(&ranges, 9), (0, 80));
        assert_eq!(first.range_of(&ranges, 9), (0, 0));
        assert_eq!(first.range_of(&ranges, 5), (0, 0));
    }
}
