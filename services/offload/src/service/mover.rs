//! The data path of a job at one SP: receives messages, and sends messages and starts reads as the ledger requests.

mod entering;
mod familiar;
mod reading;
mod reduce;
mod relay;
mod tree;

use super::actions::{Action, Buffers, CallId, OfferId, OfferKey, Receives, Short};
use super::counters::{Moment, Moved, Queues};
use super::familiar::{Familiar, KeyList};
use super::imports::{Imports, Keys, Lent};
use super::late::Late;
use super::ledger::Ledger;
use super::relays::Relays;
use super::repeats::Repeats;
use super::segments::{Place, Staged};
use super::sharing::Sharing;
use super::transport::{Sent, Transport};
use super::trees::Trees;
use super::vectors::{Reducing, Stepped};
use crate::error::{OffloadError, Result};
use crate::radix::Radix;
use crate::token::Token;
use crate::wire::{
    Arrival, Blocks, Collective, Contribution, DpuFin, DpuNote, DpuRelay, DpuRelayed, DpuRts,
    Entry, HostFin, Kind, RouteRef, RtsPart,
};
use std::rc::Rc;
use std::time::Instant;

/// Maximum number of an offer's sources whose vectors are kept for reuse, and of calls that keep the seats of their ranks.
const SOURCES_KEPT: usize = 256;
const CALLS_KEPT: usize = 4;

/// Limits of an SP's concurrent work, and the minimum length of a block for a device read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of unanswered DPU_RTS per collective.
    pub(super) sends: usize,
    /// Maximum number of reads over all collectives.
    pub(super) receives: usize,
    /// Blocks shorter than this travel in messages.
    pub(super) direct_min: u64,
    /// Maximum number of imports of a rank that are kept between calls.
    pub(super) imports: u32,
    pub(super) radix: Radix,
}

/// A peer, and the token of messages to it.
#[derive(Debug)]
pub(super) struct Destination<P> {
    pub(super) peer: P,
    pub(super) token: Token,
}

/// The data path. The fields drop in this order: operations before the objects that they use.
#[derive(Debug)]
pub(super) struct Mover<T: Transport> {
    limits: Limits,
    me: u32,
    /// Outstanding reads. Their tags are of [`Flight`](super::ready::Flight).
    reads: T::Reads,
    /// Outstanding messages.
    sends: Vec<T::Operation>,
    /// Keys of the sources of each received offer.
    keys: Vec<KeyList<T::Key>>,
    no_keys: KeyList<T::Key>,
    familiar: Familiar<T::Key>,
    /// Blocks that several ranks of this SP get from one rank of another SP.
    sharing: Sharing<Rc<T::Key>>,
    /// Buffers of this SP's ranks in each call.
    entered: Vec<Seats<T>>,
    reducing: Reducing<T>,
    trees: Trees<T>,
    relays: Relays,
    imports: Imports<T>,
    repeats: Repeats,
    /// Keys of all sources.
    known: Keys<T::Key>,
    /// This SP's ranks, by local number.
    ranks: Vec<Destination<T::Peer>>,
    /// All SPs; `None` for SPs that are not connected yet.
    services: Vec<Option<Destination<T::Peer>>>,
    /// Expected token of each of them.
    from_ranks: Vec<Token>,
    /// Expected token of each SP's messages; `None` before it is connected.
    from_services: Vec<Option<Token>>,
    ledger: Ledger,
    /// Offers that wait for earlier reads.
    late: Late,
    /// The vector of the last offer's parts, for reuse.
    parts: Vec<RtsPart<'static>>,
    /// Tags of reads of shared blocks that have ended.
    shared_ends: Vec<u64>,
    /// Offers that are delivered and not answered: SP and number. The next vector is for the numbers of one SP.
    fins: Vec<(u32, u64)>,
    answered: Vec<u64>,
    moved: Moved,
    start: Instant,
    /// The time of this poll, if it was needed.
    clock: Option<Moment>,
}

/// The peers of a job at one SP.
#[derive(Debug)]
pub(super) struct Peers<P> {
    /// Index of this SP.
    pub(super) me: u32,
    /// Index of each rank's SP.
    pub(super) service_of: Vec<u32>,
    /// The ranks of this SP, in their order.
    pub(super) ranks: Vec<Destination<P>>,
    /// Expected token of the messages of each.
    pub(super) from_ranks: Vec<Token>,
    /// All SPs; `None` for SPs that are not connected yet.
    pub(super) services: Vec<Option<Destination<P>>>,
}

