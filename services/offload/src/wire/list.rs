//! Blocks and members as a rank keeps them: the memory of even ones does not grow with their number.

use super::block::{Block, NARROW, Narrow, WIDE, Wide};
use super::parts::RUNS;
use super::runs::{Run, extend, put_runs, take_fewer_bytes};
use std::rc::Rc;
use xgvmi_daemon::codec::Writer;

/// The blocks of one side that are not empty, in the form in which they travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BlockList {
    /// Runs in ascending order of their ranks. They take fewer bytes than the blocks.
    Runs(Vec<Run>),
    Listed(Vec<Block>),
}

/// The ranks of a communicator. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members(Rc<Ordered>);

#[derive(Debug, PartialEq, Eq)]
struct Ordered {
    len: usize,
    /// The ranks in the order of the communicator; empty if that is the order of `sorted`, which is one run.
    ranks: Vec<u32>,
    /// A block of one byte for each rank, in ascending order.
    sorted: BlockList,
}

impl BlockList {
    /// The blocks of an iterator that are not empty.
    ///
    /// # Errors
    /// The first one of the iterator.
    pub(crate) fn read<E>(blocks: impl Iterator<Item = Result<Block, E>>) -> Result<Self, E> {
        let mut list = Self::Runs(Vec::new());
        let mut count = 0;
        let (_, most) = blocks.size_hint();
        for block in blocks {
            let block = block?;
            if block.length == 0 {
                continue;
            }
            count += 1;
            match &mut list {
                Self::Runs(runs) => {
                    if !add(runs, &block, count) {
                        let mut listed = Vec::with_capacity(most.unwrap_or(count));
                        listed.extend(list.iter());
                        listed.push(block);
                        list = Self::Listed(listed);
                    }
                }
                Self::Listed(listed) => listed.push(block),
            }
        }
        Ok(match list {
            Self::Runs(runs) if !take_fewer_bytes(&runs, count) => {
                Self::Listed(Self::Runs(runs).iter().collect())
            }
            list => list,
        })
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.iter().map(|run| run.count as usize).sum(),
            Self::Listed(blocks) => blocks.len(),
        }
    }

    /// The blocks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Block> + Clone + '_ {
        let (runs, listed) = match self {
            Self::Runs(runs) => (&runs[..], &[][..]),
            Self::Listed(blocks) => (&[][..], &blocks[..]),
        };
        let of_runs = runs
            .iter()
            .flat_map(|run| (0..run.count).map(move |at| run.block(at)));
        of_runs.chain(listed.iter().copied())
    }

    /// For blocks of the same length: the length, the number of blocks, the place of the first one and the end of the last
    /// one. The work follows the number of runs, if there are any.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> + '_ {
        let (runs, listed) = match self {
            Self::Runs(runs) => (&runs[..], &[][..]),
            Self::Listed(blocks) => (&[][..], &blocks[..]),
        };
        let of_runs = runs.iter().map(|run| Group {
            length: run.length,
            count: run.count.into(),
            first: run.offset,
            end: run.end(),
        });
        of_runs.chain(listed.iter().map(|block| Group {
            length: block.length,
            count: 1,
            first: block.offset,
            end: block.offset + block.length,
        }))
    }

    /// Changes the blocks.
    #[cfg(test)]
    pub(crate) fn vary(&mut self, change: impl FnOnce(&mut Vec<Block>)) {
        let mut blocks: Vec<Block> = self.iter().collect();
        change(&mut blocks);
        *self = blocks.into();
    }

    /// Lets the blocks of `direct_min` bytes or more count from `first`.
    pub(crate) fn rebase(&mut self, first: u64, direct_min: u64) {
        match self {
            Self::Runs(runs) => {
                for run in runs.iter_mut().filter(|run| run.length >= direct_min) {
                    run.offset -= first;
                }
            }
            Self::Listed(blocks) => {
                for block in blocks.iter_mut().filter(|of| of.length >= direct_min) {
                    block.offset -= first;
                }
            }
        }
    }

    /// Bytes on the wire in this form, about.
    pub(super) fn bytes(&self, form: u8) -> usize {
        match self {
            Self::Runs(runs) => runs.len() * size_of::<Run>(),
            Self::Listed(blocks) if form == NARROW => blocks.len() * size_of::<Narrow>(),
            Self::Listed(blocks) => blocks.len() * size_of::<Wide>(),
        }
    }

    /// The form on the wire. Other blocks than runs have the shortest one that holds them.
    pub(super) fn form(&self) -> u8 {
        match self {
            Self::Runs(_) => RUNS,
            Self::Listed(blocks) if blocks.iter().all(|block| block.narrow().is_some()) => NARROW,
            Self::Listed(_) => WIDE,
        }
    }

    /// Appends the blocks to a message in this form.
    pub(super) fn put(&self, writer: &mut Writer, form: u8) {
        let blocks = match self {
            Self::Runs(runs) => {
                let mut bytes = Vec::new();
                put_runs(&mut bytes, runs);
                writer.raw(&bytes);
                return;
            }
            Self::Listed(blocks) => blocks,
        };
        writer.varint(blocks.len() as u64);
        for block in blocks {
            match block.narrow().filter(|_| form == NARROW) {
                Some(narrow) => writer.raw(&narrow),
                None => writer.raw(&block.wide()),
            };
        }
    }
}

