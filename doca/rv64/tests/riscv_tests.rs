//! The programs of riscv-tests for user instructions, which the user has built and names in XGVMI_RISCV_TESTS.
//!
//! They are made for a bare machine: before the test they set control registers, which this processor does not have. The
//! environment answers those.

#![allow(clippy::print_stdout, reason = "the test run reads the lines")]

use rv64::{Action, Call, Cause, Config, Environment, Limits, Machine, Program, Stop, Trap};
use std::path::Path;

const VARIABLE: &str = "XGVMI_RISCV_TESTS";
const GROUPS: [&str; 7] = [
    "rv64ui-p-",
    "rv64um-p-",
    "rv64ua-p-",
    "rv64uc-p-",
    "rv64uzba-p-",
    "rv64uzbb-p-",
    "rv64uzbs-p-",
];
/// The groups that the project promises.
const PROMISED: usize = 4;
const BUDGET: u64 = 10_000_000;

#[test]
fn programs_of_riscv_tests_pass() {
    let Some(dir) = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) else {
        println!(
            "SKIP programs_of_riscv_tests_pass: {VARIABLE} names no directory with built programs"
        );
        return;
    };
    let entries = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", dir.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let (mut faults, mut passed) = (Vec::new(), 0);
    for (at, group) in GROUPS.iter().enumerate() {
        let programs = names
            .iter()
            .filter(|name| name.starts_with(group) && !name.contains('.'));
        let before = passed + faults.len();
        for name in programs {
            match run(&Path::new(&dir).join(name)) {
                Ok(()) => passed += 1,
                Err(fault) => faults.push(format!("{name}: {fault}")),
            }
        }
        assert!(
            at >= PROMISED || passed + faults.len() > before,
            "no {group}* in {}",
            dir.display()
        );
    }
    println!("{passed} programs passed");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The calls and control registers of a bare machine.
#[derive(Debug, Default)]
struct Bare {
    /// `mepc`, to which `mret` jumps.
    continues: u64,
}

impl Environment for Bare {
    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        match call.argument(7) {
            93 => Action::Finish(call.argument(0)),
            _ => Action::Trap(0),
        }
    }
}

impl Bare {
    /// Executes an access to a control register, or `mret`. Registers read as 0.
    fn control(&mut self, machine: &mut Machine, trap: Trap, word: u32) -> Option<()> {
        let hart = machine.hart_mut(trap.hart)?;
        let field = |from: u32| u8::try_from(word >> from & 31).unwrap_or_default();
        match (word & 0x7f, word >> 12 & 7) {
            (0x73, 0) if word == 0x3020_0073 => hart.set_pc(self.continues),
            (0x73, 1..) => {
                if (word >> 20, word >> 12 & 7) == (0x341, 1) {
                    self.continues = hart.x(field(15));
                }
                hart.set_x(field(7), 0);
                hart.set_pc(trap.pc + 4);
            }
            _ => return None,
        }
        machine.resume(trap.hart).ok()
    }
}

fn run(path: &Path) -> Result<(), String> {
    let mut file = std::fs::read(path).map_err(|error| error.to_string())?;
    allow_everything(&mut file).ok_or("no program headers")?;
    // The program of fence.i stores to its own code.
    let limits = Limits {
        writable_code: true,
        ..Limits::default()
    };
    let program = Program::parse_with(&file, &limits).map_err(|error| error.to_string())?;
    let config = Config {
        harts: 1,
        heap_bytes: 0,
        ..Config::default()
    };
    let mut machine = Machine::new(&program, &config).map_err(|error| error.to_string())?;
    let hart = machine.create_hart().map_err(|error| error.to_string())?;
    machine
        .start(hart, program.entry(), &[])
        .map_err(|error| error.to_string())?;
    let mut bare = Bare::default();
    loop {
        match machine.run(&mut bare, BUDGET) {
            Stop::Finished(_, 0) => return Ok(()),
            Stop::Finished(_, number) => return Err(format!("test {} failed", number >> 1)),
            Stop::Trapped(trap) => {
                let Cause::Illegal(word) = trap.cause else {
                    return Err(trap.to_string());
                };
                bare.control(&mut machine, trap, word)
                    .ok_or(trap.to_string())?;
            }
            other => return Err(format!("{other:?}")),
        }
    }
}

/// Their linker script gives the segments no rights. The programs are made for memory without rights.
fn allow_everything(file: &mut [u8]) -> Option<()> {
    let start = usize::try_from(u64::from_le_bytes(*file.get(32..)?.first_chunk()?)).ok()?;
    let count = usize::from(u16::from_le_bytes(*file.get(56..)?.first_chunk()?));
    for header in file.get_mut(start..)?.chunks_exact_mut(56).take(count) {
        header[4..8].copy_from_slice(&7_u32.to_le_bytes());
    }
    Some(())
}
