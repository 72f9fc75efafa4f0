//! Sets of blocks that often are neighbours. Does no I/O.

use super::layout::GROUP;
use super::table::nth;
use std::collections::BTreeMap;

/// A set of blocks, by group: a bit for each of its eight.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Blocks(BTreeMap<u64, u8>);

impl Blocks {
    /// Groups with blocks of the set, and where these are in them.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = usize>)> {
        let places = |bits: u8| (0..8).filter(move |place| bits >> place & 1 != 0);
        self.0
            .iter()
            .map(move |(group, bits)| (*group, places(*bits)))
    }

    /// The blocks, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.groups()
            .flat_map(|(group, places)| places.map(move |place| group * GROUP + place as u64))
    }

    pub(super) fn insert(&mut self, block: u64) {
        *self.0.entry(block / GROUP).or_default() |= 1 << nth(block);
    }
}

impl Extend<u64> for Blocks {
    /// Those of one group that follow each other are added together.
    fn extend<T: IntoIterator<Item = u64>>(&mut self, blocks: T) {
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.next() {
            let group = first / GROUP;
            let mut bits = 1 << nth(first);
            while let Some(next) = blocks.next_if(|next| next / GROUP == group) {
                bits |= 1 << nth(next);
            }
            *self.0.entry(group).or_default() |= bits;
        }
    }
}

impl FromIterator<u64> for Blocks {
    fn from_iter<T: IntoIterator<Item = u64>>(blocks: T) -> Self {
        let mut set = Self::default();
        set.extend(blocks);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_has_each_block_once_and_in_order() {
        let blocks = [9, 3, 8, 9, 15, 0, 7, 1 << 32, 8, 16];
        let mut set: Blocks = blocks.into_iter().collect();
        let expect: BTreeSet<u64> = blocks.into_iter().collect();
        assert!(set.iter().eq(expect.iter().copied()));
        assert_eq!(set.groups().count(), 4);
        set.insert(17);
        set.insert(17);
        assert_eq!(set.iter().count(), expect.len() + 1);
    }
}
