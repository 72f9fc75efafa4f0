//! State left by a process that is killed during its work. Each test creates the state directly.
//! The next holder of the lock repairs it.

use super::*;
use crate::engine::complete::recover;
use crate::engine::event::Event;
use crate::engine::owed::{self, Object};
use crate::fabric::journal::{Record, Take, TakenFrom};
use crate::fabric::objects::{Channel, ChannelKind, Migration, Srq};

fn completion(byte_count: u32) -> Cqe {
    Cqe {
        opcode: cqe_opcode::RESP_SEND,
        byte_count,
        ..Cqe::default()
    }
}

/// The journal record of the dead process: the first entry of `queue`'s receive queue completes
/// with `byte_count`.
fn write_down(world: &World, queue: &Queue, byte_count: u32) -> Record {
    let mut locked = world.fabric.lock();
    let slot = queue.qpn - QPN_BASE;
    let tables = locked.peek(queue.function);
    let cq = tables.qps.get(slot).unwrap().recv_cq;
    let function = queue.function;
    let record = Record {
        take: Take {
            from: TakenFrom::Receive,
            function,
            slot,
            counter: 1,
            head: 0,
        },
        function,
        slot: cq,
        generation: tables.cqs.generation(cq).unwrap(),
        produced: 1,
        consumed: 0,
        address: address(&queue.cqes),
        entry: completion(byte_count).to_bytes(),
    };
    let _left_open = locked.function(function).journal.begin(record);
    record
}

fn counters(world: &World, queue: &Queue) -> (u32, u32) {
    let locked = world.fabric.lock();
    let tables = locked.peek(queue.function);
    let qp = tables.qps.get(queue.qpn - QPN_BASE).unwrap();
    (qp.rq_done, tables.cqs.get(qp.recv_cq).unwrap().produced)
}

#[test]
fn a_completion_is_written_whole_wherever_its_writer_died() {
    // Number of the three changes that the dead process made.
    for made in 0..=3 {
        let world = World::new();
        let mut queue = world.queue(HOST);
        let record = write_down(&world, &queue, 77);
        if made >= 1 {
            world.change(&queue, |qp| qp.rq_done = 1);
        }
        if made >= 2 {
            queue.cqes[..CQE_BYTES].copy_from_slice(&record.entry);
        }
        if made >= 3 {
            let mut locked = world.fabric.lock();
            let cqs = &mut locked.function(HOST).cqs;
            cqs.get_mut(record.slot).unwrap().produced = 1;
        }
        recover(&mut world.fabric.lock());
        assert_eq!(counters(&world, &queue), (1, 1), "{made} made");
        let found = queue.completions();
        assert_eq!(found, [completion(77)], "{made} made");
        assert!(world.fabric.lock().peek(HOST).journal.pending().is_none());
        // The next completion follows it.
        let other = world.queue(FAR);
        world.connect(&queue, &other);
        assert_eq!(world.post(&mut queue, opcode::NOP, 0, &[]).len(), 1);
        assert_eq!(counters(&world, &queue), (1, 2), "{made} made");
    }
}

#[test]
fn a_completion_for_a_queue_that_is_another_by_now_is_forgotten() {
    let world = World::new();
    let mut queue = world.queue(HOST);
    let record = write_down(&world, &queue, 77);
    {
        let mut locked = world.fabric.lock();
        let cqs = &mut locked.function(HOST).cqs;
        let cq = cqs.remove(record.slot).unwrap();
        assert_eq!(cqs.insert(world.owner, cq), Some(record.slot));
    }
    recover(&mut world.fabric.lock());
    assert_eq!(counters(&world, &queue), (0, 0));
    assert_eq!(queue.completions(), []);
}

#[test]
fn a_queue_that_was_half_flushed_is_flushed() {
    let world = World::new();
    let mut queue = world.queue(HOST);
    for _ in 0..3 {
        queue.post_receive(0x1234, &[0; 8]);
    }
    // The dead process had set the error state and flushed nothing.
    world.change(&queue, |qp| qp.state = state::ERR);
    recover(&mut world.fabric.lock());
    let found = queue.completions();
    assert_eq!(found.len(), 3, "{found:?}");
    let flushed = |cqe: &Cqe| cqe.syndrome == syndrome::WR_FLUSH_ERR;
    assert!(found.iter().all(flushed), "{found:?}");
    assert_eq!(counters(&world, &queue), (3, 3));
}

