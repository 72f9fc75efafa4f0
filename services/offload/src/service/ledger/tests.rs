//! Compares the ledgers of a whole job with a plain model. For every order of events, every block reaches its
//! destination, every rank completes once, and no state remains.

mod messages;

use super::{Action, Buffers, CallId, Ledger, Receives, Wrong};
use crate::draft::{RtsDraft, RtsHead};
use crate::service::actions::Transfer;
use crate::wire::PackedKey;
use crate::wire::{
    Block, Blocks, Collective, DpuRts, Record, RtsPart, blocks_from_wire, blocks_on_wire,
};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

const DIRECT_MIN: u64 = 512;

const CALL: Collective = Collective {
    communicator: 0,
    sequence: 0,
    start: 0,
    step: 0,
};

/// Messages and events between the parties.
#[derive(Debug)]
enum Event {
    /// An SP has no other work.
    Settle(u32),
    Arrive(Collective, u32),
    Rts(Sent),
    /// A rank gets its receive side.
    Receive(u32, (CallId, usize)),
    /// An SP starts its next read.
    Start(u32),
    Read(u32, Transfer),
    Fin(u32, u32, u64),
}

/// An offer on its way.
#[derive(Debug)]
struct Sent {
    from: u32,
    to: u32,
    id: u64,
    collective: Collective,
    parts: Vec<Part>,
}

/// Blocks of one source, and the bytes of the short ones.
#[derive(Debug)]
struct Part {
    source: u32,
    base: u64,
    blocks: Vec<Block>,
    short: Vec<u8>,
}

impl Sent {
    /// Reads an offer of SP `from`.
    fn read(from: u32, to: u32, message: &[u8]) -> Self {
        let rts = DpuRts::parse(message).expect("a whole message");
        let (id, collective) = (rts.offer, rts.collective);
        assert_eq!(rts.from, from);
        let mut short = rts.short;
        let parts = rts.parts.iter().map(|part| {
            let blocks = part.blocks.to_vec();
            let lengths = blocks.iter().map(|b| b.length).filter(|l| *l < DIRECT_MIN);
            let length = usize::try_from(lengths.sum::<u64>()).expect("few");
            let (data, rest) = short.split_at(length);
            short = rest;
            Part {
                source: part.source,
                base: part.base,
                blocks,
                short: data.to_vec(),
            }
        });
        let parts = parts.collect();
        Self {
            from,
            to,
            id,
            collective,
            parts,
        }
    }

    /// Passes the offer to a ledger, as the wire does.
    fn offer_to(&self, ledger: &mut Ledger) -> Result<(), Wrong> {
        let mut draft = RtsDraft::default();
        for part in &self.parts {
            let mut short = &part.short[..];
            let bytes = blocks_on_wire(&part.blocks);
            match blocks_from_wire(&bytes) {
                Blocks::Narrow(records) => put(&mut draft, part, records, &mut short),
                Blocks::Wide(records) => put(&mut draft, part, records, &mut short),
                Blocks::Runs(runs) => {
                    let runs: Vec<_> = runs.iter().collect();
                    draft.runs(part.source, part.base, &runs, short, &[1; 40]);
                }
            }
        }
        let (_, bytes) = draft.finish(RtsHead {
            whole: 0,
            collective: self.collective,
            from: self.from,
            offer: self.id,
        });
        let mut rts = DpuRts::parse(&bytes).expect("a whole message");
        let key = (self.from, self.id);
        let offered = ledger.offered(key, self.collective, &mut rts.parts, rts.short);
        offered.map(|_| ())
    }
}

fn put<R: Record>(draft: &mut RtsDraft, part: &Part, records: &[R], short: &mut &[u8]) {
    draft.begin::<R>(part.source, part.base);
    for record in records {
        let length = record.block().length;
        if length < DIRECT_MIN {
            let (data, rest) = short.split_at(usize::try_from(length).expect("short"));
            *short = rest;
            draft.block(record, Some(data));
        } else {
            draft.block(record, None);
        }
    }
    assert!(short.is_empty(), "as many bytes as blocks");
    draft.end(&[1; 40]);
}

