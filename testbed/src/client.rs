//! A client that carries out batches: lines of JSON on its standard input, and answers on its standard output.

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A child with pipes. It is killed when dropped.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a program.
    ///
    /// # Errors
    /// The system's.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("a pipe was requested")?;
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            stdout: BufReader::new(stdout),
        })
    }

    /// Starts a program whose first line contains `word`.
    ///
    /// # Errors
    /// The system's, or the first line is another one.
    pub fn saying(command: &mut Command, word: &str) -> Result<Self> {
        let mut running = Self::start(command)?;
        let line = running
            .line()
            .with_context(|| command.get_program().display().to_string())?;
        ensure!(
            line.contains(word),
            "instead of '{word}' the program says: {line}"
        );
        Ok(running)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its next line.
    ///
    /// # Errors
    /// The program has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line)?;
        ensure!(read > 0, "it has ended: {}", self.child.wait()?);
        Ok(line)
    }

    /// Sends a batch, a line of JSON.
    ///
    /// # Errors
    /// The program has closed its input.
    pub fn send(&mut self, batch: &impl Serialize) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a pipe was requested")?;
        writeln!(stdin, "{}", serde_json::to_string(batch)?)?;
        Ok(stdin.flush()?)
    }

    /// The answer to a batch, a line of JSON.
    ///
    /// # Errors
    /// The program has ended, or says something else.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("the client says: {line}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_line_by_line_and_its_end_is_an_error() {
        let mut child = Client::saying(
            Command::new("sh").args(["-c", "echo ready; read line; echo \"$line\""]),
            "ready",
        )
        .unwrap();
        child.send(&[1, 2]).unwrap();
        assert_eq!(child.answer::<Vec<u32>>().unwrap(), [1, 2]);
        let ended = child.line().unwrap_err().to_string();
        assert!(ended.contains("it has ended"), "{ended}");
        let other = Client::saying(Command::new("echo").arg("other"), "ready");
        assert!(other.unwrap_err().to_string().contains("other"));
    }
}
