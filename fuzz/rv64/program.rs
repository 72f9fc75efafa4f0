//! ELF files of programs. A program that is accepted runs without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rv64::{Config, Lines, Machine, Nothing, Program};

fuzz_target!(|file: &[u8]| {
    let lines = Lines::parse(file);
    let Ok(program) = Program::parse(file) else {
        return;
    };
    let entry = program.entry();
    let _ = (
        program.symbol("main"),
        program.symbol_at(entry),
        lines.and_then(|lines| lines.at(entry)),
    );
    let config = Config {
        harts: 1,
        heap_bytes: 0,
        ..Config::default()
    };
    // Its segments may be where the stacks are.
    let Ok(mut machine) = Machine::new(&program, &config) else {
        return;
    };
    let hart = machine.create_hart().expect("the first hart");
    if machine.start(hart, entry, &[]).is_ok() {
        machine.run(&mut Nothing, 1000);
        assert!(machine.retired() <= 1000);
    }
});
