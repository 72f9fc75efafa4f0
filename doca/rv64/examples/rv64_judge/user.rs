//! A program as a process of Linux: `write` and `exit` are its only calls.

use anyhow::{Context as _, Result, bail};
use rv64::{Action, Call, Config, Environment, Machine, Program, Stop};
use std::io::Write as _;
use std::process::ExitCode;

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

/// Runs a program and writes its output. With `counts`, writes the number of its instructions in place of it. Returns the
/// program's exit code.
pub(crate) fn run(path: &str, counts: bool) -> Result<ExitCode> {
    let file = std::fs::read(path).with_context(|| path.to_owned())?;
    let program = Program::parse(&file).with_context(|| path.to_owned())?;
    let config = Config {
        harts: 1,
        ..Config::default()
    };
    let mut machine = Machine::new(&program, &config)?;
    let hart = machine.create_hart()?;
    machine.start(hart, program.entry(), &[])?;
    let mut process = Process::default();
    let stop = machine.run(&mut process, BUDGET);
    if counts {
        println!("{}", machine.retired());
    } else {
        std::io::stdout().write_all(&process.output)?;
    }
    match stop {
        Stop::Finished(_, value) => Ok(ExitCode::from(u8::try_from(value & 0xff)?)),
        Stop::Trapped(trap) => bail!("{path}: {trap}, {:?}", program.symbol_at(trap.pc)),
        other => bail!("{path}: {other:?} after {} instructions", machine.retired()),
    }
}
