//! Blocks that a rank of another SP sends to several ranks of this SP, as in a broadcast or an allgather. The network
//! carries such a block once: one rank receives it from the source, and the others receive it from that rank's buffer.
//!
//! The first rank's buffer must stay as it is until the others have their copies. Its block therefore counts as delivered
//! after the last copy. This adds no wait for late ranks: a call completes only after all its ranks have entered it,
//! because each of them has a block, possibly of length zero, for every other.

use super::actions::Transfer;
use std::collections::{HashMap, VecDeque};

/// An offer, and the index of a source among its parts. All shared blocks of a source in an offer are one and the same.
type Key = (u32, u32);

/// The shared blocks under way at this SP. `K` is a key to a rank's buffer.
#[derive(Debug)]
pub(super) struct Sharing<K> {
    blocks: HashMap<Key, Shared<K>>,
    /// Copies that can start.
    ready: VecDeque<Transfer>,
}

/// A shared block.
#[derive(Debug)]
struct Shared<K> {
    /// The transfer from the source.
    first: Transfer,
    /// The key to the first rank's buffer, once the block is there.
    key: Option<K>,
    /// Copies whose ranks are present, while the block is not there.
    waiting: Vec<Transfer>,
    /// Copies that are not complete, including those whose ranks are absent.
    left: u32,
}

/// The next step of a transfer that the ledger has returned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the block from the source.
    Read,
    /// The transfer waits here for the block.
    Wait,
}

/// Effect of a completed read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The block is with the first rank: [`Sharing::there`] needs the key to its buffer.
    There,
    /// A copy is complete.
    Copied,
    /// The last copy is complete, and with it the transfer of the first rank.
    All(Transfer),
}

/// Number of blocks, given by their place and length, if they are one and the same block and more than one; otherwise 0.
pub(super) fn same(mut blocks: impl Iterator<Item = (u64, u64)>) -> u32 {
    let Some(first) = blocks.next() else { return 0 };
    let mut count = 1;
    for block in blocks {
        if block != first {
            return 0;
        }
        count += 1;
    }
    if count > 1 { count } else { 0 }
}

impl<K> Sharing<K> {
    pub(super) fn new() -> Self {
        Self {
            blocks: HashMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// Number of transfers that wait here.
    pub(super) fn waiting(&self) -> usize {
        let waiting = self.blocks.values().map(|block| block.waiting.len());
        self.ready.len() + waiting.sum::<usize>()
    }

    /// A shared block is ready for a rank.
    pub(super) fn begin(&mut self, transfer: &Transfer) -> Step {
        let key = (transfer.offer, transfer.part);
        let Some(shared) = self.blocks.get_mut(&key) else {
            let shared = Shared {
                first: *transfer,
                key: None,
                waiting: Vec::new(),
                left: transfer.shared.saturating_sub(1),
            };
            self.blocks.insert(key, shared);
            return Step::Read;
        };
        match shared.key {
            Some(_) => self.ready.push_back(*transfer),
            None => shared.waiting.push(*transfer),
        }
        Step::Wait
    }

    /// Whether [`Sharing::next`] returns a copy. Most blocks are not shared.
    pub(super) fn can_copy(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next copy that can start, the key to read it with, and the first rank's transfer.
    pub(super) fn next(&mut self) -> Option<(Transfer, &K, Transfer)> {
        let transfer = self.ready.pop_front()?;
        let shared = self.blocks.get(&(transfer.offer, transfer.part))?;
        Some((transfer, shared.key.as_ref()?, shared.first))
    }

    /// A read of a shared block is complete.
    pub(super) fn done(&mut self, transfer: &Transfer) -> Option<Done> {
        let key = (transfer.offer, transfer.part);
        let shared = self.blocks.get_mut(&key)?;
        if shared.first.local == transfer.local {
            return Some(Done::There);
        }
        shared.left = shared.left.checked_sub(1)?;
        if shared.left > 0 {
            return Some(Done::Copied);
        }
        self.blocks
            .remove(&key)
            .map(|shared| Done::All(shared.first))
    }

    /// The block is in the first rank's buffer, and `key` reads it from there.
    pub(super) fn there(&mut self, transfer: &Transfer, key: K) {
        if let Some(shared) = self.blocks.get_mut(&(transfer.offer, transfer.part)) {
            shared.key = Some(key);
            self.ready.extend(shared.waiting.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(part: u32, destination: u32) -> Transfer {
        Transfer {
            from: 0x1000,
            to: 64,
            length: 4096,
            offer: 7,
            part,
            local: destination,
            call: 0,
            shared: 3,
            batch: 0,
        }
    }

    #[test]
    fn one_rank_reads_and_the_others_copy() {
        let mut sharing = Sharing::new();
        assert_eq!(sharing.begin(&transfer(0, 1)), Step::Read);
        assert_eq!(sharing.begin(&transfer(0, 2)), Step::Wait);
        assert_eq!(sharing.waiting(), 1);
        assert!(sharing.next().is_none());
        assert_eq!(sharing.done(&transfer(0, 1)), Some(Done::There));
        sharing.there(&transfer(0, 1), "key");
        let (copy, key, first) = sharing.next().expect("a copy");
        assert_eq!((copy.local, *key, first.local), (2, "key", 1));
        assert_eq!(sharing.done(&copy), Some(Done::Copied));
        // The last rank arrives late, and still does not read from the source.
        assert_eq!(sharing.begin(&transfer(0, 3)), Step::Wait);
        let (copy, ..) = sharing.next().expect("a copy");
        assert_eq!(sharing.done(&copy), Some(Done::All(transfer(0, 1))));
        assert_eq!(sharing.waiting(), 0);
        assert!(sharing.done(&copy).is_none());
    }

    #[test]
    fn only_one_and_the_same_block_is_shared() {
        let check = |blocks: &[(u64, u64)], expect| {
            assert_eq!(same(blocks.iter().copied()), expect, "{blocks:?}");
        };
        check(&[], 0);
        check(&[(0, 512)], 0);
        check(&[(8, 512), (8, 512), (8, 512)], 3);
        check(&[(8, 512), (8, 513)], 0);
        check(&[(8, 512), (8, 512), (9, 512)], 0);
    }

    #[test]
    fn sources_do_not_meet() {
        let mut sharing: Sharing<()> = Sharing::new();
        assert_eq!(sharing.begin(&transfer(0, 1)), Step::Read);
        assert_eq!(sharing.begin(&transfer(1, 1)), Step::Read);
        assert_eq!(sharing.begin(&transfer(1, 2)), Step::Wait);
    }
}
