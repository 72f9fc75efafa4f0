//! Models for loom of a place that is looked up while it changes. `tests/models` runs them.

use super::*;
use loom::thread;
use std::sync::Arc;

#[test]
fn who_finds_a_domain_gets_what_serves_it() {
    loom::model(|| {
        let place: Arc<Place<i32>> = Arc::new(Place::new());
        let serving: Vec<_> = [8, 9].map(|number| Box::into_raw(Box::new(number))).into();
        let other = Arc::clone(&place);
        let looks = thread::spawn(move || {
            let looks = || (other.address() == 9).then(|| other.served().addr());
            [looks(), looks()]
        });
        // A domain that closes, and one that opens at its place.
        place.set(8, serving[0]);
        place.clear(1);
        place.set(9, serving[1]);
        let found = looks.join().unwrap();
        for found in found.into_iter().flatten() {
            assert_eq!(found, serving[1].addr());
        }
        assert_eq!((place.address(), place.served()), (9, serving[1]));
        for serving in serving {
            // SAFETY: from a box, and no other thread runs.
            drop(unsafe { Box::from_raw(serving) });
        }
    });
}
