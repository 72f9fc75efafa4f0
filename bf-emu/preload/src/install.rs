//! Installs the doorbell trap before the first doorbell, and restores it if the program replaced
//! it.

use std::sync::atomic::{AtomicBool, Ordering};

use bf_emu::sys::once::Once;

use crate::call::say;
use crate::masks::{TRAP_BITS, TRAP_SIGNALS, change_mask};
use crate::records::ASKED;
use crate::records::RECORDS;
use crate::watch;

/// True if the trap's handler is installed and the program's actions are recorded.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Prepares the process for doorbells. It is called before each use of a context, because a program
/// may bypass the interposers and replace the handler.
pub(crate) fn before_first_doorbell() {
    static FORK: Once<()> = Once::new();
    FORK.get_or_make(|| {
        // SAFETY: the function may run in a child of fork, and lives as long as the process. If its
        // registration fails (for lack of memory), children keep their parent's files.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    install();
}

pub(crate) fn install() {
    for (signal, record) in TRAP_SIGNALS.into_iter().zip(&RECORDS) {
        let Some(found) = crate::fault::take(signal) else {
            say("the C library has no sigaction; doorbells will end the process");
            return;
        };
        if let Some(found) = found {
            record.exchange(Some(found));
        }
    }
    INSTALLED.store(true, Ordering::Release);
    // The parent process may have blocked them for this process.
    let asked = change_mask(libc::SIG_UNBLOCK, Some(TRAP_BITS)).unwrap_or(0) & TRAP_BITS;
    ASKED.with(|cell| cell.set(cell.get() | asked));
}

extern "C" fn after_fork_in_child() {
    for record in &RECORDS {
        record.unlock_in_child();
    }
    watch::after_fork_in_child();
}

/// True if the trap is installed.
pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}