/// A rank enters a call, as the wire delivers it.
fn enter(
    ledger: &mut Ledger,
    call: Collective,
    rank: u32,
    [sends, receives]: [&[Block]; 2],
    short: &[u8],
) -> Result<(), Wrong> {
    let (sends, receives) = (blocks_on_wire(sends), blocks_on_wire(receives));
    let receives = match is_late(call, rank) {
        true => Receives::Later(blocks_from_wire(&receives).len()),
        false => Receives::Now(blocks_from_wire(&receives)),
    };
    let sides = (blocks_from_wire(&sends), receives);
    let buffers = Buffers {
        base: base(rank),
        key: &[1; 40],
    };
    let together = u32::try_from(ledger.rank_of.len()).expect("few");
    let arrived = ledger.arrive(call, (rank, together), sides, short, buffers);
    arrived.map(|_| ())
}

/// Whether a rank gets its receive side when all blocks for it are on offer.
fn is_late(call: Collective, rank: u32) -> bool {
    call.is_scatter() && !(rank + call.sequence).is_multiple_of(3)
}

/// Address of a rank's send buffer.
fn base(rank: u32) -> u64 {
    0x1000 * u64::from(rank)
}

struct World {
    service_of: Vec<u32>,
    ledgers: Vec<Ledger>,
    credits: usize,
    events: Vec<Event>,
    /// Length of the block of each call, source and destination.
    lengths: BTreeMap<(Collective, u32, u32), u64>,
    moved: BTreeSet<(Collective, u32, u32)>,
    completed: Vec<(Collective, u32)>,
    /// Number of receive sides that came when all blocks were on offer.
    received_late: u32,
    /// Number of times that parked blocks waited for reads after their rank had arrived.
    met_late: u32,
    seed: u64,
}

impl World {
    fn new(seed: u64, calls: u32) -> Self {
        let mut draw = Rng::with_seed(seed);
        let ranks = u32::try_from(draw.usize(1..=7)).expect("small");
        let services = u32::try_from(draw.usize(1..=4)).expect("small").min(ranks);
        // The first ranks belong to different SPs, so every SP has a rank.
        let service_of: Vec<u32> = (0..ranks)
            .map(|rank| {
                let any = u32::try_from(draw.usize(..services as usize)).expect("small");
                if rank < services { rank } else { any }
            })
            .collect();
        let credits = draw.usize(1..=4);
        let ready_max = draw.usize(1..=6);
        let ledger = |me| Ledger {
            ready_max,
            ..Ledger::new(me, service_of.clone(), DIRECT_MIN, credits)
        };
        let ledgers = (0..services).map(ledger).collect();
        let mut world = Self {
            service_of,
            ledgers,
            credits,
            events: Vec::new(),
            lengths: BTreeMap::new(),
            moved: BTreeSet::new(),
            completed: Vec::new(),
            received_late: 0,
            met_late: 0,
            seed,
        };
        // One SP in two finds a moment of rest.
        for at in (0..services).step_by(2) {
            world.events.push(Event::Settle(at));
        }
        for call in 0..calls {
            let call = Collective {
                communicator: u64::from(call % 2),
                sequence: call / 2,
                start: 0,
                step: call % 2,
            };
            // Most programs exchange blocks of one length; some send nothing to themselves.
            let even = [None, None, Some(512), Some(100_000), Some(8)][draw.usize(..5)];
            let to_itself = draw.bool();
            for source in 0..ranks {
                world.events.push(Event::Arrive(call, source));
                for destination in 0..ranks {
                    let any = [0, 1, 511, 512, 100_000][draw.usize(..5)];
                    let length = match even {
                        Some(_) if source == destination && !to_itself => 0,
                        even => even.unwrap_or(any),
                    };
                    world.lengths.insert((call, source, destination), length);
                }
            }
        }
        world
    }

