//! Tests of the simulation's parts.

use super::*;
use crate::scheme::Scheme;

fn config(nodes: u32, ppn: u32) -> Config {
    Config {
        nodes,
        ppn,
        ..Config::slides(1 << 20, Scheme::Free)
    }
}

/// The schedule in plain arithmetic: rank g sends block i to rank g + i.
#[test]
fn blocks_go_where_the_schedule_says() {
    for (nodes, ppn) in [(1, 5), (2, 1), (3, 4), (4, 3)] {
        let config = config(nodes, ppn);
        let engine = Engine::new(&config, nodes, nodes);
        let ranks = nodes * ppn;
        for from in 0..ranks {
            for step in 1..ranks {
                let to = (from + step) % ranks;
                let (away, receiver) = engine.receiver(from / ppn, from % ppn, step);
                assert_eq!((receiver.node, receiver.local), (to / ppn, to % ppn));
                assert_eq!(away == 0, from / ppn == to / ppn);
                let sender = engine.sender(to / ppn, to % ppn, step);
                assert_eq!((sender.node, sender.local), (from / ppn, from % ppn));
            }
        }
    }
}

#[test]
fn work_of_a_call_does_not_depend_on_the_order_of_its_events() {
    for (nodes, ppn, sps) in [(2, 1, 1), (3, 5, 2), (4, 7, 7), (6, 3, 16), (8, 16, 3)] {
        for local_uses_port in [false, true] {
            let mut config = config(nodes, ppn);
            (config.sps, config.block_bytes) = (sps, 3000);
            config.assumptions.local_uses_port = local_uses_port;
            let mut engine = Engine::new(&config, nodes, 1);
            let found = engine.messages_and_port_ps();
            let table = crate::CostTable::slides().expect("the committed file");
            let call = engine.call(KeyWork::of(&config, &table, false));
            assert_eq!(found, (call.messages_ps, call.port_ps), "{config:?}");
        }
    }
}

fn event(kind: Kind, at_ps: u64, local: u32, step: u32) -> Event {
    Event {
        at_ps,
        node: 0,
        kind,
        local,
        step,
    }
}

/// Processes events at node 0 of three, with two ranks each, and returns the times of the resulting events.
fn caused(events: &[Event]) -> (Engine<'static>, Vec<(Kind, u64)>) {
    let config = Box::leak(Box::new(config(3, 2)));
    let mut engine = Engine::new(config, 3, 3);
    for event in events {
        engine.handle(*event);
    }
    let mut caused: Vec<(Kind, u64)> = std::iter::from_fn(|| engine.events.pop())
        .map(|event| (event.kind, event.at_ps))
        .collect();
    caused.sort();
    (engine, caused)
}

#[test]
fn a_port_takes_one_block_at_a_time_in_each_direction() {
    let start_ps = 1_000_000;
    let (engine, reads) = caused(&[
        event(Kind::Response, start_ps, 0, 2),
        event(Kind::Response, start_ps, 1, 3),
    ]);
    let block = engine.times.block;
    assert_eq!(
        reads,
        [
            (Kind::Read, start_ps + block),
            (Kind::Read, start_ps + 2 * block)
        ]
    );

    // Rank 0's blocks 2 and 3 leave the node, its block 1 does not.
    let (engine, responses) = caused(&[
        event(Kind::Request, start_ps, 0, 2),
        event(Kind::Request, start_ps, 0, 3),
        event(Kind::Request, start_ps, 0, 1),
    ]);
    let wire = engine.times.wire;
    assert_eq!(
        responses,
        [
            (Kind::Response, start_ps + wire),
            (Kind::Response, start_ps + block + wire),
            (Kind::Read, start_ps + block + wire),
        ]
    );
}

#[test]
fn credits_bound_what_an_sp_has_in_flight() {
    let mut config = config(4, 2);
    (config.sps, config.send_credits, config.receive_credits) = (1, 3, 2);
    let mut engine = Engine::new(&config, 4, 4);
    engine.handle(event(Kind::Arrive, 0, 0, 0));
    engine.handle(event(Kind::Arrive, 0, 1, 0));
    for step in 1..8 {
        engine.handle(event(Kind::Rts, 0, 0, step));
    }
    let count = |engine: &Engine<'_>, kind| {
        let events = engine.events.iter();
        events.filter(|event| event.kind == kind).count()
    };
    assert_eq!(count(&engine, Kind::Rts), 3);
    assert_eq!(count(&engine, Kind::Request), 2);
    engine.handle(event(Kind::Ack, 0, 0, 1));
    engine.handle(event(Kind::Read, 0, 0, 1));
    assert_eq!(count(&engine, Kind::Rts), 4);
    assert_eq!(count(&engine, Kind::Request), 3);
}

#[test]
fn lanes_take_one_command_each() {
    let command = Step {
        ns: 10.0,
        command: true,
    };
    let other = Step {
        ns: 10.0,
        command: false,
    };
    let check = |lanes: usize, step, expect: [u64; 3]| {
        let mut lanes = vec![0; lanes];
        assert_eq!([5, 5, 5].map(|at| run(&mut lanes, at, step)), expect);
    };
    check(0, command, [10_005, 10_005, 10_005]);
    check(1, command, [10_005, 20_005, 30_005]);
    check(2, command, [10_005, 10_005, 20_005]);
    check(1, other, [10_005, 10_005, 10_005]);
}
