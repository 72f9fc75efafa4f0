//! The broadcasts and barriers of this SP's ranks, and the tree of the SPs.

use super::counters::Moment;
use super::imports::Lent;
use super::spacing::Member;
use super::transport::Transport;
use crate::wire::{Collective, ROUNDS_MAX};
use std::collections::HashMap;
use std::rc::Rc;

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
    /// Length of the data with its parts in other lanes; 0 with one lane.
    pub(in crate::service) whole: u64,
    pub(in crate::service) short: Vec<u8>,
    /// The level at which it gets the data; 0 at the root.
    pub(in crate::service) level: u32,
    /// The ranks to which it passes the data on.
    pub(in crate::service) below: Vec<u32>,
    pub(in crate::service) is_root: bool,
    pub(in crate::service) since: Moment,
    /// Bytes that count for it.
    pub(in crate::service) held: usize,
}

/// A barrier at this SP.
#[derive(Debug, Default)]
pub(in crate::service) struct Barrier {
    /// Senders of the notes that have come, by round.
    pub(in crate::service) notes: [Option<u32>; ROUNDS_MAX as usize],
    /// The members that have entered.
    pub(in crate::service) entered: Vec<(usize, Moment)>,
    /// Known with the first member that enters.
    pub(in crate::service) round: Option<Round>,
    /// Bytes that count for it.
    pub(in crate::service) held: usize,
}

/// The SPs of a barrier, and its next round.
#[derive(Debug)]
pub(in crate::service) struct Round {
    pub(in crate::service) members: Rc<[Member]>,
    pub(in crate::service) place: usize,
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
    pub(in crate::service) radix: usize,
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
        let (unit, digit) = self.lowest(place)?;
        Some(place - unit * digit)
    }

    /// Number of SPs between the root's and that of a place, with the latter.
    pub(in crate::service) fn level(&self, mut place: usize) -> u32 {
        let mut level = 0;
        while let Some(above) = self.above(place) {
            place = above;
            level += 1;
        }
        level
    }

    /// The places below, the largest subtree first.
    pub(in crate::service) fn below(&self, place: usize) -> impl Iterator<Item = usize> {
        let (count, radix) = (self.members.len(), self.radix);
        let limit = self.lowest(place).map_or(count, |(unit, _)| unit);
        let units = std::iter::successors(Some(1), move |unit| Some(unit * radix));
        let units: Vec<usize> = units.take_while(|unit| *unit < limit).collect();
        let below = units.into_iter().rev();
        let below = below.flat_map(move |unit| (1..radix).map(move |digit| place + unit * digit));
        below.filter(move |below| *below < count)
    }

    /// The lowest digit of a place that is not 0, and its unit.
    fn lowest(&self, place: usize) -> Option<(usize, usize)> {
        let mut unit = (place > 0).then_some(1)?;
        while (place / unit).is_multiple_of(self.radix) {
            unit *= self.radix;
        }
        Some((unit, place / unit % self.radix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_below_the_one_above_it_and_the_depth_is_a_logarithm() {
        for (radix, count) in [2, 3, 4, 8, 128].into_iter().flat_map(|radix| {
            let counts = [1, 2, 3, 4, 5, 8, 9, 22, 64, 100, 512];
            counts.into_iter().map(move |count| (radix, count))
        }) {
            let member = Member {
                service: 0,
                first: 0,
                count: 1,
            };
            let members = vec![member; count];
            let tree = Tree {
                members: &members,
                top: 0,
                root: 0,
                radix,
            };
            let mut found = vec![None; count];
            for place in 0..count {
                for below in tree.below(place) {
                    assert_eq!(found[below].replace(place), None, "{below} of {count}");
                    assert_eq!(tree.level(below), tree.level(place) + 1);
                }
                assert_eq!(tree.level(place) == 0, place == 0);
                let levels = u32::try_from(radix).expect("small");
                let most = u32::try_from(count).expect("small").ilog(levels) + 1;
                assert!(tree.level(place) <= most, "{place} of {count}");
            }
            for (place, above) in found.into_iter().enumerate() {
                assert_eq!(tree.above(place), above, "{place} of {count}");
            }
        }
    }
}
