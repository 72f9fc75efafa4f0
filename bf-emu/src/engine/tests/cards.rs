//! Requests between different cards do not wait for each other, and one card's damage is repaired alone.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::fabric::Locked;
use crate::fabric::journal::{Record, Take};

/// Bounds a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// The host function of a node.
fn host(node: usize) -> usize {
    2 * node
}

/// A connection whose writes are counted: each carries a number, and each is checked.
struct Counting<'a> {
    world: &'a World,
    queues: (Queue, Queue),
    /// The device reads and writes both by address.
    words: (Box<[u8; 8]>, Box<[u8; 8]>),
    keys: (u32, u32),
}

impl<'a> Counting<'a> {
    fn new(world: &'a World, (from, to): (usize, usize)) -> Self {
        let queues = world.pair(from, to);
        // Nobody reads its entries.
        let mut locked = world.fabric.lock();
        let cqs = &mut locked.function(from).cqs;
        let slots: Vec<_> = cqs.iter().map(|(slot, ..)| slot).collect();
        for slot in slots {
            cqs.get_mut(slot).unwrap().ignore_overrun = true;
        }
        drop(locked);
        let words = (Box::new([0; 8]), Box::new([0; 8]));
        let keys = (
            world.region(from, &words.0[..], ALL_RIGHTS),
            world.region(to, &words.1[..], ALL_RIGHTS),
        );
        Self {
            world,
            queues,
            words,
            keys,
        }
    }

    fn count_to(&mut self, last: u64) {
        let space = crate::memory::Space::of(sys::pid());
        let (source, target) = (address(&self.words.0[..]), address(&self.words.1[..]));
        let remote = RemoteAddress {
            address: target,
            rkey: self.keys.1,
        };
        let body = [
            &remote.to_bytes()[..],
            &segment(self.keys.0, &self.words.0[..]),
        ]
        .concat();
        let ctrl = Ctrl {
            opcode: opcode::RDMA_WRITE,
            ..Ctrl::default()
        };
        let queue = &mut self.queues.0;
        for number in 1..=last {
            space.write(source, &number.to_le_bytes()).unwrap();
            queue.lay(ctrl, &body);
            queue.ring_doorbell();
            run(&self.world.fabric, queue.function, queue.qpn);
            let mut arrived = [0; 8];
            space.read(target, &mut arrived).unwrap();
            assert_eq!(u64::from_le_bytes(arrived), number);
        }
    }
}

fn waits(world: &World, nodes: usize) -> Vec<u64> {
    (0..nodes)
        .map(|node| world.fabric.lock_waits(host(node)))
        .collect()
}

#[test]
fn a_request_does_not_wait_for_another_card() {
    let world = World::with_nodes(4);
    let (mut a, _b) = world.pair(host(2), host(3));
    let bytes = [7_u8; 8];
    let keys = [host(2), host(3)].map(|function| world.region(function, &bytes, ALL_RIGHTS));
    let (done, is_done) = mpsc::channel();
    let held = world.fabric.lock_function(host(0));
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            let found = world.write(&mut a, (keys[0], &bytes), (keys[1], address(&bytes)));
            done.send(found.len()).unwrap();
        });
        let found = is_done.recv_timeout(LIMIT);
        drop(held);
        found
    });
    assert_eq!(found, Ok(1));
    assert_eq!(waits(&world, 4), [0; 4]);
}

/// Holds locks until a write of the pair has waited for one. Returns its waits, and those that concerned all locks.
fn waits_behind<'w>(world: &'w World, hold: fn(&'w Fabric) -> Locked<'w>) -> (u64, u64) {
    let mut pair = Counting::new(world, (host(0), host(1)));
    let now = || {
        let of = |count: fn(&Fabric, usize) -> u64| count(&world.fabric, host(0));
        (of(Fabric::lock_waits), of(Fabric::lock_waits_of_all))
    };
    let (waits, of_all) = now();
    std::thread::scope(|scope| {
        let held = hold(&world.fabric);
        scope.spawn(|| pair.count_to(1));
        let began = std::time::Instant::now();
        while now().0 == waits && began.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        drop(held);
    });
    (now().0 - waits, now().1 - of_all)
}

