//! Child processes with a time limit. Each has its own process group, which is ended by the recorded group id, not by
//! name.

mod threads;
mod used;

pub use used::{charge, of as usage, used};

use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of output lines of a failed command to show.
const SAID_MAX: usize = 20;

/// Result of a finished child.
#[derive(Debug, Clone)]
pub struct Done {
    /// Exit status of the child itself.
    pub status: ExitStatus,
    /// Whether the child was ended at its limit.
    pub timed_out: bool,
    /// Time from start to end.
    pub seconds: f64,
    /// Standard output and standard error in the order of the writes.
    pub output: String,
    /// Its threads at a limit of at least [`SHOWS_THREADS`], before it was ended; else empty.
    pub threads: String,
}

/// A program that has not ended for so long hangs, or lacks processors.
pub const SHOWS_THREADS: Duration = Duration::from_secs(10);

impl Done {
    /// Whether the child has succeeded within its limit.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.status.success() && !self.timed_out
    }

    /// Describes how the child ended.
    pub fn verdict(&self) -> String {
        if self.timed_out {
            let stopped = format!("stopped at its limit after {:.0} s", self.seconds);
            format!("{stopped}\n{}", self.threads).trim_end().to_owned()
        } else {
            self.status.to_string()
        }
    }
}

/// Whether `PATH` contains a program of this name.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}

/// Runs `command` to its end or to `limit` and captures its output. Standard input is empty.
pub fn run(command: &mut Command, limit: Duration) -> Result<Done> {
    Running::spawn(command)?.wait(limit)
}

/// Runs a program that prints its own errors, with an empty standard input. Returns whether it has succeeded.
///
/// # Errors
/// It was stopped at `limit`.
pub fn to_end(command: &mut Command, limit: Duration) -> Result<ExitCode> {
    let mut group = Group::spawn(command.stdin(Stdio::null()))?;
    let (status, timed_out) = group.wait(limit)?;
    if timed_out {
        bail!(
            "`{}` did not end within {} s and was stopped",
            shown(command),
            limit.as_secs()
        );
    }
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs `command` and returns its standard output. An error contains the command line and the output.
pub fn stdout(command: &mut Command, limit: Duration) -> Result<String> {
    let line = shown(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut group = Group::spawn(command)?;
    let out = Collected::from(group.child.stdout.take());
    let err = Collected::from(group.child.stderr.take());
    let (status, timed_out) = group.wait(limit)?;
    group.kill();
    let (out, err) = (out.finish(), err.finish());
    if timed_out {
        bail!("`{line}` did not end within {} s", limit.as_secs());
    }
    if !status.success() {
        // Tools retry and repeat messages; the final cause is at the end.
        let said: Vec<&str> = out.lines().chain(err.lines()).collect();
        bail!(
            "`{line}`: {status}\n{}",
            said[said.len().saturating_sub(SAID_MAX)..].join("\n")
        );
    }
    Ok(out)
}

/// Polls `condition` until it holds; returns false after `limit`.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !condition() {
        let left = limit.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return false;
        }
        // Quick events take milliseconds; long waits need no frequent polling.
        let pause = begin.elapsed() / 8;
        let pause = pause.clamp(Duration::from_millis(1), Duration::from_millis(50));
        std::thread::sleep(pause.min(left));
    }
    true
}

/// A child that runs concurrently. Dropping it kills its whole group.
#[derive(Debug)]
pub struct Running {
    /// The child and its process group.
    pub group: Group,
    output: Collected,
    started: Instant,
}

impl Running {
    /// Starts `command` with an empty standard input and captures both output streams in order.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let (reader, writer) = std::io::pipe().context("pipe for a child's output")?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let started = Instant::now();
        let group = Group::spawn(command);
        // The command holds write ends of the pipe. After they are closed, the reader sees the end of file.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self {
            group: group?,
            output: Collected::from(Some(reader)),
            started,
        })
    }

    /// Starts a server and waits until it is up, such as until it says that it listens.
    ///
    /// # Errors
    /// It has ended, or is not up within `limit`. The error has its command line and output.
    pub fn up(
        command: &mut Command,
        limit: Duration,
        mut is_up: impl FnMut(&Self) -> bool,
    ) -> Result<Self> {
        let mut running = Self::spawn(command)?;
        let up = wait_until(limit, || is_up(&running) || running.group.has_ended());
        if !up || running.group.has_ended() {
            let done = running.wait(Duration::ZERO)?;
            bail!(
                "the server did not come up: {}\n{}\n{}",
                done.verdict(),
                shown(command),
                done.output.trim_end()
            );
        }
        Ok(running)
    }

    /// [`Running::up`] for a server that says `sign` when it is up.
    ///
    /// # Errors
    /// As [`Running::up`].
    pub fn saying(command: &mut Command, limit: Duration, sign: &str) -> Result<Self> {
        Self::up(command, limit, |server| server.said().contains(sign))
    }

    /// Output so far.
    pub fn said(&self) -> String {
        self.output.text()
    }

    /// Waits for the end of the child, or ends it after `limit`.
    pub fn wait(mut self, limit: Duration) -> Result<Done> {
        let is_long = limit >= SHOWS_THREADS;
        let is_stuck = is_long && !wait_until(limit, || self.group.has_ended());
        let (threads, left) = match is_stuck {
            true => (threads::of_group(self.group.id()), Duration::ZERO),
            false => (String::new(), limit),
        };
        let (status, timed_out) = self.group.wait(left)?;
        // Grandchildren that outlive the child would keep the pipe open, so the whole group is ended.
        self.group.kill();
        let output = self.output.finish();
        Ok(Done {
            status,
            timed_out,
            seconds: self.started.elapsed().as_secs_f64(),
            output,
            threads,
        })
    }
}

