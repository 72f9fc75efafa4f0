//! Movers of two SPs on a transport that records reads and completes them on request.

use super::*;
use crate::service::ready::Flight;
use crate::service::transport::{Ended, Range};
use crate::wire::{Block, BlockList, Export, ExportRef, HostArrive, Message, Name, Route};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const BLOCK: u64 = 4096;
/// Rank 0 belongs to SP 0, the others to SP 1.
const SERVICE_OF: [u32; 4] = [0, 1, 1, 1];

/// A message: receiver, kind, token, data.
type Letter = (u32, Kind, Token, Vec<u8>);

/// Records messages between SPs and reads. Keys and buffers are named by their addresses.
#[derive(Debug, Default)]
struct Recorder {
    messages: RefCell<Vec<Letter>>,
    /// Key, address and destination of each read.
    reads: RefCell<Vec<(u64, u64, u64)>>,
    pending: RefCell<Vec<Rc<Cell<bool>>>>,
    finished: Cell<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Rank,
    Service(u32),
}

impl Recorder {
    /// Completes all reads.
    fn complete(&self) {
        for operation in self.pending.take() {
            operation.set(true);
        }
    }
}

impl Transport for Recorder {
    type Peer = Place;
    type Memory = u64;
    type Key = u64;
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = Vec<(u64, Rc<Cell<bool>>)>;

