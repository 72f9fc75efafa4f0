//! Models for loom of threads that the kernel does not mark: each takes a mutex like the C library's robust one, and one may end
//! with it. `tests/models` runs them.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use std::sync::Arc;

/// Threads have the numbers from 1.
const THREADS: usize = 2;

struct Shared {
    futex: AtomicU32,
    name: Name,
    /// What the kernel knows.
    ended: [AtomicBool; THREADS],
    /// What the mutex protects: how often it was taken.
    count: UnsafeCell<u32>,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        futex: AtomicU32::new(0),
        name: Name(AtomicU64::new(0)),
        ended: std::array::from_fn(|_| AtomicBool::new(false)),
        count: UnsafeCell::new(0),
    })
}

impl Shared {
    fn has_ended(&self, thread: u32) -> bool {
        self.ended[thread as usize - 1].load(Ordering::Acquire)
    }

    /// Takes the mutex as the C library does. True if the last holder died.
    fn take(&self, thread: u32, names: bool) -> bool {
        let died = loop {
            let word = self.futex.load(Ordering::Relaxed);
            let free = word == 0 || word & FUTEX_OWNER_DIED != 0;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if free
                && self
                    .futex
                    .compare_exchange(word, thread, order.0, order.1)
                    .is_ok()
            {
                break word != 0;
            }
            let named = |name: u64| self.has_ended(u32::try_from(name >> 32).unwrap());
            self.name
                .mark_if_dead(&self.futex, named, |thread| self.has_ended(thread));
            thread::yield_now();
        };
        if names {
            self.name.write(joined(thread, 7));
        }
        // SAFETY: this thread holds the mutex, which loom checks.
        self.count.with_mut(|count| unsafe { *count += 1 });
        died
    }

    fn release(&self) {
        self.name.remove();
        self.futex.swap(0, Ordering::Release);
    }

    fn count(&self) -> u32 {
        // SAFETY: as above.
        self.count.with(|count| unsafe { *count })
    }
}

#[test]
fn no_living_holder_loses_its_mutex() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let takes = thread::spawn(move || {
            assert!(!other.take(2, true));
            other.release();
            other.ended[1].store(true, Ordering::Release);
        });
        assert!(!shared.take(1, true), "no holder has died with it");
        shared.release();
        takes.join().unwrap();
        assert_eq!(shared.count(), 2);
    });
}

fn a_dead_holder_is_found(names: bool) {
    loom::model(move || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let dies = thread::spawn(move || {
            let died = other.take(2, names);
            other.ended[1].store(true, Ordering::Release);
            died
        });
        // Either before that thread, or after its death.
        let died = shared.take(1, true);
        assert_eq!(shared.count(), 1 + u32::from(died));
        shared.release();
        assert!(!dies.join().unwrap());
        assert!(
            !died && shared.take(1, true) || died,
            "the mutex is free again"
        );
        assert_eq!(shared.count(), if died { 2 } else { 3 });
    });
}

#[test]
fn the_mutex_of_a_dead_holder_goes_on() {
    a_dead_holder_is_found(true);
}

#[test]
fn also_of_one_that_died_before_it_wrote_its_name() {
    a_dead_holder_is_found(false);
}
