//! Models for loom of the bits and the word on which their taker sleeps. `tests/models` runs them.

use super::*;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::Arc;

/// Runs a model with at most two preemptions, which still finds nearly all errors.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

fn posted() -> Posted {
    Posted {
        summary: std::array::from_fn(|_| AtomicU64::new(0)),
        slots: std::array::from_fn(|_| AtomicU64::new(0)),
    }
}

#[test]
fn no_request_is_lost_while_its_taker_falls_asleep() {
    model(|| {
        let shared = Arc::new((posted(), AtomicU32::new(0)));
        let setters = [3, 64].map(|slot| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.0.set(slot);
                shared.1.fetch_add(1, Ordering::Release);
            })
        });
        let mut taken = 0;
        while taken < 2 {
            let seen = shared.1.load(Ordering::Acquire);
            let before = taken;
            shared.0.take(|_| taken += 1);
            // The kernel lets it sleep only while the word has the value that it saw.
            while taken == before && shared.1.load(Ordering::Acquire) == seen {
                thread::yield_now();
            }
        }
        for setter in setters {
            setter.join().unwrap();
        }
        shared.0.take(|slot| panic!("{slot} was taken twice"));
    });
}

#[test]
fn who_takes_a_request_sees_what_was_written_before_it() {
    model(|| {
        let shared = Arc::new((posted(), AtomicU32::new(0)));
        let other = Arc::clone(&shared);
        let setter = thread::spawn(move || {
            other.1.store(7, Ordering::Relaxed);
            other.0.set(3);
        });
        shared.0.take(|slot| {
            assert_eq!((slot, shared.1.load(Ordering::Relaxed)), (3, 7));
        });
        setter.join().unwrap();
    });
}
