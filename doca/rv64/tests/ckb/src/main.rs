//! Random instruction streams on rv64 and on ckb-vm: registers, program counter and memory are equal after each stream.
//!
//! `rv64-ckb [INSTRUCTIONS [SEED]]` executes at least that many (10,000,000). A difference ends the run with the seed of its
//! stream.

#[path = "../../common/mod.rs"]
mod common;
mod stream;

use ckb_vm::decoder::build_decoder;
use ckb_vm::machine::VERSION2;
use ckb_vm::{
    CoreMachine, DefaultCoreMachine, DefaultMachineBuilder, FlatMemory, ISA_A, ISA_B, ISA_IMC,
    Memory, SupportMachine,
};
use common::{CODE, DATA, Elf, part};
use rv64::{Config, Machine, Nothing, Program, Stop};
use std::process::ExitCode;
use stream::{DATA_BYTES, Stream};

/// Instructions that each stream executes: it is a loop.
const STEPS: u64 = 1000;
const MEMORY: usize = 256 << 10;

/// What a stream leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    pc: u64,
    registers: Vec<u64>,
    data: Vec<u8>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next().map(|text| text.parse()) {
        None => Some(default),
        Some(number) => number.ok(),
    };
    let (Some(instructions), Some(seed)) = (number(10_000_000), number(1)) else {
        eprintln!("usage: rv64-ckb [INSTRUCTIONS [SEED]]");
        return ExitCode::FAILURE;
    };
    let streams = instructions.div_ceil(STEPS);
    for seed in seed..seed + streams {
        let stream = Stream::new(seed);
        match (ours(&stream), theirs(&stream)) {
            (Ok(ours), Ok(theirs)) if ours == theirs => {}
            (ours, theirs) => {
                eprintln!("seed {seed}:\n{}", difference(&ours, &theirs));
                eprintln!("code at {CODE:#x}: {}", stream.listing());
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{} instructions in {streams} streams, equal state after each",
        streams * STEPS
    );
    ExitCode::SUCCESS
}

fn ours(stream: &Stream) -> Result<Outcome, String> {
    let mut elf = Elf::new(&[]);
    elf.parts = vec![
        part(1, CODE, 5, &stream.code, stream.code.len() as u64),
        part(1, DATA, 6, &stream.data, DATA_BYTES as u64),
    ];
    elf.symbols.clear();
    let program = Program::parse(&elf.build()).map_err(|error| error.to_string())?;
    let config = Config {
        harts: 1,
        heap_bytes: 0,
        ..Config::default()
    };
    let mut machine = Machine::new(&program, &config).map_err(|error| error.to_string())?;
    let id = machine.create_hart().map_err(|error| error.to_string())?;
    machine
        .start(id, CODE, &[])
        .map_err(|error| error.to_string())?;
    let hart = machine.hart_mut(id).ok_or("no hart")?;
    for (register, value) in (0..).zip(stream.registers) {
        hart.set_x(register, value);
    }
    let stop = machine.run(&mut Nothing, STEPS);
    if stop != Stop::Budget {
        return Err(format!("{stop:?}"));
    }
    let mut data = vec![0; DATA_BYTES];
    machine
        .memory()
        .read(DATA, &mut data)
        .map_err(|fault| fault.to_string())?;
    let hart = machine.hart(id).ok_or("no hart")?;
    let registers = hart.registers().to_vec();
    Ok(Outcome {
        pc: hart.pc(),
        registers,
        data,
    })
}

fn theirs(stream: &Stream) -> Result<Outcome, String> {
    let isa = ISA_IMC | ISA_A | ISA_B;
    let core = DefaultCoreMachine::<u64, FlatMemory<u64>>::new_with_memory(
        isa,
        VERSION2,
        u64::MAX,
        MEMORY,
    );
    let mut machine = DefaultMachineBuilder::new(core).build();
    let text = |error: ckb_vm::Error| error.to_string();
    machine
        .memory_mut()
        .store_bytes(CODE, &stream.code)
        .map_err(text)?;
    machine
        .memory_mut()
        .store_bytes(DATA, &stream.data)
        .map_err(text)?;
    for (register, value) in stream.registers.into_iter().enumerate() {
        machine.set_register(register, value);
    }
    machine.update_pc(CODE);
    machine.commit_pc();
    machine.set_running(true);
    let mut decoder = build_decoder::<u64>(isa, VERSION2);
    for step in 0..STEPS {
        let pc = *machine.pc();
        machine
            .step(&mut decoder)
            .map_err(|error| format!("step {step} at {pc:#x}: {error}"))?;
    }
    let data = machine
        .memory_mut()
        .load_bytes(DATA, DATA_BYTES as u64)
        .map_err(text)?
        .to_vec();
    Ok(Outcome {
        pc: *machine.pc(),
        registers: machine.registers().to_vec(),
        data,
    })
}

fn difference(ours: &Result<Outcome, String>, theirs: &Result<Outcome, String>) -> String {
    let (Ok(ours), Ok(theirs)) = (ours, theirs) else {
        let shown = |one: &Result<Outcome, String>| {
            one.as_ref()
                .map_or_else(Clone::clone, |one| format!("pc {:#x}", one.pc))
        };
        return format!("rv64: {}\nckb-vm: {}", shown(ours), shown(theirs));
    };
    let mut text = format!("pc {:#x} and {:#x}\n", ours.pc, theirs.pc);
    for (register, (ours, theirs)) in ours.registers.iter().zip(&theirs.registers).enumerate() {
        if ours != theirs {
            text += &format!("x{register} {ours:#x} and {theirs:#x}\n");
        }
    }
    for (at, (ours, theirs)) in ours.data.iter().zip(&theirs.data).enumerate() {
        if ours != theirs {
            text += &format!("byte {:#x}: {ours:#x} and {theirs:#x}\n", DATA + at as u64);
        }
    }
    text
}
