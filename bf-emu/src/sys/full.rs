//! The end of a process whose shared memory has no page left: the file system of the file is full.

use std::sync::OnceLock;

use super::{Errno, Result};

static MESSAGE: OnceLock<Vec<u8>> = OnceLock::new();

/// Ends the process with this line on standard error and status 1 when it touches a page that the file system cannot
/// provide, instead of by SIGBUS. Only the first call counts.
///
/// # Errors
/// The kernel's error.
pub fn end_with(line: &str) -> Result<()> {
    let _ = MESSAGE.set(format!("{line}\n").into_bytes());
    // SAFETY: all zeroes is a valid action, and the handler only calls functions that may run in one.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    match done {
        0 => Ok(()),
        _ => Err(super::last_error()),
    }
}

extern "C" fn handle(_signal: libc::c_int) {
    let message = MESSAGE.get().map_or(&[][..], Vec::as_slice);
    let _: std::result::Result<_, Errno> = super::write(2, message);
    // SAFETY: it ends the process without running anything else of it.
    unsafe { libc::_exit(1) }
}
