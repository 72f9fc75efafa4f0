//! Two ledgers carry out calls that repeat, and others on fresh ledgers the same calls: the same blocks move.

use super::*;
use crate::service::incoming::Source;
use crate::wire::{
    Block, Blocks, Collective, DpuRts, OFFER_REST, blocks_from_wire, blocks_on_wire, offer_start,
};
use fastrand::Rng;
use std::collections::BTreeMap;

const RANKS: u32 = 6;
const DIRECT_MIN: u64 = 512;

/// A block that was read: its call, ranks, place and length.
type Moved = (Collective, u32, u32, u64, u64, u64);

/// Both ledgers of a job, and the rests of the offers that each has got, with their sources.
struct World {
    ledgers: [Ledger; 2],
    known: BTreeMap<(u32, Vec<u8>), (Vec<Source>, usize)>,
    moved: Vec<Moved>,
    completed: usize,
    /// Number of offers that were like an earlier one.
    familiar: usize,
    /// Number of entries for which the ledger looked for what differs only.
    again: usize,
}

fn call(sequence: u32) -> Collective {
    Collective {
        communicator: 0,
        sequence,
        start: 0,
        step: 0,
    }
}

/// The run, if the blocks are no others.
fn only(blocks: Blocks<'_>) -> Option<Run> {
    match blocks {
        Blocks::Runs(runs) => runs.only().copied(),
        Blocks::Narrow(_) | Blocks::Wide(_) => None,
    }
}

impl World {
    fn new(credits: usize) -> Self {
        let service_of: Vec<u32> = (0..RANKS).map(|rank| rank / 3).collect();
        Self {
            ledgers: [0, 1].map(|me| Ledger::new(me, service_of.clone(), DIRECT_MIN, credits)),
            known: BTreeMap::new(),
            moved: Vec::new(),
            completed: 0,
            familiar: 0,
            again: 0,
        }
    }

    /// A rank enters a call, with blocks of this length and this number of its buffer.
    fn enter(&mut self, sequence: u32, rank: u32, length: u64, buffer: u64) {
        let block = |peer: u32| Block {
            peer,
            offset: u64::from(peer) * length,
            length,
        };
        let blocks: Vec<Block> = (0..RANKS).map(block).collect();
        let bytes = blocks_on_wire(&blocks);
        let blocks = blocks_from_wire(&bytes);
        let key = [u8::try_from(buffer).expect("few"); 40];
        let buffers = Buffers {
            base: u64::from(rank + 1) << 40 | buffer << 32,
            key: &key,
        };
        let short = vec![7; if length < DIRECT_MIN { 6 * 8 } else { 0 }];
        let ledger = &mut self.ledgers[rank as usize / 3];
        if let Some(run) = only(blocks).filter(|_| short.is_empty()) {
            let who = (rank, rank as usize % 3, 3);
            let arrived = ledger.arrive_again(call(sequence), who, (&run, &run), buffers);
            if arrived.expect("valid").is_some() {
                self.again += 1;
                return;
            }
        }
        let arrived = ledger.arrive(call(sequence), (rank, 3), (blocks, blocks), &short, buffers);
        arrived.expect("valid");
    }

    /// One SP carries out its actions and reads.
    fn act(&mut self, at: usize) {
        while let Some(action) = self.ledgers[at].next() {
            match action {
                Action::Offer { to, message } => self.offer(to, &message),
                Action::Finish { key, .. } => {
                    let from = &mut self.ledgers[key.0 as usize];
                    let me = u32::try_from(at).expect("two");
                    from.finished(me, key.1).expect("valid");
                }
                Action::Complete { .. } => self.completed += 1,
                other => panic!("{other:?}"),
            }
        }
        let ledger = &mut self.ledgers[at];
        while let Some(transfer) = ledger.next_transfer() {
            let (source, destination) = ledger.ranks_of(&transfer).expect("under way");
            let collective = ledger.states[transfer.call as usize].collective;
            let (from, to, length) = (transfer.from, transfer.to, transfer.length);
            self.moved
                .push((collective, source, destination, from, to, length));
            ledger.transferred(transfer.batch, 1);
        }
        while self.ledgers[at].transfers() == 0 && self.ledgers[at].meet_newcomer().expect("valid")
        {
        }
    }

    fn offer(&mut self, to: u32, message: &[u8]) {
        let (collective, key, rest) = offer_start(message).expect("whole");
        let ledger = &mut self.ledgers[to as usize];
        let place = (to, [&key.0.to_le_bytes(), rest].concat());
        if let Some((sources, blocks)) = self.known.get(&place) {
            self.familiar += 1;
            ledger
                .offered_again(key, collective, sources, *blocks)
                .expect("valid");
            return;
        }
        let mut rts = DpuRts::parse(message).expect("valid");
        assert_eq!(&message[OFFER_REST..], rest);
        let blocks = rts.parts.iter().map(|part| part.blocks.len()).sum();
        let id = ledger
            .offered(key, collective, &mut rts.parts, rts.short)
            .expect("valid");
        if rts.short.is_empty() {
            self.known
                .insert(place, (ledger.sources(id).to_vec(), blocks));
        }
    }

    fn finish(&mut self, calls: usize) {
        let most = calls * RANKS as usize;
        let mut rounds = 0;
        while self.completed < most {
            rounds += 1;
            assert!(
                rounds < 1000,
                "{} of {most} ranks are complete",
                self.completed
            );
            for at in [0, 1] {
                self.ledgers[at].settle();
                self.act(at);
            }
        }
        for at in [0, 1] {
            self.act(at);
        }
        for ledger in &self.ledgers {
            assert!(ledger.states.is_empty() && ledger.outgoing.is_empty());
            assert_eq!(ledger.bytes, 0);
            let mut sides = ledger.again.sides.iter().flat_map(|sides| &sides.of);
            assert!(sides.all(|side| side.noted == 0));
        }
        self.moved.sort_unstable();
    }
}

