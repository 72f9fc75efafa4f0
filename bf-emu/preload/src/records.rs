//! The program's own actions and masks for the trap's signals.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

use libc::sigaction as Action;

use crate::masks::{TRAP_BITS, TRAP_SIGNALS, bits, change_mask, set_bits};

/// A program's action for a signal.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    /// `SIG_DFL`, `SIG_IGN` or the address of a handler.
    pub(crate) handler: usize,
    /// `SA_*`.
    pub(crate) flags: c_int,
    /// The signals to block during the handler.
    pub(crate) mask: u64,
}

pub(crate) static RECORDS: [Record; TRAP_SIGNALS.len()] = [Record::new(), Record::new()];

thread_local! {
    /// The trap signals that this thread requested to block.
    pub(crate) static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// The program's action for one of the trap's signals. Async-signal-safe.
pub(crate) fn recorded(signal: c_int) -> Recorded {
    record_of(signal).map_or(Recorded::DEFAULT, Record::load)
}

/// Records the default action, as after a one-shot handler.
pub(crate) fn record_default(signal: c_int) {
    if let Some(record) = record_of(signal) {
        record.exchange(Some(Recorded::DEFAULT));
    }
}

/// The record of one of the trap's signals; None for another signal.
pub(crate) fn record_of(signal: c_int) -> Option<&'static Record> {
    let index = TRAP_SIGNALS.iter().position(|trap| *trap == signal)?;
    RECORDS.get(index)
}

impl Recorded {
    const DEFAULT: Recorded = Recorded {
        handler: libc::SIG_DFL,
        flags: 0,
        mask: 0,
    };
}

impl From<&Action> for Recorded {
    fn from(action: &Action) -> Self {
        Recorded {
            handler: action.sa_sigaction,
            flags: action.sa_flags,
            mask: bits(&action.sa_mask),
        }
    }
}

impl From<Recorded> for Action {
    fn from(recorded: Recorded) -> Self {
        // SAFETY: an action is plain data, for which zero is the default action.
        let mut action: Action = unsafe { mem::zeroed() };
        action.sa_sigaction = recorded.handler;
        action.sa_flags = recorded.flags;
        set_bits(&mut action.sa_mask, recorded.mask);
        action
    }
}

/// A [`Recorded`] that a signal handler can read while another thread changes it. The version is
/// odd during a change. A reader retries if the version was odd or changed. A thread cannot
/// interrupt its own change, because it blocks all signals during the change and does not fault in
/// it.
pub(crate) struct Record {
    version: AtomicUsize,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Record {
    const fn new() -> Self {
        Record {
            version: AtomicUsize::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Stores `new`, if given, and returns the previous value.
    pub(crate) fn exchange(&self, new: Option<Recorded>) -> Recorded {
        let Some(new) = new else {
            return self.load();
        };
        let before = change_mask(libc::SIG_BLOCK, Some(!TRAP_BITS));
        let version = self.lock();
        let old = self.fields();
        self.handler.store(new.handler, Ordering::Relaxed);
        self.flags.store(new.flags, Ordering::Relaxed);
        self.mask.store(new.mask, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // If the mask was not changed, it need not be restored.
        if let Ok(before) = before {
            let _ = change_mask(libc::SIG_SETMASK, Some(before));
        }
        old
    }

    fn load(&self) -> Recorded {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let fields = self.fields();
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return fields;
            }
            std::hint::spin_loop();
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
            std::thread::yield_now();
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
