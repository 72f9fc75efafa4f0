//! A program as RV64 in the interpreter.

use crate::process::{Area, BUFFER_BYTES, ENTRIES, Engine, Entry, Options, Refused};
use crate::services::Services;
use dpa_dev::intrinsics::{Operation, decode};
use pcc_dev::fxp;
use pcc_dev::layout::BLOCK_BYTES;
use pcc_lab::Failure;
use rv64::{Action, Call, Config, Environment, HartId, Machine, Program, Stop};
use std::sync::Arc;

/// Register with the number of a device call.
const T0: u8 = 5;

/// Instructions that calls other than events may take, as a multiple of the limit for an event.
const SLOW_CALL: u64 = 10;

/// Bytes of the heap, for the areas.
const HEAP_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Dpa {
    program: Arc<Program>,
    machine: Machine,
    hart: HartId,
    entries: [u64; ENTRIES.len()],
    block: u64,
    input: u64,
    output: u64,
    limit: u64,
}

impl Dpa {
    pub(crate) fn load(program: &Arc<Program>, options: &Options) -> Result<Self, Refused> {
        let config = Config {
            harts: 1,
            heap_bytes: HEAP_BYTES,
            ..Config::default()
        };
        let cannot =
            |error: &dyn std::fmt::Display| Refused(format!("cannot load the program: {error}"));
        let mut machine = Machine::new(program, &config).map_err(|error| cannot(&error))?;
        let hart = machine.create_hart().map_err(|error| cannot(&error))?;
        let mut allocate = |bytes: usize| {
            machine
                .allocate(bytes as u64)
                .map_err(|error| cannot(&error))
        };
        let (block, input, output) = (
            allocate(BLOCK_BYTES)?,
            allocate(BUFFER_BYTES)?,
            allocate(BUFFER_BYTES)?,
        );
        Ok(Self {
            entries: ENTRIES.map(|(_, name)| program.symbol(name).unwrap_or(0)),
            program: Arc::clone(program),
            machine,
            hart,
            block,
            input,
            output,
            limit: options.instructions_max,
        })
    }

    /// Where an instruction is, for messages.
    fn place(&self, pc: u64) -> String {
        match self.program.symbol_at(pc) {
            Some((name, distance)) => format!("{name}+{distance:#x}"),
            None => format!("{pc:#x}"),
        }
    }

    fn failure(&self, stop: Stop, limit: u64) -> Failure {
        let pc = self.machine.hart(self.hart).map_or(0, rv64::Hart::pc);
        Failure(match stop {
            Stop::Trapped(trap) => {
                let from = self
                    .machine
                    .hart(self.hart)
                    .map_or(0, rv64::Hart::last_jump);
                let origin = match trap.cause {
                    rv64::Cause::Fetch(_) => format!(" from {}", self.place(from)),
                    _ => String::new(),
                };
                format!("{}: {trap}{origin}", self.place(trap.pc))
            }
            Stop::Budget => format!("{}: more than {limit} instructions", self.place(pc)),
            stop => format!("{}: {stop:?}", self.place(pc)),
        })
    }
}

impl Engine for Dpa {
    fn address(&self, area: Area) -> u64 {
        match area {
            Area::Block => self.block,
            Area::Input => self.input,
            Area::Output => self.output,
        }
    }

    fn write(&mut self, area: Area, bytes: &[u8]) {
        let address = self.address(area);
        // The areas have these sizes.
        let _ = self.machine.memory_mut().poke(address, bytes);
    }

    fn read(&self, area: Area, bytes: &mut [u8]) {
        let _ = self.machine.memory().peek(self.address(area), bytes);
    }

    fn peek(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.machine.memory().peek(address, bytes).is_ok()
    }

    fn call(
        &mut self,
        entry: Entry,
        arguments: &[u64],
        services: &mut Services,
    ) -> Result<(u64, u32), Failure> {
        let function = self.entries[entry as usize];
        let limit = match entry {
            Entry::Event => self.limit,
            _ => self.limit.saturating_mul(SLOW_CALL),
        };
        let started = self.machine.start(self.hart, function, arguments);
        started.map_err(|error| Failure(error.to_string()))?;
        let before = self.machine.retired();
        let mut device = Device { services };
        match self.machine.run_hart(&mut device, self.hart, limit) {
            Stop::Finished(_, value) => {
                let instructions = self.machine.retired() - before;
                Ok((value, u32::try_from(instructions).unwrap_or(u32::MAX)))
            }
            stop => Err(self.failure(stop, limit)),
        }
    }
}

/// The device that the program calls.
struct Device<'a> {
    services: &'a mut Services,
}

impl Environment for Device<'_> {
    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        let number = call.registers().x(T0);
        let arguments = std::array::from_fn(|at| call.argument(u8::try_from(at).unwrap_or(0)));
        let memory = call.memory();
        let mut read = |address, bytes: &mut [u8]| memory.read(address, bytes).is_ok();
        match self.services.serve(number, arguments, &mut read) {
            Some(value) => {
                call.set_result(value);
                Action::Continue
            }
            None => Action::Trap(u32::try_from(number).unwrap_or(u32::MAX)),
        }
    }

    fn custom(&mut self, call: &mut Call<'_>, word: u32) -> Action {
        let Some(intrinsic) = decode(word) else {
            return Action::Trap(word);
        };
        let function = match intrinsic.operation {
            Operation::FxpRcp => fxp::recip,
            Operation::FxpPow2 => fxp::pow2,
            Operation::FxpLog2 => fxp::log2,
            // Memory is in order here.
            _ => return Action::Continue,
        };
        let registers = call.registers();
        #[expect(clippy::cast_possible_truncation, reason = "operands have 32 bits")]
        let operand = registers.x(intrinsic.rs1) as u32;
        registers.set_x(intrinsic.rd, u64::from(function(operand)));
        Action::Continue
    }

    fn time(&mut self, _: HartId, _: u64) -> u64 {
        self.services.time_us
    }
}