/// Output of a pipe, read by a separate thread.
#[derive(Debug)]
pub struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    /// Starts to read a pipe; without one there is no output.
    pub fn from(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut chunk = [0; 8192];
            // Output before a read error is still useful.
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                if let Ok(mut bytes) = sink.lock() {
                    bytes.extend_from_slice(&chunk[..count]);
                }
            }
        });
        Self { bytes, reader }
    }

    /// The whole output, after the writers have ended. Does not wait for a writer that has left its group.
    fn finish(self) -> String {
        wait_until(Duration::from_secs(5), || self.reader.is_finished());
        self.text()
    }

    /// Whether the text is the whole output: all writers have closed the pipe.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.reader.is_finished()
    }

    /// Output so far.
    pub fn text(&self) -> String {
        let bytes = self
            .bytes
            .lock()
            .map(|bytes| bytes.clone())
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Removes the caller's UCX settings from a command: they would change the UCX that a report describes.
pub fn without_ucx_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UCX_") {
            command.env_remove(name);
        }
    }
}

/// The full command line in shell syntax: environment first, then program and arguments.
pub fn shown(command: &Command) -> String {
    let quote = |s: &std::ffi::OsStr| {
        let s = s.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !s.is_empty() && s.chars().all(plain) {
            s.into_owned()
        } else {
            format!("'{}'", s.replace('\'', r"'\''"))
        }
    };
    let mut line = String::new();
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            let _ = write!(line, "{}={} ", key.to_string_lossy(), quote(value));
        }
    }
    line.push_str(&quote(command.get_program()));
    for argument in command.get_args() {
        let _ = write!(line, " {}", quote(argument));
    }
    line
}

/// Processor time of a running process, by its id.
///
/// # Errors
/// There is no such process.
pub fn processor_time(id: u32) -> Result<Duration> {
    let id = libc::pid_t::try_from(id).context("the id of a process")?;
    let mut clock = 0;
    // SAFETY: the place of a clock's number.
    let errno = unsafe { libc::clock_getcpuclockid(id, &raw mut clock) };
    ensure!(errno == 0, "no clock of process {id}: errno {errno}");
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place of a time.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(failed == 0, "no process {id}");
    let seconds = u64::try_from(time.tv_sec)?;
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec)?))
}

