//! Signals as a descriptor of the poll loop.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// Request that a signal expresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM: finish the current work, then end.
    Drain,
    /// SIGINT: end at once.
    Stop,
    /// SIGHUP: reload the files.
    Reload,
    /// SIGCHLD: a child process has ended.
    Child,
}

/// SIGINT, SIGTERM and SIGHUP through a signalfd.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this thread. Threads and processes that it starts later inherit the mask.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
    }

    /// As [`Signals::new`], with SIGCHLD.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn with_children() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD])
    }

    /// Returns a pending signal.
    #[must_use]
    pub fn take(&self) -> Option<Asked> {
        // SAFETY: an all-zero structure of plain integers, overwritten by the kernel.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: `size` bytes are writable; the descriptor is non-blocking.
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
        // SAFETY: `set` is writable.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: an initialized set and an existing signal.
            unsafe { libc::sigaddset(&raw mut set, *signal) };
        }
        // SAFETY: an initialized set; null requests no old set.
        let result =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        // SAFETY: an initialized set; -1 requests a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Readable when a signal is pending.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
