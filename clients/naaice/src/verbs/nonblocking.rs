//! Descriptors of event channels that never block.

use std::io;
use std::os::fd::RawFd;

/// Makes reads of a descriptor return at once.
pub(super) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
