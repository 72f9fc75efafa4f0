//! Who has arrived, what is on offer, what is under way: the rules of a job's collectives at one SP, without any I/O.
//!
//! Events go in by the methods, and what is to be done comes out of [`Ledger::next`]. Handles, keys and connections are
//! the caller's.
//!
//! Send credits are counted per collective: an offer waits until its destinations have arrived, and with one budget for
//! all of them, offers of a collective that nobody has entered yet could keep back those of another on which the
//! others wait first. Within one collective all arrive in the end, whatever else waits.
//!
//! Blocks of several ranks for the same SP go in one offer, where they are there together: offers wait until all our
//! ranks have entered the call, or [`Ledger::settle`] says that there is nothing else to do. Each message saved is one
//! less to be sent, woken up for, and answered.

use crate::wire::{Block, Collective, Delivered};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Calls that ranks of this SP may be in at the same time, all together. A client has its own limit far below.
const PARTICIPANTS_MAX: usize = 1 << 16;

/// Blocks on offer to ranks that have not arrived. Each source offers to each destination once per call.
const PARKED_MAX: usize = 1 << 22;

/// Blocks, and bytes of short ones, from which on an offer takes no more ranks': its message is long enough to be worth
/// sending, and must not become much longer.
const OFFER_BLOCKS: usize = 1 << 12;
const OFFER_SHORT_BYTES: usize = 64 << 10;

/// The rules' state.
#[derive(Debug)]
pub(super) struct Ledger {
    me: u32,
    /// Of each rank, the SP.
    service_of: Vec<u32>,
    direct_min: u64,
    send_credits: usize,
    participants: HashMap<(Collective, u32), Participant>,
    /// Blocks for ranks that have not arrived.
    parked: HashMap<(Collective, u32), Vec<Incoming>>,
    parked_count: usize,
    /// Blocks of each offer to us that are not where they belong yet.
    incoming: HashMap<OfferKey, usize>,
    /// Of each offer of ours, the call and the ranks whose blocks it has.
    outgoing: HashMap<u64, (Collective, Vec<u32>)>,
    queues: HashMap<Collective, Queue>,
    next_offer: u64,
    actions: VecDeque<Action>,
}

/// An offer to us: the offering SP, and its number.
pub(super) type OfferKey = (u32, u64);

/// A rank of ours that has entered a call.
#[derive(Debug)]
struct Participant {
    /// Where each source's block goes.
    slots: BTreeMap<u32, Slot>,
    /// Sources that have not delivered.
    receives_left: usize,
    /// Offers of its blocks that are not finished.
    offers_left: usize,
    short: Vec<Delivered>,
}

#[derive(Debug)]
struct Slot {
    offset: u64,
    length: u64,
    taken: bool,
}

/// Offers of one collective.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Offer>,
    in_flight: usize,
}

/// Blocks of some of our ranks for one SP's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) to: u32,
    pub(super) id: u64,
    pub(super) collective: Collective,
    pub(super) parts: Vec<Part>,
}

/// Blocks of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) source: u32,
    /// `peer` is the destination; offsets are in the source's send buffer.
    pub(super) blocks: Vec<Block>,
    /// The bytes of the short ones.
    pub(super) short: Vec<u8>,
}

impl Queue {
    /// Puts a rank's blocks for an SP into the offer to it that waits, or into one of their own.
    fn add(&mut self, collective: Collective, to: u32, part: Part) {
        let has_room = |offer: &&mut Offer| {
            let parts = || offer.parts.iter();
            offer.to == to
                && parts().map(|part| part.blocks.len()).sum::<usize>() < OFFER_BLOCKS
                && parts().map(|part| part.short.len()).sum::<usize>() < OFFER_SHORT_BYTES
        };
        match self.waiting.iter_mut().find(has_room) {
            Some(offer) => offer.parts.push(part),
            None => self.waiting.push_back(Offer {
                to,
                id: 0,
                collective,
                parts: vec![part],
            }),
        }
    }
}

