//! The main loop of a process that serves: signals, status, and the end of the thread that serves.

use super::status::Status;
use crate::error::BlkError;
use crate::say::say;
use crate::volume::Volume;
use anyhow::{Context as _, Result};
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_daemon::status::{StatusSocket, default_path};
use xgvmi_daemon::{Asked, Background, Signals, poll, pollfd};

/// A process that serves.
#[derive(Debug)]
pub struct Daemon {
    signals: Signals,
    status: Option<StatusSocket>,
    started: Instant,
}

impl Daemon {
    /// Blocks the signals for this thread and those that it starts: call it before all of them. `name` is for the
    /// default path of the status socket.
    ///
    /// # Errors
    /// The given socket cannot be used, or errors of the system.
    pub fn new(name: &str, socket: Option<&Path>) -> Result<Self> {
        let signals = Signals::new().context("cannot receive signals")?;
        let status = match (socket, default_path(&format!("xgvmi-blk-{name}"))) {
            (Some(path), _) => Some(StatusSocket::bind(path)?),
            // Nobody has asked for this path: another process may have it.
            (None, Some(path)) => StatusSocket::bind(&path)
                .inspect_err(|error| say(format_args!("no status: {error}")))
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

    /// Runs `serve` in a thread and answers questions for the status, until SIGTERM, SIGINT, the end of `serve`, or the
    /// opening of `volume` by another process. Returns what ended it; nothing for the end of `serve`, which is an error of
    /// its own if it has one.
    ///
    /// # Errors
    /// `serve` has failed, or errors of the system.
    pub fn run(
        &self,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
        volume: Option<Arc<Volume>>,
        status: impl Fn(&Self) -> Status,
        reload: impl Fn(),
    ) -> Result<Ended> {
        let mut server = Background::new("accept").context("cannot start the server")?;
        server.submit(serve);
        let fence = Background::new("fence").context("cannot start a thread")?;
        // It may wait until the process ends: nothing waits for it.
        let mut fence: ManuallyDrop<Background<BlkError>> = ManuallyDrop::new(fence);
        if let Some(volume) = volume {
            fence.submit(move || volume.wait_superseded());
        }
        loop {
            let mut fds = vec![
                pollfd(self.signals.fd(), libc::POLLIN),
                pollfd(server.fd(), libc::POLLIN),
                pollfd(fence.fd(), libc::POLLIN),
            ];
            fds.extend(
                self.status
                    .iter()
                    .map(|socket| pollfd(socket.fd(), libc::POLLIN)),
            );
            poll(&mut fds, None).context("waiting for requests")?;
            if let Some(done) = server.take() {
                done?;
                return Ok(Ended::new(None, false, server));
            }
            if let Some(error) = fence.take() {
                say(&error);
                return Ok(Ended::new(None, true, server));
            }
            match self.signals.take() {
                Some(Asked::Reload) => reload(),
                Some(Asked::Child) | None => {}
                Some(asked) => {
                    return Ok(Ended::new(Some(asked), false, server));
                }
            }
            if let Some(socket) = &self.status {
                socket.answer(|| status(self).to_json());
            }
        }
    }
}

/// The end of [`Daemon::run`]. Dropping it waits for the thread that serves.
#[derive(Debug)]
pub struct Ended {
    /// The signal.
    pub asked: Option<Asked>,
    /// Another process has opened the volume: all requests fail.
    pub superseded: bool,
    server: Background<io::Result<()>>,
}

impl Ended {
    fn new(asked: Option<Asked>, superseded: bool, server: Background<io::Result<()>>) -> Self {
        Self {
            asked,
            superseded,
            server,
        }
    }

    /// True if the requests that have arrived are still answered.
    #[must_use]
    pub fn drains(&self) -> bool {
        matches!(self.asked, Some(Asked::Drain)) || self.superseded
    }

    /// Ends the process without a wait for the thread that serves.
    pub fn leave(self) {
        std::mem::forget(self.server);
    }
}

/// Waits in steps until `done`, at most for `limit`. True if it is done.
pub(super) fn wait_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    const STEP: Duration = Duration::from_millis(5);
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(STEP);
    }
    true
}

/// Removes a socket's file when it is dropped.
#[derive(Debug)]
pub(super) struct Unlink(pub(super) PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
