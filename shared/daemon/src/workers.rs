//! Several worker processes under one daemon. The daemon starts them, forwards signals, and starts a worker again that has
//! failed. The other workers go on meanwhile.

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

/// The longest sleep. It bounds the delay if the system has merged the signals of two children.
const TICK: Duration = Duration::from_secs(1);

/// Restarts of a failed worker.
#[derive(Debug, Clone, Copy)]
struct Restarts {
    /// Maximum number in a row.
    max: u32,
    /// Delay of the second one. Each later delay is twice as long.
    delay: Duration,
    /// A worker that has run for this time starts a new row.
    stable: Duration,
}

const RESTARTS: Restarts = Restarts {
    max: 5,
    delay: Duration::from_secs(1),
    stable: Duration::from_secs(600),
};

/// Runs `count` workers: this program with `arguments` and `--worker-index`. Calls `up` with their first lines of
/// output, which contain their addresses. SIGHUP goes to every worker. After SIGTERM the workers have `drain_limit` to
/// finish their work. A worker that ends with another code than 0 is started again, at most five times in a row.
///
/// # Errors
/// A worker cannot start, or no worker is left and one of them has failed.
pub fn supervise(
    count: u16,
    arguments: &[OsString],
    drain_limit: Duration,
    up: impl FnOnce(&[String]),
) -> Result<()> {
    let command = |index: u16| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(arguments)
            .args(["--worker-index", &index.to_string()]);
        Ok(command)
    };
    run(count, command, drain_limit, RESTARTS, up)
}

/// Runs `count` workers, each with the command that `command` returns for it.
fn run(
    count: u16,
    command: impl Fn(u16) -> std::io::Result<Command>,
    drain_limit: Duration,
    restarts: Restarts,
    up: impl FnOnce(&[String]),
) -> Result<()> {
    let signals = Signals::with_children().map_err(|error| DaemonError::io("signalfd", error))?;
    let mut workers = Workers {
        all: Vec::new(),
        restarts,
        failed: None,
    };
    let mut lines = Vec::new();
    for index in 0..count {
        let mut child = command(index)
            .and_then(|command| start(command, Stdio::piped()))
            .map_err(|error| DaemonError::io(format!("starting worker {index}"), error))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // The pipe closes after one line: workers write no more to it.
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| DaemonError::io(format!("hearing worker {index}"), error))?;
        }
        workers.all.push(Worker::new(index, child));
        if line.is_empty() {
            return Err(DaemonError::Failed(format!(
                "worker {index} has not come up: see its error above"
            )));
        }
        lines.push(line.trim_end().to_owned());
    }
    up(&lines);
    let mut end = None;
    while !workers.all.is_empty() {
        let left = end.map(|end: Instant| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        let limit = workers.next_start().min(left.unwrap_or(TICK)).min(TICK);
        poll(&mut [pollfd(signals.fd(), libc::POLLIN)], Some(limit))
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
        workers.reap(end.is_some())?;
        workers.start_again(&command);
    }
    workers.failed.take().map_or(Ok(()), Err)
}

fn start(mut command: Command, output: Stdio) -> std::io::Result<Child> {
    command
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(output);
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

/// A worker that runs, or waits for its next start.
#[derive(Debug)]
struct Worker {
    index: u16,
    child: Option<Child>,
    /// Time of the last start.
    started: Instant,
    /// Restarts in a row, and the time of the next one.
    restarts: u32,
    again: Option<Instant>,
}

impl Worker {
    fn new(index: u16, child: Child) -> Self {
        Self {
            index,
            child: Some(child),
            started: Instant::now(),
            restarts: 0,
            again: None,
        }
    }

    /// The worker has failed: plans its next start. False if it has failed too often.
    fn plan(&mut self, policy: Restarts, how: &str) -> bool {
        let (index, now) = (self.index, Instant::now());
        self.child = None;
        if now - self.started > policy.stable {
            self.restarts = 0;
        }
        if self.restarts >= policy.max {
            eprintln!(
                "worker {index} {how}, after {} restarts in a row: it stays down; its log has the cause",
                self.restarts
            );
            return false;
        }
        let delay = match self.restarts.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => policy.delay.saturating_mul(2_u32.saturating_pow(earlier)),
        };
        self.restarts += 1;
        eprintln!(
            "worker {index} {how}: it is started again in {} ms, restart {} of {}; the other workers go on",
            delay.as_millis(),
            self.restarts,
            policy.max
        );
        self.again = Some(now + delay);
        true
    }
}

/// The workers. Dropping this value ends them.
#[derive(Debug)]
struct Workers {
    all: Vec<Worker>,
    restarts: Restarts,
    /// The first failure of a worker that stays down.
    failed: Option<DaemonError>,
}

