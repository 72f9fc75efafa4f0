//! Models for loom of an action that threads set and a signal handler reads. The crate of the handler builds no tests.

use crate::record::{Record, Recorded};
use loom::thread;
use std::sync::Arc;

fn numbered(number: u8) -> Recorded {
    Recorded {
        handler: number.into(),
        flags: number.into(),
        mask: number.into(),
    }
}

#[test]
fn a_handler_reads_no_mixed_action() {
    let mut builder = loom::model::Builder::new();
    // More take minutes, and find no other errors.
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let record = Arc::new(Record::new(numbered(0)));
        let other = Arc::clone(&record);
        // The reader is the second thread: loom compares a change only with the last access before it.
        let reads = thread::spawn(move || {
            let seen = other.load();
            assert!((0..3).any(|number| seen == numbered(number)), "{seen:?}");
        });
        for number in [1, 2] {
            assert_eq!(record.replace(numbered(number)), numbered(number - 1));
        }
        reads.join().unwrap();
        assert_eq!(record.load(), numbered(2));
    });
}

#[test]
fn each_action_is_replaced_once() {
    loom::model(|| {
        let record = Arc::new(Record::new(numbered(0)));
        let other = Arc::clone(&record);
        let sets = thread::spawn(move || other.replace(numbered(1)));
        let here = record.replace(numbered(2));
        let there = sets.join().unwrap();
        let pairs = [(here, there), (there, here)];
        let last = record.load();
        let is_chain = |(first, second): (Recorded, Recorded)| {
            first == numbered(0) && second != first && last != first && last != second
        };
        assert!(
            pairs.into_iter().any(is_chain),
            "{here:?} {there:?} {last:?}"
        );
    });
}
