//! Signals as one more descriptor of the poll loop.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM: end in good order.
    Drain,
    /// SIGINT: end at once.
    Stop,
    /// SIGHUP: read the files again.
    Reload,
    /// SIGCHLD: a child process has ended.
    Child,
}

/// SIGINT, SIGTERM and SIGHUP, read instead of delivered.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this thread. Threads and processes that it starts later inherit that.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
    }

    /// The same with SIGCHLD.
    ///
    /// # Errors
    /// The system's.
    pub fn with_children() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD])
    }

    /// Takes a signal that has come.
    #[must_use]
    pub fn take(&self) -> Option<Asked> {
        // SAFETY: an all-zero structure of plain integers, overwritten by the kernel.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: `size` bytes can be written; the descriptor does not block.
        let count = unsafe { libc::read(self.fd(), (&raw mut info).cast(), size) };
        if usize::try_from(count) != Ok(size) {
            return None;
        }
        Some(match i32::try_from(info.ssi_signo) {
            Ok(libc::SIGCHLD) => Asked::Child,
            Ok(libc::SIGHUP) => Asked::Reload,
            Ok(libc::SIGTERM) => Asked::Drain,
            _ => Asked::Stop,
        })
    }

    fn of(signals: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: an all-zero set is valid memory for sigemptyset to overwrite.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` can be written.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: an initialised set and a existing signal.
            unsafe { libc::sigaddset(&raw mut set, *signal) };
        }
        // SAFETY: an initialised set; null asks for no old set.
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

    /// Readable when a signal has come.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
