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
//! Step 1 of a window of an allreduce has no such limit. Its receivers may wait until the blocks of all members are on
//! offer before they take memory. With a limit, two SPs could wait for each other's next offer.
//!
//! Blocks of several ranks for the same SP share one offer when they are available together: offers wait until all
//! ranks of this SP have entered the call, or until [`Ledger::settle`] reports that there is no other work. Each saved
//! message avoids one send, one wake-up and one answer.
//!
//! A message looks up its call once. Its blocks are then found by index: ranks of this SP have local numbers, calls and
//! offers have indices in slabs, and a source's slot has the source's rank as index where all ranks take part. Blocks
//! to send are appended to the messages that will offer them when their rank arrives, and are not stored elsewhere.

mod again;
mod charge;
mod delivering;
mod members;
mod newcomers;
mod placing;
mod sending;

use super::actions::{Action, Buffers, CallId, OfferId, Receives, Wrong};
use super::again::{Again, Noted, Replay, Set};
use super::incoming::{Incoming, ParkedBlock, Participant, Source};
use super::outbox::{OFFER_BLOCKS, Part, Queue};
use super::ready::Ready;
use super::slots::Slots;
use super::spacing::{Known, Spaced, Spacing, spaced};
use crate::draft::RtsHead;
use crate::wire::{Blocks, Collective};
use slab::Slab;
use std::collections::VecDeque;
use xgvmi_ucp::hash::Map;

/// Maximum number of blocks that become ready to be read before earlier ones are read; one offer or one rank may exceed it.
/// A ready block takes several times the memory of a block in its message or of a parked one.
const READY_MAX: usize = OFFER_BLOCKS;

/// Maximum number of finished offers whose vectors are kept for reuse, and of blocks in each. The allocations of longer
/// offers are cheap per block.
const SPARES_MAX: usize = 16;
const SPARE_BLOCKS: usize = 256;

/// Maximum number of sent messages whose memory is kept for reuse, and size of all: at most 64 KiB per job.
const SPARE_MESSAGES: usize = 64;
const SPARE_BYTES: usize = 64 << 10;

/// Maximum number of calls that are kept for reuse. A program has few calls outstanding.
const SPARE_CALLS: usize = 2;

/// Rounds of work after which blocks wait no longer for further ranks of this SP.
const HELD_ROUNDS: u32 = 1024;

/// Local number of ranks that belong to other SPs.
const ELSEWHERE: u32 = u32::MAX;

const ENTERED_TWICE: &str = "it entered the call twice";

/// State of a job's collectives at this SP.
#[derive(Debug)]
pub(super) struct Ledger {
    me: u32,
    /// SP of each rank.
    service_of: Vec<u32>,
    /// Local number of each rank.
    local_of: Vec<u32>,
    /// The ranks of this SP, by local number.
    rank_of: Vec<u32>,
    services: usize,
    /// The ranks of each SP, if they are equally spaced.
    spacing: Spacing,
    spaced: Vec<Spaced>,
    known: Known,
    direct_min: u64,
    send_credits: usize,
    calls: Map<Collective, CallId>,
    /// The call of the last message. Several messages of a call usually follow each other.
    last: Option<(Collective, CallId)>,
    /// Boxed, because a call goes to its place and back in each round.
    states: Slab<Box<Call>>,
    parked: usize,
    offers: Slab<Incoming>,
    /// Sent offers. The lower half of an offer's number is its index, and the upper half counts all offers.
    outgoing: Slab<Outgoing>,
    offers_sent: u32,
    /// Bytes of all calls, about: those that follow from messages of peers.
    bytes: usize,
    /// Calls whose blocks wait for other ranks of this SP.
    held: Vec<CallId>,
    /// Rounds of work since there are such calls.
    held_rounds: u32,
    /// The SPs that the arriving rank sends to, and its blocks for one of them.
    targets: Vec<u32>,
    part: Part,
    /// Vectors of finished offers, for reuse.
    spare: Vec<(Vec<Source>, Vec<ParkedBlock>)>,
    spare_ranks: Vec<Vec<u32>>,
    spare_waiting: Vec<Vec<BlockRef>>,
    /// The memory of messages that were sent, for the next ones.
    spare_bytes: Vec<Vec<u8>>,
    spare_capacity: usize,
    /// Calls that are over, for reuse.
    #[expect(clippy::vec_box, reason = "the boxes of the slab")]
    spare_calls: Vec<Box<Call>>,
    again: Again,
    actions: VecDeque<Action>,
    /// Blocks that the device may read now.
    ready: Ready,
    /// [`READY_MAX`]; tests use fewer.
    ready_max: usize,
    /// Ranks that have arrived while many blocks were ready.
    newcomers: VecDeque<Newcomer>,
}

