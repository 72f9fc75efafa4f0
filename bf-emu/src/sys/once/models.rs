//! Models for loom of a value that threads ask for at the same time. `tests/models` runs them.

use super::*;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// loom looks for leaks.
fn free<T>(once: &Once<T>) {
    // SAFETY: it came from a box, and no other thread runs.
    drop(unsafe { Box::from_raw(once.value.load(Ordering::Relaxed)) });
}

/// All threads get the value of one of them, and see what it wrote. `maker` is what the process has inherited.
fn threads_agree(maker: i32) {
    loom::model(move || {
        let once = Arc::new(Once::new());
        once.maker.store(maker, Ordering::Relaxed);
        let threads = [1, 2].map(|own| {
            let once = Arc::clone(&once);
            thread::spawn(move || {
                let made = once.get_or_make(|| (own, UnsafeCell::new(own)));
                // SAFETY: nothing writes it after its making, which loom checks.
                made.1.with(|seen| assert_eq!(made.0, unsafe { *seen }));
                made.0
            })
        });
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(first, second);
        free(&once);
    });
}

#[test]
fn one_thread_makes_the_value() {
    threads_agree(NOBODY);
}

#[test]
fn one_thread_of_a_child_makes_the_value_that_its_parent_was_making() {
    threads_agree(own_process() + 1);
}
