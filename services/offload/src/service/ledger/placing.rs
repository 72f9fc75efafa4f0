//! Offers that have arrived: each block meets its destination, or waits for it.

use super::{BlockRef, ELSEWHERE, Ledger, Seat};
use crate::service::actions::{Action, CallId, OfferId, OfferKey, Transfer, Wrong};
use crate::service::incoming::{Incoming, Meeting, ParkedBlock, Source};
use crate::service::sharing::same;
use crate::wire::{Block, Blocks, Collective, Record, RtsPart, blocks_of};

/// An offer while its blocks are placed.
#[derive(Debug)]
struct Placing<'a> {
    incoming: Incoming,
    collective: Collective,
    call: CallId,
    id: u32,
    /// The bytes of the short blocks, and the position of the next ones.
    short: &'a [u8],
    at: usize,
    /// Number of blocks in all parts.
    count: usize,
    /// Local numbers of ranks whose last block this was.
    complete: Vec<u32>,
    /// Local numbers of ranks for which all blocks are on offer with this one.
    gathered: Vec<u32>,
}

impl Ledger {
    /// Another SP, or this one, has offered blocks. Returns the offer's index. `short` is the data of the short blocks,
    /// in order. After an error, blocks of the offer may have been taken: the job ends.
    pub(in crate::service) fn offered(
        &mut self,
        key: OfferKey,
        collective: Collective,
        parts: &[RtsPart<'_>],
        short: &[u8],
    ) -> Result<OfferId, Wrong> {
        let wrong = |what| Wrong::Service {
            service: key.0,
            offer: key.1,
            what,
        };
        // Runs name many blocks in a few bytes: memory follows the numbers of ranks.
        let most = self
            .spaced
            .get(key.0 as usize)
            .map_or(0, |(.., count)| *count);
        if parts.len() > most as usize {
            return Err(wrong("it has more sources than the service has ranks"));
        }
        if parts
            .iter()
            .any(|part| part.blocks.len() > self.rank_of.len())
        {
            return Err(wrong(
                "a source has more blocks than this service has ranks",
            ));
        }
        let count: usize = parts.iter().map(|part| part.blocks.len()).sum();
        if count == 0 {
            return Err(wrong("nothing is on offer"));
        }
        let id = self.offers.vacant_key();
        let call = self.call(collective);
        let (sources, parked) = self.spare.pop().unwrap_or_default();
        let mut placing = Placing {
            incoming: Incoming {
                key,
                call: u32::try_from(call).map_err(|_| wrong("there are too many calls"))?,
                left: count,
                sources,
                parked,
                short: Vec::new(),
            },
            collective,
            call,
            id: u32::try_from(id).map_err(|_| wrong("there are too many offers"))?,
            short,
            at: 0,
            count,
            complete: Vec::new(),
            gathered: Vec::new(),
        };
        placing.incoming.sources.reserve(parts.len());
        let placed = self.place_parts(&mut placing, parts);
        let parked =
            placing.incoming.parked.capacity() * (size_of::<ParkedBlock>() + size_of::<BlockRef>());
        self.keep_offer(call, parts.len(), parked + short.len());
        let Placing {
            mut incoming,
            complete,
            gathered,
            ..
        } = placing;
        if !incoming.parked.is_empty() {
            incoming.short = short.to_vec();
        }
        if incoming.left == 0 {
            self.actions.push_back(Action::Finish { offer: id, key });
        }
        self.states[call].incoming += 1;
        // Blocks refer to the offer, also if a later one broke the protocol.
        self.offers.insert(incoming);
        placed?;
        for local in gathered {
            let local = local as usize;
            self.actions.push_back(Action::Gathered { call, local });
        }
        for local in complete {
            self.check_complete(call, local as usize, self.rank_of[local as usize]);
        }
        Ok(id)
    }

    /// Places the blocks of all parts of an offer.
    fn place_parts(
        &mut self,
        placing: &mut Placing<'_>,
        parts: &[RtsPart<'_>],
    ) -> Result<(), Wrong> {
        for (index, part) in (0..).zip(parts) {
            match part.blocks {
                Blocks::Narrow(records) => {
                    self.place(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Wide(records) => {
                    self.place(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Runs(runs) => self.place(placing, index, part, blocks_of(runs)),
            }?;
        }
        if placing.at == placing.short.len() {
            return Ok(());
        }
        Err(Wrong::Service {
            service: placing.incoming.key.0,
            offer: placing.incoming.key.1,
            what: "the bytes of its short blocks are not as many as their lengths say",
        })
    }

    /// Places the blocks of a part: with its destination if that rank is present, otherwise they are parked.
    fn place(
        &mut self,
        placing: &mut Placing<'_>,
        index: u32,
        part: &RtsPart<'_>,
        blocks: impl Iterator<Item = Block> + Clone,
    ) -> Result<(), Wrong> {
        let (key, collective, direct_min) =
            (placing.incoming.key, placing.collective, self.direct_min);
        let wrong = |what| Wrong::Service {
            service: key.0,
            offer: key.1,
            what,
        };
        let direct = blocks.clone().filter(|block| block.length >= direct_min);
        let source = Source {
            rank: part.source,
            base: part.base,
            // Blocks of this SP's own ranks do not cross the network.
            shared: match key.0 == self.me {
                true => 0,
                false => same(direct.map(|block| (block.offset, block.length))),
            },
        };
        placing.incoming.sources.push(source);
        let state = &mut self.states[placing.call];
        for block in blocks {
            let local = self.local_of.get(block.peer as usize).copied();
            let local = local.unwrap_or(ELSEWHERE);
            if local == ELSEWHERE {
                return Err(wrong("a block is for a rank of another service"));
            }
            let mut parked = ParkedBlock {
                part: index,
                from: block.offset,
                length: block.length,
            };
            if block.length < direct_min {
                parked.from = placing.at as u64;
                // Each block is shorter than direct_min, and a message bounds the number of blocks.
                let length = usize::try_from(block.length);
                placing.at += length.map_err(|_| wrong("a block is too long"))?;
            }
            match &mut state.seats[local as usize] {
                Seat::Present(participant) => {
                    let place = participant.slots.take(source.rank, block.length);
                    if let Ok(to) = place
                        && block.length >= direct_min
                    {
                        self.ready.push_back(Transfer {
                            from: source.base.wrapping_add(block.offset),
                            to,
                            length: block.length,
                            offer: placing.id,
                            part: index,
                            local,
                            shared: source.shared,
                        });
                        continue;
                    }
                    let meeting = Meeting {
                        key,
                        collective,
                        source: source.rank,
                        destination: block.peer,
                        block: parked,
                        short: placing.short,
                        direct_min,
                    };
                    meeting.deliver(participant, place)?;
                    placing.incoming.left -= 1;
                    participant.receives_left -= 1;
                    if participant.receives_left == 0 {
                        placing.complete.push(local);
                    }
                }
                seat @ (Seat::Absent(_) | Seat::Gathering { .. }) => {
                    if placing.incoming.parked.is_empty() {
                        placing.incoming.parked.reserve(placing.count);
                    }
                    let at = placing.incoming.parked.len();
                    let at = u32::try_from(at).map_err(|_| wrong("it has too many blocks"))?;
                    placing.incoming.parked.push(parked);
                    if seat.park(BlockRef {
                        offer: placing.id,
                        block: at,
                    }) {
                        placing.gathered.push(local);
                    }
                    self.parked += 1;
                }
                Seat::Left => {
                    return Err(Wrong::Members {
                        collective,
                        source_rank: source.rank,
                        destination: block.peer,
                    });
                }
            }
        }
        Ok(())
    }
}

impl Seat {
    /// Adds a block that waits; returns true if the rank now has all blocks that it waits for.
    fn park(&mut self, block: BlockRef) -> bool {
        match self {
            Self::Absent(waiting) => {
                waiting.push(block);
                false
            }
            Self::Gathering {
                waiting, expected, ..
            } => {
                waiting.push(block);
                waiting.len() == *expected
            }
            Self::Present(_) | Self::Left => false,
        }
    }
}
