//! Calls that repeat. A rank that sends the same run of blocks from the same buffer as before is only noted. If all ranks of a
//! call are noted, and the same ones as in an earlier call, its offers are copies of the earlier ones.

use super::{Call, CallId, ENTERED_TWICE, Ledger, Outgoing, Seat, Waiting};
use crate::draft::RtsHead;
use crate::service::actions::{Action, Buffers, Wrong};
use crate::service::again::{KEY_MAX, Noted, Replay, SIDES, Set, Side, Sides};
use crate::service::incoming::Participant;
use crate::service::slots::Slots;
use crate::wire::Collective;
use crate::wire::runs::Run;
use std::rc::Rc;

impl Call {
    /// Whether blocks may wait for an offer.
    #[inline]
    pub(super) fn has_offers(&self) -> bool {
        self.replay.is_some() || !self.noted.is_empty() || !self.queue.is_empty()
    }

    /// Notes a message of the set that is being collected.
    #[inline]
    pub(super) fn collect(&mut self, me: u32, offer: (u32, &[u32], &[u8])) {
        if self.set.as_mut().is_some_and(|set| !set.add(me, offer)) {
            self.set = None;
        }
    }
}

impl Ledger {
    /// As [`Ledger::arrive`] for a rank whose entry is like its last one, with a run of blocks for the device on each side. `None` if
    /// there is more to do than to note it.
    pub(in crate::service) fn arrive_again(
        &mut self,
        collective: Collective,
        (rank, local, together): (u32, usize, u32),
        (sends, receives): (&Run, &Run),
        buffers: Buffers<'_>,
    ) -> Result<Option<CallId>, Wrong> {
        let expected = receives.count as usize;
        if receives.length < self.direct_min || expected > self.service_of.len() {
            return Ok(None);
        }
        let Some((at, side)) = self.again.known(local, sends, buffers) else {
            return Ok(None);
        };
        side.noted += 1;
        let (version, targets) = (side.version, side.targets);
        let call = self.call(collective);
        let state = &mut *self.states[call];
        let seat = &mut state.seats[local];
        if !matches!(seat, Seat::Absent(_)) {
            return Err(Wrong::Rank {
                rank,
                collective,
                what: ENTERED_TWICE,
            });
        }
        let present = Seat::Present(Participant {
            slots: Slots::of_run(receives),
            receives_left: expected,
            offers_left: targets,
            is_told: false,
            short: None,
        });
        let waiting = match std::mem::replace(seat, present) {
            Seat::Absent(waiting) => waiting,
            _ => Waiting::default(),
        };
        let side = at;
        state.noted.push(Noted {
            version,
            rank,
            side,
        });
        state.arrived += 1;
        state.present += 1;
        let has_all = state.arrived >= together as usize;
        if !has_all && !state.is_held {
            state.is_held = true;
            self.held.push(call);
        }
        self.keep_rank(call, 2 * size_of::<Run>());
        if has_all {
            self.pump(call);
        }
        // The rank waits for its blocks: none of them is short, so none is there before the device has read it.
        self.meet(call, local, waiting)?;
        Ok(Some(call))
    }

    /// Notes a rank whose send side is like an earlier one. Returns the number of its SPs.
    #[inline]
    pub(super) fn note(
        &mut self,
        call: CallId,
        rank: u32,
        run: &Run,
        buffers: Buffers<'_>,
    ) -> Option<usize> {
        let local = self.local_of[rank as usize] as usize;
        let (at, side) = self.again.known(local, run, buffers)?;
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
