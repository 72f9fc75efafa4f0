//! Calls that repeat. A rank that sends the same run of blocks from the same buffer as before is only noted. If all ranks of a
//! call are noted, and the same ones as in an earlier call, its offers are copies of the earlier ones.

use super::{Call, CallId, Ledger, Outgoing};
use crate::draft::RtsHead;
use crate::service::actions::{Action, Buffers};
use crate::wire::runs::Run;
use std::rc::Rc;

/// Send sides of a rank that are kept. Many programs use two buffers in turn.
const SIDES: usize = 2;

/// Maximum length of the key of a kept side. UCX's keys take some tens of bytes.
const KEY_MAX: usize = 128;

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
    sides: Vec<Sides>,
    /// Number of the last side. Each side that is kept has another one.
    versions: u64,
    sets: Vec<Rc<Set>>,
    /// The set that the next one replaces.
    next: usize,
    unused: u32,
    pause: u32,
}

#[derive(Debug, Default)]
struct Sides {
    of: Vec<Side>,
    next: usize,
}

/// The send side of a rank: a run of blocks for the device.
#[derive(Debug)]
struct Side {
    version: u64,
    run: Run,
    base: u64,
    key: [u8; KEY_MAX],
    key_length: usize,
    /// Number of SPs with blocks.
    targets: usize,
    /// Calls in which it is noted and not on offer.
    noted: usize,
}

/// A rank that is noted, and its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    version: u64,
    rank: u32,
    side: u32,
}

/// The offers of a call whose ranks were all noted.
#[derive(Debug)]
pub(super) struct Set {
    of: Vec<Noted>,
    /// Offers to other SPs in their order, and those to this one.
    others: Vec<Copied>,
    own: Vec<Copied>,
    bytes: usize,
}

#[derive(Debug)]
struct Copied {
    to: u32,
    ranks: Vec<u32>,
    message: Vec<u8>,
}

/// The offers of a set that are not sent.
#[derive(Debug)]
pub(super) struct Replay {
    set: Rc<Set>,
    others: usize,
    own: usize,
}

impl Side {
    #[inline]
    fn is(&self, run: &Run, buffers: Buffers<'_>) -> bool {
        self.base == buffers.base && self.run == *run && self.key() == buffers.key
    }

    fn key(&self) -> &[u8] {
        &self.key[..self.key_length]
    }
}

impl Set {
    fn new(of: &[Noted]) -> Box<Self> {
        Box::new(Self {
            of: of.to_vec(),
            others: Vec::new(),
            own: Vec::new(),
            bytes: size_of_val(of),
        })
    }

