//! Dialogue with a child process: one line to it, one line back, within a time limit.

use crate::process::{self, Collected, Group};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The child. Dropping it ends the process.
pub(crate) struct Talk {
    shown: String,
    input: ChildStdin,
    answers: Receiver<String>,
    complaints: Collected,
    group: Group,
}

impl Talk {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let shown = process::shown(command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group = Group::spawn(command)?;
        let pipes = (group.child.stdin.take(), group.child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            bail!("`{shown}`: no pipes")
        };
        let complaints = Collected::from(group.child.stderr.take());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output)
                .lines()
                .map_while(std::result::Result::ok)
            {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            shown,
            input,
            answers,
            complaints,
            group,
        })
    }

    /// Sends `line` and does not wait.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let written = self.input.write_all(format!("{line}\n").as_bytes());
        written.with_context(|| self.gone())
    }

    /// What it has written to standard error.
    pub(crate) fn complaints(&self) -> String {
        self.complaints.text()
    }

    fn gone(&self) -> String {
        format!("it has ended: `{}`\n{}", self.shown, self.complaints.text())
    }

    /// Sends `line` and returns the answer.
    pub(crate) fn ask(&mut self, line: &str, limit: Duration) -> Result<String> {
        self.say(line)?;
        self.hear(limit)
    }

    /// Returns the next answer.
    pub(crate) fn hear(&mut self, limit: Duration) -> Result<String> {
        match self.answers.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => bail!("{}", self.gone()),
            Err(RecvTimeoutError::Timeout) => {
                let (seconds, said) = (limit.as_secs(), self.complaints.text());
                bail!("no answer within {seconds} s from `{}`\n{said}", self.shown)
            }
        }
    }

    /// Kills the child and waits for its end.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.group.kill();
        self.group
            .child
            .wait()
            .map(drop)
            .context("waiting for a killed child")
    }
}
