//! State machine of a job's collectives at one SP, without I/O: arrived ranks, offered blocks, outstanding reads.
//!
//! The methods take events, and [`Ledger::next`] returns the resulting actions. The caller owns handles, keys and
//! connections.
//!
//! Send credits are counted per collective, because an offer waits until its destinations have arrived. With one budget
//! for all collectives, offers of a collective that no destination has entered could use all credits and block a
//! collective that these destinations must complete first. Within one collective all ranks eventually arrive, whatever
//! else waits.
//!
//! Blocks of several ranks for the same SP share one offer when they are available together: offers wait until all
//! ranks of this SP have entered the call, or until [`Ledger::settle`] reports that there is no other work. Each saved
//! message avoids one send, one wake-up and one answer.
//!
//! A message looks up its call once. Its blocks are then found by index: ranks of this SP have local numbers, calls and
//! offers have indices in slabs, and a source's slot has the source's rank as index where all ranks take part.

use super::actions::{Action, CallId, Offer, OfferId, OfferKey, Part, Transfer, Wrong};
use crate::wire::{Block, Collective, Delivered, OfferedBlock};
use slab::Slab;
use std::collections::{HashMap, VecDeque};

/// Maximum number of pairs of a local rank and a call that it is in. A client's own limit is far below.
const PARTICIPANTS_MAX: usize = 1 << 16;

/// Maximum number of offered blocks whose ranks have not arrived. Each source offers one block to each destination per
/// call.
const PARKED_MAX: usize = 1 << 22;

/// An offer that reaches one of these limits (blocks, bytes of short blocks) takes no further ranks. Its message is
/// then long enough to be efficient and must not become much longer.
const OFFER_BLOCKS: usize = 1 << 12;
const OFFER_SHORT_BYTES: usize = 64 << 10;

/// Local number of ranks that belong to other SPs.
const ELSEWHERE: u32 = u32::MAX;

/// State of a job's collectives at this SP.
#[derive(Debug)]
pub(super) struct Ledger {
    me: u32,
    /// SP of each rank.
    service_of: Vec<u32>,
    /// Local number of each rank.
    local_of: Vec<u32>,
    locals: usize,
    services: usize,
    direct_min: u64,
    send_credits: usize,
    calls: HashMap<Collective, CallId>,
    states: Slab<Call>,
    participants: usize,
    parked: usize,
    incoming: HashMap<OfferKey, OfferId>,
    offers: Slab<Incoming>,
    outgoing: HashMap<u64, Outgoing>,
    next_offer: u64,
    /// Calls whose blocks wait for other ranks of this SP.
    held: Vec<CallId>,
    /// Per rank, the last arrival that sent to it.
    sent_by: Vec<u64>,
    arrivals: u64,
    actions: VecDeque<Action>,
    /// Blocks that the device may read now.
    ready: VecDeque<BlockRef>,
}

/// A collective that at least one rank has entered.
#[derive(Debug)]
struct Call {
    collective: Collective,
    /// One seat per rank of this SP.
    seats: Vec<Seat>,
    arrived: usize,
    /// Ranks that have arrived and are not complete.
    present: usize,
    /// Received offers that are not finished.
    incoming: usize,
    queue: Queue,
    is_held: bool,
}

/// State of a local rank in a call.
#[derive(Debug)]
enum Seat {
    /// Blocks that wait for the rank's arrival.
    Absent(Vec<BlockRef>),
    Present(Participant),
    Left,
}

/// A block of a received offer. The type is small because there may be millions.
#[derive(Debug, Clone, Copy)]
struct BlockRef {
    offer: u32,
    block: u32,
}

