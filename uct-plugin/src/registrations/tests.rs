//! Tests of the table of registrations.

use super::*;
use std::collections::HashSet;
use std::ptr::without_provenance_mut;
use std::sync::Barrier;

#[derive(Debug)]
struct Own(Box<[Registration]>);

impl Source for Own {
    fn lines(&self) -> &Lines {
        (&*self.0).try_into().expect("its length")
    }
}

fn table() -> Registrations<Own> {
    let lines = (0..LINES).map(|_| Registration::NONE);
    Registrations {
        source: Own(lines.collect()),
    }
}

const KEY: BoundKey = BoundKey::from_bits(0x1234_56fb_0000_0007);

fn handle(at: usize) -> MemHandle {
    without_provenance_mut(0x7f00_0000_0000 + 64 * (at + 1))
}

fn md(at: usize) -> MdHandle {
    without_provenance_mut(0x1000 * (at + 1))
}

fn memory(address: usize) -> Memory {
    Memory {
        address,
        length: 2 * address,
        lkey: 0x4100,
    }
}

/// Handles with the same first line, at which a table is empty.
fn of_one_line(table: &Registrations<Own>, count: usize) -> Vec<usize> {
    let line = |at: usize| table.home(handle(at)).at;
    (0..)
        .filter(|at| line(*at) == line(0))
        .take(count)
        .collect()
}