    /// Processes all events in an order drawn from the seed.
    fn run(&mut self) -> Result<(), Wrong> {
        let mut draw = Rng::with_seed(self.seed ^ 0xabcd);
        while let Some(event) = self.next(&mut draw) {
            self.happen(event)?;
        }
        Ok(())
    }

    /// One of the pending events; without any, all SPs are idle.
    fn next(&mut self, draw: &mut Rng) -> Option<Event> {
        if self.events.is_empty() {
            for at in (0..).take(self.ledgers.len()) {
                self.ledgers[at as usize].settle();
                self.act(at);
            }
        }
        if self.events.is_empty() {
            return None;
        }
        Some(self.events.swap_remove(draw.usize(..self.events.len())))
    }

    fn happen(&mut self, event: Event) -> Result<(), Wrong> {
        let at = match event {
            Event::Arrive(call, rank) => {
                let at = self.service_of[rank as usize];
                let (sends, receives) = self.sides(call, rank);
                let short = short_bytes(rank, &sends);
                enter(
                    &mut self.ledgers[at as usize],
                    call,
                    rank,
                    [&sends, &receives],
                    &short,
                )?;
                at
            }
            Event::Receive(at, place) => {
                let ledger = &mut self.ledgers[at as usize];
                let (call, rank) = (ledger.states[place.0].collective, ledger.rank_of[place.1]);
                let (_, receives) = self.sides(call, rank);
                let receives = blocks_on_wire(&receives);
                let receives = blocks_from_wire(&receives);
                self.ledgers[at as usize].receive(place, receives)?;
                self.received_late += 1;
                at
            }
            Event::Rts(offer) => {
                let at = offer.to;
                offer.offer_to(&mut self.ledgers[at as usize])?;
                at
            }
            Event::Start(at) => {
                if let Some(transfer) = self.ledgers[at as usize].next_transfer() {
                    self.start(at, transfer);
                }
                at
            }
            Event::Read(at, transfer) => {
                self.ledgers[at as usize].transferred(transfer.batch, 1);
                at
            }
            Event::Fin(at, from, id) => {
                self.ledgers[at as usize].finished(from, id)?;
                at
            }
            Event::Settle(at) => {
                self.ledgers[at as usize].settle();
                at
            }
        };
        self.act(at);
        while self.ledgers[at as usize].transfers() == 0
            && self.ledgers[at as usize].meet_newcomer()?
        {
            self.met_late += 1;
            self.act(at);
        }
        Ok(())
    }

    fn start(&mut self, at: u32, transfer: Transfer) {
        let ledger = &self.ledgers[at as usize];
        let call = transfer.call as usize;
        let (source, destination) = ledger.ranks_of(&transfer).expect("under way");
        let key = (ledger.states[call].collective, source, destination);
        assert_eq!(self.lengths[&key], transfer.length, "seed {}", self.seed);
        assert_eq!(transfer.to, offset(source), "seed {}", self.seed);
        assert_eq!(
            transfer.from,
            base(source) + offset(destination),
            "seed {}",
            self.seed
        );
        assert!(self.moved.insert(key), "moved twice, seed {}", self.seed);
        self.events.push(Event::Read(at, transfer));
    }

