//! The four processes of one scheme: start, control, and end in all cases.

use super::plan::{Plan, Scheme};
use crate::demo::control::{Channel, Command, Reply};
use crate::demo::{Place, Role, Side};
use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// Time limit of a process for one command. Its own waits are shorter and have better messages.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of a process for a message or an operation. The slowest operation, a transfer of 1 GiB on an emulated device,
/// takes a second.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for the end of a process after its channel is closed.
const EXIT_LIMIT: Duration = Duration::from_secs(3);

/// Name of this program, for another processor.
const PROGRAM: &str = "xgvmi-demo";

/// Number of log lines to print for a failed process.
const LOG_LINES: usize = 15;

/// The four processes of a scheme.
#[derive(Debug)]
pub(super) struct Group {
    scheme: String,
    members: Vec<Member>,
    reply_limit: Duration,
    exit_limit: Duration,
}

#[derive(Debug)]
struct Member {
    place: Place,
    /// `None` after closing, which tells the process to end.
    channel: Option<Channel>,
    child: Child,
    log: PathBuf,
}

impl Group {
    /// Starts the four processes. Their output goes to files in `logs`.
    pub(super) fn start(plan: &Plan, scheme: &Scheme, logs: &Path) -> Result<Self> {
        let mut group = Self {
            scheme: scheme.name.clone(),
            members: Vec::new(),
            reply_limit: plan.limit_of(REPLY_LIMIT),
            exit_limit: plan.limit_of(EXIT_LIMIT),
        };
        for place in Place::ALL {
            let member = Member::start(plan, scheme, place, logs)
                .with_context(|| format!("starting {place} of scheme {}", scheme.name))?;
            group.members.push(member);
        }
        Ok(group)
    }

    /// Sends a command to some of the processes.
    pub(super) fn send(&mut self, to: &[Place], command: &Command, step: &str) -> Result<()> {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if !to.contains(&member.place) {
                continue;
            }
            if let Some(channel) = &mut member.channel
                && channel.send(command).is_ok()
            {
                continue;
            }
            return Err(self.died(index, step));
        }
        Ok(())
    }

    /// Waits for an answer of each of `from` and watches all four processes: an error message or the end of any
    /// of them is returned at once.
    pub(super) fn gather(
        &mut self,
        from: &[Place],
        step: &str,
        deadline: Instant,
    ) -> Result<Vec<(Place, Reply)>> {
        let deadline = deadline.min(Instant::now() + self.reply_limit);
        let mut replies: Vec<(Place, Reply)> = Vec::new();
        loop {
            for index in 0..self.members.len() {
                let place = self.members[index].place;
                while let Some(reply) = self.members[index].buffered()? {
                    if let Reply::Failed(message) = &reply {
                        bail!(
                            "scheme {}, {place}, {step}: {message}{}",
                            self.scheme,
                            self.members[index].log_tail()
                        );
                    }
                    if !from.contains(&place) || replies.iter().any(|(other, _)| *other == place) {
                        bail!(
                            "scheme {}, {place}, {step}: unexpected {reply:?}",
                            self.scheme
                        );
                    }
                    replies.push((place, reply));
                }
            }
            if replies.len() == from.len() {
                return Ok(replies);
            }
            self.wait(&replies, from, step, deadline)?;
        }
    }

    /// Sends a command to all and waits for all answers.
    pub(super) fn ask(
        &mut self,
        command: &Command,
        step: &str,
        deadline: Instant,
    ) -> Result<Vec<(Place, Reply)>> {
        self.send(&Place::ALL, command, step)?;
        self.gather(&Place::ALL, step, deadline)
    }

    /// Ends the processes in an orderly way; a failure at exit is a failure of the run.
    pub(super) fn finish(mut self) -> Result<()> {
        for member in &mut self.members {
            member.channel = None;
        }
        let deadline = Instant::now() + self.exit_limit;
        for member in &mut self.members {
            match member.wait_exit(deadline) {
                Some(status) if status.success() => {}
                Some(status) => bail!(
                    "scheme {}, {}, at exit: {status}{}",
                    self.scheme,
                    member.place,
                    member.log_tail()
                ),
                None => bail!(
                    "scheme {}, {}, at exit: still there {} s after its channel closed",
                    self.scheme,
                    member.place,
                    self.exit_limit.as_secs()
                ),
            }
        }
        Ok(())
    }

    /// Sleeps until a process sends a message, and reads it.
    fn wait(
        &mut self,
        replies: &[(Place, Reply)],
        from: &[Place],
        step: &str,
        deadline: Instant,
    ) -> Result<()> {
        let mut fds: Vec<libc::pollfd> = self
            .members
            .iter()
            .map(|member| libc::pollfd {
                // A negative descriptor is skipped by poll.
                fd: member
                    .channel
                    .as_ref()
                    .map_or(-1, |channel| channel.as_fd().as_raw_fd()),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        let count = libc::nfds_t::try_from(fds.len())?;
        // SAFETY: that many valid pollfd structures.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) };
        if ready < 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() == std::io::ErrorKind::Interrupted {
                return Ok(());
            }
            return Err(error).context("poll of the control channels");
        }
        if ready == 0 {
            let silent: Vec<&str> = from
                .iter()
                .filter(|place| !replies.iter().any(|(other, _)| other == *place))
                .map(|place| place.name())
                .collect();
            bail!(
                "scheme {}, {step}: no answer in time from {}",
                self.scheme,
                silent.join(", ")
            );
        }
        for (index, fd) in fds.iter().enumerate() {
            if fd.revents != 0 && !self.members[index].read()? {
                return Err(self.died(index, step));
            }
        }
        Ok(())
    }

    /// The error of a process that has closed its channel.
    fn died(&mut self, index: usize, step: &str) -> anyhow::Error {
        let member = &mut self.members[index];
        // The process's own message is better than its exit status.
        if let Ok(Some(Reply::Failed(message))) = member.buffered() {
            return anyhow::anyhow!(
                "scheme {}, {}, {step}: {message}{}",
                self.scheme,
                member.place,
                member.log_tail()
            );
        }
        let end = member
            .wait_exit(Instant::now() + self.exit_limit)
            .map_or("closed its control channel".to_owned(), |status| {
                format!("ended: {status}")
            });
        anyhow::anyhow!(
            "scheme {}, {}, {step}: {end}{}",
            self.scheme,
            member.place,
            member.log_tail()
        )
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.channel = None;
        }
        let deadline = Instant::now() + self.exit_limit;
        for member in &mut self.members {
            if member.wait_exit(deadline).is_none() {
                // By process id: our own child that has not been waited for.
                let _ = member.child.kill();
                let _ = member.child.wait();
            }
        }
    }
}

