//! Random instructions on several harts, with an environment that answers anything.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rv64::{
    Action, Atomic, Call, Config, Environment, HartId, Machine, Program, Schedule, Stop,
    WindowAccess,
};

const CODE: u64 = 0x10000;
const DATA: u64 = 0x20000;
const WINDOW: u64 = 0x30000;
const BUDGET: u64 = 5000;

#[derive(Debug, Arbitrary)]
struct Input {
    code: Vec<u8>,
    answers: Vec<(u8, u64)>,
    registers: [u64; 8],
    seed: u64,
}

struct Answers {
    rest: std::vec::IntoIter<(u8, u64)>,
}

impl Answers {
    fn answer(&mut self) -> Result<u64, u32> {
        match self.rest.next() {
            Some((kind, value)) if kind % 4 != 0 => Ok(value),
            Some((kind, _)) => Err(kind.into()),
            None => Ok(0),
        }
    }
}

impl Environment for Answers {
    fn load(&mut self, access: &WindowAccess) -> Result<u64, u32> {
        assert!(
            access.offset + u64::from(access.size) <= 4096
                && access.address - access.offset == WINDOW
        );
        self.answer()
    }

    fn store(&mut self, access: &WindowAccess, _: u64) -> Result<(), u32> {
        assert!(access.offset + u64::from(access.size) <= 4096);
        self.answer().map(|_| ())
    }

    fn atomic(
        &mut self,
        access: &WindowAccess,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, u32> {
        assert_eq!(access.address % u64::from(access.size), 0);
        self.answer()
            .map(|old| operation.apply(old, operand, access.size))
    }

    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        let (kind, value) = self.rest.next().unwrap_or_default();
        call.set_result(value);
        call.wake(HartId::from(kind) % 8);
        match kind % 7 {
            0 => Action::Continue,
            1 => Action::Yield,
            2 => Action::Wait,
            3 => Action::WaitAgain,
            4 => Action::Stop,
            5 => Action::Finish(value),
            _ => Action::Trap(kind.into()),
        }
    }

    fn custom(&mut self, call: &mut Call<'_>, word: u32) -> Action {
        assert_eq!(word & 0x7f, 0x0b);
        let address = call.argument(0);
        let _ = call.memory().write(address, &word.to_le_bytes());
        self.ecall(call)
    }
}

fuzz_target!(|input: Input| {
    let code = &input.code[..input.code.len().min(4096)];
    let Some(program) = program(code) else {
        return;
    };
    let schedule = Schedule::Random {
        seed: input.seed,
        longest: 9,
    };
    let config = Config {
        harts: 4,
        stack_bytes: 4096,
        heap_bytes: 4096,
        schedule,
        ..Config::default()
    };
    let mut machine = Machine::new(&program, &config).expect("a machine of this size");
    machine
        .map_window(WINDOW, 4096, 1)
        .expect("the first window");
    for at in 0..4 {
        let hart = machine.create_hart().expect("one of four harts");
        let mut arguments = input.registers;
        arguments[..3].copy_from_slice(&[DATA, WINDOW, CODE + 2 * at]);
        if machine.start(hart, CODE, &arguments).is_err() {
            return;
        }
    }
    let mut answers = Answers {
        rest: input.answers.into_iter(),
    };
    for _ in 0..20 {
        let before = machine.retired();
        let stop = machine.run(&mut answers, BUDGET);
        assert!(machine.retired() - before <= BUDGET);
        assert!(
            machine
                .harts()
                .all(|hart| hart.x(0) == 0 && hart.pc() % 2 == 0)
        );
        if matches!(stop, Stop::Idle | Stop::Budget) {
            break;
        }
    }
});

/// An ELF file with the code and a page of data.
fn program(code: &[u8]) -> Option<Program> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xf3\0\x01\0\0\0".to_vec();
    let (length, offset) = (code.len() as u64, 64 + 2 * 56);
    for field in [CODE, 64, 0] {
        file.extend(field.to_le_bytes());
    }
    file.extend([1, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    for (flags, start, bytes, memory) in [(5_u32, CODE, length, length), (6, DATA, 0, 4096)] {
        file.extend(1_u32.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for field in [offset, start, start, bytes, memory, 4096] {
            file.extend(field.to_le_bytes());
        }
    }
    file.extend(code);
    Program::parse(&file).ok()
}