/// A local rank that has entered a call.
#[derive(Debug)]
struct Participant {
    /// Destination of each source's block, in the order of the sources.
    slots: Vec<Slot>,
    /// Sources whose block is not delivered yet.
    receives_left: usize,
    /// Unfinished offers that contain blocks of this rank.
    offers_left: usize,
    short: Vec<Delivered>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Slot {
    source: u32,
    taken: bool,
    offset: u64,
    length: u64,
}

/// Blocks of one call that wait for a credit or for aggregation.
#[derive(Debug)]
struct Queue {
    /// Parts for each SP.
    parts: Vec<Vec<Part>>,
    /// SPs with parts, in the order of their offers.
    order: VecDeque<u32>,
    in_flight: usize,
}

/// A sent offer.
#[derive(Debug)]
struct Outgoing {
    call: CallId,
    to: u32,
    /// The ranks whose blocks the offer contains.
    ranks: Vec<u32>,
}

/// A received offer.
#[derive(Debug)]
struct Incoming {
    key: OfferKey,
    call: CallId,
    /// Blocks that are not delivered yet.
    left: usize,
    sources: Vec<u32>,
    blocks: Vec<OfferedBlock>,
    /// Position of each short block's bytes in `short`.
    short_at: Vec<usize>,
    short: Vec<u8>,
}

impl Ledger {
    /// `service_of` maps each rank to its SP; `me` is this SP.
    pub(super) fn new(me: u32, service_of: Vec<u32>, direct_min: u64, send_credits: usize) -> Self {
        let mut locals = 0;
        let local_of = service_of
            .iter()
            .map(|of| {
                if *of != me {
                    return ELSEWHERE;
                }
                locals += 1;
                locals - 1
            })
            .collect();
        let services = service_of.iter().max().map_or(0, |most| *most as usize + 1);
        Self {
            me,
            sent_by: vec![0; service_of.len()],
            service_of,
            local_of,
            locals: locals as usize,
            services,
            direct_min,
            send_credits: send_credits.max(1),
            calls: HashMap::new(),
            states: Slab::new(),
            participants: 0,
            parked: 0,
            incoming: HashMap::new(),
            offers: Slab::new(),
            outgoing: HashMap::new(),
            next_offer: 0,
            held: Vec::new(),
            arrivals: 0,
            actions: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Local number of a rank; `None` for a rank of another SP.
    pub(super) fn local(&self, rank: u32) -> Option<usize> {
        let local = self.local_of.get(rank as usize).copied();
        local
            .filter(|local| *local != ELSEWHERE)
            .map(|local| local as usize)
    }

    /// A rank's SP.
    pub(super) fn service_of(&self, rank: u32) -> Option<u32> {
        self.service_of.get(rank as usize).copied()
    }

    /// Number of outstanding calls, of blocks that wait for their destinations, and of offers that wait for their
    /// answer.
    pub(super) fn lengths(&self) -> [usize; 3] {
        [self.states.len(), self.parked, self.outgoing.len()]
    }

    /// The next action; `None` until another event arrives.
    pub(super) fn next(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        match &action {
            // Indices become free only now. The caller's tables by index therefore never hold two objects at once.
            Action::Finish { offer, .. } => {
                let offer = self.offers.remove(*offer);
                self.incoming.remove(&offer.key);
                self.states[offer.call].incoming -= 1;
                self.forget_if_over(offer.call);
            }
            Action::Complete { call, .. } => {
                self.participants -= 1;
                self.states[*call].present -= 1;
                self.forget_if_over(*call);
            }
            Action::Offer(_) => {}
        }
        Some(action)
    }

    /// The next block that the device may read. Report its completion with [`Ledger::transferred`].
    pub(super) fn next_transfer(&mut self) -> Option<Transfer> {
        let at = self.ready.pop_front()?;
        let offer = &self.offers[at.offer as usize];
        let block = &offer.blocks[at.block as usize];
        let local = self.local_of[block.destination as usize] as usize;
        let source = offer.sources[block.part as usize];
        let Seat::Present(participant) = &mut self.states[offer.call].seats[local] else {
            // A rank does not leave while one of its blocks is ready.
            return None;
        };
        let to = participant.slot(source)?.offset;
        Some(Transfer {
            call: offer.call,
            offer: at.offer as usize,
            part: block.part,
            source,
            destination: block.destination,
            local,
            from: block.address,
            to,
            length: block.length,
        })
    }

    /// Number of blocks that [`Ledger::next_transfer`] can return now.
    pub(super) fn transfers(&self) -> usize {
        self.ready.len()
    }

    /// A local rank has entered a call. Returns the call's index and the rank's local number. `short` is the data of
    /// the short blocks among `sends`, in order.
    pub(super) fn arrive(
        &mut self,
        collective: Collective,
        rank: u32,
        sends: &[Block],
        receives: &[Block],
        short: &[u8],
    ) -> Result<(CallId, usize), Wrong> {
        let wrong = |what| Wrong::Rank {
            rank,
            collective,
            what,
        };
        let local = self
            .local(rank)
            .ok_or_else(|| wrong("it is not this service's"))?;
        let slots = slots(receives).ok_or_else(|| wrong("it expects two blocks from one rank"))?;
        full("calls", self.participants, PARTICIPANTS_MAX)?;
        let parts = self.group(rank, local, sends, short).map_err(wrong)?;
        let call = self.call(collective);
        if !matches!(self.states[call].seats[local], Seat::Absent(_)) {
            return Err(wrong("it entered the call twice"));
        }
        let ours = parts.first().filter(|(to, _)| *to == self.me);
        let ours = ours.map_or(0, |(_, part)| part.blocks.len());
        let participant = Participant {
            receives_left: slots.len(),
            slots,
            offers_left: parts.len(),
            short: Vec::new(),
            bytes: Vec::new(),
        };
        let state = &mut self.states[call];
        let seat = std::mem::replace(&mut state.seats[local], Seat::Present(participant));
        state.arrived += 1;
        state.present += 1;
        self.participants += 1;
        for (to, part) in parts {
            state.queue.add(to, part);
        }
        // Every member is among the destinations.
        if state.arrived >= ours {
            self.pump(call);
        } else if !state.is_held {
            state.is_held = true;
            self.held.push(call);
        }
        if let Seat::Absent(waiting) = seat {
            self.parked -= waiting.len();
            for block in waiting {
                self.meet(call, local, block)?;
            }
        }
        self.check_complete(call, local, rank);
        Ok((call, local))
    }

    /// There is no other work: blocks that wait for further ranks of this SP are sent now.
    pub(super) fn settle(&mut self) {
        for call in std::mem::take(&mut self.held) {
            if let Some(state) = self.states.get_mut(call) {
                state.is_held = false;
                self.pump(call);
            }
        }
    }

    /// Another SP, or this one, has offered blocks of `sources`. Returns the offer's index. `short` is the data of the
    /// short blocks, in order.
    pub(super) fn offered(
        &mut self,
        key: OfferKey,
        collective: Collective,
        sources: Vec<u32>,
        blocks: Vec<OfferedBlock>,
        short: Vec<u8>,
    ) -> Result<OfferId, Wrong> {
        let wrong = |what| Wrong::Service {
            service: key.0,
            offer: key.1,
            what,
        };
        if blocks.is_empty() {
            return Err(wrong("nothing is on offer"));
        }
        if self.incoming.contains_key(&key) {
            return Err(wrong("its number is taken"));
        }
        // Most offers have no short blocks.
        let mut short_at = Vec::with_capacity(if short.is_empty() { 0 } else { blocks.len() });
        let mut at = 0usize;
        for block in &blocks {
            if self.local(block.destination).is_none() {
                return Err(wrong("a block is for a rank of another service"));
            }
            if block.part as usize >= sources.len() {
                return Err(wrong("a block has no source"));
            }
            if !short.is_empty() {
                short_at.push(at);
            }
            if block.length < self.direct_min {
                // Each block is shorter than direct_min, and a message bounds the number of blocks.
                at += usize::try_from(block.length).map_err(|_| wrong("a block is too long"))?;
            }
        }
        if at != short.len() {
            return Err(wrong(
                "the bytes of its short blocks are not as many as their lengths say",
            ));
        }
        let call = self.call(collective);
        self.states[call].incoming += 1;
        let count = blocks.len();
        let offer = self.offers.insert(Incoming {
            key,
            call,
            left: count,
            sources,
            blocks,
            short_at,
            short,
        });
        self.incoming.insert(key, offer);
        let place = u32::try_from(offer).map_err(|_| wrong("there are too many offers"))?;
        let count = u32::try_from(count).map_err(|_| wrong("it has too many blocks"))?;
        for block in 0..count {
            let destination = self.offers[offer].blocks[block as usize].destination;
            let local = self.local_of[destination as usize] as usize;
            let reference = BlockRef {
                offer: place,
                block,
            };
            if let Seat::Absent(waiting) = &mut self.states[call].seats[local] {
                full(
                    "blocks for ranks that have not arrived",
                    self.parked,
                    PARKED_MAX,
                )?;
                waiting.push(reference);
                self.parked += 1;
            } else if self.meet(call, local, reference)? {
                self.check_complete(call, local, destination);
            }
        }
        Ok(offer)
    }

    /// The device has read a block.
    pub(super) fn transferred(&mut self, transfer: &Transfer) {
        if self.delivered(transfer.call, transfer.local, transfer.offer) {
            self.check_complete(transfer.call, transfer.local, transfer.destination);
        }
    }

    /// SP `from` has received all blocks of an offer from this SP.
    pub(super) fn finished(&mut self, from: u32, offer: u64) -> Result<(), Wrong> {
        let wrong = |what| Wrong::Service {
            service: from,
            offer,
            what,
        };
        let Some(outgoing) = self.outgoing.remove(&offer) else {
            return Err(wrong("it was not on offer"));
        };
        if outgoing.to != from {
            return Err(wrong("it was offered to another service"));
        }
        let call = outgoing.call;
        self.states[call].queue.in_flight -= 1;
        self.pump(call);
        for rank in outgoing.ranks {
            let local = self.local_of[rank as usize] as usize;
            if let Seat::Present(participant) = &mut self.states[call].seats[local] {
                participant.offers_left -= 1;
            }
            self.check_complete(call, local, rank);
        }
        self.forget_if_over(call);
        Ok(())
    }

    /// Index of a call; creates the call if it is new.
    fn call(&mut self, collective: Collective) -> CallId {
        if let Some(call) = self.calls.get(&collective) {
            return *call;
        }
        let call = self.states.insert(Call {
            collective,
            seats: (0..self.locals).map(|_| Seat::Absent(Vec::new())).collect(),
            arrived: 0,
            present: 0,
            incoming: 0,
            queue: Queue {
                parts: (0..self.services).map(|_| Vec::new()).collect(),
                order: VecDeque::new(),
                in_flight: 0,
            },
            is_held: false,
        });
        self.calls.insert(collective, call);
        call
    }

    /// Groups the blocks by destination SP: this SP first, then the others in rotation. The rotation spreads the first
    /// sends of the SPs over different targets.
    fn group(
        &mut self,
        source: u32,
        local: usize,
        sends: &[Block],
        mut short: &[u8],
    ) -> Result<Vec<(u32, Part)>, &'static str> {
        self.arrivals += 1;
        let mut places: Vec<u32> = vec![ELSEWHERE; self.services];
        let mut parts: Vec<(u32, Part)> = Vec::new();
        for block in sends {
            let to = self
                .service_of
                .get(block.peer as usize)
                .copied()
                .ok_or("it sends to a rank that is not there")?;
            let sent_by = &mut self.sent_by[block.peer as usize];
            if std::mem::replace(sent_by, self.arrivals) == self.arrivals {
                return Err("it sends two blocks to one rank");
            }
            let place = &mut places[to as usize];
            if *place == ELSEWHERE {
                *place = u32::try_from(parts.len()).expect("no more than there are services");
                let part = Part {
                    source,
                    local,
                    // Capacity for an even distribution of ranks.
                    blocks: Vec::with_capacity(sends.len().div_ceil(self.services.max(1))),
                    short: Vec::new(),
                };
                parts.push((to, part));
            }
            let (_, part) = &mut parts[*place as usize];
            part.blocks.push(*block);
            if block.length < self.direct_min {
                // The length is below direct_min, so it fits.
                let length = usize::try_from(block.length).map_err(|_| "a block is too long")?;
                let (data, rest) = short
                    .split_at_checked(length)
                    .ok_or("bytes of a short block are missing")?;
                part.short.extend_from_slice(data);
                short = rest;
            }
        }
        if !short.is_empty() {
            return Err("there are more bytes than short blocks");
        }
        parts.sort_unstable_by_key(|(to, _)| (*to < self.me, *to));
        Ok(parts)
    }

    /// Sends offers while credits are available.
    fn pump(&mut self, call: CallId) {
        let state = &mut self.states[call];
        while state.queue.in_flight < self.send_credits {
            let Some((to, parts)) = state.queue.take() else {
                break;
            };
            let id = self.next_offer;
            self.next_offer += 1;
            state.queue.in_flight += 1;
            let outgoing = Outgoing {
                call,
                to,
                ranks: parts.iter().map(|part| part.source).collect(),
            };
            self.outgoing.insert(id, outgoing);
            self.actions.push_back(Action::Offer(Offer {
                to,
                id,
                call,
                collective: state.collective,
                parts,
            }));
        }
    }

    /// A block and its destination are both present. Returns true when the destination may be complete.
    fn meet(&mut self, call: CallId, local: usize, at: BlockRef) -> Result<bool, Wrong> {
        let state = &mut self.states[call];
        let collective = state.collective;
        let offer = &self.offers[at.offer as usize];
        let block = &offer.blocks[at.block as usize];
        let source = offer.sources[block.part as usize];
        let members = Wrong::Members {
            collective,
            source_rank: source,
            destination: block.destination,
        };
        let Seat::Present(participant) = &mut state.seats[local] else {
            return Err(members);
        };
        let Some(slot) = participant.slot(source) else {
            return Err(members);
        };
        if slot.length != block.length {
            return Err(Wrong::Counts {
                collective,
                source_rank: source,
                destination: block.destination,
                sent: block.length,
                expected: slot.length,
            });
        }
        if std::mem::replace(&mut slot.taken, true) {
            return Err(Wrong::Service {
                service: offer.key.0,
                offer: offer.key.1,
                what: "the block was there already",
            });
        }
        let to = slot.offset;
        if block.length >= self.direct_min {
            self.ready.push_back(at);
            return Ok(false);
        }
        if block.length > 0 {
            let start = offer.short_at[at.block as usize];
            let length = usize::try_from(block.length).expect("below direct_min");
            participant
                .bytes
                .extend_from_slice(&offer.short[start..start + length]);
            participant.short.push(Delivered {
                offset: to,
                length: block.length,
            });
        }
        Ok(self.delivered(call, local, at.offer as usize))
    }

    /// A block is delivered. Returns true when it was the last one of its destination.
    fn delivered(&mut self, call: CallId, local: usize, offer: OfferId) -> bool {
        let mut was_last = false;
        if let Seat::Present(participant) = &mut self.states[call].seats[local] {
            participant.receives_left -= 1;
            was_last = participant.receives_left == 0;
        }
        let incoming = &mut self.offers[offer];
        incoming.left -= 1;
        if incoming.left == 0 {
            let key = incoming.key;
            self.actions.push_back(Action::Finish { offer, key });
        }
        was_last
    }

    fn check_complete(&mut self, call: CallId, local: usize, rank: u32) {
        let state = &mut self.states[call];
        let seat = &mut state.seats[local];
        let done = |p: &Participant| p.receives_left == 0 && p.offers_left == 0;
        if !matches!(seat, Seat::Present(participant) if done(participant)) {
            return;
        }
        if let Seat::Present(participant) = std::mem::replace(seat, Seat::Left) {
            self.actions.push_back(Action::Complete {
                call,
                collective: state.collective,
                rank,
                local,
                short: participant.short,
                bytes: participant.bytes,
            });
        }
    }

    /// Removes a call that has no ranks, offers or blocks left.
    fn forget_if_over(&mut self, call: CallId) {
        let state = &self.states[call];
        let queue = &state.queue;
        if state.present == 0
            && state.incoming == 0
            && queue.in_flight == 0
            && queue.order.is_empty()
        {
            let state = self.states.remove(call);
            self.calls.remove(&state.collective);
            self.held.retain(|held| *held != call);
        }
    }
}

impl Queue {
    fn add(&mut self, to: u32, part: Part) {
        let parts = &mut self.parts[to as usize];
        if parts.is_empty() {
            self.order.push_back(to);
        }
        parts.push(part);
    }