/// The blocks of calls, each on ledgers of its own.
fn apart(calls: &[(u64, u64)]) -> Vec<Moved> {
    let mut moved = Vec::new();
    for (sequence, (length, buffer)) in (0..).zip(calls) {
        let mut world = World::new(4);
        for rank in 0..RANKS {
            world.enter(sequence, rank, *length, *buffer);
        }
        world.finish(1);
        moved.append(&mut world.moved);
    }
    moved.sort_unstable();
    moved
}

#[test]
fn calls_that_repeat_move_the_blocks_of_calls_that_do_not() {
    let (mut familiar, mut again) = (0, 0);
    for seed in 0..200 {
        let mut draw = Rng::with_seed(seed);
        let mut world = World::new(draw.usize(1..=3));
        let most = draw.u64(1..=3);
        let calls: Vec<(u64, u64)> = (0..24)
            .map(|_| ([4096, 4096, 8192, 8][draw.usize(..4)], draw.u64(0..most)))
            .collect();
        // Up to three calls are outstanding.
        for (sequences, calls) in (0..).step_by(3).zip(calls.chunks(3)) {
            let mut entries: Vec<(u32, usize)> = (0..RANKS)
                .flat_map(|rank| (0..calls.len()).map(move |of| (rank, of)))
                .collect();
            draw.shuffle(&mut entries);
            for (rank, of) in entries {
                let (length, buffer) = calls[of];
                world.enter(
                    sequences + u32::try_from(of).expect("few"),
                    rank,
                    length,
                    buffer,
                );
                let at = rank as usize / 3;
                if draw.u8(..4) == 0 {
                    world.ledgers[at].settle();
                }
                if draw.bool() {
                    world.act(at);
                }
            }
            let done = sequences as usize + calls.len();
            world.finish(done);
            if draw.u8(..8) == 0 {
                world.ledgers[0].drop_kept();
                assert_eq!(world.ledgers[0].kept_bytes(), 0);
            }
        }
        assert_eq!(world.moved, apart(&calls), "seed {seed}");
        familiar += world.familiar;
        again += world.again;
    }
    assert!(familiar > 1000, "{familiar} offers");
    assert!(again > 1000, "{again} entries");
}

#[test]
fn offers_are_copied_if_the_ranks_and_their_buffers_are_the_same_in_any_order() {
    let mut world = World::new(1);
    let copies = |world: &mut World, sequence: u32, ranks: [u32; 3], buffer: u64| {
        for rank in ranks {
            world.enter(sequence, rank, 4096, buffer);
        }
        let of = world.ledgers[0].call(call(sequence));
        // The offer to the other SP has left; that to this one has left as well.
        let is_copied = world.ledgers[0].again.unused == 0 && sequence > 0;
        assert!(world.ledgers[0].states[of].noted.is_empty());
        for rank in 3..6 {
            world.enter(sequence, rank, 4096, buffer);
        }
        world.finish(sequence as usize + 1);
        is_copied
    };
    // The first call keeps the sides, and the second one the set.
    assert!(!copies(&mut world, 0, [0, 1, 2], 1) || world.ledgers[0].again.sets.is_empty());
    copies(&mut world, 1, [0, 1, 2], 1);
    assert_eq!(world.ledgers[0].again.sets.len(), 1);
    assert!(copies(&mut world, 2, [2, 0, 1], 1));
    // Two buffers in turn have two sets.
    for sequence in 3..5 {
        copies(&mut world, sequence, [0, 1, 2], 2);
    }
    assert_eq!(world.ledgers[0].again.sets.len(), 2);
    assert!(copies(&mut world, 5, [1, 2, 0], 1));
    assert!(copies(&mut world, 6, [1, 2, 0], 2));
    let kept = world.ledgers[0].kept_bytes();
    assert!(kept > 0 && kept < 4096, "{kept}");
}

#[test]
fn an_entry_that_is_not_to_be_noted_only_changes_nothing() {
    let mut world = World::new(4);
    for rank in 0..RANKS {
        world.enter(0, rank, 4096, 1);
    }
    world.finish(1);
    let run = Run {
        peer: 0,
        step: 1,
        count: RANKS,
        offset: 0,
        stride: 4096,
        length: 4096,
    };
    let [ledger, _] = &mut world.ledgers;
    let mut enter = |sends: Run, receives: Run, key: u8| {
        let key = [key; 40];
        let buffers = Buffers {
            base: 1 << 40 | 1 << 32,
            key: &key,
        };
        let runs = (&sends, &receives);
        let entered = ledger.arrive_again(call(1), (0, 0, 3), runs, buffers);
        (entered, ledger.states.len())
    };
    let short = Run { length: 8, ..run };
    let more = Run {
        count: RANKS + 1,
        ..run
    };
    for (sends, receives, key) in [
        (short, run, 1),
        (run, short, 1),
        (run, more, 1),
        (run, run, 2),
    ] {
        assert_eq!(enter(sends, receives, key), (Ok(None), 0));
    }
    assert!(matches!(enter(run, run, 1), (Ok(Some(_)), 1)));
    let (twice, _) = enter(run, run, 1);
    let twice = twice.expect_err("entered").to_string();
    assert!(twice.contains("entered the call twice"), "{twice}");
}