    fn act(&mut self, at: u32) {
        let ready = self.ledgers[at as usize].transfers();
        let starts = |event: &&Event| matches!(event, Event::Start(of) if *of == at);
        let starting = self.events.iter().filter(starts).count();
        for _ in starting..ready {
            self.events.push(Event::Start(at));
        }
        while let Some(action) = self.ledgers[at as usize].next() {
            match action {
                Action::Offer { to, message } => {
                    self.events.push(Event::Rts(Sent::read(at, to, &message)));
                }
                Action::Finish {
                    key: (from, id), ..
                } => {
                    self.events.push(Event::Fin(from, at, id));
                }
                Action::Received { collective, .. } => {
                    assert!(collective.is_scatter(), "seed {}", self.seed);
                }
                Action::Gathered { call, local } => {
                    self.events.push(Event::Receive(at, (call, local)));
                }
                Action::Complete {
                    collective,
                    rank,
                    short,
                    ..
                } => {
                    let short = short.unwrap_or_default();
                    let mut bytes = &short.bytes[..];
                    let blocks = short.blocks.iter();
                    for (place, length) in
                        blocks.flat_map(|of| of.offsets().map(|place| (place, of.length)))
                    {
                        let bytes_of = usize::try_from(length).expect("short");
                        let (data, rest) = bytes.split_at(bytes_of);
                        bytes = rest;
                        let source = u32::from(data[0]);
                        let key = (collective, source, rank);
                        assert_eq!(place, offset(source), "seed {}", self.seed);
                        assert_eq!(self.lengths[&key], length);
                        assert!(self.moved.insert(key), "moved twice, seed {}", self.seed);
                    }
                    self.completed.push((collective, rank));
                }
            }
        }
        for (call, state) in &self.ledgers[at as usize].states {
            let on_offer = self.ledgers[at as usize].outgoing.iter();
            let count = on_offer
                .filter(|(_, offer)| offer.call == call && offer.to != at)
                .count();
            assert_eq!(state.queue.in_flight, count, "seed {}", self.seed);
            let is_limited = !state.collective.is_scatter();
            assert!(!is_limited || count <= self.credits, "seed {}", self.seed);
        }
    }

    fn sides(&self, call: Collective, rank: u32) -> (Vec<Block>, Vec<Block>) {
        let ranks = u32::try_from(self.service_of.len()).expect("few");
        let side = |length: &dyn Fn(u32) -> u64| {
            (0..ranks)
                .map(|peer| Block {
                    peer,
                    offset: offset(peer),
                    length: length(peer),
                })
                .collect()
        };
        (
            side(&|peer| self.lengths[&(call, rank, peer)]),
            side(&|peer| self.lengths[&(call, peer, rank)]),
        )
    }
}

fn offset(peer: u32) -> u64 {
    u64::from(peer) * 1_000_000
}

/// The bytes of each short block identify its source.
fn short_bytes(rank: u32, sends: &[Block]) -> Vec<u8> {
    let short = sends.iter().filter(|block| block.length < DIRECT_MIN);
    let length: u64 = short.map(|block| block.length).sum();
    vec![rank.to_le_bytes()[0]; usize::try_from(length).expect("few")]
}

#[test]
fn whatever_the_order_all_blocks_arrive_and_nothing_is_left() {
    let (mut met_late, mut received_late) = (0, 0);
    for seed in 0..1000 {
        let calls = 1 + u32::try_from(seed % 4).expect("small");
        let mut world = World::new(seed, calls);
        world
            .run()
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let ranks = world.service_of.len();
        world.completed.sort_unstable();
        world.completed.dedup();
        assert_eq!(world.completed.len(), ranks * calls as usize, "seed {seed}");
        let filled = world.lengths.values().filter(|length| **length > 0).count();
        assert_eq!(world.moved.len(), filled, "seed {seed}");
        for ledger in &world.ledgers {
            assert_eq!((ledger.bytes, ledger.parked), (0, 0), "seed {seed}");
            assert!(
                ledger.offers.is_empty() && ledger.outgoing.is_empty(),
                "seed {seed}"
            );
            assert!(
                ledger.calls.is_empty() && ledger.states.is_empty(),
                "seed {seed}"
            );
            assert!(
                ledger.offers.is_empty() && ledger.held.is_empty(),
                "seed {seed}"
            );
            assert!(
                ledger.ready.is_empty() && ledger.newcomers.is_empty(),
                "seed {seed}"
            );
        }
        met_late += world.met_late;
        received_late += world.received_late;
    }
    assert!(received_late > 0, "no rank has got its receive side later");
    assert!(met_late > 0, "no parked block has waited for earlier reads");
}

