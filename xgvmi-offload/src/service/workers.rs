//! Several SPs under one daemon: a process that starts them, passes signals on, and ends when one of them fails.

use super::signal::Signals;
use crate::error::{OffloadError, Result};
use crate::link::{poll, pollfd};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that SPs may take to end when they are asked to.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Runs `count` SPs: this program with `arguments` and `--worker-index`. Calls `up` with their first lines, which tell
/// where each listens.
///
/// # Errors
/// When an SP cannot be started, or ends with anything but code 0. The others are ended then.
pub fn supervise(count: u16, arguments: &[OsString], up: impl FnOnce(&[String])) -> Result<()> {
    let signals = Signals::with_children().map_err(|error| OffloadError::io("signalfd", error))?;
    let mut workers = Workers::default();
    let mut lines = Vec::new();
    for index in 0..count {
        let mut child = start(index, arguments)
            .map_err(|error| OffloadError::io(format!("starting service {index}"), error))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // One line, and the pipe is closed: nothing more is written there.
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| OffloadError::io(format!("hearing service {index}"), error))?;
        }
        workers.children.push((index, child));
        if line.is_empty() {
            return Err(OffloadError::Failed(format!(
                "service {index} has not come up"
            )));
        }
        lines.push(line.trim_end().to_owned());
    }
    up(&lines);
    while !workers.children.is_empty() {
        poll(&mut [pollfd(signals.fd(), libc::POLLIN)], None)
            .map_err(|error| OffloadError::io("poll", error))?;
        if signals.take_end() {
            return Ok(());
        }
        workers.reap()?;
    }
    Ok(())
}

fn start(index: u16, arguments: &[OsString]) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(arguments)
        .args(["--worker-index", &index.to_string()])
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: between fork and exec only prctl(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            // With the daemon goes what it has started, however it ends.
            match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.spawn()
}

/// The SPs that run; ended when dropped.
#[derive(Debug, Default)]
struct Workers {
    children: Vec<(u16, Child)>,
}

impl Workers {
    /// Lets go of those that have ended well.
    fn reap(&mut self) -> Result<()> {
        let mut running = Vec::new();
        for (index, mut child) in std::mem::take(&mut self.children) {
            match child.try_wait() {
                Ok(None) => running.push((index, child)),
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => {
                    self.children.append(&mut running);
                    return Err(OffloadError::Failed(format!(
                        "service {index} has ended: {status}"
                    )));
                }
                Err(error) => {
                    return Err(OffloadError::io(
                        format!("waiting for service {index}"),
                        error,
                    ));
                }
            }
        }
        self.children = running;
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (_, child) in &self.children {
            if let Ok(pid) = i32::try_from(child.id()) {
                // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
        }
        let end = Instant::now() + END_LIMIT;
        for (_, child) in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // One that has ended is not there to be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
