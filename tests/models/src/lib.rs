//! Models of atomic protocols.
//!
//! They are parts of the library and of the emulated device, whose rest calls UCX and the system and cannot be built for loom.
//! Empty in other builds.
#![cfg(loom)]

/// The types that the table needs.
mod abi {
    use std::ffi::c_void;

    pub(crate) type MdHandle = *mut c_void;
    pub(crate) type MemHandle = *mut c_void;
}

/// As in the library.
mod memh {
    pub(crate) const fn mix(address: usize) -> u64 {
        let product = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    }
}

/// The same.
mod rkey {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Memory {
        pub(crate) address: usize,
        pub(crate) length: usize,
        pub(crate) lkey: u32,
    }
}

// Its tests are elsewhere for rustfmt; the library formats it.
#[rustfmt::skip]
#[path = "../../../uct-plugin/src/registrations.rs"]
#[expect(dead_code, reason = "the models call a part of it")]
mod registrations;

/// As the emulated device asks the system.
fn own_process() -> i32 {
    1
}

fn yield_now() {
    loom::thread::yield_now();
}

/// What the lock needs: no process is a child, and threads have numbers from 1.
mod forked {
    use loom::sync::atomic::{AtomicUsize, Ordering};

    loom::lazy_static! {
        static ref NEXT: AtomicUsize = AtomicUsize::new(1);
    }
    loom::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn generation() -> u32 {
        0
    }

    pub(crate) fn me() -> usize {
        NUMBER.with(|number| *number)
    }
}

#[rustfmt::skip]
#[path = "../../../uct-plugin/src/event_lock.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the models call it"))]
mod event_lock;

#[rustfmt::skip]
#[path = "../../../bf-emu/src/fabric/posted.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the models call it"))]
mod posted;

#[rustfmt::skip]
#[path = "../../../uct-plugin/src/ucp/copies.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the models call it"))]
mod copies;

#[rustfmt::skip]
#[path = "../../../bf-emu/src/sys/once.rs"]
#[expect(unreachable_pub, reason = "the device's crate exports it")]
#[cfg_attr(not(test), expect(dead_code, reason = "the models call it"))]
mod once;

#[rustfmt::skip]
#[path = "../../../bf-emu/preload/src/record.rs"]
#[expect(dead_code, reason = "the models call a part of it")]
mod record;

#[rustfmt::skip]
#[path = "../../../bf-emu/src/fabric/trace/place.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the models call it"))]
mod place;

#[rustfmt::skip]
#[path = "../../../uct-plugin/src/domains/place.rs"]
#[expect(dead_code, reason = "the models call a part of it")]
mod domain;

#[rustfmt::skip]
#[path = "../../../bf-emu/src/fabric/holder.rs"]
#[expect(dead_code, reason = "the models call a part of it")]
mod holder;

#[cfg(test)]
#[path = "actions.rs"]
mod models_of_actions;

#[cfg(test)]
mod models {
    use super::event_lock::Lock;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time_holds_the_lock_and_sees_what_the_last_one_wrote() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(AtomicUsize::new(0)));
            let add = |lock: &Lock<AtomicUsize>| {
                let held = lock.take().expect("no thread holds it twice");
                assert!(lock.take().is_none(), "its holder does not wait");
                let before = held.load(Ordering::Relaxed);
                held.store(before + 1, Ordering::Relaxed);
            };
            let other = Arc::clone(&lock);
            let thread = thread::spawn(move || add(&other));
            add(&lock);
            thread.join().unwrap();
            assert_eq!(lock.take().expect("free").load(Ordering::Relaxed), 2);
        });
    }
}