/// Installs a handler that ends every running group on an interrupt (Ctrl-C, a CI cancel) before this process ends.
pub fn end_children_on_signal() {
    extern "C" fn handler(_signal: libc::c_int) {
        for slot in &RUNNING {
            let group = slot.load(Ordering::Relaxed);
            if group > 0 {
                // SAFETY: kill(2) and _exit(2) are async-signal-safe and take plain integers; this process recorded the
                // group id and removes it before it reaps the leader.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
        }
        // SAFETY: as above; no code after this line runs.
        unsafe { libc::_exit(130) };
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler has the signature that signal(2) requires, lives as long as the process, and calls only
        // async-signal-safe functions.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Removes the directories PREFIX-PID-... in `place` whose process has ended without removing them, for example at its
/// time limit.
pub fn sweep(place: &Path, prefix: &str) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.strip_prefix('-'));
        let number = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if number.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists()) {
            // A directory that cannot be removed belongs to another user.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Process groups that run now. The size is far above the maximum number of concurrent groups (four, in the demo).
static RUNNING: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];

/// A child that leads its own process group. Dropping it kills and reaps the child.
#[derive(Debug)]
pub struct Group {
    /// The child, which leads the group.
    pub child: Child,
    id: i32,
}

impl Group {
    /// Id of the group, which is the process id of its first process.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Starts a command in a process group of its own.
    ///
    /// # Errors
    /// The system's error, with the command line.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let line = shown(command);
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{line}`"))?;
        let id = i32::try_from(child.id()).context("process id")?;
        for slot in &RUNNING {
            if slot
                .compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        Ok(Self { child, id })
    }

    /// Whether the leader has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(used::try_wait(&mut self.child), Ok(None))
    }

    /// Waits for the leader. Returns true if the limit has expired and the group was ended.
    pub fn wait(&mut self, limit: Duration) -> Result<(ExitStatus, bool)> {
        if wait_until(limit, || self.has_ended()) {
            return Ok((used::wait(&mut self.child)?, false));
        }
        // SIGTERM first: a child with its own groups forwards it.
        // SAFETY: as in `kill`.
        unsafe { libc::kill(-self.id, libc::SIGTERM) };
        wait_until(Duration::from_secs(2), || self.has_ended());
        self.kill();
        Ok((used::wait(&mut self.child)?, true))
    }

    /// Sends a signal to the leader. After SIGSTOP it returns once no thread of it runs: kill(2) only announces a stop.
    ///
    /// # Errors
    /// The system's, and a leader that does not stop within 10 s.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
        let done = unsafe { libc::kill(self.id, signal) };
        ensure!(done == 0, "signal {signal} to {}", self.id);
        let stops = signal == libc::SIGSTOP;
        let stopped = !stops || wait_until(Duration::from_secs(10), || has_stopped(self.id));
        ensure!(stopped, "{} does not stop", self.id);
        Ok(())
    }

    /// Asks the leader to end, with SIGTERM.
    pub fn ask_to_end(&self) {
        // SAFETY: as in `kill`.
        unsafe { libc::kill(self.id, libc::SIGTERM) };
    }

    /// Ends all processes of the group. No effect if all have ended.
    pub fn kill(&mut self) {
        // SAFETY: kill(2) takes plain integers. The group id is the pid of a child of this process; it is not reused
        // while a member lives, and an empty group only returns ESRCH.
        unsafe { libc::kill(-self.id, libc::SIGKILL) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = used::wait(&mut self.child);
        for slot in &RUNNING {
            let _ = slot.compare_exchange(self.id, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// True if no thread of the process runs, because it is stopped or has ended.
fn has_stopped(process: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    tasks.into_iter().flatten().flatten().all(|task| {
        // A thread that has ended has no such file. The state follows the name, which is in parentheses.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
        state.is_none_or(|state| b"TZX".contains(&state))
    })
}

/// True if the kernel gives this process rings of io_uring.
#[must_use]
pub fn has_io_uring() -> bool {
    // The kernel's `struct io_uring_params`.
    let mut params = [0_u8; 120];
    // SAFETY: the kernel writes one structure of this length. The file is closed, and no other code knows it.
    unsafe {
        let file = libc::syscall(libc::SYS_io_uring_setup, 1_u64, params.as_mut_ptr());
        file >= 0 && libc::syscall(libc::SYS_close, file) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest wait of a test. It only bounds a hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_stopped_child_does_not_run() {
        let mut group = Group::spawn(&mut sh("while :; do :; done")).unwrap();
        assert!(!has_stopped(group.id()));
        group.signal(libc::SIGSTOP).unwrap();
        assert!(has_stopped(group.id()));
        group.signal(libc::SIGCONT).unwrap();
        assert!(!has_stopped(group.id()));
        group.kill();
        assert!(wait_until(PATIENCE, || has_stopped(group.id())));
    }

    #[test]
    fn both_streams_arrive_in_order() {
        let done = run(&mut sh("echo a; echo b >&2; echo c; exit 3"), PATIENCE).unwrap();
        assert_eq!(done.output, "a\nb\nc\n");
        assert_eq!(done.status.code(), Some(3));
        assert!(!done.ok() && !done.timed_out);
    }

    #[test]
    fn the_limit_ends_the_whole_group() {
        let running = Running::spawn(&mut sh("sleep 600 & echo $!; wait")).unwrap();
        assert!(wait_until(PATIENCE, || running.said().contains('\n')));
        let done = running.wait(Duration::ZERO).unwrap();
        assert!(done.timed_out, "{done:?}");
        let grandchild = done.output.trim();
        // After SIGKILL the process is gone, or a zombie that waits for its new parent.
        let mut stat = String::new();
        let gone = wait_until(PATIENCE, || {
            stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        assert!(gone, "still running: {stat}");
    }

    #[test]
    fn a_process_that_left_the_group_is_not_waited_for() {
        // The substitution ends when the other process closes its standard output, after it has left the group.
        let leave = "x=$(setsid sh -c 'echo left >&2; exec sleep 120 >&-' &)";
        let done = run(&mut sh(leave), PATIENCE).unwrap();
        // The other process ends after 120 s.
        assert!(done.ok() && done.seconds < 100.0, "{done:?}");
        assert_eq!(done.output, "left\n");
    }

    #[test]
    fn what_the_dead_have_left_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let mut dead = sh("exit").spawn().unwrap();
        dead.wait().unwrap();
        let gone = format!("bed-{}-a", dead.id());
        let kept = [
            format!("bed-{}-a", std::process::id()),
            format!("other-{}-a", dead.id()),
            "bed-x".to_owned(),
        ];
        for name in kept.iter().chain([&gone]) {
            std::fs::create_dir_all(place.path().join(name).join("state")).unwrap();
        }
        sweep(place.path(), "bed");
        assert!(!place.path().join(&gone).exists());
        assert!(kept.iter().all(|name| place.path().join(name).exists()));
    }

    #[test]
    fn a_failure_shows_the_line_to_copy() {
        let error = stdout(sh("echo no >&2; exit 1").env("A", "b c"), PATIENCE).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("A='b c' sh -c 'echo no >&2; exit 1'") && text.contains("no"),
            "{text}"
        );
    }
}
