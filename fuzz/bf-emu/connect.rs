//! The connection manager: any commands with any structures on two open files.
#![no_main]

use arbitrary::Arbitrary;
use xgvmi_fuzz::{Command, Connections};
use libfuzzer_sys::fuzz_target;

/// Commands of one input.
const COMMANDS_MAX: usize = 32;

#[derive(Debug, Arbitrary)]
struct Step {
    second_file: bool,
    command: Command,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut connections = Connections::open();
    for step in steps.iter().take(COMMANDS_MAX) {
        connections.write(usize::from(step.second_file), &step.command);
    }
});