#[track_caller]
fn exported(table: &Registrations<Own>, at: usize) -> Exported {
    match table.export(md(0), handle(at), None) {
        Export::Decided(_, exported) => exported,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn decide(table: &Registrations<Own>, at: usize, memory: Option<Memory>, exported: Exported) {
    match table.export(md(0), handle(at), memory) {
        Export::Deciding(line) => line.decide(exported),
        other => panic!("{other:?}"),
    }
}

fn is_empty(table: &Registrations<Own>) -> bool {
    let free = |line: &Registration| line.is_of(NO_MEMH) && !line.has_displaced();
    table.source.lines().iter().all(free)
}

#[test]
fn a_registration_is_found_until_it_is_forgotten() {
    let table = table();
    for at in 0..1000 {
        assert_eq!(table.note(md(0), handle(at), memory(at)), None);
    }
    let found = table.known(handle(7)).expect("noted");
    assert_eq!(found.memory(), memory(7));
    assert!(table.known(handle(1000)).is_none());
    assert_eq!(table.forget(handle(7)), Some(Exported::No));
    assert_eq!(table.forget(handle(7)), None);
    assert!(table.known(handle(7)).is_none());
}

#[test]
fn the_first_decision_holds() {
    let table = table();
    // Recorded at its registration.
    table.note(md(0), handle(1), memory(1));
    decide(&table, 1, None, Exported::FromPool(KEY));
    assert_eq!(exported(&table, 1), Exported::FromPool(KEY));
    // A second record of a handle means that it was freed without this library's knowledge.
    assert_eq!(table.note(md(0), handle(1), memory(2)), Some(KEY));
    decide(&table, 1, None, Exported::Natively);
    assert_eq!(exported(&table, 1), Exported::Natively);
    assert_eq!(table.forget(handle(1)), Some(Exported::Natively));
    // Recorded at its export.
    decide(&table, 1, Some(memory(3)), Exported::FromPool(KEY));
    assert_eq!(exported(&table, 1), Exported::FromPool(KEY));
    assert_eq!(table.known(handle(1)).expect("noted").memory(), memory(3));
    assert_eq!(table.forget(handle(1)), Some(Exported::FromPool(KEY)));
    // Memory that nothing shows.
    assert!(matches!(
        table.export(md(0), handle(1), None),
        Export::Unknown
    ));
    assert!(is_empty(&table));
}

#[test]
fn the_key_of_another_domain_is_not_returned() {
    let table = table();
    for at in 0..LINES / 2 {
        decide(&table, at, Some(memory(at)), Exported::FromPool(KEY));
        assert_eq!(table.note(md(1), handle(at), memory(at)), None);
        assert_eq!(table.forget(handle(at)), Some(Exported::No));
    }
    assert!(is_empty(&table));
}

#[test]
fn a_handle_whose_first_line_is_occupied_gets_another_one() {
    let table = table();
    let all = of_one_line(&table, WINDOW + 1);
    for at in &all[..WINDOW] {
        decide(&table, *at, Some(memory(*at)), Exported::FromPool(KEY));
    }
    // No line is left: UCX handles it.
    let last = all[WINDOW];
    assert!(matches!(
        table.export(md(0), handle(last), Some(memory(1))),
        Export::Full
    ));
    assert_eq!(table.forget(handle(last)), None);
    // A handle that leaves its line moves no other.
    assert_eq!(table.forget(handle(all[0])), Some(Exported::FromPool(KEY)));
    for at in &all[1..WINDOW] {
        let found = table.known(handle(*at)).expect("recorded");
        assert_eq!(found.memory(), memory(*at));
        assert_eq!(exported(&table, *at), Exported::FromPool(KEY));
    }
    // A second record finds the first one wherever it is.
    for at in &all[1..WINDOW] {
        assert_eq!(table.note(md(0), handle(*at), memory(5)), Some(KEY));
        let found = table.known(handle(*at)).expect("recorded");
        assert_eq!(found.memory(), memory(5));
        assert_eq!(table.forget(handle(*at)), Some(Exported::No));
        assert!(table.known(handle(*at)).is_none());
    }
    assert!(is_empty(&table));
}

#[test]
fn threads_that_export_one_handle_get_one_decision() {
    let table = table();
    // Of one first line, so that some are displaced.
    let all = of_one_line(&table, 3);
    for round in 0..2000 {
        let at = all[round % 3];
        // One handle keeps the first line occupied in some rounds.
        let other = all[(round + 1) % 3];
        if round % 2 == 0 {
            decide(&table, other, Some(memory(1)), Exported::Natively);
        }
        let ready = Barrier::new(3);
        let decide = |number: u64| {
            ready.wait();
            let own = Exported::FromPool(BoundKey::from_bits((round as u64 + 1) << 40 | number));
            if let Some(line) = table.begin(md(0), handle(at), memory(at)) {
                line.decide(own);
                return own;
            }
            match table.export(md(0), handle(at), Some(memory(at))) {
                Export::Decided(_, exported) => exported,
                Export::Deciding(line) => {
                    line.decide(own);
                    own
                }
                Export::Unknown | Export::Full => panic!("lines are free"),
            }
        };
        let found: Vec<Exported> = std::thread::scope(|scope| {
            let threads = [1, 2, 3].map(|number| scope.spawn(move || decide(number)));
            threads
                .map(|thread| thread.join().expect("no panic"))
                .into()
        });
        assert!(
            found.iter().all(|exported| *exported == found[0]),
            "{found:?}"
        );
        assert_eq!(table.forget(handle(at)), Some(found[0]));
        table.forget(handle(other));
    }
    assert!(is_empty(&table));
}

#[test]
fn threads_with_handles_of_one_line_do_not_meet() {
    let table = table();
    let all = of_one_line(&table, 4);
    std::thread::scope(|scope| {
        for at in &all {
            let table = &table;
            scope.spawn(move || {
                let key = BoundKey::from_bits((*at as u64 + 1) << 32);
                for round in 0..20_000 {
                    let begun = table.begin(md(*at), handle(*at), memory(round));
                    match begun.map_or_else(
                        || table.export(md(*at), handle(*at), Some(memory(round))),
                        Export::Deciding,
                    ) {
                        Export::Deciding(line) => line.decide(Exported::FromPool(key)),
                        other => panic!("{other:?}"),
                    }
                    let found = table.known(handle(*at)).expect("recorded");
                    assert_eq!(found.memory(), memory(round));
                    assert_eq!(table.forget(handle(*at)), Some(Exported::FromPool(key)));
                }
            });
        }
    });
    assert!(is_empty(&table));
}

#[test]
fn a_domain_is_forgotten_and_others_stay() {
    let table = table();
    let mut keys = HashSet::new();
    for at in 0..4000 {
        let of = md(at % 2);
        match at % 4 {
            0 => {
                let Export::Deciding(line) = table.export(of, handle(at), Some(memory(at))) else {
                    panic!("lines are free");
                };
                let key = (at as u64 + 1) << 32;
                line.decide(Exported::FromPool(BoundKey::from_bits(key)));
                keys.insert(key);
            }
            _ => assert_eq!(table.note(of, handle(at), memory(at)), None),
        }
    }
    table.forget_all(md(0).addr(), |key| assert!(keys.remove(&key.to_bits())));
    assert!(keys.is_empty());
    let left = (0..4000).filter(|at| table.known(handle(*at)).is_some());
    assert!(left.eq((0..4000).filter(|at| at % 2 == 1)));
    table.forget_all(md(1).addr(), |_key| ());
    assert!(is_empty(&table));
}

/// A thousand times the handles that a rank has at a time: further ones are refused, and each one that ends makes
/// room for another.
#[test]
fn a_full_table_refuses_further_handles_and_serves_again() {
    let table = table();
    let mut refused = Vec::new();
    let mut served = Vec::new();
    for at in 0..2 * LINES {
        match table.export(md(0), handle(at), Some(memory(at))) {
            Export::Deciding(line) => {
                line.decide(Exported::FromPool(KEY));
                served.push(at);
            }
            Export::Full => refused.push(at),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        served.len() > LINES * 9 / 10,
        "{} lines in use",
        served.len()
    );
    assert_eq!(served.len() + refused.len(), 2 * LINES);
    for at in &served {
        assert_eq!(exported(&table, *at), Exported::FromPool(KEY));
    }
    for at in &refused {
        assert!(table.known(handle(*at)).is_none());
        assert!(table.forget(handle(*at)).is_none());
    }
    for at in served {
        assert_eq!(table.forget(handle(at)), Some(Exported::FromPool(KEY)));
    }
    assert!(is_empty(&table));
    decide(&table, refused[0], Some(memory(1)), Exported::Natively);
}