/// Buffers of the local ranks in a call, by local number.
#[derive(Debug)]
struct Seats<T: Transport> {
    all: Vec<Option<Entered<T>>>,
    taken: usize,
}

/// Buffers of a local rank in a call.
#[derive(Debug)]
struct Entered<T: Transport> {
    send: Option<Lent<T>>,
    receive: Option<Receive<T>>,
    since: Moment,
}

/// What other SPs read from.
enum From<'a> {
    /// The send buffer, which starts at this address of the rank.
    Send(u64),
    Other(Buffers<'a>),
}

/// A receive buffer.
#[derive(Debug)]
enum Receive<T: Transport> {
    /// It belongs to the call.
    Own(Lent<T>),
    /// It belongs to the call of which this is a step.
    Shared(Lent<T>),
    /// Memory of this SP for the segments of an allreduce.
    Staged(Staged<T>),
}

impl<T: Transport> Seats<T> {
    fn new() -> Self {
        Self {
            all: Vec::new(),
            taken: 0,
        }
    }

    fn get(&self, local: usize) -> Option<&Entered<T>> {
        self.all.get(local)?.as_ref()
    }
}

impl<T: Transport> Entered<T> {
    fn new(send: Option<Lent<T>>, receive: Option<Receive<T>>, since: Moment) -> Self {
        Self {
            send,
            receive,
            since,
        }
    }
}

impl<T: Transport> Receive<T> {
    /// The memory, and the offset of the buffer in it.
    #[inline]
    fn memory(&self) -> (&T::Memory, u64) {
        match self {
            Self::Own(lent) | Self::Shared(lent) => (lent.memory(), lent.shift()),
            Self::Staged(staged) => (&staged.memory, 0),
        }
    }

    /// The packed key.
    fn pack(&self, transport: &T) -> Result<&[u8]> {
        match self {
            Self::Own(lent) | Self::Shared(lent) => packed(transport, Some(lent)),
            Self::Staged(staged) => Ok(staged.key.as_ref()),
        }
    }
}

impl<T: Transport> Mover<T> {
    pub(super) fn new(peers: Peers<T::Peer>, limits: Limits) -> Self {
        Self {
            limits,
            me: peers.me,
            reads: T::Reads::default(),
            sends: Vec::new(),
            keys: Vec::new(),
            no_keys: KeyList::default(),
            familiar: Familiar::new(),
            entered: Vec::new(),
            reducing: Reducing::new(),
            trees: Trees::new(),
            relays: Relays::default(),
            imports: Imports::new(limits.imports),
            repeats: Repeats::default(),
            known: Keys::new(),
            ranks: peers.ranks,
            from_services: vec![None; peers.services.len()],
            services: peers.services,
            from_ranks: peers.from_ranks,
            ledger: Ledger::new(peers.me, peers.service_of, limits.direct_min, limits.sends),
            late: Late::default(),
            sharing: Sharing::new(),
            parts: Vec::new(),
            shared_ends: Vec::new(),
            fins: Vec::new(),
            answered: Vec::new(),
            moved: Moved::default(),
            start: Instant::now(),
            clock: None,
        }
    }

    /// Handles a message of a collective.
    pub(super) fn receive(
        &mut self,
        transport: &T,
        kind: Kind,
        header: &[u8],
        data: &[u8],
    ) -> Result<()> {
        let bad = |error| OffloadError::message("a peer of the job", &error);
        match kind {
            Kind::HostArrive => self.entry(transport, header, data),
            Kind::HostReduce => {
                let entry = Contribution::parse(data).map_err(bad)?;
                self.check_rank(header, entry.rank)?;
                check_step(entry.collective)?;
                self.reduce(transport, &entry)
            }
            Kind::HostTree => {
                let entry = Entry::parse(data).map_err(bad)?;
                self.check_rank(header, entry.rank)?;
                check_step(entry.collective)?;
                self.tree(transport, &entry)
            }
            Kind::DpuNote => {
                let note = DpuNote::parse(data).map_err(bad)?;
                self.check_service(header, note.from)?;
                self.noted(transport, note)
            }
            Kind::DpuRts => self.offer_came(transport, data, Some(header)).map(drop),
            Kind::DpuRelay => {
                let relay = DpuRelay::parse(data).map_err(bad)?;
                self.check_service(header, relay.from)?;
                self.relayed(transport, &relay)
            }
            Kind::DpuRelayed => {
                let answer = DpuRelayed::parse(data).map_err(bad)?;
                self.check_service(header, answer.from)?;
                self.relay_answered(answer)
            }
            Kind::DpuFin => {
                let (from, offers) = DpuFin::read(data).map_err(bad)?;
                self.check_service(header, from)?;
                for offer in offers {
                    self.finished(from, offer)?;
                }
                Ok(())
            }
            Kind::Hello | Kind::HostFin => Err(failed(format!(
                "an SP was sent a message of kind {}",
                kind as u16
            ))),
        }
    }