/// The read end of a new channel of asynchronous events, and its number, counted from 1.
pub(super) fn async_channel(world: &World, function: usize) -> (i32, u32) {
    let (read_end, write_end) = sys::pipe(true).unwrap();
    let channel = Channel {
        kind: ChannelKind::Async,
        write_fd: write_end,
        ..Channel::default()
    };
    let mut locked = world.fabric.lock();
    let channels = &mut locked.function(function).channels;
    (read_end, channels.insert(world.owner, channel).unwrap() + 1)
}

/// The verbs events in a channel, by number, each with the object's name.
pub(super) fn events(read_end: i32) -> Vec<(u64, u32)> {
    sys::set_nonblocking(read_end).unwrap();
    let mut bytes = [0; 16];
    let next = || {
        (sys::read(read_end, &mut bytes) == Ok(16)).then(|| {
            let name = u64::from_ne_bytes(*bytes.first_chunk().unwrap());
            (name, u32::from_ne_bytes(*bytes[8..].first_chunk().unwrap()))
        })
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn an_event_that_is_owed_is_sent_once_wherever_its_sender_died() {
    const NAME: u64 = 0x1234;
    // Progress of the dead process: event recorded, state changed, owner notified.
    for made in 1..=3 {
        let world = World::new();
        let queue = world.queue(HOST);
        let (read_end, channel) = async_channel(&world, HOST);
        world.change(&queue, |qp| {
            (qp.event_channel, qp.user_handle) = (channel, NAME);
        });
        let slot = queue.qpn - QPN_BASE;
        let owed = Event::QpFatal.bit() | Event::LastWqe.bit();
        let pair = Object::QueuePair(slot);
        owed::owe(&mut world.fabric.lock(), HOST, pair, owed);
        if made >= 2 {
            world.change(&queue, |qp| qp.state = state::ERR);
        }
        if made >= 3 {
            owed::pay(&mut world.fabric.lock(), HOST, pair);
        }
        for _ in 0..2 {
            recover(&mut world.fabric.lock());
        }
        assert_eq!(world.state(&queue), state::ERR, "{made} made");
        assert_eq!(events(read_end), [(NAME, 1), (NAME, 16)], "{made} made");
        let locked = world.fabric.lock();
        let qp = locked.peek(HOST).qps.get(slot).unwrap();
        assert_eq!((qp.events_sent, qp.owed), (2, 0), "{made} made");
    }
}

#[test]
fn a_migration_whose_sender_died_is_completed_and_told_once() {
    const NAME: u64 = 0x1234;
    const PATH_MIG: u32 = 6;
    let world = World::new();
    let (a, _b) = world.pair(HOST, FAR);
    let (read_end, channel) = async_channel(&world, HOST);
    world.change(&a, |qp| {
        (qp.event_channel, qp.user_handle) = (channel, NAME);
        qp.migration = Migration::Armed;
        qp.alternate.timeout = 9;
    });
    let slot = a.qpn - QPN_BASE;
    let event = Event::PathMigrated.bit();
    owed::owe(
        &mut world.fabric.lock(),
        HOST,
        Object::QueuePair(slot),
        event,
    );
    for _ in 0..2 {
        recover(&mut world.fabric.lock());
    }
    assert_eq!(events(read_end), [(NAME, PATH_MIG)]);
    let locked = world.fabric.lock();
    let qp = locked.peek(HOST).qps.get(slot).unwrap();
    assert_eq!((qp.migration, qp.path.timeout), (Migration::Migrated, 9));
}

#[test]
fn completion_queues_and_shared_queues_are_not_owed_events_for_long() {
    let world = World::new();
    let queue = world.queue(HOST);
    let (read_end, channel) = async_channel(&world, HOST);
    let cq = {
        let locked = world.fabric.lock();
        let qp = locked.peek(HOST).qps.get(queue.qpn - QPN_BASE);
        qp.unwrap().send_cq
    };
    let mut locked = world.fabric.lock();
    let tables = locked.function(HOST);
    let queue = tables.cqs.get_mut(cq).unwrap();
    (queue.event_channel, queue.user_handle) = (channel, 7);
    let srq = Srq {
        event_channel: channel,
        user_handle: 8,
        limit: 5,
        ..Srq::default()
    };
    let srq = tables.srqs.insert(world.owner, srq).unwrap();
    for (object, event) in [
        (Object::CompletionQueue(cq), Event::CqError),
        (Object::SharedQueue(srq), Event::SrqLimit),
    ] {
        owed::owe(&mut locked, HOST, object, event.bit());
    }
    recover(&mut locked);
    recover(&mut locked);
    assert_eq!(events(read_end), [(7, 0), (8, 15)]);
    let tables = locked.peek(HOST);
    let (cq, srq) = (tables.cqs.get(cq).unwrap(), tables.srqs.get(srq).unwrap());
    assert_eq!((cq.async_events_sent, cq.owed, cq.overrun), (1, 0, true));
    assert_eq!((srq.events_sent, srq.owed, srq.limit), (1, 0, 0));
}

#[test]
fn a_queue_of_a_thread_that_is_gone_is_taken_over() {
    let world = World::new();
    let (mut a, _b) = world.pair(HOST, FAR);
    let ended = std::thread::spawn(sys::thread_id).join().unwrap();
    sys::tasks::wait_for_end(ended);
    world.change(&a, |qp| qp.busy = ended);
    expect_success(&world.post(&mut a, opcode::NOP, 0, &[]), 0);
    // The `busy` mark of a live thread stays.
    world.change(&a, |qp| qp.busy = sys::thread_id());
    assert_eq!(world.post(&mut a, opcode::NOP, 0, &[]), []);
}

#[test]
fn a_process_that_ended_is_known_by_its_thread() {
    let world = World::new();
    let me = {
        let locked = world.fabric.lock();
        locked.pid(world.owner.process)
    };
    assert_eq!(me, Some(sys::pid()));
    let slot = world.owner.process - 1;
    world.fabric.renew_life(&world.fabric.lock(), slot).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let fabric = &world.fabric;
        let life = scope.spawn(move || {
            fabric.live(slot);
            (receiver.recv(), sys::thread_id())
        });
        while world.fabric.life(slot) != Some(crate::fabric::lock::Holder::Alive) {
            std::thread::yield_now();
        }
        assert_eq!(world.fabric.lock().sweep(), 0);
        drop(sender);
        let (told, thread) = life.join().unwrap();
        assert!(told.is_err());
        sys::tasks::wait_for_end(thread);
    });
    // The number still exists and is no longer used.
    assert_eq!(world.fabric.lock().pid(world.owner.process), None);
    let (mut a, b) = world.pair(HOST, FAR);
    assert_eq!(world.post(&mut a, opcode::NOP, 0, &[]), []);
    assert_eq!(world.fabric.lock().sweep(), 1);
    let locked = world.fabric.lock();
    assert_eq!(locked.peek(HOST).qps.live(), 0);
    assert_eq!(locked.peek(b.function).cqs.live(), 0);
}