    /// Adds an offer. False if the set has become too long.
    fn add(&mut self, me: u32, (to, ranks, message): (u32, &[u32], &[u8])) -> bool {
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
    /// Bytes of the sets.
    pub(super) fn bytes(&self) -> usize {
        self.sets.iter().map(|set| set.bytes).sum()
    }

    /// Releases the sets.
    pub(super) fn clear(&mut self) {
        self.sets.clear();
    }

    /// Whether another set may be kept.
    fn may_keep(&mut self) -> bool {
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

impl Call {
    /// Notes a message of the set that is being collected.
    #[inline]
    pub(super) fn collect(&mut self, me: u32, offer: (u32, &[u32], &[u8])) {
        if self.set.as_mut().is_some_and(|set| !set.add(me, offer)) {
            self.set = None;
        }
    }
}

impl Ledger {
    /// Notes a rank whose send side is like an earlier one. Returns the number of its SPs.
    #[inline]
    pub(super) fn note(
        &mut self,
        call: CallId,
        rank: u32,
        run: &Run,
        buffers: Buffers<'_>,
    ) -> Option<usize> {
        let local = self.local_of[rank as usize];
        let sides = &mut self.again.sides.get_mut(local as usize)?.of;
        let mut sides = (0..).zip(sides);
        let (at, side) = sides.find(|(_, side)| side.is(run, buffers))?;
        let state = &mut self.states[call];
        if state.collective.step > 0 {
            return None;
        }
        side.noted += 1;
        state.noted.push(Noted {
            version: side.version,
            rank,
            side: at,
        });
        Some(side.targets)
    }

    /// Keeps a rank's send side for later calls, unless that in its place is in use.
    pub(super) fn keep_side(
        &mut self,
        call: CallId,
        rank: u32,
        (run, buffers): (&Run, Buffers<'_>),
        targets: usize,
    ) {
        let key = buffers.key;
        if self.states[call].collective.step > 0 || key.len() > KEY_MAX {
            return;
        }
        let local = self.local_of[rank as usize] as usize;
        let again = &mut self.again;
        if again.sides.len() <= local {
            again.sides.resize_with(local + 1, Sides::default);
        }
        let Sides { of, next } = &mut again.sides[local];
        *next = (*next + 1) % SIDES;
        if of.len() < SIDES {
            *next = of.len();
            of.push(Side {
                version: 0,
                run: *run,
                base: 0,
                key: [0; KEY_MAX],
                key_length: 0,
                targets: 0,
                noted: 0,
            });
        }
        let side = &mut of[*next];
        if side.noted > 0 {
            return;
        }
        again.versions += 1;
        side.version = again.versions;
        (side.run, side.base, side.targets) = (*run, buffers.base, targets);
        side.key[..key.len()].copy_from_slice(key);
        side.key_length = key.len();
    }

    /// Puts the blocks of noted ranks on offer: as copies of earlier offers, if the ranks are the same ones as then.
    pub(super) fn offer_noted(&mut self, call: CallId) {
        let state = &mut self.states[call];
        let mut noted = std::mem::take(&mut state.noted);
        if !noted.is_sorted_by_key(|noted| noted.rank) {
            noted.sort_unstable_by_key(|noted| noted.rank);
        }
        let is_alone = state.replay.is_none() && state.queue.is_empty();
        // A set that is being collected would have more than its ranks.
        let was_collecting = state.set.take().is_some();
        let is_alone = is_alone && !was_collecting && state.whole == 0;
        let known = self
            .again
            .sets
            .iter()
            .find(|set| is_alone && set.of == noted);
        if let Some(set) = known {
            state.replay = Some(Replay {
                set: Rc::clone(set),
                others: 0,
                own: 0,
            });
            (self.again.unused, self.again.pause) = (0, 0);
        } else {
            if is_alone && noted.len() == state.arrived && self.again.may_keep() {
                state.set = Some(Set::new(&noted));
            }
            for of in &noted {
                self.append(call, of);
            }
        }
        for of in noted.drain(..) {
            let local = self.local_of[of.rank as usize] as usize;
            self.again.sides[local].of[of.side as usize].noted -= 1;
        }
        self.states[call].noted = noted;
    }

    /// Appends the blocks of a noted rank to the offers to their SPs.
    fn append(&mut self, call: CallId, noted: &Noted) {
        let local = self.local_of[noted.rank as usize] as usize;
        let side = &self.again.sides[local].of[noted.side as usize];
        let (run, base, key, length) = (side.run, side.base, side.key, side.key_length);
        let buffers = Buffers {
            base,
            key: &key[..length],
        };
        self.send_run(call, noted.rank, &run, buffers);
    }

    /// Sends the offers of a call's set for which there are credits.
    pub(super) fn replay(&mut self, call: CallId, credits: usize) {
        let Some(mut replay) = self.states[call].replay.take() else {
            return;
        };
        let set = Rc::clone(&replay.set);
        loop {
            let state = &mut self.states[call];
            let other = set.others.get(replay.others);
            let copied = match other.filter(|_| state.queue.in_flight < credits) {
                Some(copied) => {
                    replay.others += 1;
                    state.queue.in_flight += 1;
                    copied
                }
                None => match set.own.get(replay.own) {
                    Some(copied) => {
                        replay.own += 1;
                        copied
                    }
                    None if other.is_none() => return,
                    None => {
                        state.replay = Some(replay);
                        return;
                    }
                },
            };
            let collective = state.collective;
            let mut ranks = self.spare_ranks.pop().unwrap_or_default();
            ranks.extend_from_slice(&copied.ranks);
            let mut message = self.memory();
            message.extend_from_slice(&copied.message);
            let (to, entry) = (copied.to, self.outgoing.vacant_entry());
            let id = u64::from(self.offers_sent) << 32 | entry.key() as u64;
            self.offers_sent = self.offers_sent.wrapping_add(1);
            let head = RtsHead {
                collective,
                from: self.me,
                offer: id,
                whole: 0,
            };
            head.put(&mut message);
            entry.insert(Outgoing {
                id,
                call,
                to,
                ranks,
            });
            self.actions.push_back(Action::Offer { to, message });
        }
    }
}

#[cfg(test)]
mod tests;
