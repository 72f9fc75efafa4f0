//! The broadcasts and barriers of this SP's ranks, and the tree of the SPs.

use super::imports::Lent;
use super::spacing::Member;
use super::transport::Transport;
use crate::wire::{Collective, ROUNDS_MAX};
use std::collections::HashMap;
use std::time::Instant;

/// Bytes that a rank in a broadcast or barrier takes, about, and those of a barrier at an SP.
pub(in crate::service) const RANK_HELD: usize = 512;
pub(in crate::service) const BARRIER_HELD: usize = 512;

/// The broadcasts and barriers under way at this SP.
#[derive(Debug)]
pub(in crate::service) struct Trees<T: Transport> {
    /// By call and local number of the rank.
    pub(in crate::service) broadcasts: HashMap<(Collective, usize), Branch<T>>,
    pub(in crate::service) barriers: HashMap<Collective, Barrier>,
    pub(in crate::service) bytes: usize,
}

/// A rank's part in a broadcast.
#[derive(Debug)]
pub(in crate::service) struct Branch<T: Transport> {
    pub(in crate::service) rank: u32,
    pub(in crate::service) memory: Option<Lent<T>>,
    pub(in crate::service) base: u64,
    pub(in crate::service) length: u64,
    pub(in crate::service) short: Vec<u8>,
    /// The level at which it gets the data; 0 at the root.
    pub(in crate::service) level: u32,
    /// The ranks to which it passes the data on.
    pub(in crate::service) below: Vec<u32>,
    pub(in crate::service) is_root: bool,
    pub(in crate::service) since: Instant,
    /// Bytes that count for it.
    pub(in crate::service) held: usize,
}

/// A barrier at this SP.
#[derive(Debug, Default)]
pub(in crate::service) struct Barrier {
    /// Senders of the notes that have come, by round.
    pub(in crate::service) notes: [Option<u32>; ROUNDS_MAX as usize],
    /// The members that have entered.
    pub(in crate::service) entered: Vec<(usize, Instant)>,
    /// Known with the first member that enters.
    pub(in crate::service) round: Option<Round>,
    /// Bytes that count for it.
    pub(in crate::service) held: usize,
}

/// The SPs of a barrier, and its next round.
#[derive(Debug)]
pub(in crate::service) struct Round {
    pub(in crate::service) services: Vec<u32>,
    pub(in crate::service) place: usize,
    pub(in crate::service) members: usize,
    pub(in crate::service) next: u32,
    /// Whether the note of the next round has been sent.
    pub(in crate::service) is_sent: bool,
}

impl<T: Transport> Trees<T> {
    pub(in crate::service) fn new() -> Self {
        Self {
            broadcasts: HashMap::new(),
            barriers: HashMap::new(),
            bytes: 0,
        }
    }

    /// Bytes that messages of ranks and SPs have made this SP keep, about.
    pub(in crate::service) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of barriers.
    pub(in crate::service) fn barriers(&self) -> usize {
        self.barriers.len()
    }
}

/// The state of a barrier, which is new with its first rank or note.
pub(in crate::service) fn barrier_of<'a>(
    barriers: &'a mut HashMap<Collective, Barrier>,
    bytes: &mut usize,
    collective: Collective,
) -> &'a mut Barrier {
    barriers.entry(collective).or_insert_with(|| {
        *bytes += BARRIER_HELD;
        Barrier {
            held: BARRIER_HELD,
            ..Barrier::default()
        }
    })
}

/// A binomial tree of the members' SPs. Places are counted from the root's SP.
pub(in crate::service) struct Tree<'a> {
    pub(in crate::service) members: &'a [Member],
    /// Index of the root's SP.
    pub(in crate::service) top: usize,
    pub(in crate::service) root: u32,
}

impl Tree<'_> {
    pub(in crate::service) fn place_of(&self, index: usize) -> usize {
        (index + self.members.len() - self.top) % self.members.len()
    }

    /// The rank that gets the data at a place.
    pub(in crate::service) fn stands_for(&self, place: usize) -> u32 {
        match place {
            0 => self.root,
            _ => self.members[(place + self.top) % self.members.len()].first,
        }
    }

    pub(in crate::service) fn above(&self, place: usize) -> Option<usize> {
        (place > 0).then(|| place & (place - 1))
    }

    /// The places below, the largest subtree first.
    pub(in crate::service) fn below(&self, place: usize) -> impl Iterator<Item = usize> {
        let count = self.members.len();
        let limit = match place {
            0 => count.next_power_of_two(),
            _ => place & place.wrapping_neg(),
        };
        let bits = limit.trailing_zeros();
        (0..bits)
            .rev()
            .map(move |bit| place | 1 << bit)
            .filter(move |below| *below < count)
    }
}
