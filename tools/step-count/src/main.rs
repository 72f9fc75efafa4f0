//! Counts the events of a program between marks: instructions, locked instructions, cache lines, allocations, system calls
//! and faults, by the loaded object that is responsible for them.
//!
//! ```text
//! step-count --output FILE [--owner NAME=PATTERN]... [--through PATTERN]... [--addresses NAME] [--blocks]
//!     -- PROGRAM ARGUMENTS...
//! step-count --output FILE [...] --attach PID
//! ```
//!
//! The program runs under `ptrace`: in single steps between its marks and at full speed elsewhere. Signal handlers are
//! also single-stepped. During a round the program shares one CPU with this process. The counts are exact: they do not
//! depend on the load of the machine, and no tool rewrites the program's instructions.
//!
//! A mark is the system call number [`MARK`], which no kernel implements: without a tracer it fails with `ENOSYS` and
//! has no effect. Its first argument is a label: a positive label starts a section, 0 ends it. Consecutive sections
//! without a 0 between them form one round.
//!
//! An owner is a name for objects whose path contains PATTERN; the first match counts, and an object without an owner
//! belongs to `other`. Objects of `--through` (the C library, the loader) are counted for their caller. The program
//! must be single-threaded between its marks: other threads run uncounted.
//!
//! `--attach PID` counts a process that runs already and has no marks: its first thread, or the thread with the number PID,
//! from the line `attached` on standard output until this program receives SIGINT or SIGTERM, as one section with label 1. The process then
//! continues at full speed. Its other threads run uncounted.
//!
//! `--blocks` counts whole blocks of instructions between jumps. It is several times faster, gives the same counts of
//! instructions, allocations and system calls, and neither locked instructions nor cache lines. The program may not start a process while it is counted,
//! nor may the counted thread start a thread between marks.
//!
//! `--addresses NAME` adds the execution count of each instruction of one owner, and, in single steps, of each of its cache lines
//! the access count and whether it is written, to find hot spots and lines that threads share.
//!
//! The result is JSON: `{"rounds":[{"sections":[{"label","owners":{NAME:{...}}}],"lines":{NAME:{"all","own"}}}]}`, see
//! [`report`]. The tool supports only x86_64, because it decodes instructions to find the cache lines that they access.

#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod branch;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod counter;
#[cfg(target_arch = "x86_64")]
mod decode;
mod owners;
mod report;
#[cfg(target_arch = "x86_64")]
mod threads;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[cfg(target_arch = "x86_64")]
mod walker;

use anyhow::{Context, Result, bail};
use owners::Rules;
use std::path::PathBuf;
use std::process::ExitCode;

/// Number of the system call that marks a section. Kernels number their calls below 1024.
pub const MARK: u64 = 0x5847_564d;

const USAGE: &str = "usage: step-count --output FILE [--owner NAME=PATTERN]... [--through PATTERN]... \
    [--addresses NAME] [--blocks] (-- PROGRAM ARGUMENTS... | --attach PID)";

/// The command line.
#[derive(Debug, Default)]
struct Arguments {
    output: PathBuf,
    rules: Rules,
    program: Vec<String>,
    /// A running process instead of a program.
    attach: Option<i32>,
    /// Count blocks instead of single instructions.
    blocks: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = parse(std::env::args().skip(1))?;
    run(&arguments)
}

#[cfg(target_arch = "x86_64")]
fn run(arguments: &Arguments) -> Result<ExitCode> {
    let by = match arguments.blocks {
        true => counter::By::Blocks,
        false => counter::By::Steps,
    };
    let (report, code) = match arguments.attach {
        Some(pid) => (
            counter::attach(pid, &arguments.rules, by)?,
            ExitCode::SUCCESS,
        ),
        None => counter::trace(&arguments.program, &arguments.rules, by)?,
    };
    let text = serde_json::to_string(&report)?;
    std::fs::write(&arguments.output, text)
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    Ok(code)
}

#[cfg(not(target_arch = "x86_64"))]
fn run(_arguments: &Arguments) -> Result<ExitCode> {
    bail!("step-count decodes the instructions of x86_64 only")
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut words = words;
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        if word == "--" {
            arguments.program = words.by_ref().collect();
            break;
        }
        if word == "--blocks" {
            arguments.blocks = true;
            continue;
        }
        let value = words
            .next()
            .with_context(|| format!("{word} needs a value; {USAGE}"))?;
        match word.as_str() {
            "--output" => arguments.output = value.into(),
            "--owner" => {
                let (name, pattern) = value
                    .split_once('=')
                    .with_context(|| format!("--owner {value}: not NAME=PATTERN"))?;
                arguments.rules.add(name, pattern)?;
            }
            "--addresses" => arguments.rules.set_addresses(&value),
            "--attach" => {
                let pid = value.parse().ok().filter(|pid| *pid > 0);
                arguments.attach = Some(pid.with_context(|| format!("--attach {value}: no PID"))?);
            }
            "--through" => arguments.rules.add_through(&value),
            _ => bail!("unknown option {word}; {USAGE}"),
        }
    }
    let is_one = arguments.program.is_empty() == arguments.attach.is_some();
    if !is_one || arguments.output.as_os_str().is_empty() {
        bail!(USAGE);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(line: &str, expect: &str) {
        let words = line.split_whitespace().map(str::to_owned);
        let error = parse(words).expect_err("refused").to_string();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn a_command_line_without_program_or_output_is_refused() {
        check_refused("", "usage");
        check_refused("--output f --", "usage");
        check_refused("-- true", "usage");
        check_refused("--output", "needs a value");
        check_refused("--owner a", "not NAME=PATTERN");
        check_refused("--what f -- true", "unknown option --what");
        check_refused("--output f --attach 0", "no PID");
        check_refused("--output f --attach 1 -- true", "usage");
    }
}
