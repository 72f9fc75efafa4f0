//! Offers that have arrived: each block meets its destination, or waits for it.

use super::{BlockRef, ELSEWHERE, Ledger, Seat};
use crate::service::actions::{Action, CallId, OfferId, OfferKey, Transfer, Wrong};
use crate::service::incoming::{Incoming, Meeting, ParkedBlock, Source};
use crate::service::sharing::same;
use crate::wire::runs::Run;
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
    /// Number of blocks in all parts, and of those that wait for their destinations.
    count: usize,
    parked: usize,
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
            parked: 0,
            complete: Vec::new(),
            gathered: Vec::new(),
        };
        placing.incoming.sources.reserve(parts.len());
        let placed = self.place_parts(&mut placing, parts);
        let records = placing.incoming.parked.capacity() * size_of::<ParkedBlock>();
        let parked = records + placing.parked * size_of::<BlockRef>();
        self.parked += placing.parked;
        self.keep_offer(call, parts.len(), parked + short.len());
        let Placing {
            mut incoming,
            complete,
            gathered,
            parked,
            ..
        } = placing;
        if parked > 0 {
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
                    self.place_records(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Wide(records) => {
                    self.place_records(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Runs(runs) => match runs.only() {
                    Some(run) => self.place_run(placing, index, part, run),
                    None => self.place_records(placing, index, part, blocks_of(runs)),
                },
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

    /// Places the blocks of a part.
    fn place_records(
        &mut self,
        placing: &mut Placing<'_>,
        index: u32,
        part: &RtsPart<'_>,
        blocks: impl Iterator<Item = Block> + Clone,
    ) -> Result<(), Wrong> {
        let direct = blocks.clone();
        let direct = direct.filter(|block| block.length >= self.direct_min);
        let shared = same(direct.map(|block| (block.offset, block.length)));
        self.place(placing, (index, part, None), shared, blocks)
    }

    /// Places the blocks of a part that are one run.
    fn place_run(
        &mut self,
        placing: &mut Placing<'_>,
        index: u32,
        part: &RtsPart<'_>,
        run: &Run,
    ) -> Result<(), Wrong> {
        let is_same = run.length >= self.direct_min && run.stride == 0 && run.count > 1;
        let shared = if is_same { run.count } else { 0 };
        let blocks = (0..run.count).map(|at| run.block(at));
        self.place(placing, (index, part, Some(*run)), shared, blocks)
    }

    /// Places the blocks of a part: with its destination if that rank is present, otherwise they are parked. `shared` is the
    /// number of blocks that are the same one.
    #[inline]
    fn place(
        &mut self,
        placing: &mut Placing<'_>,
        (index, part, run): (u32, &RtsPart<'_>, Option<Run>),
        shared: u32,
        blocks: impl Iterator<Item = Block>,
    ) -> Result<(), Wrong> {
        let (key, collective, direct_min) =
            (placing.incoming.key, placing.collective, self.direct_min);
        let wrong = |what| Wrong::Service {
            service: key.0,
            offer: key.1,
            what,
        };
        let source = Source {
            rank: part.source,
            base: part.base,
            // Blocks of this SP's own ranks do not cross the network.
            shared: if key.0 == self.me { 0 } else { shared },
            run,
            short_at: placing.at,
        };
        placing.incoming.sources.push(source);
        let state = &mut self.states[placing.call];
        for block in blocks {
            let local = self.local_of.get(block.peer as usize).copied();
            let local = local.unwrap_or(ELSEWHERE);
            let at = placing.at;
            if block.length < direct_min {
                // Each block is shorter than direct_min, and a message bounds the number of blocks.
                let length = usize::try_from(block.length);
                placing.at += length.map_err(|_| wrong("a block is too long"))?;
            }
            let Some(seat) = state.seats.get_mut(local as usize) else {
                return Err(wrong("a block is for a rank of another service"));
            };
            let parked = || ParkedBlock {
                part: index,
                from: if block.length < direct_min {
                    at as u64
                } else {
                    block.offset
                },
                length: block.length,
            };
            match seat {
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
                            call: placing.incoming.call,
                            shared: source.shared,
                        });
                        continue;
                    }
                    let meeting = Meeting {
                        key,
                        collective,
                        source: source.rank,
                        destination: block.peer,
                        block: parked(),
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
                Seat::Absent(_) | Seat::Gathering { .. } => {
                    let block = match run {
                        Some(_) => index | BlockRef::OF_RUN,
                        None => {
                            let records = &mut placing.incoming.parked;
                            if records.is_empty() {
                                records.reserve(placing.count);
                            }
                            let at = u32::try_from(records.len()).ok();
                            let at = at.filter(|at| at & BlockRef::OF_RUN == 0);
                            records.push(parked());
                            at.ok_or_else(|| wrong("it has too many blocks"))?
                        }
                    };
                    let offer = placing.id;
                    if seat.park(BlockRef { offer, block }, &mut self.spare_waiting) {
                        placing.gathered.push(local);
                    }
                    placing.parked += 1;
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
    /// Adds a block that waits; returns true if the rank now has all blocks that it waits for. The first one takes a
    /// vector of `spare`.
    fn park(&mut self, block: BlockRef, spare: &mut Vec<Vec<BlockRef>>) -> bool {
        match self {
            Self::Absent(waiting) => {
                if waiting.capacity() == 0
                    && let Some(memory) = spare.pop()
                {
                    *waiting = memory;
                }
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
