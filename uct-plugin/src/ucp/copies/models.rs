//! Models for loom of a copy that is entered while other threads already call through its slots. `tests/models` runs them.

use super::*;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use std::sync::Arc;

type One = Copies<usize, u8, 1, 1>;

/// The copies, and the slot of the first one, which UCX reads without an order.
fn shared() -> Arc<(One, AtomicUsize)> {
    Arc::new((One::new(), AtomicUsize::new(0)))
}

/// Enters the first copy, and writes its slot.
fn enter((copies, slot): &(One, AtomicUsize)) {
    assert!(copies.enter(0, 7, [std::ptr::dangling_mut()]));
    slot.store(1, Ordering::Release);
}

#[test]
fn who_comes_through_a_slot_finds_its_copy() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let enters = thread::spawn(move || enter(&other));
        if shared.1.load(Ordering::Relaxed) == 1 {
            assert_eq!(shared.0.of(0), Some(&7));
        }
        enters.join().unwrap();
        assert!(!shared.0.enter(0, 8, [null_mut()]), "it is taken");
        free(&shared.0);
    });
}

#[test]
fn no_import_takes_a_shortcut() {
    loom::model(|| {
        let shared = shared();
        let [entering, importing] = [(); 2].map(|()| Arc::clone(&shared));
        let enters = thread::spawn(move || enter(&entering));
        // An import through a copy that was entered before.
        let imports = thread::spawn(move || importing.0.imports_begin());
        if shared.1.load(Ordering::Relaxed) == 1 {
            shared.0.imports_begin();
            assert!(shared.0.shortcut(0, 0).is_null());
        }
        enters.join().unwrap();
        imports.join().unwrap();
        assert!(
            shared.0.shortcut(0, 0).is_null(),
            "also of a copy that came during an import"
        );
        free(&shared.0);
    });
}

/// loom looks for leaks.
fn free(copies: &One) {
    let copy = copies.copies[0].copy.load(Ordering::Relaxed);
    // SAFETY: it came from a box, and no other thread runs.
    drop(unsafe { Box::from_raw(copy) });
}