/// A rank that has arrived, and its parked blocks that are not ready yet.
#[derive(Debug)]
struct Newcomer {
    call: CallId,
    local: usize,
    waiting: Waiting,
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
    /// Ranks whose send side is like an earlier one, and is not in the queue.
    noted: Vec<Noted>,
    /// Copies of earlier offers that are not sent.
    replay: Option<Replay>,
    /// The offers that later calls may copy.
    set: Option<Box<Set>>,
    is_held: bool,
    /// Its offers need no credit.
    is_at_once: bool,
    /// The part of [`Ledger::bytes`].
    bytes: usize,
    /// Length of the whole vector of which the call moves a part; 0 if it is not known.
    whole: u64,
}

/// State of a local rank in a call.
#[derive(Debug)]
enum Seat {
    /// Blocks that wait for the rank's arrival.
    Absent(Waiting),
    /// The rank's own blocks are on offer. Blocks for it wait until all of them are on offer, and for its receive side.
    Gathering {
        waiting: Waiting,
        expected: usize,
        offers_left: usize,
    },
    Present(Participant),
    Left,
}

/// Parked blocks for a rank.
#[derive(Debug, Default)]
struct Waiting {
    refs: Vec<BlockRef>,
    blocks: usize,
}

/// Parked blocks of a received offer. The type is small because there may be millions.
#[derive(Debug, Clone, Copy)]
struct BlockRef {
    offer: u32,
    /// A block's index, or that of a source and [`BlockRef::OF_RUN`].
    block: u32,
}

impl BlockRef {
    /// A block of this source, and of each that is like it.
    const OF_RUN: u32 = 1 << 31;
}

/// A sent offer.
#[derive(Debug)]
struct Outgoing {
    /// The offer's number.
    id: u64,
    call: CallId,
    to: u32,
    /// The ranks whose blocks the offer contains.
    ranks: Vec<u32>,
}

impl Ledger {
    /// `service_of` maps each rank to its SP; `me` is this SP.
    pub(super) fn new(me: u32, service_of: Vec<u32>, direct_min: u64, send_credits: usize) -> Self {
        let mut rank_of = Vec::new();
        let local_of = (0..)
            .zip(&service_of)
            .map(|(rank, of)| {
                if *of != me {
                    return ELSEWHERE;
                }
                rank_of.push(rank);
                u32::try_from(rank_of.len() - 1).expect("no more than there are ranks")
            })
            .collect();
        let services = service_of.iter().max().map_or(0, |most| *most as usize + 1);
        let (spacing, spaced) = spaced(services, &service_of);
        Self {
            me,
            service_of,
            local_of,
            rank_of,
            services,
            spacing,
            spaced,
            known: Known::default(),
            direct_min,
            send_credits: send_credits.max(1),
            calls: Map::default(),
            last: None,
            states: Slab::new(),
            parked: 0,
            offers: Slab::new(),
            outgoing: Slab::new(),
            offers_sent: 0,
            bytes: 0,
            held: Vec::new(),
            held_rounds: 0,
            targets: Vec::new(),
            part: Part::default(),
            spare: Vec::new(),
            spare_ranks: Vec::new(),
            spare_waiting: Vec::new(),
            spare_bytes: Vec::new(),
            spare_capacity: 0,
            spare_calls: Vec::new(),
            again: Again::default(),
            actions: VecDeque::new(),
            ready: Ready::default(),
            ready_max: READY_MAX,
            newcomers: VecDeque::new(),
        }
    }

    /// Memory for a message.
    #[inline]
    pub(super) fn memory(&mut self) -> Vec<u8> {
        let memory = self.spare_bytes.pop().unwrap_or_default();
        self.spare_capacity -= memory.capacity();
        memory
    }