#[test]
fn waits_for_takers_of_all_locks_are_counted_apart() {
    let world = World::with_nodes(4);
    let one = waits_behind(&world, |fabric| fabric.lock_function(host(0)));
    assert_eq!(one, (1, 0));
    assert_eq!(waits_behind(&world, Fabric::lock), (1, 1));
}

#[test]
fn pairs_of_different_cards_never_wait() {
    let world = World::with_nodes(8);
    let pairs = [(0, 1), (3, 2), (4, 5), (7, 6)];
    let mut pairs = pairs.map(|(from, to)| Counting::new(&world, (host(from), host(to))));
    let before = waits(&world, 8);
    std::thread::scope(|scope| {
        for pair in &mut pairs {
            scope.spawn(|| pair.count_to(5_000));
        }
    });
    assert_eq!(waits(&world, 8), before);
}

#[test]
fn connections_in_a_ring_and_takers_of_all_locks_all_proceed() {
    let world = World::with_nodes(4);
    let pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (2, 0), (1, 1)];
    let mut pairs = pairs.map(|(from, to)| Counting::new(&world, (host(from), host(to))));
    std::thread::scope(|scope| {
        for pair in &mut pairs {
            scope.spawn(|| pair.count_to(3_000));
        }
        scope.spawn(|| {
            for _ in 0..3_000 {
                let locked = world.fabric.lock();
                assert!(locked.is_whole());
            }
        });
    });
    assert_eq!(world.fabric.repairs(), 0);
}

/// A thread ends while it holds a lock, and leaves a completion of `queue` unfinished.
fn dies_with(world: &World, queue: &Queue) {
    let dies = || {
        let mut locked = world.fabric.lock_function(queue.function);
        let tables = locked.peek(queue.function);
        let slot = tables.qps.get(queue.qpn - QPN_BASE).unwrap().recv_cq;
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_SEND,
            byte_count: 77,
            ..Cqe::default()
        };
        let record = Record {
            take: Take::default(),
            function: queue.function,
            slot,
            generation: tables.cqs.generation(slot).unwrap(),
            produced: 1,
            consumed: 0,
            address: address(&queue.cqes),
            entry: cqe.to_bytes(),
        };
        let _unfinished = locked.function(queue.function).journal.begin(record);
        std::mem::forget(locked);
    };
    std::thread::scope(|scope| scope.spawn(dies).join().unwrap());
}

#[test]
fn a_death_on_one_card_is_repaired_by_its_next_user() {
    let world = World::with_nodes(4);
    let mut near = Counting::new(&world, (host(0), host(1)));
    let mut far = Counting::new(&world, (host(3), host(2)));
    dies_with(&world, &far.queues.1);
    // The other cards are sound.
    near.count_to(3);
    assert_eq!(world.fabric.repairs(), 0);
    assert!(far.queues.1.completions().is_empty());
    // The lock of the dead thread is the second one that this connection takes.
    far.count_to(3);
    assert_eq!(world.fabric.repairs(), 1);
    let found = far.queues.1.completions();
    assert_eq!((found.len(), found[0].byte_count), (1, 77));
    near.count_to(5);
    far.count_to(5);
    assert!(world.fabric.lock().is_whole());
    assert_eq!(world.fabric.repairs(), 1);
}

#[test]
fn deaths_on_several_cards_are_one_repair() {
    let world = World::with_nodes(3);
    let mut pair = Counting::new(&world, (host(0), host(1)));
    let other = world.pair(host(2), host(1)).0;
    dies_with(&world, &pair.queues.1);
    dies_with(&world, &other);
    let mut other = other;
    assert!(pair.queues.1.completions().is_empty());
    pair.count_to(2);
    assert_eq!(world.fabric.repairs(), 1);
    assert_eq!(other.completions().len(), 1);
    assert_eq!(pair.queues.1.completions().len(), 1);
}

#[test]
fn a_process_that_is_gone_is_released_after_the_locks_of_two_cards() {
    let world = World::with_nodes(3);
    let mut pair = Counting::new(&world, (host(0), host(1)));
    pair.count_to(1);
    let mut locked = world.fabric.lock_function(host(0));
    locked.release_if_gone(world.owner.process);
    assert!(locked.holds(host(0)) && !locked.is_whole());
    drop(locked);
    // It is alive.
    pair.count_to(2);
}
