//! Models for loom of a record that is overwritten while it is read. `tests/models` runs them.

use super::*;
use loom::thread;
use std::sync::Arc;

#[test]
fn a_reader_gets_a_whole_record_or_none() {
    loom::model(|| {
        let place = Arc::new(Place {
            mark: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let other = Arc::clone(&place);
        let writes = thread::spawn(move || {
            for number in [1, 2] {
                other.write(number, number, [number; WORDS]);
            }
        });
        for number in [1, 2] {
            let read = place.read(number);
            assert!(
                read.is_none_or(|read| read == (number, [number; WORDS])),
                "{number}: {read:?}"
            );
        }
        writes.join().unwrap();
        assert_eq!(
            (place.read(1), place.read(2)),
            (None, Some((2, [2; WORDS])))
        );
    });
}