impl Member {
    fn start(plan: &Plan, scheme: &Scheme, place: Place, logs: &Path) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let channel = Channel::new(ours);
        channel.set_write_limit(plan.limit_of(REPLY_LIMIT))?;
        let role = match place.role() {
            Role::Host => "host",
            Role::Dpu => "dpu",
        };
        let side = match place.side() {
            Side::A => "a",
            Side::B => "b",
        };
        let log = logs.join(format!("{}.{role}-{side}.log", scheme.name));
        let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let node = match place.side() {
            Side::A => 0,
            Side::B => 1,
        };
        let function = format!("node{node}.{role}");
        let foreign = plan.dpu.as_ref().filter(|_| place.role() == Role::Dpu);
        let mut command = match foreign {
            Some(foreign) => foreign.command(&scheme.device, &function, PROGRAM),
            None => scheme.device.command(&function, std::env::current_exe()?),
        };
        command
            .args(["process", "--role", role, "--side", side])
            .args(["--spin-us", &plan.spin.as_micros().to_string()])
            .args([
                "--step-limit-s",
                &plan.limit_of(STEP_LIMIT).as_secs().to_string(),
            ])
            .stdin(OwnedFd::from(theirs))
            .stdout(output.try_clone()?)
            .stderr(output);
        let library = foreign.map(|foreign| &foreign.ucx);
        if let Some(library) = library.or(plan.ucx_library.as_ref()) {
            command.arg("--ucx-library").arg(library);
        }
        let child = command
            .spawn()
            .with_context(|| format!("running {command:?}"))?;
        Ok(Self {
            place,
            channel: Some(channel),
            child,
            log,
        })
    }

    fn buffered(&mut self) -> Result<Option<Reply>> {
        let Some(channel) = &mut self.channel else {
            return Ok(None);
        };
        channel
            .buffered()
            .with_context(|| format!("what {} says", self.place))
    }

    /// Reads the available bytes; false when the process has closed its side.
    fn read(&mut self) -> Result<bool> {
        let Some(channel) = &mut self.channel else {
            return Ok(false);
        };
        channel
            .fill()
            .with_context(|| format!("reading from {}", self.place))
    }

    /// Waits for the end of the process.
    fn wait_exit(&mut self, deadline: Instant) -> Option<std::process::ExitStatus> {
        loop {
            // A child that cannot be waited for is gone.
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The last lines of the log, indented, for an error message.
    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        if tail.is_empty() {
            return String::new();
        }
        format!(
            "\n{} says:\n    {}",
            self.log.display(),
            tail.join("\n    ")
        )
    }
}