impl Workers {
    fn signal(&self, signal: libc::c_int) {
        for child in self.all.iter().filter_map(|worker| worker.child.as_ref()) {
            if let Ok(pid) = i32::try_from(child.id()) {
                // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
                unsafe { libc::kill(pid, signal) };
            }
        }
    }

    /// Time until the next start of a worker.
    fn next_start(&self) -> Duration {
        let now = Instant::now();
        let starts = self.all.iter().filter_map(|worker| worker.again);
        let starts = starts.map(|again| again.saturating_duration_since(now));
        starts.min().unwrap_or(Duration::MAX)
    }

    /// Removes workers that have ended, unless they are to be started again.
    fn reap(&mut self, draining: bool) -> Result<()> {
        let policy = self.restarts;
        let mut kept = Vec::new();
        for mut worker in std::mem::take(&mut self.all) {
            let ended = match &mut worker.child {
                Some(child) => child.try_wait(),
                None => Ok(None),
            };
            match ended {
                // While the daemon drains, a worker that is down has no job to finish.
                Ok(None) if worker.child.is_none() && draining => {}
                Ok(None) => kept.push(worker),
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => {
                    let how = format!("has ended: {status}");
                    if !draining && worker.plan(policy, &how) {
                        kept.push(worker);
                    } else {
                        let failed =
                            || DaemonError::Failed(format!("worker {} {how}", worker.index));
                        self.failed.get_or_insert_with(failed);
                    }
                }
                Err(error) => {
                    let what = format!("waiting for worker {}", worker.index);
                    kept.push(worker);
                    self.all.append(&mut kept);
                    return Err(DaemonError::io(what, error));
                }
            }
        }
        self.all = kept;
        Ok(())
    }

    /// Starts the workers whose time has come.
    fn start_again(&mut self, command: impl Fn(u16) -> std::io::Result<Command>) {
        let (policy, now) = (self.restarts, Instant::now());
        let mut down = None;
        self.all.retain_mut(|worker| {
            if worker.again.is_none_or(|again| again > now) {
                return true;
            }
            worker.again = None;
            worker.started = now;
            // Nobody reads the first line of output again.
            match command(worker.index).and_then(|command| start(command, Stdio::null())) {
                Ok(child) => {
                    worker.child = Some(child);
                    true
                }
                Err(error) => {
                    let how = format!("cannot start: {error}");
                    let stays = worker.plan(policy, &how);
                    if !stays {
                        down = Some(DaemonError::Failed(format!(
                            "worker {} {how}",
                            worker.index
                        )));
                    }
                    stays
                }
            }
        });
        self.failed = self.failed.take().or(down);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.signal(libc::SIGINT);
        let end = Instant::now() + END_LIMIT;
        for child in self.all.iter_mut().filter_map(|w| w.child.as_mut()) {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The call fails for a worker that has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const QUICK: Restarts = Restarts {
        max: 3,
        delay: Duration::from_millis(1),
        stable: Duration::from_secs(600),
    };

    /// Runs two workers that write a line, append their number to the file, and continue with `script`.
    fn run_two(script: &str, file: &Path) -> Result<()> {
        let command = |index: u16| {
            let mut command = Command::new("/bin/sh");
            let text = format!("echo up; echo {index} >> \"$FILE\"; I={index}; {script}");
            command.args(["-c", &text]).env("FILE", file);
            Ok(command)
        };
        run(2, command, Duration::from_secs(60), QUICK, |lines| {
            assert_eq!(lines, ["up", "up"]);
        })
    }

    /// Number of starts of each worker.
    fn starts(file: &Path) -> [usize; 2] {
        let text = std::fs::read_to_string(file).expect("written");
        ["0", "1"].map(|index| text.lines().filter(|line| *line == index).count())
    }

    #[test]
    fn a_failed_worker_is_started_again_and_the_other_goes_on() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("starts");
        // Worker 0 kills itself once. Worker 1 ends when worker 0 has started for the second time.
        let script = "case $I in \
            0) [ $(grep -c 0 \"$FILE\") = 2 ] || kill -KILL $$;; \
            1) until [ $(grep -c 0 \"$FILE\") = 2 ]; do sleep 0.01; done;; esac";
        run_two(script, &file).expect("both have ended well");
        assert_eq!(starts(&file), [2, 1]);
    }

    #[test]
    fn a_worker_that_always_fails_stays_down() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("starts");
        let script = "case $I in \
            0) exit 7;; \
            1) until [ $(grep -c 0 \"$FILE\") = 4 ]; do sleep 0.01; done;; esac";
        let error = run_two(script, &file).unwrap_err().to_string();
        assert!(
            error.contains("worker 0 has ended: exit status: 7"),
            "{error}"
        );
        assert_eq!(starts(&file), [1 + QUICK.max as usize, 1]);
    }
}
