//! Child processes with a limit: each in a process group of its own, ended by the recorded group id, never by name.

use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// What a finished child left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) timed_out: bool,
    pub(crate) seconds: f64,
    /// Standard output and standard error in the order in which they were written.
    pub(crate) output: String,
}

impl Done {
    pub(crate) fn ok(&self) -> bool {
        self.status.success() && !self.timed_out
    }

    /// How it ended, in words.
    pub(crate) fn verdict(&self) -> String {
        if self.timed_out {
            format!("stopped at its limit after {:.0} s", self.seconds)
        } else {
            self.status.to_string()
        }
    }
}

/// Runs `command` to its end or to `limit`, and calls `on_line` for each line it writes on either stream.
///
/// Standard input is empty. On the limit, the whole process group is killed.
pub(crate) fn run_lines(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str) + Send,
) -> Result<Done> {
    let (reader, writer) = std::io::pipe().context("pipe for a child's output")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let started = Instant::now();
    let mut group = Group::spawn(command)?;
    // The command holds the write ends: closing them lets the reader see the end of file.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (status, timed_out, output) = std::thread::scope(|scope| {
        let lines = scope.spawn(move || {
            let mut output = String::new();
            let mut reader = BufReader::new(reader);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
                let line = String::from_utf8_lossy(&bytes);
                let line = line.trim_end_matches(['\n', '\r']);
                on_line(line);
                let _ = writeln!(output, "{line}");
                bytes.clear();
            }
            output
        });
        let waited = group.wait(limit);
        // Grandchildren that outlive the child would keep the pipe open: the group ends with its leader.
        group.kill();
        let output = lines.join().unwrap_or_default();
        waited.map(|(status, timed_out)| (status, timed_out, output))
    })?;
    Ok(Done {
        status,
        timed_out,
        seconds: started.elapsed().as_secs_f64(),
        output,
    })
}

/// Runs `command` quietly and returns what it wrote.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Done> {
    run_lines(command, limit, |_| {})
}

/// Runs `command` and returns its standard output alone; a failure shows the command line and all it wrote.
pub(crate) fn stdout(command: &mut Command, limit: Duration) -> Result<String> {
    let line = shown(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut group = Group::spawn(command)?;
    let (mut out, mut err) = (String::new(), String::new());
    let piped = (group.child.stdout.take(), group.child.stderr.take());
    let (Some(mut child_out), Some(mut child_err)) = piped else {
        bail!("`{line}`: no pipe to the child");
    };
    let (status, timed_out) = std::thread::scope(|scope| {
        scope.spawn(|| child_out.read_to_string(&mut out));
        scope.spawn(|| child_err.read_to_string(&mut err));
        let waited = group.wait(limit);
        group.kill();
        waited
    })?;
    if timed_out {
        bail!("`{line}` did not end within {} s", limit.as_secs());
    }
    if !status.success() {
        bail!("`{line}`: {status}\n{}{}", out.trim_end(), err.trim_end());
    }
    Ok(out)
}

/// The full command line, to copy into a shell: environment first, then program and arguments.
pub(crate) fn shown(command: &Command) -> String {
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

/// Makes an interrupt (Ctrl-C, a CI cancel) end every running group before this process goes.
pub(crate) fn end_children_on_signal() {
    extern "C" fn handler(_signal: libc::c_int) {
        for slot in &RUNNING {
            let group = slot.load(Ordering::Relaxed);
            if group > 0 {
                // SAFETY: kill(2) and _exit(2) are async-signal-safe and take plain integers; the group id was
                // recorded by us and is removed before its leader is reaped.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
        }
        // SAFETY: as above; nothing after this line runs.
        unsafe { libc::_exit(130) };
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler has the signature which signal(2) asks for, lives for ever, and calls only
        // async-signal-safe functions.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Process groups that run now. The limit is far above what this tool ever starts at once (four, in the demo).
static RUNNING: [AtomicI32; 32] = [const { AtomicI32::new(0) }; 32];

/// A child that leads its own process group; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    id: i32,
}

impl Group {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
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

    /// Waits for the leader; true means that the limit struck and the group was killed.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<(ExitStatus, bool)> {
        let end = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, false));
            }
            if Instant::now() >= end {
                return Ok((self.end()?, true));
            }
            std::thread::sleep(pause);
            // Quick commands answer in milliseconds; long ones need no busy waiting.
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Asks the group to end (a child with groups of its own passes that on), then ends it.
    fn end(&mut self) -> Result<ExitStatus> {
        // SAFETY: as in `kill`.
        unsafe { libc::kill(-self.id, libc::SIGTERM) };
        let patience = Instant::now() + Duration::from_secs(2);
        while Instant::now() < patience {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        Ok(self.child.wait()?)
    }

    /// Ends everything in the group. Harmless when all of it has gone.
    pub(crate) fn kill(&mut self) {
        // SAFETY: kill(2) takes plain integers. The group id is the pid of a child of ours; a group id is not reused
        // while a member lives, and an empty group only answers ESRCH.
        unsafe { libc::kill(-self.id, libc::SIGKILL) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        for slot in &RUNNING {
            let _ = slot.compare_exchange(self.id, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_arrive_in_order() {
        let done = run(
            &mut sh("echo a; echo b >&2; echo c; exit 3"),
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!(done.output, "a\nb\nc\n");
        assert_eq!(done.status.code(), Some(3));
        assert!(!done.ok() && !done.timed_out);
    }

    #[test]
    fn the_limit_ends_the_whole_group() {
        let done = run(
            &mut sh("sleep 60 & echo $!; wait"),
            Duration::from_millis(300),
        )
        .unwrap();
        assert!(done.timed_out, "{done:?}");
        let grandchild = done.output.trim();
        let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        // Gone, or a zombie that waits for its new parent.
        assert!(
            stat.is_empty() || stat.contains(") Z "),
            "still running: {stat}"
        );
    }

    #[test]
    fn a_failure_shows_the_line_to_copy() {
        let error = stdout(
            sh("echo no >&2; exit 1").env("A", "b c"),
            Duration::from_secs(10),
        )
        .unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("A='b c' sh -c 'echo no >&2; exit 1'") && text.contains("no"),
            "{text}"
        );
    }
}