    /// A message was sent, and its memory is free.
    #[inline]
    pub(super) fn reuse(&mut self, mut memory: Vec<u8>) {
        let capacity = memory.capacity();
        let fits = capacity > 0 && self.spare_capacity + capacity <= SPARE_BYTES;
        if fits && self.spare_bytes.len() < SPARE_MESSAGES {
            memory.clear();
            self.spare_capacity += capacity;
            self.spare_bytes.push(memory);
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
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        self.handed_over(&action);
        Some(action)
    }

    /// Whether [`Ledger::next`] has an action.
    #[inline]
    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// An action is the caller's now.
    #[inline(always)]
    fn handed_over(&mut self, action: &Action) {
        match action {
            // Indices become free only now. The caller's tables by index therefore never hold two objects at once.
            Action::Finish { offer, .. } => {
                let mut offer = self.offers.remove(*offer);
                let call = offer.call as usize;
                self.states[call].incoming -= 1;
                self.forget_if_over(call);
                let kept = offer.parked.capacity().max(offer.sources.capacity());
                if self.spare.len() < SPARES_MAX && kept <= SPARE_BLOCKS {
                    offer.sources.clear();
                    offer.parked.clear();
                    self.spare.push((offer.sources, offer.parked));
                }
            }
            Action::Complete { call, .. } => {
                self.states[*call].present -= 1;
                self.forget_if_over(*call);
            }
            Action::Offer { .. } | Action::Gathered { .. } | Action::Received { .. } => {}
        }
    }

    /// A local rank has entered a call, which `together` ranks of this SP enter. `short` is the data of the short blocks among
    /// `sends`, in order. Returns the index of the call, and the rank's local number.
    pub(super) fn arrive<'a>(
        &mut self,
        collective: Collective,
        (rank, together): (u32, u32),
        (sends, receives): (Blocks<'_>, impl Into<Receives<'a>>),
        short: &[u8],
        buffers: Buffers<'_>,
    ) -> Result<(CallId, usize), Wrong> {
        let receives = receives.into();
        let wrong = |what| Wrong::Rank {
            rank,
            collective,
            what,
        };
        let local = self
            .local(rank)
            .ok_or_else(|| wrong("it is not this service's"))?;
        // Memory follows the number of blocks.
        let expected = match receives {
            Receives::Now(blocks) => blocks.len(),
            Receives::Later(count) => count,
        };
        if sends.len().max(expected) > self.service_of.len() {
            return Err(wrong("it has more blocks than the job has ranks"));
        }
        let slots = match receives {
            Receives::Now(Blocks::Runs(_)) | Receives::Later(_) => None,
            Receives::Now(blocks) => {
                let slots = Slots::new(blocks);
                Some(slots.ok_or_else(|| wrong("it expects two blocks from one rank"))?)
            }
        };
        let call = self.call(collective);
        if !matches!(self.states[call].seats[local], Seat::Absent(_)) {
            return Err(wrong(ENTERED_TWICE));
        }
        let targets = self.send_all(call, rank, sends, short, buffers);
        let targets = targets.map_err(wrong)?;
        let received = match receives {
            Receives::Now(blocks) => blocks.bytes() + self.answer_bytes(blocks),
            Receives::Later(_) => 0,
        };
        self.keep_rank(call, sends.bytes() + received + short.len());
        let state = &mut self.states[call];
        let seat = &mut state.seats[local];
        let waiting = match seat {
            Seat::Absent(waiting) => std::mem::take(waiting),
            _ => Waiting::default(),
        };
        state.arrived += 1;
        state.present += 1;
        let mut met = None;
        let slots = match receives {
            Receives::Now(Blocks::Runs(runs)) => Some(Slots::of_runs(runs)),
            _ => slots,
        };
        match slots {
            Some(slots) => {
                *seat = Seat::Present(Participant {
                    receives_left: expected,
                    slots,
                    offers_left: targets,
                    is_told: false,
                    short: None,
                });
                met = Some(waiting);
            }
            None => {
                if waiting.blocks >= expected {
                    self.actions.push_back(Action::Gathered { call, local });
                }
                *seat = Seat::Gathering {
                    waiting,
                    expected,
                    offers_left: targets,
                };
            }
        }
        if state.arrived >= together as usize {
            self.pump(call);
        } else if !state.is_held {
            state.is_held = true;
            self.held.push(call);
        }
        if let Some(waiting) = met {
            self.meet(call, local, waiting)?;
        }
        self.check_complete(call, local, rank);
        Ok((call, local))
    }