    /// Checks that the sender is the rank that the message names.
    fn check_rank(&self, header: &[u8], rank: u32) -> Result<()> {
        let local = self.ledger.local(rank);
        let expect = local.and_then(|local| self.from_ranks.get(local));
        check_token(header, expect.copied(), "rank", rank)
    }

    /// Checks that the sender is the SP that the message names.
    fn check_service(&self, header: &[u8], index: u32) -> Result<()> {
        let expect = self.from_services.get(index as usize).copied().flatten();
        check_token(header, expect, "service", index)
    }

    /// Counters since the job's start.
    pub(super) fn moved(&self) -> &Moved {
        &self.moved
    }

    /// Bytes that messages of ranks and SPs have made this SP keep, about.
    pub(super) fn bytes(&self) -> usize {
        let passed = self.trees.bytes() + self.relays.bytes();
        self.ledger.bytes() + self.late.bytes() + self.reducing.bytes() + passed
    }

    /// The part of them that belongs to calls.
    pub(super) fn call_bytes(&self) -> usize {
        self.ledger.bytes()
    }

    pub(super) fn queues(&self) -> Queues {
        let [calls, parked_blocks, offers] = self.ledger.lengths();
        Queues {
            reads: T::reads_len(&self.reads),
            messages: self.sends.len(),
            waiting_reads: self.ledger.transfers() + self.sharing.waiting(),
            calls: calls + self.trees.barriers(),
            parked_blocks,
            offers,
        }
    }

    /// SP `index` is connected.
    pub(super) fn set_service(&mut self, index: u32, service: Destination<T::Peer>) {
        if let Some(slot) = self.services.get_mut(index as usize) {
            *slot = Some(service);
        }
    }

    /// The messages of SP `index` will carry `token`.
    pub(super) fn expect_service(&mut self, index: u32, token: Token) {
        if let Some(slot) = self.from_services.get_mut(index as usize) {
            *slot = Some(token);
        }
    }

    /// A local rank enters a call: imports its buffers and packs the key that other SPs read with.
    fn arrive(&mut self, transport: &T, arrive: &Arrival<'_>) -> Result<()> {
        let (collective, rank) = (arrive.collective, arrive.rank);
        let (send, receive) =
            self.import_both(transport, rank, arrive.send_memory, arrive.receive_memory)?;
        if !matches!(arrive.route, RouteRef::Direct) {
            self.enter_route(arrive)?;
        }
        let base = arrive.send_memory.map_or(0, |export| export.address);
        let blocks = (arrive.sends, arrive.receives.into());
        let entered = Entered::new(send, receive.map(Receive::Own), self.now());
        let who = (rank, arrive.together);
        let from = From::Send(base);
        self.enter(collective, who, blocks, arrive.short, from, entered)
            .map(drop)
    }

    /// Enters a local rank into a collective of the ledger, which a number of ranks of this SP enter.
    fn enter(
        &mut self,
        collective: Collective,
        who: (u32, u32),
        blocks: (Blocks<'_>, Receives<'_>),
        short: &[u8],
        from: From<'_>,
        entered: Entered<T>,
    ) -> Result<Place> {
        let buffers = match from {
            From::Send(base) => Buffers {
                base,
                key: entered.send.as_ref().map_or(&[], Lent::key),
            },
            From::Other(buffers) => buffers,
        };
        let arrived = self.ledger.arrive(collective, who, blocks, short, buffers);
        let (call, local) = arrived.map_err(|wrong| failed(wrong.to_string()))?;
        self.keep_entered(call, local, entered);
        Ok((call, local))
    }

    /// Keeps the buffers of a local rank that has entered a call.
    #[inline]
    fn keep_entered(&mut self, call: CallId, local: usize, entered: Entered<T>) {
        if self.entered.len() <= call {
            self.entered.resize_with(call + 1, Seats::new);
        }
        let seats = &mut self.entered[call];
        if seats.all.len() < self.ranks.len() {
            seats.all.resize_with(self.ranks.len(), || None);
        }
        seats.all[local] = Some(entered);
        seats.taken += 1;
    }