    /// Takes the parts of the next offer.
    fn take(&mut self) -> Option<(u32, Vec<Part>)> {
        let to = self.order.pop_front()?;
        let parts = &mut self.parts[to as usize];
        let (mut blocks, mut bytes) = (0, 0);
        let fits = |part: &Part| {
            let fits = blocks < OFFER_BLOCKS && bytes < OFFER_SHORT_BYTES;
            blocks += part.blocks.len();
            bytes += part.short.len();
            fits
        };
        let count = parts.iter().map(fits).take_while(|fits| *fits).count();
        let rest = parts.split_off(count);
        let taken = std::mem::replace(parts, rest);
        if !self.parts[to as usize].is_empty() {
            self.order.push_front(to);
        }
        Some((to, taken))
    }
}

impl Participant {
    /// Slot of the block of `source`.
    fn slot(&mut self, source: u32) -> Option<&mut Slot> {
        // When all ranks take part, the index of a rank's slot is the rank.
        let direct = self.slots.get(source as usize).map(|slot| slot.source);
        let at = match direct {
            Some(found) if found == source => source as usize,
            _ => self
                .slots
                .binary_search_by_key(&source, |slot| slot.source)
                .ok()?,
        };
        self.slots.get_mut(at)
    }
}

/// Builds the slots of a receive side, in the order of the sources; `None` if a source occurs twice.
fn slots(receives: &[Block]) -> Option<Vec<Slot>> {
    let mut slots: Vec<Slot> = receives
        .iter()
        .map(|block| Slot {
            source: block.peer,
            taken: false,
            offset: block.offset,
            length: block.length,
        })
        .collect();
    let is_sorted = |slots: &[Slot]| slots.is_sorted_by(|a, b| a.source < b.source);
    if !is_sorted(&slots) {
        slots.sort_unstable_by_key(|slot| slot.source);
        if !is_sorted(&slots) {
            return None;
        }
    }
    Some(slots)
}

fn full(what: &'static str, count: usize, max: usize) -> Result<(), Wrong> {
    if count < max {
        Ok(())
    } else {
        Err(Wrong::Full { what, count, max })
    }
}

#[cfg(test)]
mod tests;
