//! The program's own actions and masks for the trap's signals.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem;

use libc::sigaction as Action;

use crate::masks::{TRAP_SIGNALS, bits, change_mask, set_bits};
pub(crate) use crate::record::{Record, Recorded};

pub(crate) static RECORDS: [Record; TRAP_SIGNALS.len()] =
    [const { Record::new(Recorded::DEFAULT) }; TRAP_SIGNALS.len()];

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

impl Record {
    /// Stores `new`, if given, and returns the previous value.
    pub(crate) fn exchange(&self, new: Option<Recorded>) -> Recorded {
        let Some(new) = new else {
            return self.load();
        };
        // Also those of the trap, which another process may send: their handler would wait for this thread.
        let before = change_mask(libc::SIG_BLOCK, Some(u64::MAX));
        let old = self.replace(new);
        // If the mask was not changed, it need not be restored.
        if let Ok(before) = before {
            let _ = change_mask(libc::SIG_SETMASK, Some(before));
        }
        old
    }
}
