//! A program's action for a signal, which a signal handler can read while another thread changes it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
use std::{hint, thread};

#[cfg(loom)]
use loom::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
use loom::{hint, thread};

/// A program's action for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// `SIG_DFL`, `SIG_IGN` or the address of a handler.
    pub(crate) handler: usize,
    /// `SA_*`.
    pub(crate) flags: c_int,
    /// The signals to block during the handler.
    pub(crate) mask: u64,
}

/// A [`Recorded`]. The version is odd during a change. A reader retries if the version was odd or changed. A thread cannot
/// interrupt its own change, because it blocks all signals during the change and does not fault in it.
#[derive(Debug)]
pub(crate) struct Record {
    version: AtomicUsize,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Record {
    #[cfg(not(loom))]
    pub(crate) const fn new(first: Recorded) -> Self {
        Record {
            version: AtomicUsize::new(0),
            handler: AtomicUsize::new(first.handler),
            flags: AtomicI32::new(first.flags),
            mask: AtomicU64::new(first.mask),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(first: Recorded) -> Self {
        Record {
            version: AtomicUsize::new(0),
            handler: AtomicUsize::new(first.handler),
            flags: AtomicI32::new(first.flags),
            mask: AtomicU64::new(first.mask),
        }
    }

    /// Stores `new`, and returns the previous value. The thread's signals are blocked.
    pub(crate) fn replace(&self, new: Recorded) -> Recorded {
        let version = self.lock();
        let old = self.fields();
        self.handler.store(new.handler, Ordering::Relaxed);
        self.flags.store(new.flags, Ordering::Relaxed);
        self.mask.store(new.mask, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        old
    }

    /// The present value. Async-signal-safe.
    pub(crate) fn load(&self) -> Recorded {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let fields = self.fields();
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return fields;
            }
            hint::spin_loop();
        }
    }

    fn fields(&self) -> Recorded {
        Recorded {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Makes the version odd. Returns the previous even version.
    fn lock(&self) -> usize {
        loop {
            let version = self.version.load(Ordering::Relaxed);
            let free = version.is_multiple_of(2);
            let odd = version.wrapping_add(1);
            let taken = || {
                self.version
                    .compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed)
            };
            if free && taken().is_ok() {
                fence(Ordering::Release);
                return version;
            }
            // The holder blocks signals and performs only a few stores.
            thread::yield_now();
        }
    }

    /// In a child of fork, the thread that changed it does not exist.
    pub(crate) fn unlock_in_child(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if version % 2 == 1 {
            self.version
                .store(version.wrapping_add(1), Ordering::Release);
        }
    }
}
