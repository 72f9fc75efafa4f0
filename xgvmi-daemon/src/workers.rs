//! Several worker processes under one daemon. The daemon starts them, forwards signals, and ends when a worker fails.

use crate::error::{DaemonError, Result};
use crate::poll::{poll, pollfd};
use crate::signal::{Asked, Signals};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for workers to end at once.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Runs `count` workers: this program with `arguments` and `--worker-index`. Calls `up` with their first lines of
/// output, which contain their addresses. SIGHUP goes to every worker. After SIGTERM the workers have `drain_limit` to
/// finish their work.
///
/// # Errors
/// A worker cannot start, or ends with a code other than 0. The function then ends the other workers.
pub fn supervise(
    count: u16,
    arguments: &[OsString],
    drain_limit: Duration,
    up: impl FnOnce(&[String]),
) -> Result<()> {
    let signals = Signals::with_children().map_err(|error| DaemonError::io("signalfd", error))?;
    let mut workers = Workers::default();
    let mut lines = Vec::new();
    for index in 0..count {
        let mut child = start(index, arguments)
            .map_err(|error| DaemonError::io(format!("starting worker {index}"), error))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // The pipe closes after one line: workers write no more to it.
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| DaemonError::io(format!("hearing worker {index}"), error))?;
        }
        workers.children.push((index, child));
        if line.is_empty() {
            return Err(DaemonError::Failed(format!(
                "worker {index} has not come up: see its error above"
            )));
        }
        lines.push(line.trim_end().to_owned());
    }
    up(&lines);
    let mut end = None;
    while !workers.children.is_empty() {
        let left = end.map(|end: Instant| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        poll(&mut [pollfd(signals.fd(), libc::POLLIN)], left)
            .map_err(|error| DaemonError::io("poll", error))?;
        while let Some(asked) = signals.take() {
            match asked {
                Asked::Stop => return Ok(()),
                Asked::Drain if end.is_some() => return Ok(()),
                Asked::Drain => {
                    end = Some(Instant::now() + drain_limit + END_LIMIT);
                    workers.signal(libc::SIGTERM);
                }
                Asked::Reload => workers.signal(libc::SIGHUP),
                Asked::Child => {}
            }
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
            // The workers end with the daemon, for any cause of its end.
            match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.spawn()
}

/// The running workers. Dropping this value ends them.
#[derive(Debug, Default)]
struct Workers {
    children: Vec<(u16, Child)>,
}

impl Workers {
    fn signal(&self, signal: libc::c_int) {
        for (_, child) in &self.children {
            if let Ok(pid) = i32::try_from(child.id()) {
                // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
                unsafe { libc::kill(pid, signal) };
            }
        }
    }

    /// Removes workers that have ended with success.
    fn reap(&mut self) -> Result<()> {
        let mut running = Vec::new();
        for (index, mut child) in std::mem::take(&mut self.children) {
            match child.try_wait() {
                Ok(None) => running.push((index, child)),
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => {
                    self.children.append(&mut running);
                    return Err(DaemonError::Failed(format!(
                        "worker {index} has ended: {status}"
                    )));
                }
                Err(error) => {
                    return Err(DaemonError::io(
                        format!("waiting for worker {index}"),
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
        self.signal(libc::SIGINT);
        let end = Instant::now() + END_LIMIT;
        for (_, child) in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The call fails for a worker that has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
