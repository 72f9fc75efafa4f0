//! Runs a program of tests/programs as a process of Linux: `write` and `exit` are its only calls.
//!
//! `rv64_user FILE [--count]` writes the program's output, and with `--count` a line with instructions and seconds to the standard
//! error. The exit code is the program's.

use anyhow::{Context as _, Result, bail};
use rv64::{Action, Call, Config, Environment, Machine, Program, Stop};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

/// A program of the tests executes fewer.
const BUDGET: u64 = 20_000_000_000;
/// Most bytes of one call.
const WRITE_MAX: u64 = 1 << 20;

const WRITE: u64 = 64;
const EXIT: u64 = 93;

/// The calls of a process.
#[derive(Debug, Default)]
struct Process {
    output: Vec<u8>,
}

impl Environment for Process {
    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        let (address, length) = (call.argument(1), call.argument(2));
        match call.argument(7) {
            WRITE if length <= WRITE_MAX => {
                let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
                if call.memory().read(address, &mut bytes).is_err() {
                    return Action::Trap(14);
                }
                self.output.extend(bytes);
                call.set_result(length);
                Action::Continue
            }
            EXIT => Action::Finish(call.argument(0)),
            _ => Action::Trap(38),
        }
    }
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, counts) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [path] => (path.to_owned(), false),
        [path, "--count"] => (path.to_owned(), true),
        _ => bail!("usage: rv64_user FILE [--count]"),
    };
    let file = std::fs::read(&path).with_context(|| path.clone())?;
    let program = Program::parse(&file).with_context(|| path.clone())?;
    let config = Config {
        harts: 1,
        ..Config::default()
    };
    let mut machine = Machine::new(&program, &config)?;
    let hart = machine.create_hart()?;
    machine.start(hart, program.entry(), &[])?;
    let mut process = Process::default();
    let started = Instant::now();
    let stop = machine.run(&mut process, BUDGET);
    let seconds = started.elapsed().as_secs_f64();
    std::io::stdout().write_all(&process.output)?;
    if counts {
        eprintln!("{} instructions, {seconds:.6} s", machine.retired());
    }
    match stop {
        Stop::Finished(_, value) => Ok(ExitCode::from(u8::try_from(value & 0xff)?)),
        Stop::Trapped(trap) => bail!("{path}: {trap}, {:?}", program.symbol_at(trap.pc)),
        other => bail!("{path}: {other:?} after {} instructions", machine.retired()),
    }
}
