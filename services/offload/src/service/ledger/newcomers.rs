//! Ranks that arrive while many blocks are ready to be read. Their parked blocks stay parked until these are read.

use super::{BlockRef, CallId, Ledger, Newcomer, READY_MAX, SPARE_BLOCKS, Seat, Waiting, Wrong};
use crate::service::actions::Action;
use crate::service::incoming::{Incoming, Meeting, ParkedBlock};
use crate::service::ready::Batch;
use slab::Slab;

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
    #[inline]
    pub(in crate::service) fn meet_newcomer(&mut self) -> Result<bool, Wrong> {
        // An offer of many blocks must not leave its memory here.
        self.ready.trim(READY_KEPT);
        match self.newcomers.is_empty() {
            true => Ok(false),
            false => self.meet_first(),
        }
    }

    fn meet_first(&mut self) -> Result<bool, Wrong> {
        let Some(newcomer) = self.newcomers.front_mut() else {
            return Ok(false);
        };
        let (call, local) = (newcomer.call, newcomer.local);
        let waiting = &mut newcomer.waiting;
        if waiting.blocks <= self.ready_max {
            let waiting = std::mem::take(waiting);
            self.newcomers.pop_front();
            self.meet_all(call, local, waiting)?;
        } else {
            let (mut later, mut blocks) = (waiting.refs.len(), 0);
            for parked in waiting.refs.iter().rev() {
                blocks += blocks_of(&self.offers, *parked);
                later -= 1;
                if blocks >= self.ready_max {
                    break;
                }
            }
            waiting.blocks -= blocks;
            let refs = waiting.refs.split_off(later);
            if later == 0 {
                self.newcomers.pop_front();
            }
            self.meet_all(call, local, Waiting { refs, blocks })?;
        }
        self.check_complete(call, local, self.rank_of[local]);
        Ok(true)
    }

    /// A rank has arrived, and these blocks were parked for it.
    pub(super) fn meet(
        &mut self,
        call: CallId,
        local: usize,
        waiting: Waiting,
    ) -> Result<(), Wrong> {
        if waiting.blocks == 0 {
            return Ok(());
        }
        if self.has_room(|| waiting.blocks) {
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
    fn meet_all(&mut self, call: CallId, local: usize, waiting: Waiting) -> Result<(), Wrong> {
        self.parked -= waiting.blocks;
        let mut refs = waiting.refs;
        for at in refs.drain(..) {
            let source = at.source();
            let Some(source) = source else {
                let block = self.offers[at.offer as usize].parked[at.block as usize];
                self.meet_one(call, local, at.offer, block)?;
                continue;
            };
            let offer = &self.offers[at.offer as usize];
            let alike = offer.sources[source as usize].alike();
            if alike.count > 1
                && let Seat::Present(participant) = &mut self.states[call].seats[local]
            {
                let rank = self.rank_of[local];
                let block =
                    offer.sources[source as usize].parked_for(source, rank, self.direct_min);
                let ParkedBlock { from, length, .. } = block.expect("the blocks were in this run");
                if let Some((to, stride)) = participant.slots.take_all(alike, length) {
                    self.ready.push(Batch {
                        offer: at.offer,
                        part: source,
                        count: alike.count,
                        local: self.local_of[rank as usize],
                        call: offer.call,
                        from,
                        to,
                        stride,
                        length,
                    });
                    continue;
                }
            }
            for part in source..source + alike.count {
                let source = &self.offers[at.offer as usize].sources[part as usize];
                let block = source.parked_for(part, self.rank_of[local], self.direct_min);
                let block = block.expect("the block was in this run");
                self.meet_one(call, local, at.offer, block)?;
            }
        }
        if self.spare_waiting.len() < WAITING_KEPT && refs.capacity() <= SPARE_BLOCKS {
            self.spare_waiting.push(refs);
        }
        Ok(())
    }

    /// This block was parked, and its destination has arrived.
    fn meet_one(
        &mut self,
        call: CallId,
        local: usize,
        id: u32,
        block: ParkedBlock,
    ) -> Result<(), Wrong> {
        let rank = self.rank_of[local];
        let state = &mut self.states[call];
        let offer = &mut self.offers[id as usize];
        let Seat::Present(participant) = &mut state.seats[local] else {
            // The rank has got all its blocks, so this one must have come before.
            return Err(Wrong::Service {
                service: offer.key.0,
                offer: offer.key.1,
                what: "the block was there already",
            });
        };
        let source = &offer.sources[block.part as usize];
        let mut push = |to, length| {
            self.ready.push(Batch {
                offer: id,
                part: block.part,
                count: 1,
                local: self.local_of[rank as usize],
                call: offer.call,
                from: block.from,
                to,
                stride: 0,
                length,
            });
        };
        let place = participant.slots.take(source.rank, block.length);
        if let Ok(to) = place
            && block.length >= self.direct_min
        {
            push(to, block.length);
            return Ok(());
        }
        let meeting = Meeting {
            key: offer.key,
            collective: state.collective,
            source: source.rank,
            destination: rank,
            block,
            short: &offer.short,
            direct_min: self.direct_min,
        };
        if let Some((to, length)) = meeting.deliver(participant, place)? {
            push(to, length);
            return Ok(());
        }
        participant.receives_left -= 1;
        offer.left -= 1;
        if offer.left == 0 {
            let (offer, key) = (id as usize, offer.key);
            self.actions.push_back(Action::Finish { offer, key });
        }
        Ok(())
    }
}

impl BlockRef {
    /// The first source, for blocks of runs.
    #[inline]
    fn source(self) -> Option<u32> {
        let source = self.block & !Self::OF_RUN;
        (source != self.block).then_some(source)
    }
}

/// Number of parked blocks.
fn blocks_of(offers: &Slab<Incoming>, parked: BlockRef) -> usize {
    parked.source().map_or(1, |source| {
        offers[parked.offer as usize].sources[source as usize].like as usize
    })
}