    fn send(&self, to: &Place, kind: Kind, token: Token, data: Vec<u8>) -> Result<Sent<()>> {
        match to {
            Place::Rank => self.finished.set(self.finished.get() + 1),
            Place::Service(to) => self.messages.borrow_mut().push((*to, kind, token, data)),
        }
        Ok(Sent::AtOnce(Vec::new()))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<u64> {
        Ok(export.address)
    }

    fn address(&self, memory: &u64) -> u64 {
        *memory
    }

    fn pack(&self, memory: &u64) -> Result<Vec<u8>> {
        Ok(memory.to_le_bytes().to_vec())
    }

    fn stage(&self, _: usize) -> Result<u64> {
        Err(failed("the recorder has no bytes"))
    }

    fn bytes<'a>(&self, _: &'a mut u64) -> Option<&'a mut [u8]> {
        None
    }

    fn unmap(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, _: &Place, key: &[u8]) -> Result<u64> {
        Ok(u64::from_le_bytes(key.try_into().expect("8 bytes")))
    }

    fn read(&self, reads: &mut Self::Reads, range: Range<'_, Self>, tag: u64) -> Result<bool> {
        let into = range.into + range.to;
        self.reads
            .borrow_mut()
            .push((*range.key, range.address, into));
        let operation = Rc::new(Cell::new(false));
        self.pending.borrow_mut().push(Rc::clone(&operation));
        reads.push((tag, operation));
        Ok(true)
    }

    fn reads_len(reads: &Self::Reads) -> usize {
        reads.len()
    }

    fn next_read(&self, reads: &mut Self::Reads) -> Option<(u64, Ended)> {
        let at = reads.iter().position(|(_, operation)| operation.get())?;
        Some((reads.remove(at).0, Ok(())))
    }

    /// As UCX, it takes those of a run together.
    fn next_reads(&self, reads: &mut Self::Reads) -> Option<(u64, u32, Ended)> {
        let (tag, ended) = self.next_read(reads)?;
        let mut count = 1;
        if !Flight::of(tag).is_shared {
            reads.retain(|(other, operation)| {
                let is_taken = operation.get() && Flight::lane(*other) == Flight::lane(tag);
                count += u32::from(is_taken);
                !is_taken
            });
        }
        Some((tag, count, ended))
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

fn token(of: u32) -> Token {
    Token(u128::from(of).to_le_bytes())
}

fn mover(me: u32) -> Mover<Recorder> {
    let ours = |rank: &u32| SERVICE_OF[*rank as usize] == me;
    let mut mover = Mover::new(
        Peers {
            me,
            service_of: SERVICE_OF.to_vec(),
            ranks: (0..4)
                .filter(ours)
                .map(|rank| Destination {
                    peer: Place::Rank,
                    token: token(rank),
                })
                .collect(),
            from_ranks: (0..4).filter(ours).map(token).collect(),
            services: (0..2)
                .map(|to| {
                    Some(Destination {
                        peer: Place::Service(to),
                        token: token(100 + me),
                    })
                })
                .collect(),
        },
        Limits {
            sends: 4,
            receives: 4,
            direct_min: 512,
            imports: 4,
            radix: crate::radix::Radix::default(),
        },
    );
    for from in 0..2 {
        mover.expect_service(from, token(100 + from));
    }
    mover
}

/// Address of a rank's buffer.
fn buffer(rank: u32) -> u64 {
    u64::from(rank + 1) << 40
}

/// A rank's part in a broadcast of rank 0.
fn broadcast(rank: u32) -> Vec<u8> {
    let blocks = |length: &dyn Fn(u32) -> u64| -> BlockList {
        let block = |peer| Block {
            peer,
            offset: 0,
            length: length(peer),
        };
        (0..4).map(block).collect()
    };
    let memory = Some(Export {
        address: buffer(rank),
        length: BLOCK,
        packed: vec![1],
        name: None,
    });
    let root = rank == 0;
    let arrive = HostArrive {
        collective: Collective {
            communicator: 0,
            sequence: 0,
            start: 0,
            step: 0,
        },
        rank,
        together: if root { 1 } else { 3 },
        send_memory: memory.clone().filter(|_| root),
        receive_memory: memory.filter(|_| !root),
        sends: blocks(&|peer| if root && peer > 0 { BLOCK } else { 0 }),
        receives: blocks(&|peer| if !root && peer == 0 { BLOCK } else { 0 }),
        short: Vec::new(),
        route: Route::Direct,
    };
    arrive.to_bytes()
}

fn enter(transport: &Recorder, movers: &mut [Mover<Recorder>], rank: u32) {
    let of = SERVICE_OF[rank as usize] as usize;
    let header = token(rank).0;
    movers[of]
        .receive(transport, Kind::HostArrive, &header, &broadcast(rank))
        .expect("an arrival");
    run(transport, movers);
}

/// Delivers all messages and carries out all actions.
fn run(transport: &Recorder, movers: &mut [Mover<Recorder>]) {
    loop {
        for mover in movers.iter_mut() {
            mover.act(transport).expect("acts");
            mover.settle(transport).expect("settles");
        }
        let messages = transport.messages.take();
        if messages.is_empty() {
            return;
        }
        for (to, kind, token, data) in messages {
            movers[to as usize]
                .receive(transport, kind, &token.0, &data)
                .expect("a message");
        }
    }
}

#[test]
fn a_broadcast_crosses_the_network_once_per_service() {
    let transport = Recorder::default();
    let mut movers = [mover(0), mover(1)];
    for rank in [0, 1, 2] {
        enter(&transport, &mut movers, rank);
    }
    // One of the present ranks reads from the root, and the other waits for it.
    let root = (buffer(0), buffer(0));
    let reads = transport.reads.take();
    assert_eq!(reads.len(), 1);
    let (key, from, first) = reads[0];
    assert_eq!((key, from), root);
    transport.complete();
    run(&transport, &mut movers);
    let reads = transport.reads.take();
    assert_eq!(reads.len(), 1, "the other present rank copies");
    assert_eq!((reads[0].0, reads[0].1), (first, first));
    transport.complete();
    run(&transport, &mut movers);
    // The first rank waits for the one that is absent, so that its buffer stays.
    assert_eq!(transport.finished.get(), 1);
    enter(&transport, &mut movers, 3);
    assert_eq!(transport.reads.take(), [(first, first, buffer(3))]);
    transport.complete();
    run(&transport, &mut movers);
    assert_eq!(transport.finished.get(), 4, "all ranks are complete");
    let moved = movers[1].moved();
    assert_eq!(
        (moved.blocks, moved.copies, moved.copied_bytes),
        (3, 2, 2 * BLOCK)
    );
    assert!(movers.iter_mut().all(|mover| mover.shut(&transport)));
}

/// Messages of one pair with two tags, whose receiver posts them in another order. No other rank takes part.
#[test]
fn messages_match_by_their_tags_in_the_order_of_their_numbers() {
    let transport = Recorder::default();
    let mut movers = [mover(0), mover(1)];
    let mut post = |rank: u32, tag: u32, sequence: u32, length: u64| {
        let message = Message {
            from: 0,
            to: 2,
            tag,
        };
        let memory = || {
            Some(Export {
                address: buffer(rank) + (u64::from(tag) << 20) + (u64::from(sequence) << 16),
                length,
                packed: vec![1],
                name: None,
            })
        };
        let block = |peer| {
            BlockList::from(vec![Block {
                peer,
                offset: 0,
                length,
            }])
        };
        let is_sent = rank == message.from;
        let arrive = HostArrive {
            collective: Collective {
                communicator: message.communicator().expect("within the limits"),
                sequence,
                start: 0,
                step: 0,
            },
            rank,
            together: 1,
            send_memory: memory().filter(|_| is_sent),
            receive_memory: memory().filter(|_| !is_sent),
            sends: if is_sent {
                block(message.to)
            } else {
                Vec::new().into()
            },
            receives: if is_sent {
                Vec::new().into()
            } else {
                block(message.from)
            },
            short: Vec::new(),
            route: Route::Direct,
        };
        let of = SERVICE_OF[rank as usize] as usize;
        let header = token(rank).0;
        let arrived = movers[of].receive(&transport, Kind::HostArrive, &header, &arrive.to_bytes());
        arrived.expect("an arrival");
        run(&transport, &mut movers);
        transport.complete();
        run(&transport, &mut movers);
        (transport.reads.take(), transport.finished.take())
    };
    // Tag, number, length, as rank 0 sends them.
    for (tag, sequence, length) in [(7, 0, 4096), (3, 0, 8192), (7, 1, 1000)] {
        assert_eq!(post(0, tag, sequence, length), (Vec::new(), 0));
    }
    for (tag, sequence, length) in [(3, 0, 8192), (7, 0, 4096), (7, 1, 1000)] {
        let at = (u64::from(tag) << 20) + (u64::from(sequence) << 16);
        let (reads, finished) = post(2, tag, sequence, length);
        assert_eq!(reads, [(buffer(0) + at, buffer(0) + at, buffer(2) + at)]);
        assert_eq!(finished, 2, "both ends are complete");
    }
    assert!(movers.iter_mut().all(|mover| mover.shut(&transport)));
}

/// A rank has left a call before another one of its service enters it, and the service has always other work.
#[test]
fn blocks_do_not_wait_for_a_rank_that_has_left() {
    let transport = Recorder::default();
    let mut movers = [mover(0), mover(1)];
    let arrive = |rank: u32, sends: Vec<Block>| {
        let message = HostArrive {
            collective: Collective {
                communicator: 0,
                sequence: 0,
                start: 0,
                step: 0,
            },
            rank,
            together: 3,
            send_memory: None,
            receive_memory: None,
            short: vec![7; 8 * sends.len()],
            route: Route::Direct,
            sends: sends.into(),
            receives: Vec::new().into(),
        };
        message.to_bytes()
    };
    let to_rank_0 = Block {
        peer: 0,
        offset: 0,
        length: 8,
    };
    // It has no partners.
    for (rank, sends) in [(1, Vec::new()), (2, vec![to_rank_0])] {
        let data = arrive(rank, sends);
        movers[1]
            .receive(&transport, Kind::HostArrive, &token(rank).0, &data)
            .expect("an arrival");
        movers[1].act(&transport).expect("acts");
    }
    assert_eq!(transport.finished.get(), 1, "rank 1 has left");
    let mut rounds = 0;
    while transport.messages.borrow().is_empty() {
        rounds += 1;
        assert!(rounds < 5000, "the offer waits for ranks that do not come");
        movers[1].act(&transport).expect("acts");
    }
    assert!(rounds > 100, "after {rounds} rounds");
}

/// A rank's part in a call of all ranks. It sends `length` bytes to each.
fn exchange(rank: u32, sequence: u32, length: u64) -> Vec<u8> {
    let blocks = |length: u64| -> BlockList {
        let block = |peer: u32| Block {
            peer,
            offset: u64::from(peer) * BLOCK,
            length,
        };
        (0..4).map(block).collect()
    };
    let memory = Some(Export {
        address: buffer(rank),
        length: 4 * BLOCK,
        packed: vec![1; usize::from(sequence == 0)],
        name: Some(Name {
            slot: 0,
            generation: 1,
        }),
    });
    let arrive = HostArrive {
        collective: Collective {
            communicator: 0,
            sequence,
            start: 0,
            step: 0,
        },
        rank,
        together: if rank == 0 { 1 } else { 3 },
        send_memory: memory.clone(),
        receive_memory: memory,
        sends: blocks(length),
        receives: blocks(BLOCK),
        short: Vec::new(),
        route: Route::Direct,
    };
    arrive.to_bytes()
}

/// All ranks enter a call, and one read after the other ends. Returns the sorted reads, or the error.
fn call(
    transport: &Recorder,
    movers: &mut [Mover<Recorder>; 2],
    (sequence, length_of_3): (u32, u64),
) -> Result<Vec<(u64, u64, u64)>> {
    transport.reads.take();
    let all = transport.finished.get() + 4;
    for rank in 0..4 {
        let of = SERVICE_OF[rank as usize] as usize;
        let length = if rank == 3 { length_of_3 } else { BLOCK };
        let data = exchange(rank, sequence, length);
        movers[of].receive(transport, Kind::HostArrive, &token(rank).0, &data)?;
    }
    let mut steps = 0;
    while transport.finished.get() < all {
        for mover in movers.iter_mut() {
            mover.act(transport)?;
            mover.reap(transport)?;
            mover.act(transport)?;
        }
        for (to, kind, token, data) in transport.messages.take() {
            movers[to as usize].receive(transport, kind, &token.0, &data)?;
        }
        // One, two, three of them at a time: ends of a run come together and apart.
        steps += 1;
        assert!(steps < 100, "a rank does not get its blocks");
        let mut pending = transport.pending.borrow_mut();
        let at = pending.len().saturating_sub(steps % 4);
        pending
            .drain(at..)
            .for_each(|operation| operation.set(true));
    }
    let mut reads = transport.reads.take();
    reads.sort_unstable();
    Ok(reads)
}

#[test]
fn a_changed_rank_in_a_repeated_call_is_found_as_in_a_first_one() {
    let expect: Vec<(u64, u64, u64)> = (0..4)
        .flat_map(|from| (0..4).map(move |to| (from, to)))
        .map(|(from, to): (u32, u32)| {
            let at = |base: u32, index: u32| buffer(base) + u64::from(index) * BLOCK;
            (buffer(from), at(from, to), at(to, from))
        })
        .collect();
    for calls in [0, 1, 4] {
        let transport = Recorder::default();
        let mut movers = [mover(0), mover(1)];
        for sequence in 0..calls {
            let reads = call(&transport, &mut movers, (sequence, BLOCK)).expect("carried out");
            assert_eq!(reads, expect, "call {sequence}");
        }
        let error = call(&transport, &mut movers, (calls, BLOCK - 512)).expect_err("other counts");
        let error = error.to_string();
        let said = ["rank 3 sends 3584 bytes", "expects 4096"].map(|what| error.contains(what));
        assert_eq!(said, [true; 2], "after {calls} calls: {error}");
    }
}