/// Blocks of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) length: u64,
    pub(crate) count: u64,
    /// Place of the first block.
    pub(crate) first: u64,
    /// First byte after the last block.
    pub(crate) end: u64,
}

/// Adds block `count` to runs. False if they would be no runs, or too many.
fn add(runs: &mut Vec<Run>, block: &Block, count: usize) -> bool {
    if let Some(last) = runs.last_mut() {
        if block.peer <= last.last() {
            return false;
        }
        if extend(last, block) {
            return true;
        }
    }
    // A block takes 12 bytes, and a run some 10 to 20.
    if runs.len() * 2 > count + 2 {
        return false;
    }
    runs.push(Run {
        peer: block.peer,
        step: 1,
        count: 1,
        offset: block.offset,
        stride: 0,
        length: block.length,
    });
    true
}

impl FromIterator<Block> for BlockList {
    fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
        let blocks = blocks.into_iter().map(Ok::<_, std::convert::Infallible>);
        let Ok(list) = Self::read(blocks);
        list
    }
}

impl From<Vec<Block>> for BlockList {
    fn from(blocks: Vec<Block>) -> Self {
        blocks.into_iter().collect()
    }
}

impl Members {
    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// The rank of a member.
    pub(crate) fn get(&self, member: usize) -> Option<u32> {
        match &self.0.sorted {
            BlockList::Runs(runs) if self.0.ranks.is_empty() => {
                let member = u32::try_from(member).ok()?;
                let run = runs.first().filter(|run| member < run.count)?;
                Some(run.block(member).peer)
            }
            _ => self.0.ranks.get(member).copied(),
        }
    }

    /// The ranks of the members, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|member| self.get(member))
    }

    /// A block of one byte for each rank, in ascending order.
    pub(crate) fn sorted(&self) -> &BlockList {
        &self.0.sorted
    }
}

impl From<Vec<u32>> for Members {
    fn from(ranks: Vec<u32>) -> Self {
        ranks.into_iter().collect()
    }
}

impl FromIterator<u32> for Members {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let block = |peer| Block {
            peer,
            offset: 0,
            length: 1,
        };
        let in_order: BlockList = ranks.into_iter().map(block).collect();
        let ordered = match in_order {
            BlockList::Runs(runs) if runs.len() == 1 => Ordered {
                len: runs[0].count as usize,
                ranks: Vec::new(),
                sorted: BlockList::Runs(runs),
            },
            in_order => {
                let ranks: Vec<u32> = in_order.iter().map(|block| block.peer).collect();
                let mut sorted = ranks.clone();
                sorted.sort_unstable();
                Ordered {
                    len: ranks.len(),
                    ranks,
                    sorted: sorted.into_iter().map(block).collect(),
                }
            }
        };
        Self(Rc::new(ordered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_members_take_no_memory_of_their_own_and_others_keep_their_order() {
        for (ranks, own) in [
            ((0..16_384).collect(), 0),
            ((5..900).step_by(7).collect(), 0),
            (vec![3, 1, 2, 0], 4),
            (vec![0, 1, 5, 7, 8, 30, 31], 7),
            (vec![9], 0),
        ] {
            let ranks: Vec<u32> = ranks;
            let members = Members::from(ranks.clone());
            assert_eq!(members.0.ranks.len(), own, "{ranks:?}");
            assert_eq!(members.len(), ranks.len());
            assert_eq!(members.iter().collect::<Vec<_>>(), ranks);
            assert_eq!(members.get(ranks.len()), None);
            let sorted: Vec<u32> = members.sorted().iter().map(|block| block.peer).collect();
            assert!(sorted.is_sorted() && sorted.len() == ranks.len());
        }
    }

    #[test]
    fn groups_of_runs_are_those_of_their_blocks() {
        let of = |list: &BlockList| {
            let groups: Vec<Group> = list.groups().collect();
            let count: u64 = groups.iter().map(|group| group.count).sum();
            let bytes: u64 = groups.iter().map(|group| group.count * group.length).sum();
            let first = groups.iter().map(|group| group.first).min();
            (
                count,
                bytes,
                first,
                groups.iter().map(|group| group.end).max(),
            )
        };
        let block = |peer: u32| Block {
            peer,
            offset: 100 + u64::from(peer) * 16,
            length: 9,
        };
        let runs: BlockList = (0..50).map(block).collect();
        assert!(matches!(&runs, BlockList::Runs(of) if of.len() == 1));
        let listed = BlockList::Listed((0..50).map(block).collect());
        assert_eq!(of(&runs), of(&listed));
        assert_eq!(of(&runs), (50, 450, Some(100), Some(100 + 49 * 16 + 9)));
        let (mut runs, mut listed) = (runs, listed);
        for list in [&mut runs, &mut listed] {
            list.rebase(100, 9);
            list.rebase(5, 10);
        }
        assert_eq!(
            runs.iter().collect::<Vec<_>>(),
            listed.iter().collect::<Vec<_>>()
        );
        assert_eq!(runs.iter().next().map(|block| block.offset), Some(0));
    }

    #[test]
    fn an_error_ends_the_list() {
        let blocks = [
            Ok(Block {
                peer: 0,
                offset: 0,
                length: 1,
            }),
            Err("no block"),
        ];
        assert_eq!(BlockList::read(blocks.into_iter()), Err("no block"));
    }
}
