//! Offers that have arrived: each block meets its destination, or waits for it.

use super::{BlockRef, ELSEWHERE, Ledger, Seat, Waiting};
use crate::service::actions::{Action, CallId, OfferId, OfferKey, Wrong};
use crate::service::incoming::{Incoming, Meeting, ParkedBlock, Source};
use crate::service::ready::Batch;
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
    /// Number of blocks in all parts, of those that wait for their destinations, and of references to these.
    count: usize,
    parked: usize,
    refs: usize,
    /// Local numbers of ranks whose last block this was.
    complete: Vec<u32>,
    /// Local numbers of ranks for which all blocks are on offer with this one.
    gathered: Vec<u32>,
}

impl Ledger {
    /// Another SP, or this one, has offered blocks. Returns the offer's index. `short` is the data of the short blocks,
    /// in order. Parts whose order does not matter are sorted. After an error, blocks of the offer may have been taken: the
    /// job ends.
    pub(in crate::service) fn offered(
        &mut self,
        key: OfferKey,
        collective: Collective,
        parts: &mut [RtsPart<'_>],
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
        let mut placing = self.placing(key, collective, short, count)?;
        placing.incoming.sources.reserve(parts.len());
        let placed = self.place_parts(&mut placing, parts);
        self.placed(placing, placed)
    }

    /// As [`Ledger::offered`], with the sources of an earlier offer that differs in its call and number only, and has runs for the
    /// device only.
    pub(in crate::service) fn offered_again(
        &mut self,
        key: OfferKey,
        collective: Collective,
        sources: &[Source],
        count: usize,
    ) -> Result<OfferId, Wrong> {
        let mut placing = self.placing(key, collective, &[], count)?;
        placing.incoming.sources.extend_from_slice(sources);
        let (mut index, mut placed) = (0, Ok(()));
        while let Some(Source {
            run: Some(run),
            like,
            ..
        }) = sources.get(index as usize)
        {
            placed = self.place_run_of_all(&mut placing, (index, *like), run);
            if placed.is_err() {
                break;
            }
            index += like;
        }
        self.placed(placing, placed)
    }

    /// The sources of a received offer.
    pub(in crate::service) fn sources(&self, offer: OfferId) -> &[Source] {
        self.offers.get(offer).map_or(&[], |offer| &offer.sources)
    }

    /// Begins to place the blocks of an offer.
    #[inline(always)]
    fn placing<'a>(
        &mut self,
        key: OfferKey,
        collective: Collective,
        short: &'a [u8],
        count: usize,
    ) -> Result<Placing<'a>, Wrong> {
        let wrong = |what| Wrong::Service {
            service: key.0,
            offer: key.1,
            what,
        };
        let id = self.offers.vacant_key();
        let call = self.call(collective);
        let (sources, parked) = self.spare.pop().unwrap_or_default();
        Ok(Placing {
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
            refs: 0,
            complete: Vec::new(),
            gathered: Vec::new(),
        })
    }

    /// The blocks of an offer are placed. Returns its index.
    #[inline(always)]
    fn placed(
        &mut self,
        placing: Placing<'_>,
        placed: Result<(), Wrong>,
    ) -> Result<OfferId, Wrong> {
        let records = placing.incoming.parked.capacity() * size_of::<ParkedBlock>();
        let parked = records + placing.refs * size_of::<BlockRef>();
        self.parked += placing.parked;
        let (call, short) = (placing.call, placing.short);
        let parts = placing.incoming.sources.len();
        self.keep_offer(call, parts, parked + short.len());
        let (id, key) = (placing.id as usize, placing.incoming.key);
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
        parts: &mut [RtsPart<'_>],
    ) -> Result<(), Wrong> {
        let (mut index, mut rest) = (0, parts);
        while let Some(part) = rest.first() {
            let mut count = 1;
            match part.blocks {
                Blocks::Narrow(records) => {
                    self.place_records(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Wide(records) => {
                    self.place_records(placing, index, part, records.iter().map(Record::block))
                }
                Blocks::Runs(runs) => match runs.only().copied() {
                    Some(run) if run.length >= self.direct_min => {
                        let like = rest.iter().take_while(|part| is_run(part, &run)).count();
                        let (like, _) = rest.split_at_mut(like);
                        count = like.len();
                        if !like.is_sorted_by(|a, b| a.source < b.source) {
                            like.sort_unstable_by_key(|part| part.source);
                        }
                        self.place_alike(placing, index, like, &run)
                    }
                    Some(run) => self.place_run(placing, index, part, &run),
                    None => self.place_records(placing, index, part, blocks_of(runs)),
                },
            }?;
            // Fewer than there are ranks.
            index += u32::try_from(count).expect("ranks of a job");
            rest = &mut std::mem::take(&mut rest)[count..];
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

    /// Places the blocks of sources with the same run for the device, in ascending order: those of equally spaced sources
    /// together.
    fn place_alike(
        &mut self,
        placing: &mut Placing<'_>,
        mut index: u32,
        mut parts: &[RtsPart<'_>],
        run: &Run,
    ) -> Result<(), Wrong> {
        while let [first, more @ ..] = parts {
            let (apart, like) = spaced(first.source, more);
            if like == 1 {
                self.place_run(placing, index, first, run)?;
            } else {
                let (like, _) = parts.split_at(like as usize);
                self.place_group(placing, index, like, (apart, run))?;
            }
            index += like;
            parts = &parts[like as usize..];
        }
        Ok(())
    }

    /// Places the blocks of equally spaced sources with the same run for the device.
    fn place_group(
        &mut self,
        placing: &mut Placing<'_>,
        index: u32,
        parts: &[RtsPart<'_>],
        (apart, run): (u32, &Run),
    ) -> Result<(), Wrong> {
        let key = placing.incoming.key;
        let is_shared = run.stride == 0 && run.count > 1 && key.0 != self.me;
        let count = u32::try_from(parts.len()).expect("ranks of a job");
        let sources = (0..).zip(parts).map(|(at, part)| Source {
            rank: part.source,
            base: part.base,
            shared: if is_shared { run.count } else { 0 },
            run: Some(*run),
            short_at: placing.at,
            like: count - at,
            apart,
        });
        placing.incoming.sources.extend(sources);
        self.place_run_of_all(placing, (index, count), run)
    }

    /// Places the blocks of a number of sources with the same run for the device, which are equally spaced.
    fn place_run_of_all(
        &mut self,
        placing: &mut Placing<'_>,
        (index, count): (u32, u32),
        run: &Run,
    ) -> Result<(), Wrong> {
        let key = placing.incoming.key;
        let sources = &placing.incoming.sources[index as usize..];
        let alike = sources[0].alike();
        let state = &mut self.states[placing.call];
        for block in (0..run.count).map(|at| run.block(at)) {
            let local = self.local_of.get(block.peer as usize).copied();
            let local = local.unwrap_or(ELSEWHERE);
            let Some(seat) = state.seats.get_mut(local as usize) else {
                return Err(Wrong::Service {
                    service: key.0,
                    offer: key.1,
                    what: ELSEWHERES,
                });
            };
            match seat {
                Seat::Present(participant) => {
                    let mut push = |part, count, (to, length), stride| {
                        self.ready.push(Batch {
                            offer: placing.id,
                            part,
                            count,
                            local,
                            call: placing.incoming.call,
                            from: block.offset,
                            to,
                            stride,
                            length,
                        });
                    };
                    if let Some((to, stride)) = participant.slots.take_all(alike, run.length) {
                        push(index, count, (to, run.length), stride);
                        continue;
                    }
                    for (part, source) in (index..index + count).zip(sources) {
                        let place = participant.slots.take(source.rank, block.length);
                        let meeting = Meeting {
                            key,
                            collective: placing.collective,
                            source: source.rank,
                            destination: block.peer,
                            block: ParkedBlock {
                                part,
                                from: block.offset,
                                length: block.length,
                            },
                            short: placing.short,
                            direct_min: self.direct_min,
                        };
                        let read = match place {
                            Ok(to) => Some((to, block.length)),
                            unfit => meeting.deliver(participant, unfit)?,
                        };
                        match read {
                            Some(read) => push(part, 1, read, 0),
                            None => {
                                placing.incoming.left -= 1;
                                participant.receives_left -= 1;
                                if participant.receives_left == 0 {
                                    placing.complete.push(local);
                                }
                            }
                        }
                    }
                }
                Seat::Absent(_) | Seat::Gathering { .. } => {
                    let parked = BlockRef {
                        offer: placing.id,
                        block: index | BlockRef::OF_RUN,
                    };
                    if seat.park(parked, count as usize, &mut self.spare_waiting) {
                        placing.gathered.push(local);
                    }
                    placing.parked += count as usize;
                    placing.refs += 1;
                }
                Seat::Left => {
                    return Err(Wrong::Members {
                        collective: placing.collective,
                        source_rank: alike.first,
                        destination: block.peer,
                    });
                }
            }
        }
        Ok(())
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
            like: 1,
            apart: 1,
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
                return Err(wrong(ELSEWHERES));
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
                    let batch = |to, length| Batch {
                        offer: placing.id,
                        part: index,
                        count: 1,
                        local,
                        call: placing.incoming.call,
                        from: block.offset,
                        to,
                        stride: 0,
                        length,
                    };
                    let place = participant.slots.take(source.rank, block.length);
                    if let Ok(to) = place
                        && block.length >= direct_min
                    {
                        self.ready.push(batch(to, block.length));
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
                    if let Some((to, length)) = meeting.deliver(participant, place)? {
                        self.ready.push(batch(to, length));
                        continue;
                    }
                    placing.incoming.left -= 1;
                    participant.receives_left -= 1;
                    if participant.receives_left == 0 {
                        placing.complete.push(local);
                    }
                }
                Seat::Absent(_) | Seat::Gathering { .. } => {
                    let block = match run {
                        Some(_) => Some(index | BlockRef::OF_RUN),
                        None => placing.keep(parked()),
                    };
                    let block = block.ok_or_else(|| wrong("it has too many blocks"))?;
                    let offer = placing.id;
                    if seat.park(BlockRef { offer, block }, 1, &mut self.spare_waiting) {
                        placing.gathered.push(local);
                    }
                    placing.parked += 1;
                    placing.refs += 1;
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

impl Placing<'_> {
    /// Keeps a block that waits. Returns its index; `None` if there are too many.
    fn keep(&mut self, block: ParkedBlock) -> Option<u32> {
        let records = &mut self.incoming.parked;
        if records.is_empty() {
            records.reserve(self.count);
        }
        let at = u32::try_from(records.len()).ok();
        records.push(block);
        at.filter(|at| at & BlockRef::OF_RUN == 0)
    }
}

const ELSEWHERES: &str = "a block is for a rank of another service";

/// Whether the blocks of a part are this run.
fn is_run(part: &RtsPart<'_>, run: &Run) -> bool {
    matches!(part.blocks, Blocks::Runs(runs) if runs.only() == Some(run))
}

/// Distance of equally spaced sources, in ascending order, and their number.
fn spaced(first: u32, more: &[RtsPart<'_>]) -> (u32, u32) {
    let Some(second) = more.first() else {
        return (1, 1);
    };
    let Some(apart) = second.source.checked_sub(first).filter(|apart| *apart > 0) else {
        return (1, 1);
    };
    let mut count = 1;
    for part in more {
        if part.source.checked_sub(first) != apart.checked_mul(count) {
            break;
        }
        count += 1;
    }
    (apart, count)
}

impl Seat {
    /// Adds blocks that wait; returns true if the rank now has all blocks that it waits for. The first ones take a vector of
    /// `spare`.
    fn park(&mut self, parked: BlockRef, blocks: usize, spare: &mut Vec<Vec<BlockRef>>) -> bool {
        match self {
            Self::Absent(waiting) => {
                if waiting.refs.capacity() == 0
                    && let Some(memory) = spare.pop()
                {
                    waiting.refs = memory;
                }
                waiting.add(parked, blocks);
                false
            }
            Self::Gathering {
                waiting, expected, ..
            } => {
                let before = waiting.blocks;
                waiting.add(parked, blocks);
                // Too many are found when they meet the receive side.
                before < *expected && waiting.blocks >= *expected
            }
            Self::Present(_) | Self::Left => false,
        }
    }
}

impl Waiting {
    fn add(&mut self, parked: BlockRef, blocks: usize) {
        self.refs.push(parked);
        self.blocks += blocks;
    }
}