#[test]
fn a_program_that_takes_the_place_of_another_takes_nothing_of_it_over() {
    let world = World::new();
    let (a, _b) = world.pair(HOST, FAR);
    let mut locked = world.fabric.lock();
    assert_eq!(locked.peek(a.function).qps.live(), 1);
    // A new process with the same number and start time does the same.
    locked.release_pid(sys::pid());
    assert_eq!(locked.peek(a.function).qps.live(), 0);
    assert_eq!(locked.common().processes.live(), 0);
    assert_eq!(locked.pid(world.owner.process), None);
}

#[test]
fn a_peer_that_is_gone_answers_no_more() {
    let world = World::new();
    let (mut a, b) = world.pair(HOST, FAR);
    // The peer belongs to a process that has ended. Another process may have its number.
    let (dead, slot) = {
        let mut locked = world.fabric.lock();
        let me = *locked
            .common()
            .processes
            .get(world.owner.process - 1)
            .unwrap();
        let index = locked
            .common()
            .processes
            .insert(Owner::default(), me)
            .unwrap();
        world.fabric.renew_life(&locked, index).unwrap();
        (index + 1, b.qpn - QPN_BASE)
    };
    let life = || {
        world.fabric.live(dead - 1);
        sys::thread_id()
    };
    let thread = std::thread::scope(|scope| scope.spawn(life).join().unwrap());
    sys::tasks::wait_for_end(thread);
    {
        let mut locked = world.fabric.lock();
        let qps = &mut locked.function(FAR).qps;
        let qp = qps.remove(slot).unwrap();
        let owner = Owner {
            process: dead,
            context: 1,
        };
        assert_eq!(qps.insert(owner, qp), Some(slot));
    }
    world.change(&a, |qp| (qp.path.timeout, qp.path.retry_count) = (1, 0));
    let bytes = [0u8; 8];
    let key = world.region(HOST, &bytes, ALL_RIGHTS);
    let mut found = world.write(&mut a, (key, &bytes), (key, address(&bytes)));
    let start = sys::now_ns();
    while found.is_empty() {
        assert!(sys::now_ns() - start < 10_000_000_000, "it never failed");
        run(&world.fabric, a.function, a.qpn);
        found = a.completions();
    }
    expect_error(&found, syndrome::TRANSPORT_RETRY_EXC_ERR);
}
