//! The offers of gathers and scatters on their way along a tree of the SPs. The root's SP then has as many messages as the
//! tree has branches, and not one for each SP.

use super::actions::OfferKey;
use crate::wire::Collective;
use slab::Slab;
use std::collections::HashMap;
use std::ops::Range;

/// Bytes that an offer or a message takes beside its own, about.
const HELD: usize = 64;

/// The offers of a job that this SP passes on.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// The gathers whose offers have not left this SP.
    pub(super) gathers: HashMap<Collective, Gather>,
    /// The scatters of this SP's ranks whose offers have not left it.
    pub(super) scatters: HashMap<Collective, Scatter>,
    /// Calls for which something has come or ended.
    pub(super) awake: Vec<Collective>,
    /// Messages that are sent and not answered. The lower half of a number is the index, and the upper half counts.
    sent: Slab<Outgoing>,
    count: u32,
    /// Messages that have come and are not answered.
    came: Slab<Incoming>,
    /// The offers of these messages for this SP.
    awaited: HashMap<OfferKey, usize>,
    /// Answers to send: SP, and its number for the message.
    pub(super) answers: Vec<(u32, u64)>,
    held: usize,
}

/// A scatter at the SP of its root.
#[derive(Debug)]
pub(super) struct Scatter {
    pub(super) root: u32,
    /// The offers, by SP.
    pub(super) offers: Vec<(u32, Vec<u8>)>,
}

/// A gather at an SP that is not the root's.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Known with the first member that enters.
    pub(super) seat: Option<Seat>,
    pub(super) entered: u32,
    /// Offers of this SP, and of those below it.
    pub(super) own: Vec<Vec<u8>>,
    pub(super) passed: Vec<Vec<u8>>,
    /// The messages of the SPs below it.
    pub(super) below: Vec<(u32, u64)>,
}

/// An SP's place in the tree of a gather.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    /// The SP of the root.
    pub(super) root: u32,
    pub(super) above: u32,
    pub(super) below: Vec<u32>,
    /// Number of members at this SP.
    pub(super) members: u32,
}

/// A message that is sent and not answered.
#[derive(Debug)]
pub(super) struct Outgoing {
    id: u64,
    to: u32,
    /// This SP's offers in it: the SPs that answer, and the numbers.
    pub(super) offers: Vec<OfferKey>,
    /// The messages whose offers it contains.
    pub(super) below: Vec<(u32, u64)>,
    /// The message whose offers it passes on, of a scatter.
    pub(super) part_of: Option<usize>,
}

#[derive(Debug)]
struct Incoming {
    key: OfferKey,
    /// Offers that are not delivered, and messages that are not answered.
    left: usize,
}

impl Relays {
    /// Whether there is nothing to send.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.awake.is_empty() && self.answers.is_empty()
    }

    /// Whether no call has a tree.
    #[inline]
    pub(super) fn has_none(&self) -> bool {
        self.gathers.is_empty() && self.scatters.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        let objects = self.sent.len() + self.came.len() + self.awaited.len();
        self.held + objects * HELD
    }

    /// Counts the bytes of an offer that stays here for a while.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes + HELD;
    }

    pub(super) fn let_go<'a>(&mut self, offers: impl Iterator<Item = &'a Vec<u8>>) {
        for offer in offers {
            self.held -= offer.len() + HELD;
        }
    }

    /// The state of a gather, which is new with its first rank or message.
    pub(super) fn gather(&mut self, collective: Collective) -> &mut Gather {
        if !self.gathers.contains_key(&collective) {
            self.held += HELD;
        }
        self.gathers.entry(collective).or_default()
    }

    /// Something has come for a call, or ended.
    pub(super) fn wake(&mut self, collective: Collective) {
        if self.awake.last() != Some(&collective) {
            self.awake.push(collective);
        }
    }

    /// A rank has left a call. If it is the root of a scatter, it had no offers.
    #[inline]
    pub(super) fn leave(&mut self, collective: Collective, rank: u32) {
        if !self.scatters.is_empty()
            && let Some(scatter) = self.scatters.get(&collective)
            && scatter.root == rank
        {
            self.scatters.remove(&collective);
        }
    }

    /// Takes a gather whose members and SPs below have all come.
    pub(super) fn complete(&mut self, collective: Collective) -> Option<(Gather, Seat)> {
        let gather = self.gathers.get(&collective)?;
        let seat = gather.seat.as_ref()?;
        if gather.entered < seat.members || gather.below.len() < seat.below.len() {
            return None;
        }
        let mut gather = self.gathers.remove(&collective)?;
        self.held -= HELD;
        self.let_go(gather.own.iter().chain(&gather.passed));
        let seat = gather.seat.take()?;
        Some((gather, seat))
    }

    /// Numbers a message to an SP.
    pub(super) fn send(
        &mut self,
        to: u32,
        offers: Vec<OfferKey>,
        below: Vec<(u32, u64)>,
        part_of: Option<usize>,
    ) -> u64 {
        let entry = self.sent.vacant_entry();
        let id = u64::from(self.count) << 32 | entry.key() as u64;
        self.count = self.count.wrapping_add(1);
        entry.insert(Outgoing {
            id,
            to,
            offers,
            below,
            part_of,
        });
        id
    }

    /// An SP has answered a message; `None` if it did not get one with this number.
    pub(super) fn answered(&mut self, from: u32, id: u64) -> Option<Outgoing> {
        // The lower half is the index.
        let at = usize::try_from(id & u64::from(u32::MAX)).ok()?;
        let sent = self.sent.get(at)?;
        (sent.id == id && sent.to == from).then(|| self.sent.remove(at))
    }

    /// A message has come: it is answered after `left` offers and messages.
    pub(super) fn come(&mut self, key: OfferKey, left: usize) -> usize {
        self.came.insert(Incoming { key, left })
    }

    /// The answer to a message waits for the delivery of an offer. False if one waits for it already.
    pub(super) fn awaits(&mut self, offer: OfferKey, message: usize) -> bool {
        self.awaited.insert(offer, message).is_none()
    }

    /// An offer is delivered. False if it did not come in such a message.
    #[inline]
    pub(super) fn delivered(&mut self, offer: OfferKey) -> bool {
        if self.awaited.is_empty() {
            return false;
        }
        let message = self.awaited.remove(&offer);
        if let Some(message) = message {
            self.part_ended(message);
        }
        message.is_some()
    }

    /// An offer of a message is delivered, or a part of it answered.
    pub(super) fn part_ended(&mut self, message: usize) {
        let came = &mut self.came[message];
        came.left -= 1;
        if came.left == 0 {
            let came = self.came.remove(message);
            self.answers.push(came.key);
        }
    }
}

