//! Ranks that arrive while many blocks are ready to be read. Their parked blocks stay parked until these are read.

use super::{BlockRef, CallId, Ledger, Newcomer, READY_MAX, SPARE_BLOCKS, Seat, Wrong};
use crate::service::actions::{Action, Transfer};
use crate::service::incoming::Meeting;

/// Capacity that the empty queue of ready blocks keeps, in blocks.
const READY_KEPT: usize = 2 * READY_MAX;

/// Maximum number of ranks whose vectors of parked blocks are kept for reuse.
const WAITING_KEPT: usize = 128;

impl Ledger {
    /// Whether this number of blocks may become ready now.
    pub(in crate::service) fn has_room(&self, blocks: impl FnOnce() -> usize) -> bool {
        let ready = self.ready.len();
        self.newcomers.is_empty()
            && (ready == 0 || ready.saturating_add(blocks()) <= self.ready_max)
    }

    /// No block is ready: takes parked blocks of a rank that has arrived. Returns false if there are none.
    pub(in crate::service) fn meet_newcomer(&mut self) -> Result<bool, Wrong> {
        // An offer of many blocks must not leave its memory here.
        if self.ready.capacity() > READY_KEPT {
            self.ready.shrink_to(READY_KEPT);
        }
        let Some(newcomer) = self.newcomers.front_mut() else {
            return Ok(false);
        };
        let (call, local) = (newcomer.call, newcomer.local);
        let later = newcomer.waiting.len().saturating_sub(self.ready_max);
        let now = newcomer.waiting.split_off(later);
        if later == 0 {
            self.newcomers.pop_front();
        }
        self.meet_all(call, local, now)?;
        self.check_complete(call, local, self.rank_of[local]);
        Ok(true)
    }

    /// A rank has arrived, and these blocks were parked for it.
    pub(super) fn meet(
        &mut self,
        call: CallId,
        local: usize,
        waiting: Vec<BlockRef>,
    ) -> Result<(), Wrong> {
        if waiting.is_empty() {
            return Ok(());
        }
        if self.has_room(|| waiting.len()) {
            return self.meet_all(call, local, waiting);
        }
        self.newcomers.push_back(Newcomer {
            call,
            local,
            waiting,
        });
        Ok(())
    }

    /// These blocks were parked, and their destination has arrived.
    fn meet_all(
        &mut self,
        call: CallId,
        local: usize,
        mut waiting: Vec<BlockRef>,
    ) -> Result<(), Wrong> {
        self.parked -= waiting.len();
        let rank = self.rank_of[local];
        let to_local = self.local_of[rank as usize];
        let state = &mut self.states[call];
        let collective = state.collective;
        let seat = &mut state.seats[local];
        for at in waiting.drain(..) {
            let offer = &mut self.offers[at.offer as usize];
            let Seat::Present(participant) = &mut *seat else {
                // The rank has got all its blocks, so this one must have come before.
                return Err(Wrong::Service {
                    service: offer.key.0,
                    offer: offer.key.1,
                    what: "the block was there already",
                });
            };
            let part = at.block & !BlockRef::OF_RUN;
            let block = match at.block == part {
                true => offer.parked[part as usize],
                false => {
                    let source = &offer.sources[part as usize];
                    let block = source.parked_for(part, rank, self.direct_min);
                    block.expect("the block was in this run")
                }
            };
            let source = &offer.sources[block.part as usize];
            let place = participant.slots.take(source.rank, block.length);
            if let Ok(to) = place
                && block.length >= self.direct_min
            {
                self.ready.push_back(Transfer {
                    from: source.base.wrapping_add(block.from),
                    to,
                    length: block.length,
                    offer: at.offer,
                    part: block.part,
                    local: to_local,
                    call: offer.call,
                    shared: source.shared,
                });
                continue;
            }
            let meeting = Meeting {
                key: offer.key,
                collective,
                source: source.rank,
                destination: rank,
                block,
                short: &offer.short,
                direct_min: self.direct_min,
            };
            meeting.deliver(participant, place)?;
            participant.receives_left -= 1;
            offer.left -= 1;
            if offer.left == 0 {
                let (offer, key) = (at.offer as usize, offer.key);
                self.actions.push_back(Action::Finish { offer, key });
            }
        }
        if self.spare_waiting.len() < WAITING_KEPT && waiting.capacity() <= SPARE_BLOCKS {
            self.spare_waiting.push(waiting);
        }
        Ok(())
    }
}
