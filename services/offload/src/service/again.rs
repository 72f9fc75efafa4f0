//! What repeats at an SP: the send sides of its ranks, and the offers of their calls.

use super::actions::Buffers;
use crate::wire::runs::Run;
use std::rc::Rc;

/// Send sides of a rank that are kept. Many programs use two buffers in turn.
pub(super) const SIDES: usize = 2;

/// Maximum length of the key of a kept side. UCX's keys take some tens of bytes.
pub(super) const KEY_MAX: usize = 128;

/// Sets of offers that are kept, and maximum bytes of each.
const SETS: usize = 2;
const SET_BYTES: usize = 256 << 10;

/// Maximum number of sets that are kept one after the other without being used, and number of calls after which there may be one
/// more: sets of a program that does not repeat its calls cost little.
const UNUSED_MAX: u32 = 8;
const PAUSE: u32 = 64;

/// What repeats at this SP.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// By local number of the rank.
    pub(super) sides: Vec<Sides>,
    /// Number of the last side. Each side that is kept has another one.
    pub(super) versions: u64,
    pub(super) sets: Vec<Rc<Set>>,
    /// The set that the next one replaces.
    pub(super) next: usize,
    pub(super) unused: u32,
    pub(super) pause: u32,
}

#[derive(Debug, Default)]
pub(super) struct Sides {
    pub(super) of: Vec<Side>,
    pub(super) next: usize,
}

/// The send side of a rank: a run of blocks for the device.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) version: u64,
    pub(super) run: Run,
    pub(super) base: u64,
    pub(super) key: [u8; KEY_MAX],
    pub(super) key_length: usize,
    /// Number of SPs with blocks.
    pub(super) targets: usize,
    /// Calls in which it is noted and not on offer.
    pub(super) noted: usize,
}

/// A rank that is noted, and its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) version: u64,
    pub(super) rank: u32,
    pub(super) side: u32,
}

/// The offers of a call whose ranks were all noted.
#[derive(Debug)]
pub(super) struct Set {
    pub(super) of: Vec<Noted>,
    /// Offers to other SPs in their order, and those to this one.
    pub(super) others: Vec<Copied>,
    pub(super) own: Vec<Copied>,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Copied {
    pub(super) to: u32,
    pub(super) ranks: Vec<u32>,
    pub(super) message: Vec<u8>,
}

/// The offers of a set that are not sent.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) set: Rc<Set>,
    pub(super) others: usize,
    pub(super) own: usize,
}

impl Side {
    #[inline]
    pub(super) fn is(&self, run: &Run, buffers: Buffers<'_>) -> bool {
        self.base == buffers.base && self.run == *run && self.key() == buffers.key
    }

    fn key(&self) -> &[u8] {
        &self.key[..self.key_length]
    }
}

impl Set {
    pub(super) fn new(of: &[Noted]) -> Box<Self> {
        Box::new(Self {
            of: of.to_vec(),
            others: Vec::new(),
            own: Vec::new(),
            bytes: size_of_val(of),
        })
    }

    /// Adds an offer. False if the set has become too long.
    pub(super) fn add(&mut self, me: u32, (to, ranks, message): (u32, &[u32], &[u8])) -> bool {
        self.bytes += size_of::<Copied>() + size_of_val(ranks) + message.len();
        let list = match to == me {
            true => &mut self.own,
            false => &mut self.others,
        };
        list.push(Copied {
            to,
            ranks: ranks.to_vec(),
            message: message.to_vec(),
        });
        self.bytes <= SET_BYTES
    }
}

impl Again {
    /// The side of a local rank with this run and buffer, and its number.
    #[inline]
    pub(super) fn known(
        &mut self,
        local: usize,
        run: &Run,
        buffers: Buffers<'_>,
    ) -> Option<(u32, &mut Side)> {
        let mut sides = (0..).zip(&mut self.sides.get_mut(local)?.of);
        sides.find(|(_, side)| side.is(run, buffers))
    }

    /// Bytes of the sets.
    pub(super) fn bytes(&self) -> usize {
        self.sets.iter().map(|set| set.bytes).sum()
    }

    /// Releases the sets.
    pub(super) fn clear(&mut self) {
        self.sets.clear();
    }

    /// Whether another set may be kept.
    pub(super) fn may_keep(&mut self) -> bool {
        if self.unused >= UNUSED_MAX {
            self.pause += 1;
            if self.pause < PAUSE {
                return false;
            }
            (self.unused, self.pause) = (UNUSED_MAX - 1, 0);
        }
        self.unused += 1;
        true
    }

    pub(super) fn keep(&mut self, set: Set) {
        let set = Rc::new(set);
        if self.sets.len() < SETS {
            self.sets.push(set);
            return;
        }
        self.next = (self.next + 1) % SETS;
        self.sets[self.next] = set;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_no_call_uses_are_seldom_kept() {
        let mut again = Again::default();
        let kept = (0..1000).filter(|_| again.may_keep()).count();
        assert!((9..32).contains(&kept), "{kept}");
    }
}
