//! Waits for descriptors with `poll(2)`.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// An entry for [`poll`].
#[must_use]
pub fn pollfd(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Waits until one of `fds` is ready, at most for `limit`. A signal ends the wait early.
///
/// # Errors
/// Errors of the system.
pub fn poll(fds: &mut [libc::pollfd], limit: Option<Duration>) -> io::Result<()> {
    // Rounded up because a limit below a millisecond must still sleep.
    let timeout_ms = limit.map_or(-1, |limit| {
        i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: `fds` holds `fds.len()` valid pollfd structures.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}