    /// The receive side of a rank for which all blocks are on offer.
    pub(super) fn receive(
        &mut self,
        (call, local): (CallId, usize),
        receives: Blocks<'_>,
    ) -> Result<(), Wrong> {
        let rank = self.rank_of[local];
        let state = &mut self.states[call];
        let wrong = |what| Wrong::Rank {
            rank,
            collective: state.collective,
            what,
        };
        let Seat::Gathering {
            waiting,
            offers_left,
            ..
        } = &mut state.seats[local]
        else {
            return Err(wrong("it does not wait for its receive side"));
        };
        let slots = Slots::new(receives);
        let slots = slots.ok_or_else(|| wrong("it expects two blocks from one rank"))?;
        let waiting = std::mem::take(waiting);
        let participant = Participant {
            receives_left: slots.len(),
            slots,
            offers_left: *offers_left,
            is_told: false,
            short: None,
        };
        state.seats[local] = Seat::Present(participant);
        self.keep_rank(call, receives.bytes());
        self.meet(call, local, waiting)?;
        self.check_complete(call, local, rank);
        Ok(())
    }

    /// Whether blocks have waited for further ranks of this SP for many rounds of work. Those ranks may have left the call, or
    /// never come, and other jobs may leave no moment without work.
    pub(super) fn is_overdue(&mut self) -> bool {
        self.held_rounds += 1;
        if self.held.is_empty() {
            self.held_rounds = 0;
        }
        self.held_rounds > HELD_ROUNDS
    }

    /// There is no other work: blocks that wait for further ranks of this SP are sent now.
    pub(super) fn settle(&mut self) {
        self.held_rounds = 0;
        // The vector keeps its memory.
        let mut held = std::mem::take(&mut self.held);
        for call in held.drain(..) {
            if let Some(state) = self.states.get_mut(call) {
                state.is_held = false;
                self.pump(call);
            }
        }
        self.held = held;
    }

    /// SP `from` has received all blocks of an offer from this SP.
    pub(super) fn finished(&mut self, from: u32, offer: u64) -> Result<(), Wrong> {
        let wrong = |what| Wrong::Service {
            service: from,
            offer,
            what,
        };
        // The lower half is the index.
        let at = usize::try_from(offer & u64::from(u32::MAX)).expect("32 bits");
        match self.outgoing.get(at) {
            Some(outgoing) if outgoing.id == offer && outgoing.to == from => {}
            Some(outgoing) if outgoing.id == offer => {
                return Err(wrong("it was offered to another service"));
            }
            _ => return Err(wrong("it was not on offer")),
        }
        let outgoing = self.outgoing.remove(at);
        let call = outgoing.call;
        if outgoing.to != self.me {
            let state = &mut self.states[call];
            state.queue.in_flight -= 1;
            if state.has_offers() {
                self.pump(call);
            }
        }
        for rank in &outgoing.ranks {
            let local = self.local_of[*rank as usize] as usize;
            match &mut self.states[call].seats[local] {
                Seat::Present(Participant { offers_left, .. })
                | Seat::Gathering { offers_left, .. } => *offers_left -= 1,
                Seat::Absent(_) | Seat::Left => {}
            }
            self.check_complete(call, local, *rank);
        }
        self.forget_if_over(call);
        let mut ranks = outgoing.ranks;
        if self.spare_ranks.len() < SPARES_MAX && ranks.capacity() <= SPARE_BLOCKS {
            ranks.clear();
            self.spare_ranks.push(ranks);
        }
        Ok(())
    }

    /// Index of a call; creates the call if it is new.
    #[inline]
    fn call(&mut self, collective: Collective) -> CallId {
        if let Some((last, call)) = self.last
            && last == collective
        {
            return call;
        }
        self.other_call(collective)
    }

    fn other_call(&mut self, collective: Collective) -> CallId {
        if let Some(call) = self.calls.get(&collective) {
            self.last = Some((collective, *call));
            return *call;
        }
        let seats = self
            .rank_of
            .iter()
            .map(|_| Seat::Absent(Waiting::default()));
        let state = match self.spare_calls.pop() {
            Some(mut state) => {
                state.collective = collective;
                state.arrived = 0;
                (state.is_held, state.is_at_once, state.whole) = (false, false, 0);
                (state.replay, state.set) = (None, None);
                state.noted.clear();
                state.seats.clear();
                state.seats.extend(seats);
                state
            }
            None => Box::new(Call {
                collective,
                seats: seats.collect(),
                arrived: 0,
                present: 0,
                incoming: 0,
                queue: Queue::new(self.me, self.services),
                noted: Vec::new(),
                replay: None,
                set: None,
                is_held: false,
                is_at_once: false,
                bytes: 0,
                whole: 0,
            }),
        };
        let call = self.states.insert(state);
        self.calls.insert(collective, call);
        self.last = Some((collective, call));
        self.keep_call(call);
        call
    }