/// A range of places as the subtrees of at most `radix` SPs. The first place of each is its root.
pub(super) fn subtrees(places: Range<usize>, radix: usize) -> impl Iterator<Item = Range<usize>> {
    let (first, count) = (places.start, places.len());
    let parts = radix.min(count);
    let at = move |part: usize| first + count * part / parts.max(1);
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// The places above and below a place that is not the first, in the tree of `count` places.
pub(super) fn neighbours(count: usize, place: usize, radix: usize) -> (usize, Vec<usize>) {
    let mut tree = 0..count;
    loop {
        let mut below = subtrees(tree.start + 1..tree.end, radix);
        let Some(of) = below.find(|of| of.contains(&place)) else {
            // No place is outside.
            return (0, Vec::new());
        };
        if of.start == place {
            let below = subtrees(place + 1..of.end, radix).map(|of| of.start);
            return (tree.start, below.collect());
        }
        tree = of;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_below_the_one_above_it_and_the_depth_is_a_logarithm() {
        for (radix, count) in [2, 4, 8].into_iter().flat_map(|radix| {
            let counts = [2, 3, 5, 6, 7, 22, 100, 512];
            counts.into_iter().map(move |count| (radix, count))
        }) {
            let of = |place| neighbours(count, place, radix);
            let above: Vec<usize> = (1..count).map(|at| of(at).0).collect();
            for place in 1..count {
                let (_, below) = of(place);
                let expect: Vec<usize> = (1..count).filter(|at| above[at - 1] == place).collect();
                assert_eq!(below, expect, "{place} of {count}");
                assert!(below.len() <= radix);
                let mut depth = 0;
                let mut at = place;
                while at > 0 {
                    at = above[at - 1];
                    depth += 1;
                }
                let most = count.ilog2().div_ceil(radix.ilog2()) + 1;
                assert!(depth <= most, "{place} of {count}");
            }
            assert!(above.iter().filter(|above| **above == 0).count() <= radix);
        }
    }

    #[test]
    fn a_message_is_answered_after_its_last_part_by_the_sp_that_got_it() {
        let mut relays = Relays::default();
        let came = relays.come((7, 70), 2);
        assert!(relays.awaits((3, 1), came) && !relays.awaits((3, 1), came));
        let id = relays.send(5, vec![(5, 9)], Vec::new(), Some(came));
        assert!(relays.answered(6, id).is_none() && relays.answered(5, id + 1).is_none());
        let sent = relays.answered(5, id).expect("sent");
        assert!(relays.answered(5, id).is_none());
        relays.part_ended(sent.part_of.expect("a part"));
        assert!(!relays.delivered((3, 2)) && relays.answers.is_empty());
        assert!(relays.delivered((3, 1)));
        assert_eq!((relays.answers, relays.held), (vec![(7, 70)], 0));
    }
}