/// A block that is offered to one of our ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Incoming {
    pub(super) offer: OfferKey,
    pub(super) source: u32,
    /// In the source's address space.
    pub(super) address: u64,
    pub(super) length: u64,
    /// The bytes, if it is a short one.
    pub(super) data: Vec<u8>,
}

/// A block that the device moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) collective: Collective,
    pub(super) offer: OfferKey,
    pub(super) source: u32,
    pub(super) destination: u32,
    /// In the source's address space.
    pub(super) from: u64,
    /// Offset in the destination's receive buffer.
    pub(super) to: u64,
    pub(super) length: u64,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Send DPU_RTS.
    Offer(Offer),
    /// Read a block, and answer with [`Ledger::transferred`].
    Transfer(Transfer),
    /// All of an offer to us was taken: forget its key and send DPU_FIN.
    Finish(OfferKey),
    /// A rank's part is over: give its buffers back and send HOST_FIN.
    Complete {
        collective: Collective,
        rank: u32,
        short: Vec<Delivered>,
    },
}

/// A call that cannot end well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error(
        "the counts of {collective} disagree: rank {source_rank} sends {sent} bytes to rank {destination}, which \
         expects {expected}"
    )]
    Counts {
        collective: Collective,
        source_rank: u32,
        destination: u32,
        sent: u64,
        expected: u64,
    },
    #[error(
        "the members of {collective} disagree: rank {source_rank} sends to rank {destination}, which expects nothing \
         from it"
    )]
    Members {
        collective: Collective,
        source_rank: u32,
        destination: u32,
    },
    #[error("rank {rank} breaks the protocol in {collective}: {what}")]
    Rank {
        rank: u32,
        collective: Collective,
        what: &'static str,
    },
    #[error("service {service} breaks the protocol in offer {offer}: {what}")]
    Service {
        service: u32,
        offer: u64,
        what: &'static str,
    },
    #[error("{count} {what} at once; the most is {max}")]
    Full {
        what: &'static str,
        count: usize,
        max: usize,
    },
}