    /// A member or an offer of a call says how long the whole vector is of which the call moves a part, unless it is 0. Members
    /// with another length may have no part in some lanes, where the others would wait for them.
    #[inline]
    pub(super) fn agree(&mut self, collective: Collective, whole: u64) -> Result<(), Wrong> {
        if whole == 0 {
            return Ok(());
        }
        let call = self.call(collective);
        let known = &mut self.states[call].whole;
        match std::mem::replace(known, whole) {
            before if before == 0 || before == whole => Ok(()),
            other => Err(Wrong::Lengths {
                collective,
                one: other,
                other: whole,
            }),
        }
    }

    /// Whether a rank has entered a call, or blocks of it have come.
    pub(super) fn has_call(&self, collective: Collective) -> bool {
        self.calls.contains_key(&collective)
    }

    /// The offers of a call wait for no answer.
    pub(super) fn send_at_once(&mut self, collective: Collective) {
        let call = self.call(collective);
        self.states[call].is_at_once = true;
    }

    /// Sends offers to other SPs while credits are available, and makes the one to this SP.
    fn pump(&mut self, call: CallId) {
        if !self.states[call].noted.is_empty() {
            self.offer_noted(call);
        }
        let state = &self.states[call];
        let credits = match state.collective.is_scatter() || state.is_at_once {
            true => usize::MAX,
            false => self.send_credits,
        };
        if state.replay.is_some() {
            self.replay(call, credits);
        }
        let state = &mut self.states[call];
        while !state.queue.is_empty() {
            let entry = self.outgoing.vacant_entry();
            // Far fewer offers are on the way than 32 bits count: each has a message in memory.
            let id = u64::from(self.offers_sent) << 32 | entry.key() as u64;
            let head = RtsHead {
                collective: state.collective,
                from: self.me,
                offer: id,
                whole: state.whole,
            };
            let taken = state.queue.take(head, state.queue.in_flight < credits);
            let Some((to, ranks, message)) = taken else {
                break;
            };
            self.offers_sent = self.offers_sent.wrapping_add(1);
            state.queue.in_flight += usize::from(to != self.me);
            state.collect(self.me, (to, &ranks, &message));
            entry.insert(Outgoing {
                id,
                call,
                to,
                ranks,
            });
            self.actions.push_back(Action::Offer { to, message });
        }
        if state.set.is_some()
            && state.queue.is_empty()
            && let Some(set) = state.set.take()
        {
            self.again.keep(*set);
        }
    }

    /// Bytes that are kept to repeat offers.
    pub(super) fn kept_bytes(&self) -> usize {
        self.again.bytes()
    }

    /// Releases them.
    pub(super) fn drop_kept(&mut self) {
        self.again.clear();
    }

    #[inline(always)]
    fn check_complete(&mut self, call: CallId, local: usize, rank: u32) {
        let state = &self.states[call];
        // Only a step tells of blocks while the rank's own blocks are on offer.
        if let Seat::Present(participant) = &state.seats[local]
            && participant.receives_left == 0
            && (participant.offers_left == 0 || state.collective.step > 0)
        {
            self.received_all(call, local, rank);
        }
    }

    /// A rank has all its blocks.
    #[inline(never)]
    fn received_all(&mut self, call: CallId, local: usize, rank: u32) {
        let state = &mut self.states[call];
        let seat = &mut state.seats[local];
        let Seat::Present(participant) = seat else {
            return;
        };
        if state.collective.is_scatter() && !participant.is_told {
            participant.is_told = true;
            self.actions.push_back(Action::Received {
                call,
                collective: state.collective,
                local,
            });
        }
        if participant.offers_left > 0 {
            return;
        }
        let short = participant.short.take();
        *seat = Seat::Left;
        self.actions.push_back(Action::Complete {
            call,
            collective: state.collective,
            rank,
            local,
            short,
        });
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
            let mut state = self.states.remove(call);
            self.bytes -= std::mem::take(&mut state.bytes);
            self.calls.remove(&state.collective);
            self.last = None;
            self.held.retain(|held| *held != call);
            if self.spare_calls.len() < SPARE_CALLS {
                let mut state = state;
                state.queue.trim();
                self.spare_calls.push(state);
            }
        }
    }
}

#[cfg(test)]
mod tests;
