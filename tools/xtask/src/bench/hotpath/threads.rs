//! Cache lines that two threads share. Each thread exports and releases through a memory domain of its own. `step-count`
//! attaches to one thread after the other, and reports the lines of the library's data that each thread accesses and
//! writes.

use super::{Row, THROUGH};
use crate::process::without_ucx_settings;
use crate::setup::Env;
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use testbed::cluster::Cluster;

/// Rounds of a thread that are counted at least. In a chunk of free keys are 16.
const ROUNDS: u64 = 20;
/// Time between two looks at the rounds.
const LOOK: Duration = Duration::from_millis(20);
/// Least instructions of a round.
const INSTRUCTIONS: u64 = 100;

/// Lines of each thread.
#[derive(Debug)]
pub(super) struct Threads {
    first: Lines,
    second: Lines,
}

/// Lines of the library's data by name, and whether the thread writes them.
type Lines = BTreeMap<String, bool>;

/// A program with pipes to its standard input and output, which ends with this value.
#[derive(Debug)]
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("no pipe")?;
        Ok(Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line)?;
        ensure!(read > 0, "the program ended: {:?}", self.child.wait());
        Ok(line)
    }

    /// Two numbers of a line.
    fn pair(&mut self) -> Result<[u64; 2]> {
        let line = self.line()?;
        let numbers = line.split_whitespace().map(str::parse);
        let numbers: Vec<u64> = numbers
            .collect::<Result<_, _>>()
            .with_context(|| line.clone())?;
        numbers.try_into().ok().context(line)
    }

    /// Rounds of both threads so far.
    fn rounds(&mut self) -> Result<[u64; 2]> {
        writeln!(self.input.as_mut().context("no pipe")?)?;
        self.pair()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Threads {
    /// Counts both threads.
    pub(super) fn count(env: &Env, device: &Cluster) -> Result<Self> {
        let mut command = super::pair(device, "ucp_hot_path");
        without_ucx_settings(&mut command);
        command.arg(env.ucx_lib_dir.join("libucp.so.0"));
        command.args(["mlx5_0", &super::BYTES.to_string(), "0", "threads"]);
        command.envs(env.for_ucx());
        command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
        command.env("UCX_XGVMI_POOL_INIT", "128");
        let mut program = Program::start(&mut command)?;
        let [first, second] = program.pair()?;
        let report = device.path().join("threads.json");
        let first = lines(&mut program, 0, first, &report)?;
        let second = lines(&mut program, 1, second, &report)?;
        drop(program.input.take());
        let status = program.child.wait()?;
        ensure!(status.success(), "ucp_hot_path with threads: {status}");
        Ok(Self { first, second })
    }

    /// Lines that one thread writes and the other one accesses.
    pub(super) fn shared(&self) -> Vec<&str> {
        let both = self.first.iter().filter(|(line, writes)| {
            let other = self.second.get(*line);
            other.is_some_and(|other_writes| **writes || *other_writes)
        });
        both.map(|(line, _)| line.as_str()).collect()
    }

    pub(super) fn rows(&self) -> [Row; 1] {
        let shared = u32::try_from(self.shared().len()).unwrap_or(u32::MAX);
        [Row::alone(
            "written cache lines of two threads on two domains",
            shared.into(),
        )]
    }
}

/// Lines of one thread.
fn lines(program: &mut Program, thread: usize, number: u64, report: &Path) -> Result<Lines> {
    let mut command = Command::new(workspace::built("step-count"));
    command.arg("--output").arg(report);
    command.args(["--owner", super::OWNERS[0], "--addresses", "library"]);
    for through in THROUGH {
        command.args(["--through", through]);
    }
    command.args(["--attach", &number.to_string()]);
    let mut counter = Program::start(&mut command)?;
    ensure!(counter.line()?.trim() == "attached", "not attached");
    let before = program.rounds()?[thread];
    // A step is two changes between processes of one processor; the questions shall not take part of it.
    while program.rounds()?[thread] < before + ROUNDS {
        std::thread::sleep(LOOK);
    }
    let pid = i32::try_from(counter.child.id())?;
    // SAFETY: kill(2) takes plain integers; the process is a child that was not waited for.
    let killed = unsafe { libc::kill(pid, libc::SIGTERM) };
    ensure!(killed == 0, "kill failed");
    ensure!(counter.child.wait()?.success(), "step-count failed");
    parse(&std::fs::read_to_string(report)?)
}

fn parse(text: &str) -> Result<Lines> {
    let report: Value = serde_json::from_str(text).context("the report of step-count")?;
    let counts = &report["rounds"][0]["sections"][0]["owners"]["library"];
    let instructions = counts["instructions"].as_u64().unwrap_or_default();
    ensure!(
        instructions >= ROUNDS * INSTRUCTIONS,
        "{instructions} instructions of the library in {ROUNDS} rounds"
    );
    let lines = report["lines"].as_object().context("no lines")?;
    let line = |(name, line): (&String, &Value)| {
        let is_written = line["is_written"].as_bool().context("no is_written")?;
        Ok((name.clone(), is_written))
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_one_thread_writes_and_the_other_reads_is_shared() {
        let lines = |list: &[(&str, bool)]| {
            let list = list
                .iter()
                .map(|(name, writes)| ((*name).to_owned(), *writes));
            list.collect()
        };
        let threads = Threads {
            first: lines(&[("a", true), ("b", false), ("c", true), ("d", false)]),
            second: lines(&[("a", false), ("b", false), ("d", true), ("e", true)]),
        };
        assert_eq!(threads.shared(), ["a", "d"]);
    }
}