    /// A rank enters a step of a call with this whole length.
    fn agree(&mut self, step: Collective, whole: u64) -> Result<()> {
        let agreed = self.ledger.agree(step, whole);
        agreed.map_err(|wrong| failed(wrong.to_string()))
    }

    /// Whether the blocks of an offer may become ready now. Otherwise the offer waits.
    fn has_room(&self, rts: &DpuRts<'_>) -> bool {
        let blocks = || rts.parts.iter().map(|part| part.blocks.len()).sum();
        self.late.is_empty() && self.ledger.has_room(blocks)
    }

    /// Handles the oldest offer that waits; false if there is none.
    #[inline]
    fn take_late(&mut self, transport: &T) -> Result<bool> {
        match self.late.is_empty() {
            true => Ok(false),
            false => self.take_first_late(transport),
        }
    }

    fn take_first_late(&mut self, transport: &T) -> Result<bool> {
        let Some(message) = self.late.pop() else {
            return Ok(false);
        };
        let parts = emptied(std::mem::take(&mut self.parts));
        let mut rts = DpuRts::parse_into(&message, parts)
            .map_err(|bad| OffloadError::message("a peer of the job", &bad))?;
        self.offered(transport, &mut rts, &message)?;
        self.parts = emptied(rts.parts);
        Ok(true)
    }

    /// Handles an offer of blocks for local ranks.
    fn offered(&mut self, transport: &T, rts: &mut DpuRts<'_>, message: &[u8]) -> Result<()> {
        let from = self
            .services
            .get(rts.from as usize)
            .and_then(Option::as_ref);
        let from = from.ok_or_else(|| failed(format!("an offer of service {}", rts.from)))?;
        let key = (rts.from, rts.offer);
        self.check_offer(rts)?;
        let agreed = self.ledger.agree(rts.collective, rts.whole);
        agreed.map_err(|wrong| failed(wrong.to_string()))?;
        let offer = self
            .ledger
            .offered(key, rts.collective, &mut rts.parts, rts.short)
            .map_err(|wrong| failed(wrong.to_string()))?;
        let keys = Rc::make_mut(keys_of(&mut self.keys, offer));
        for part in &rts.parts {
            let unpack = |packed: &[u8]| transport.unpack(&from.peer, packed);
            keys.push(match part.rkey.is(&[]) {
                true => None,
                false => Some(self.known.get(part.source, part.rkey, unpack)?),
            });
        }
        self.keep_offer(rts, message, offer);
        Ok(())
    }

    /// Another SP has received all blocks of an offer from this SP.
    fn finished(&mut self, from: u32, offer: u64) -> Result<()> {
        self.ledger
            .finished(from, offer)
            .map_err(|wrong| failed(wrong.to_string()))
    }

    /// There is no other work.
    pub(super) fn settle(&mut self, transport: &T) -> Result<bool> {
        self.ledger.settle();
        // Nothing must be left before a sleep, wherever it has ended.
        let reaped = self.reap(transport)?;
        Ok(self.act(transport)? || reaped)
    }

    /// Keeps a message until it has been sent.
    #[inline]
    pub(super) fn keep(&mut self, message: Sent<T::Operation>) {
        match message {
            Sent::AtOnce(data) => self.ledger.reuse(data),
            Sent::Started(message) => self.sends.push(message),
        }
    }

    /// The time of this poll. A poll takes far less time than a call, and reads the clock once for all ranks.
    #[inline(always)]
    fn now(&mut self) -> Moment {
        let start = self.start;
        *self.clock.get_or_insert_with(|| Moment::now(start))
    }

    /// Carries out all actions of the ledger and starts reads. Returns true when something happened.
    pub(super) fn act(&mut self, transport: &T) -> Result<bool> {
        let mut acted = false;
        loop {
            while let Some(action) = self.ledger.next() {
                acted = true;
                self.carry_out(transport, action)?;
            }
            // It ends when there is no room or no block. Blocks that are there at once cause actions.
            acted |= self.start_reads(transport)?;
            let mut again = self.ledger.has_actions();
            if !self.relays.is_quiet() {
                again = true;
                self.relay(transport)?;
            }
            if self.ledger.transfers() == 0 {
                let met = self.ledger.meet_newcomer();
                again |=
                    met.map_err(|wrong| failed(wrong.to_string()))? || self.take_late(transport)?;
            }
            if !again {
                if !self.fins.is_empty() {
                    self.answer(transport)?;
                }
                if self.ledger.is_overdue() {
                    self.ledger.settle();
                    continue;
                }
                self.clock = None;
                return Ok(acted);
            }
            acted = true;
        }
    }