#[test]
fn counts_that_disagree_are_found_in_any_order() {
    let mut found_in = 0;
    for seed in 0..400 {
        let mut world = World::new(seed, 1);
        // Rank 0 expects one byte less than a source at another SP sends.
        let source = u32::try_from(seed).expect("small")
            % u32::try_from(world.service_of.len()).expect("few");
        if world.service_of[source as usize] == world.service_of[0]
            || world.lengths[&(CALL, source, 0)] == 0
        {
            continue;
        }
        found_in += 1;
        let sent = world.lengths[&(CALL, source, 0)] + 1;
        let mut found = None;
        let mut draw = Rng::with_seed(seed);
        while found.is_none()
            && let Some(mut event) = world.next(&mut draw)
        {
            if let Event::Rts(offer) = &mut event
                && let Some(part) = offer.parts.iter_mut().find(|part| part.source == source)
                && part.blocks.iter().any(|block| block.peer == 0)
            {
                // As if the source had announced this length; a short block gains one byte of data.
                let before = part.blocks.iter().take_while(|block| block.peer != 0);
                let before: u64 = before.map(|b| b.length).filter(|l| *l < DIRECT_MIN).sum();
                let at = usize::try_from(before).expect("short");
                let block = part.blocks.iter_mut().find(|block| block.peer == 0);
                let block = block.expect("found before");
                let was_short = block.length < DIRECT_MIN;
                block.length += 1;
                if block.length < DIRECT_MIN {
                    part.short.insert(at, source.to_le_bytes()[0]);
                } else if was_short {
                    // The block is not short any more; its bytes are removed.
                    let length = usize::try_from(block.length - 1).expect("short");
                    part.short.drain(at..at + length);
                }
            }
            found = world.happen(event).err();
        }
        match found {
            Some(Wrong::Counts {
                sent: told,
                destination: 0,
                source_rank,
                ..
            }) => assert_eq!((source_rank, told), (source, sent), "seed {seed}"),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(found_in > 100, "{found_in} jobs");
}

/// Blocks of neighbouring sources become ready and end together, in any order of their ranks, before or after their
/// destination enters.
#[test]
fn even_blocks_of_a_rank_are_one_batch() {
    for is_early in [false, true] {
        let mut ledger = Ledger::new(0, vec![0, 1, 1, 1, 0], DIRECT_MIN, 4);
        let block = |peer: u32| Block {
            peer,
            offset: offset(peer),
            length: 4096,
        };
        let side: Vec<Block> = (1..4).map(block).collect();
        let part = |source| Part {
            source,
            base: base(source),
            blocks: vec![block(0)],
            short: Vec::new(),
        };
        let offer = Sent {
            from: 1,
            to: 0,
            id: 0,
            collective: CALL,
            parts: [3, 1, 2].map(part).into(),
        };
        let enter = |ledger: &mut Ledger| enter(ledger, CALL, 0, [&[], &side], &[]);
        if !is_early {
            enter(&mut ledger).expect("valid");
        }
        offer.offer_to(&mut ledger).expect("valid");
        if is_early {
            enter(&mut ledger).expect("valid");
        }
        assert_eq!(ledger.transfers(), 3);
        let transfers: Vec<Transfer> = std::iter::from_fn(|| ledger.next_transfer()).collect();
        for (transfer, source) in transfers.iter().zip(1..) {
            assert_eq!(transfer.batch, transfers[0].batch);
            assert_eq!(ledger.ranks_of(transfer), Some((source, 0)));
            assert_eq!((transfer.from, transfer.to), (base(source), offset(source)));
        }
        let ends = transfers.iter().map(|of| ledger.transferred(of.batch, 1));
        assert_eq!(ends.collect::<Vec<_>>(), [None, None, Some((3, 3 * 4096))]);
    }
}

/// Offers of SP 0 with two of four ranks, which enter one after the other: receiver and sources of each offer.
fn offers(credits: usize, settle_between: bool) -> Vec<(u32, Vec<u32>)> {
    let mut ledger = Ledger::new(0, vec![0, 0, 1, 1], DIRECT_MIN, credits);
    let blocks: Vec<Block> = (0..4)
        .map(|peer| Block {
            peer,
            offset: 0,
            length: DIRECT_MIN,
        })
        .collect();
    let mut offers = Vec::new();
    for rank in 0..2 {
        enter(&mut ledger, CALL, rank, [&blocks, &blocks], &[]).expect("valid");
        if settle_between {
            ledger.settle();
        }
        while let Some(action) = ledger.next() {
            if let Action::Offer { to, message } = action {
                let offer = Sent::read(0, to, &message);
                let sources = offer.parts.iter().map(|part| part.source).collect();
                offers.push((offer.to, sources));
            }
        }
    }
    offers
}

#[test]
fn ranks_that_enter_together_are_offered_together() {
    // Other SPs come first.
    assert_eq!(offers(4, false), [(1, vec![0, 1]), (0, vec![0, 1])]);
    // A rank that arrived while there was no other work did not wait.
    let each = [(1, vec![0]), (0, vec![0]), (1, vec![1]), (0, vec![1])];
    assert_eq!(offers(2, true), each);
    // Blocks that wait for a credit are aggregated. Those for this SP need none.
    assert_eq!(offers(1, true), [(1, vec![0]), (0, vec![0]), (0, vec![1])]);
}

/// Result of an arrival at an SP with ranks 0 and 1; rank 1 belongs to another SP.
fn arrive(rank: u32, sends: &[(u32, u64)], receives: &[u32], short: usize) -> Result<(), String> {
    let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
    let block = |peer, length| Block {
        peer,
        offset: 0,
        length,
    };
    let sends: Vec<Block> = sends
        .iter()
        .map(|(peer, length)| block(*peer, *length))
        .collect();
    let receives: Vec<Block> = receives.iter().map(|peer| block(*peer, 3)).collect();
    enter(
        &mut ledger,
        CALL,
        rank,
        [&sends, &receives],
        &vec![0; short],
    )
    .map_err(|wrong| wrong.to_string())
}

#[test]
fn an_arrival_that_makes_no_sense_is_refused() {
    let check = |answer: Result<(), String>, expect: &str| {
        let error = answer.unwrap_err();
        assert!(error.contains(expect), "{error}");
    };
    assert_eq!(arrive(0, &[(0, 3), (1, 600)], &[0, 1], 3), Ok(()));
    check(arrive(1, &[], &[], 0), "not this service's");
    check(arrive(7, &[], &[], 0), "not this service's");
    check(arrive(0, &[(2, 1)], &[], 1), "a rank that is not there");
    check(
        arrive(0, &[(1, 1), (1, 1)], &[], 2),
        "two blocks to one rank",
    );
    check(arrive(0, &[], &[1, 1], 0), "two blocks from one rank");
    check(
        arrive(0, &[(0, 3)], &[0], 2),
        "bytes of a short block are missing",
    );
    check(
        arrive(0, &[(0, 3)], &[0], 4),
        "more bytes than short blocks",
    );
}

#[test]
fn an_offer_that_makes_no_sense_is_refused() {
    let offered = |ledger: &mut Ledger, key, to: &[u32], bytes: usize| {
        let blocks: Vec<Block> = to
            .iter()
            .map(|to| Block {
                peer: *to,
                offset: 0,
                length: 3,
            })
            .collect();
        let wire = blocks_on_wire(&blocks);
        let part = RtsPart {
            source: 1,
            base: 0,
            blocks: blocks_from_wire(&wire),
            rkey: PackedKey::default(),
        };
        let answer = ledger.offered(key, CALL, &mut [part], &vec![0; bytes]);
        answer.map_err(|wrong| wrong.to_string())
    };
    let check = |ledger: &mut Ledger, key, to: &[u32], expect: &str| {
        let error = offered(ledger, key, to, 3 * to.len()).unwrap_err();
        assert!(error.contains(expect), "{error}");
    };
    let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
    check(&mut ledger, (1, 0), &[], "nothing is on offer");
    check(&mut ledger, (1, 0), &[1], "a rank of another service");
    let many = "more blocks than this service has ranks";
    check(&mut ledger, (1, 0), &[0, 1], many);
    check(
        &mut ledger,
        (7, 0),
        &[0],
        "more sources than the service has",
    );
    let error = ledger.finished(1, 5).unwrap_err().to_string();
    assert!(error.contains("not on offer"), "{error}");
    // A refusal ends its job. A rank that expects nothing from the source:
    let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
    let receives = [Block {
        peer: 0,
        offset: 0,
        length: 1,
    }];
    enter(&mut ledger, CALL, 0, [&[], &receives], &[]).expect("valid");
    check(&mut ledger, (1, 1), &[0], "expects nothing from it");
    for bytes in [2, 4] {
        let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
        let error = offered(&mut ledger, (1, 7), &[0], bytes).unwrap_err();
        assert!(error.contains("not as many"), "{error}");
    }
    let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
    offered(&mut ledger, (1, 7), &[0], 3).expect("valid");
    // The same offer again is noticed when its destination takes the block.
    offered(&mut ledger, (1, 7), &[0], 3).expect("its destination is absent");
    let expected = Block {
        peer: 1,
        offset: 0,
        length: 3,
    };
    let error = enter(&mut ledger, CALL, 0, [&[], &[expected]], &[]).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("the block was there already"), "{error}");
}

#[test]
fn another_service_cannot_answer_an_offer() {
    let mut ledger = Ledger::new(0, vec![0, 1, 2], DIRECT_MIN, 4);
    let block = |peer| Block {
        peer,
        offset: 0,
        length: 1,
    };
    enter(&mut ledger, CALL, 0, [&[block(1)], &[]], &[1]).expect("valid");
    ledger.settle();
    let Some(Action::Offer { to, message }) = ledger.next() else {
        panic!("no offer")
    };
    assert_eq!(to, 1);
    let offer = Sent::read(0, to, &message);
    let error = ledger.finished(2, offer.id).unwrap_err().to_string();
    assert!(error.contains("offered to another service"), "{error}");
}

/// 128 ranks of an SP, each with 1,024 calls outstanding, until a rank of another SP comes.
#[test]
fn calls_of_many_ranks_have_no_fixed_number() {
    const RANKS: u32 = 128;
    const CALLS: u32 = 1024;
    let mut service_of = vec![0; RANKS as usize];
    service_of.push(1);
    let mut ledger = Ledger::new(0, service_of, DIRECT_MIN, 4);
    let block = |peer| Block {
        peer,
        offset: 0,
        length: 4096,
    };
    let call = |sequence| Collective { sequence, ..CALL };
    let side = [block(RANKS)];
    for sequence in 0..CALLS {
        for rank in 0..RANKS {
            enter(&mut ledger, call(sequence), rank, [&side, &side], b"").expect("taken");
        }
    }
    assert_eq!(ledger.lengths()[0], CALLS as usize);
    assert!(ledger.bytes() < 256 << 20, "{}", ledger.bytes());
    for sequence in 0..CALLS {
        let offer = Sent {
            from: 1,
            to: 0,
            id: sequence.into(),
            collective: call(sequence),
            parts: vec![Part {
                source: RANKS,
                base: 0,
                blocks: (0..RANKS).map(block).collect(),
                short: Vec::new(),
            }],
        };
        offer.offer_to(&mut ledger).expect("taken");
    }
    let mut complete = 0;
    loop {
        while let Some(action) = ledger.next() {
            match action {
                // The other SP receives at once.
                Action::Offer { to, message } => {
                    let offer = Sent::read(0, to, &message);
                    ledger.finished(to, offer.id).expect("on offer");
                }
                Action::Complete { .. } => complete += 1,
                _ => {}
            }
        }
        match ledger.next_transfer() {
            Some(transfer) => drop(ledger.transferred(transfer.batch, 1)),
            None => break,
        }
    }
    assert_eq!(complete, RANKS * CALLS);
    assert_eq!((ledger.bytes(), ledger.lengths()), (0, [0; 3]));
}
