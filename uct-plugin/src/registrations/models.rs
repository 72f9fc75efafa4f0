//! Models for loom: small programs of two threads, in every order of their steps. `tests/models` runs them.

use super::*;
use loom::thread;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

const MD: usize = 0x1000;
const KEYS: [BoundKey; 2] = [
    BoundKey::from_bits(0x1234_56fb_0000_0007),
    BoundKey::from_bits(0x1234_57fb_0000_0008),
];

#[derive(Debug)]
struct Own(Lines);

impl Source for Own {
    fn lines(&self) -> &Lines {
        &self.0
    }
}

type Table = Arc<Registrations<Own>>;

/// Runs a model with at most two preemptions, which still finds nearly all errors.
fn model(body: impl Fn(Table) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let source = Own(std::array::from_fn(|_| Registration::default()));
        body(Arc::new(Registrations { source }));
    });
}

fn md() -> MdHandle {
    without_provenance_mut(MD)
}

/// Addresses of two handles with the same first line.
fn handles(table: &Table) -> [usize; 2] {
    let handle = |at: usize| 0x7f00_0000_0000 + 64 * at;
    let line = |memh: usize| table.home(without_provenance_mut(memh)).at;
    let other = (1..)
        .map(handle)
        .find(|memh| line(*memh) == line(handle(0)));
    [handle(0), other.expect("one of four")]
}

fn memory(memh: usize) -> Memory {
    Memory {
        address: memh + 1,
        length: memh + 2,
        lkey: 0x4100,
    }
}

/// Exports a handle, with a key of its own if this thread decides. The memory of the line must be the handle's. Returns its key.
fn export(table: &Table, memh: usize, key: BoundKey) -> BoundKey {
    let handle = without_provenance_mut(memh);
    match table.export(md(), handle, Some(memory(memh))) {
        Export::Deciding(line) => {
            assert_eq!(line.memory(), memory(memh));
            line.decide(Exported::FromPool(key));
            key
        }
        Export::Decided(line, Exported::FromPool(key)) => {
            assert_eq!(line.memory(), memory(memh));
            key
        }
        other => panic!("{other:?}"),
    }
}

fn forget(table: &Table, memh: usize) -> Option<Exported> {
    table.forget(without_provenance_mut(memh))
}

fn assert_is_empty(table: &Table) {
    let free = |line: &Registration| line.is_of(NO_MEMH) && !line.has_displaced();
    assert!(table.source.lines().iter().all(free));
}

#[test]
fn threads_that_export_one_handle_get_one_key() {
    for is_noted in [false, true] {
        model(move |table| {
            let [memh, _] = handles(&table);
            if is_noted {
                table.note(md(), without_provenance_mut(memh), memory(memh));
            }
            let other = {
                let table = Arc::clone(&table);
                thread::spawn(move || export(&table, memh, KEYS[1]))
            };
            let key = export(&table, memh, KEYS[0]);
            assert_eq!(other.join().expect("no panic"), key);
            assert_eq!(forget(&table, memh), Some(Exported::FromPool(key)));
            assert_is_empty(&table);
        });
    }
}

#[test]
fn a_line_that_is_found_has_its_memory() {
    model(|table| {
        let [memh, _] = handles(&table);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let line = table.known(without_provenance_mut(memh));
                assert!(line.is_none_or(|line| line.memory() == memory(memh)));
            })
        };
        table.note(md(), without_provenance_mut(memh), memory(memh));
        other.join().expect("no panic");
    });
}

#[test]
fn handles_of_one_line_do_not_get_the_key_of_another() {
    model(|table| {
        let [first, second] = handles(&table);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert_eq!(export(&table, second, KEYS[1]), KEYS[1]);
                assert_eq!(forget(&table, second), Some(Exported::FromPool(KEYS[1])));
            })
        };
        assert_eq!(export(&table, first, KEYS[0]), KEYS[0]);
        let handle = without_provenance_mut(first);
        if let Some(key) = table.exported(handle, memory(first)) {
            assert_eq!(key, KEYS[0]);
        }
        assert_eq!(forget(&table, first), Some(Exported::FromPool(KEYS[0])));
        other.join().expect("no panic");
        assert_is_empty(&table);
    });
}

#[test]
fn a_line_that_is_freed_is_clean_for_the_next_handle() {
    model(|table| {
        let [first, second] = handles(&table);
        assert_eq!(export(&table, first, KEYS[0]), KEYS[0]);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let handle = without_provenance_mut(second);
                // The quick way may find the line occupied.
                match table.begin(md(), handle, memory(second)) {
                    Some(line) => {
                        assert_eq!(line.memory(), memory(second));
                        line.decide(Exported::FromPool(KEYS[1]));
                    }
                    None => assert_eq!(export(&table, second, KEYS[1]), KEYS[1]),
                }
            })
        };
        assert_eq!(forget(&table, first), Some(Exported::FromPool(KEYS[0])));
        other.join().expect("no panic");
        assert_eq!(forget(&table, second), Some(Exported::FromPool(KEYS[1])));
        assert_is_empty(&table);
    });
}