impl Ledger {
    /// `service_of` tells each rank's SP, of which `me` is this one.
    pub(super) fn new(me: u32, service_of: Vec<u32>, direct_min: u64, send_credits: usize) -> Self {
        Self {
            me,
            service_of,
            direct_min,
            send_credits: send_credits.max(1),
            participants: HashMap::new(),
            parked: HashMap::new(),
            parked_count: 0,
            incoming: HashMap::new(),
            outgoing: HashMap::new(),
            queues: HashMap::new(),
            next_offer: 0,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next; `None` until something happens.
    pub(super) fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A rank of ours has entered a call. `short` are the bytes of the short blocks among `sends`, in order.
    pub(super) fn arrive(
        &mut self,
        collective: Collective,
        rank: u32,
        sends: &[Block],
        receives: &[Block],
        short: &[u8],
    ) -> Result<(), Wrong> {
        let wrong = |what| Wrong::Rank {
            rank,
            collective,
            what,
        };
        if self.service_of(rank) != Some(self.me) {
            return Err(wrong("it is not this service's"));
        }
        if self.participants.contains_key(&(collective, rank)) {
            return Err(wrong("it entered the call twice"));
        }
        full("calls", self.participants.len(), PARTICIPANTS_MAX)?;
        let mut slots = BTreeMap::new();
        for block in receives {
            let slot = Slot {
                offset: block.offset,
                length: block.length,
                taken: false,
            };
            if slots.insert(block.peer, slot).is_some() {
                return Err(wrong("it expects two blocks from one rank"));
            }
        }
        let parts = self.group(rank, sends, short).map_err(wrong)?;
        let participant = Participant {
            receives_left: slots.len(),
            slots,
            offers_left: parts.len(),
            short: Vec::new(),
        };
        self.participants.insert((collective, rank), participant);
        let queue = self.queues.entry(collective).or_default();
        for (to, part) in parts {
            queue.add(collective, to, part);
        }
        // Every member is among those that are sent to.
        let ours = sends.iter().map(|block| block.peer);
        let mut ours = ours.filter(|peer| self.service_of(*peer) == Some(self.me));
        if ours.all(|peer| self.participants.contains_key(&(collective, peer))) {
            self.pump(collective);
        }
        let parked = self.parked.remove(&(collective, rank)).unwrap_or_default();
        self.parked_count -= parked.len();
        for block in parked {
            self.meet(collective, rank, block)?;
        }
        self.check_complete(collective, rank);
        Ok(())
    }

    /// There is nothing else to do: what waits for ranks that have not entered their call waits no longer.
    pub(super) fn settle(&mut self) {
        let waiting = |(_, queue): &(&Collective, &Queue)| !queue.waiting.is_empty();
        let waiting = self.queues.iter().filter(waiting);
        for collective in waiting.map(|(of, _)| *of).collect::<Vec<_>>() {
            self.pump(collective);
        }
    }

    /// Another SP, or this one, has offered blocks: of each the destination, and what [`Incoming`] says.
    pub(super) fn offered(
        &mut self,
        offer: OfferKey,
        collective: Collective,
        blocks: Vec<(u32, Incoming)>,
    ) -> Result<(), Wrong> {
        let wrong = |what| Wrong::Service {
            service: offer.0,
            offer: offer.1,
            what,
        };
        if blocks.is_empty() {
            return Err(wrong("nothing is on offer"));
        }
        let ours = |rank: u32| self.service_of(rank) == Some(self.me);
        if !blocks.iter().all(|(destination, _)| ours(*destination)) {
            return Err(wrong("a block is for a rank of another service"));
        }
        if self.incoming.insert(offer, blocks.len()).is_some() {
            return Err(wrong("its number is taken"));
        }
        for (destination, block) in blocks {
            let key = (collective, destination);
            if self.participants.contains_key(&key) {
                self.meet(collective, destination, block)?;
                self.check_complete(collective, destination);
            } else {
                full(
                    "blocks for ranks that have not arrived",
                    self.parked_count,
                    PARKED_MAX,
                )?;
                self.parked.entry(key).or_default().push(block);
                self.parked_count += 1;
            }
        }
        Ok(())
    }

    /// The device has moved a block.
    pub(super) fn transferred(&mut self, transfer: &Transfer) {
        self.delivered(transfer.collective, transfer.destination, transfer.offer);
        self.check_complete(transfer.collective, transfer.destination);
    }

    /// SP `from` has taken all blocks of an offer of ours.
    pub(super) fn finished(&mut self, from: u32, offer: u64) -> Result<(), Wrong> {
        let Some((collective, ranks)) = self.outgoing.remove(&offer) else {
            return Err(Wrong::Service {
                service: from,
                offer,
                what: "it was not on offer",
            });
        };
        if let Some(queue) = self.queues.get_mut(&collective) {
            queue.in_flight -= 1;
        }
        self.pump(collective);
        for rank in ranks {
            if let Some(participant) = self.participants.get_mut(&(collective, rank)) {
                participant.offers_left -= 1;
            }
            self.check_complete(collective, rank);
        }
        Ok(())
    }

    fn service_of(&self, rank: u32) -> Option<u32> {
        self.service_of.get(rank as usize).copied()
    }

    /// The blocks for each SP that has a destination: ours first, then the others in turn, so that not all begin with
    /// the same one.
    fn group(
        &self,
        source: u32,
        sends: &[Block],
        mut short: &[u8],
    ) -> Result<Vec<(u32, Part)>, &'static str> {
        let mut parts: BTreeMap<(bool, u32), Part> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for block in sends {
            let to = self
                .service_of(block.peer)
                .ok_or("it sends to a rank that is not there")?;
            if !seen.insert(block.peer) {
                return Err("it sends two blocks to one rank");
            }
            let part = parts.entry((to < self.me, to)).or_insert_with(|| Part {
                source,
                blocks: Vec::new(),
                short: Vec::new(),
            });
            part.blocks.push(*block);
            if block.length < self.direct_min {
                // Below direct_min, so it fits.
                let length = usize::try_from(block.length).map_err(|_| "a block is too long")?;
                let (data, rest) = short
                    .split_at_checked(length)
                    .ok_or("bytes of a short block are missing")?;
                part.short.extend_from_slice(data);
                short = rest;
            }
        }
        if short.is_empty() {
            Ok(parts
                .into_iter()
                .map(|((_, to), part)| (to, part))
                .collect())
        } else {
            Err("there are more bytes than short blocks")
        }
    }

    /// Sends offers while there are credits.
    fn pump(&mut self, collective: Collective) {
        let Some(queue) = self.queues.get_mut(&collective) else {
            return;
        };
        while queue.in_flight < self.send_credits {
            let Some(mut offer) = queue.waiting.pop_front() else {
                break;
            };
            offer.id = self.next_offer;
            self.next_offer += 1;
            queue.in_flight += 1;
            let sources = offer.parts.iter().map(|part| part.source).collect();
            self.outgoing.insert(offer.id, (collective, sources));
            self.actions.push_back(Action::Offer(offer));
        }
        if queue.in_flight == 0 && queue.waiting.is_empty() {
            self.queues.remove(&collective);
        }
    }

    /// A block and its destination are both there.
    fn meet(
        &mut self,
        collective: Collective,
        destination: u32,
        block: Incoming,
    ) -> Result<(), Wrong> {
        let members = Wrong::Members {
            collective,
            source_rank: block.source,
            destination,
        };
        let Some(participant) = self.participants.get_mut(&(collective, destination)) else {
            return Err(members);
        };
        let Some(slot) = participant.slots.get_mut(&block.source) else {
            return Err(members);
        };
        if slot.length != block.length {
            return Err(Wrong::Counts {
                collective,
                source_rank: block.source,
                destination,
                sent: block.length,
                expected: slot.length,
            });
        }
        if std::mem::replace(&mut slot.taken, true) {
            return Err(Wrong::Service {
                service: block.offer.0,
                offer: block.offer.1,
                what: "the block was there already",
            });
        }
        if block.length >= self.direct_min {
            self.actions.push_back(Action::Transfer(Transfer {
                collective,
                offer: block.offer,
                source: block.source,
                destination,
                from: block.address,
                to: slot.offset,
                length: block.length,
            }));
            return Ok(());
        }
        if block.length > 0 {
            participant.short.push(Delivered {
                offset: slot.offset,
                data: block.data,
            });
        }
        self.delivered(collective, destination, block.offer);
        Ok(())
    }

    /// A block is where it belongs.
    fn delivered(&mut self, collective: Collective, destination: u32, offer: OfferKey) {
        if let Some(participant) = self.participants.get_mut(&(collective, destination)) {
            participant.receives_left -= 1;
        }
        if let Some(left) = self.incoming.get_mut(&offer) {
            *left -= 1;
            if *left == 0 {
                self.incoming.remove(&offer);
                self.actions.push_back(Action::Finish(offer));
            }
        }
    }

    fn check_complete(&mut self, collective: Collective, rank: u32) {
        let key = (collective, rank);
        let done = |p: &Participant| p.receives_left == 0 && p.offers_left == 0;
        if self.participants.get(&key).is_some_and(done)
            && let Some(participant) = self.participants.remove(&key)
        {
            self.actions.push_back(Action::Complete {
                collective,
                rank,
                short: participant.short,
            });
        }
    }
}

fn full(what: &'static str, count: usize, max: usize) -> Result<(), Wrong> {
    if count < max {
        Ok(())
    } else {
        Err(Wrong::Full { what, count, max })
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
