//! The end by a signal, as one more descriptor of the poll loop.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// SIGINT and SIGTERM, read instead of delivered.
#[derive(Debug)]
pub(super) struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this thread; threads and processes that it starts later inherit that.
    pub(super) fn new() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM])
    }

    /// The same with SIGCHLD.
    pub(super) fn with_children() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGCHLD])
    }

    /// Takes the signals that have come; true when one of them asks for the end.
    pub(super) fn take_end(&self) -> bool {
        let mut ends = false;
        loop {
            // SAFETY: an all-zero structure of plain integers, overwritten by the kernel.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            let size = size_of_val(&info);
            // SAFETY: `size` bytes can be written; the descriptor does not block.
            let count = unsafe { libc::read(self.fd(), (&raw mut info).cast(), size) };
            if usize::try_from(count) != Ok(size) {
                return ends;
            }
            ends |= i32::try_from(info.ssi_signo) != Ok(libc::SIGCHLD);
        }
    }

    fn of(signals: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: an all-zero set is valid memory for sigemptyset to overwrite.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` can be written.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: an initialised set and a signal that there is.
            unsafe { libc::sigaddset(&raw mut set, *signal) };
        }
        // SAFETY: an initialised set; the old one is not wanted.
        let result =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        // SAFETY: an initialised set; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