    /// Cancels outstanding operations; returns false while the transport still uses an object.
    pub(super) fn shut(&mut self, transport: &T) -> bool {
        while transport.next_read(&mut self.reads).is_some() {}
        self.sends
            .retain(|message| matches!(transport.has_ended(message), Ok(false)));
        T::reads_len(&self.reads) == 0 && self.sends.is_empty()
    }

    /// Collects completed operations. Returns true when there were any.
    pub(super) fn reap(&mut self, transport: &T) -> Result<bool> {
        let mut done = self.reap_reads(transport)?;
        let mut index = 0;
        while let Some(send) = self.sends.get(index) {
            if transport.has_ended(send)? {
                self.sends.swap_remove(index);
                done = true;
            } else {
                index += 1;
            }
        }
        Ok(done)
    }

    fn carry_out(&mut self, transport: &T, action: Action) -> Result<()> {
        match action {
            Action::Offer { to, message } => self.offer(transport, to, message),
            Action::Finish { offer, key } => self.finish(offer, key),
            Action::Gathered { call, local } => self.gathered(transport, (call, local)),
            Action::Received {
                call,
                collective,
                local,
            } => self.received(transport, collective, (call, local)),
            Action::Complete {
                call,
                collective,
                rank,
                local,
                short,
            } => {
                let entered = self.leave(call, local);
                let entered =
                    entered.ok_or_else(|| failed(format!("rank {rank} is not in {collective}")))?;
                let receive = match entered.receive {
                    Some(Receive::Own(lent)) => Some(lent),
                    None if collective.step == 0 => None,
                    of_step => {
                        // A shared buffer is released here: the last step takes it back.
                        drop(of_step);
                        let short = short.map_or_else(Short::default, |short| *short);
                        let stepped = Stepped {
                            collective,
                            local,
                            short: short.blocks,
                            bytes: short.bytes,
                        };
                        return match collective.is_level() {
                            true => self.climbed(transport, stepped),
                            false => self.stepped(transport, stepped),
                        };
                    }
                };
                self.relays.leave(collective, rank);
                let now = self.now();
                self.moved.completed(now, entered.since);
                // The buffers without a name are released before the rank is notified.
                if let Some(lent) = entered.send {
                    lent.release(transport)?;
                }
                if let Some(lent) = receive {
                    lent.release(transport)?;
                }
                self.complete(transport, collective, local, short)
            }
        }
    }

    fn offer(&mut self, transport: &T, to: u32, message: Vec<u8>) -> Result<()> {
        if to != self.me {
            let message = match self.relays.has_none() {
                true => Some(message),
                false => self.route(to, message),
            };
            return match message {
                Some(message) => self.tell_service(transport, to, Kind::DpuRts, message),
                None => Ok(()),
            };
        }
        if self.familiar_offer(&message, None)?.is_some() {
            self.ledger.reuse(message);
            return Ok(());
        }
        let parts = emptied(std::mem::take(&mut self.parts));
        let mut rts = DpuRts::parse_into(&message, parts)
            .map_err(|bad| OffloadError::message("this SP", &bad))?;
        if self.has_room(&rts) {
            self.offered(transport, &mut rts, &message)?;
            self.parts = emptied(rts.parts);
            self.ledger.reuse(message);
            return Ok(());
        }
        self.parts = emptied(rts.parts);
        self.late.push(message);
        Ok(())
    }

    fn finish(&mut self, offer: OfferId, (from, id): OfferKey) -> Result<()> {
        if let Some(keys) = self.keys.get_mut(offer) {
            match Rc::get_mut(keys) {
                Some(keys) => {
                    keys.clear();
                    keys.shrink_to(SOURCES_KEPT);
                }
                None => *keys = Rc::clone(&self.no_keys),
            }
        }
        if from == self.me {
            self.finished(from, id)
        } else if self.relays.delivered((from, id)) {
            Ok(())
        } else {
            self.fins.push((from, id));
            Ok(())
        }
    }

