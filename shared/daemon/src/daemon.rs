//! The shell of a service: signals, status socket, and the waits of the main loop.

use crate::control::ControlSocket;
use crate::error::{DaemonError, Result};
use crate::poll::{poll, pollfd};
use crate::signal::{Asked, Signals};
use crate::status::{StatusSocket, default_path};
use std::io::Write as _;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval at which [`Daemon::wait_until`] looks.
const STEP: Duration = Duration::from_millis(5);

/// A process that serves.
#[derive(Debug)]
pub struct Daemon {
    signals: Signals,
    status: Option<StatusSocket>,
    started: Instant,
}

impl Daemon {
    /// Blocks the signals for this thread and those that it starts: call it before all of them. The status socket is
    /// `socket`, else `name` with `.sock` in the runtime directory.
    ///
    /// # Errors
    /// The given socket cannot be used, or errors of the system.
    pub fn new(name: &str, socket: Option<&Path>) -> Result<Self> {
        let signals = Signals::new().map_err(|error| DaemonError::io("signalfd", error))?;
        let status = match (socket, default_path(name)) {
            (Some(path), _) => Some(StatusSocket::bind(path)?),
            // Nobody has asked for this path: another process may use it.
            (None, Some(path)) => StatusSocket::bind(&path)
                .inspect_err(|error| {
                    // A closed standard error is no reason to end.
                    let _ = writeln!(std::io::stderr(), "{name}: no status: {error}");
                })
                .ok(),
            (None, None) => None,
        };
        Ok(Self {
            signals,
            status,
            started: Instant::now(),
        })
    }

    /// Seconds since the start.
    #[must_use]
    pub fn uptime_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Readable when a signal is pending.
    #[must_use]
    pub fn signal_fd(&self) -> RawFd {
        self.signals.fd()
    }

    /// Readable when a client waits for the status; `None` without a socket.
    #[must_use]
    pub fn status_fd(&self) -> Option<RawFd> {
        self.status.as_ref().map(StatusSocket::fd)
    }

    /// Listens for commands beside the status socket; `None` without one.
    ///
    /// # Errors
    /// As [`ControlSocket::bind`].
    pub fn control(&self) -> Result<Option<ControlSocket>> {
        let path = self.status.as_ref().map(StatusSocket::path);
        path.map(ControlSocket::bind).transpose()
    }

    /// The request of a pending signal.
    #[must_use]
    pub fn asked(&self) -> Option<Asked> {
        self.signals.take()
    }

    /// Answers clients that wait for the status.
    pub fn answer(&self, status: impl FnOnce() -> String) {
        if let Some(socket) = &self.status {
            socket.answer(status);
        }
    }

    /// Waits for a signal, for one of `fds`, for a client of the status, or for `limit`. Answers the client, and returns
    /// the request of the signal.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(
        &self,
        fds: &[RawFd],
        limit: Option<Duration>,
        status: impl FnOnce() -> String,
    ) -> Result<Option<Asked>> {
        let own = [Some(self.signal_fd()), self.status_fd()];
        self.sleep(own.into_iter().flatten().chain(fds.iter().copied()), limit)?;
        self.answer(status);
        Ok(self.asked())
    }

    /// Waits until `done`, at most for `limit`. True if it is done. Clients of the status are answered meanwhile; signals
    /// wait.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait_until(
        &self,
        limit: Duration,
        done: impl Fn() -> bool,
        status: impl Fn() -> String,
    ) -> Result<bool> {
        let end = Instant::now().checked_add(limit);
        loop {
            self.answer(&status);
            if done() {
                return Ok(true);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            self.sleep(self.status_fd().into_iter(), Some(STEP))?;
        }
    }

    fn sleep(&self, fds: impl Iterator<Item = RawFd>, limit: Option<Duration>) -> Result<()> {
        let mut fds: Vec<_> = fds.map(|fd| pollfd(fd, libc::POLLIN)).collect();
        poll(&mut fds, limit).map_err(|error| DaemonError::io("poll", error))
    }
}