    /// Answers the offers whose blocks are delivered. An SP gets one message for all of its offers.
    fn answer(&mut self, transport: &T) -> Result<()> {
        let mut fins = std::mem::take(&mut self.fins);
        // The sort is stable: the offers of an SP stay in their order.
        fins.sort_by_key(|(to, _)| *to);
        let mut offers = std::mem::take(&mut self.answered);
        for of_one in fins.chunk_by(|a, b| a.0 == b.0) {
            offers.clear();
            offers.extend(of_one.iter().map(|(_, offer)| *offer));
            let data = DpuFin::to_bytes_in(self.me, &offers, self.ledger.memory());
            self.tell_service(transport, of_one[0].0, Kind::DpuFin, data)?;
        }
        fins.clear();
        (self.fins, self.answered) = (fins, offers);
        Ok(())
    }

    fn complete(
        &mut self,
        transport: &T,
        collective: Collective,
        local: usize,
        short: Option<Box<Short>>,
    ) -> Result<()> {
        self.moved.calls += 1;
        let aliases = transport.aliases();
        let memory = self.ledger.memory();
        let data = match short {
            None => HostFin::without_blocks(collective, aliases, memory),
            Some(short) => {
                let Short {
                    blocks,
                    bytes,
                    message,
                } = *short;
                let count = blocks.iter().map(|block| u64::from(block.count));
                self.moved.blocks += count.sum::<u64>();
                self.moved.bytes += bytes.len() as u64;
                let fin = HostFin {
                    collective,
                    short: blocks,
                    bytes,
                    aliases,
                    message,
                };
                fin.to_bytes_in(memory)
            }
        };
        let rank = &self.ranks[local];
        let sent = transport.send(&rank.peer, Kind::HostFin, rank.token, data)?;
        self.moved.messages += 1;
        self.keep(sent);
        Ok(())
    }

    fn tell_service(&mut self, transport: &T, index: u32, kind: Kind, data: Vec<u8>) -> Result<()> {
        let service = self.services.get(index as usize).and_then(Option::as_ref);
        let service = service.ok_or_else(|| failed(format!("service {index} is not connected")))?;
        let sent = transport.send(&service.peer, kind, service.token, data)?;
        self.moved.messages += 1;
        self.keep(sent);
        Ok(())
    }

    /// A rank leaves a call; returns its buffers.
    fn leave(&mut self, call: CallId, local: usize) -> Option<Entered<T>> {
        let seats = self.entered.get_mut(call)?;
        let entered = seats.all.get_mut(local)?.take()?;
        seats.taken -= 1;
        if seats.taken == 0 && call >= CALLS_KEPT {
            seats.all = Vec::new();
        }
        Some(entered)
    }
}

/// The packed key of a buffer; empty without one.
#[inline]
fn packed<'a, T: Transport>(transport: &T, lent: Option<&'a Lent<T>>) -> Result<&'a [u8]> {
    match lent {
        Some(lent) => {
            lent.pack(transport)?;
            Ok(lent.key())
        }
        None => Ok(&[]),
    }
}

/// The list of keys of an offer that has come.
fn keys_of<K>(keys: &mut Vec<KeyList<K>>, offer: OfferId) -> &mut KeyList<K> {
    if keys.len() <= offer {
        keys.resize_with(offer + 1, KeyList::default);
    }
    &mut keys[offer]
}

/// The vector without its parts, for parts of another message. The standard library keeps the memory.
fn emptied<'b>(mut parts: Vec<RtsPart<'_>>) -> Vec<RtsPart<'b>> {
    parts.clear();
    parts.shrink_to(SOURCES_KEPT);
    let none = |part: RtsPart<'_>| unreachable!("{part:?} in an empty vector");
    parts.into_iter().map(none).collect()
}

/// Checks that a message begins with the token of its sender. The comparison takes constant time.
pub(super) fn check_token(
    header: &[u8],
    expect: Option<Token>,
    what: &str,
    number: u32,
) -> Result<()> {
    let found = header.first_chunk().copied().map(u128::from_le_bytes);
    match (found, expect) {
        (Some(found), Some(token)) if found ^ u128::from_le_bytes(token.0) == 0 => Ok(()),
        _ => Err(failed(format!(
            "a message claims to come from {what} {number}, and does not bear its token"
        ))),
    }
}

/// Checks that a rank's message is about a whole call.
fn check_step(collective: Collective) -> Result<()> {
    match collective.step {
        0 => Ok(()),
        _ => Err(failed(format!("a rank enters {collective}"))),
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}

#[cfg(test)]
mod tests;
