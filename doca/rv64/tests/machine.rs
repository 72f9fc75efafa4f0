//! Machines: harts, memory, guards, windows, budgets and turns.

mod common;

use common::{
    A0, A1, A2, CODE, DATA, ECALL, Elf, RET, SP, TP, addi, amo, branch, config, i, load, lui,
    machine, part, store,
};
use rv64::{
    Action, Atomic, Call, Cause, Config, Environment, Fault, Limits, Machine, MachineError,
    Nothing, PAGE, Program, Refusal, Schedule, State, Stop, Trap, WindowAccess,
};

/// A custom-0 instruction.
const CUSTOM: u32 = 0xabcd_e00b;

/// Answers calls with a list of actions, and windows with one number each.
#[derive(Debug, Default)]
struct Answers {
    actions: Vec<Action>,
    seen: Vec<String>,
    value: u64,
    wake: Option<u32>,
}

impl Environment for Answers {
    fn load(&mut self, access: &WindowAccess) -> Result<u64, u32> {
        self.seen.push(format!(
            "load {} {:#x} {}",
            access.window, access.offset, access.size
        ));
        if access.offset >= 0x80 {
            Err(5)
        } else {
            Ok(self.value)
        }
    }

    fn store(&mut self, access: &WindowAccess, value: u64) -> Result<(), u32> {
        self.seen.push(format!(
            "store {} {:#x} {}",
            access.window, access.offset, access.size
        ));
        self.value = value;
        if access.offset >= 0x80 {
            Err(6)
        } else {
            Ok(())
        }
    }

    fn atomic(
        &mut self,
        access: &WindowAccess,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, u32> {
        self.seen.push(format!(
            "{operation:?} {:#x} {}",
            access.offset, access.size
        ));
        let old = self.value;
        self.value = operation.apply(old, operand, access.size);
        if access.offset >= 0x80 {
            Err(7)
        } else {
            Ok(old)
        }
    }

    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        self.seen
            .push(format!("ecall {} {:#x}", call.argument(0), call.pc()));
        call.set_result(call.argument(0) + 1);
        if let Some(hart) = self.wake {
            call.wake(hart);
        }
        if self.actions.is_empty() {
            Action::Continue
        } else {
            self.actions.remove(0)
        }
    }

    fn custom(&mut self, call: &mut Call<'_>, word: u32) -> Action {
        self.seen.push(format!("custom {word:#x}"));
        let value = call.argument(0);
        call.registers().set_x(11, value + 100);
        Action::Continue
    }

    fn fence(&mut self, _: &mut Call<'_>, word: u32) {
        self.seen.push(format!("fence {:#x}", word >> 20 & 0xff));
    }

    fn time(&mut self, hart: u32, cycles: u64) -> u64 {
        1000 * u64::from(hart) + cycles
    }
}

fn started(machine: &mut Machine, arguments: &[u64]) -> u32 {
    let hart = machine.create_hart().unwrap();
    machine.start(hart, CODE, arguments).unwrap();
    hart
}

fn trap(stop: Stop) -> (Cause, u64) {
    match stop {
        Stop::Trapped(Trap { cause, address, .. }) => (cause, address),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_function_is_called_again_and_again() {
    let mut machine = machine(&[addi(A0, A0, 1), RET]);
    let hart = machine.create_hart().unwrap();
    assert_eq!(machine.hart(hart).unwrap().state(), State::Idle);
    for value in 0..1000 {
        machine.start(hart, CODE, &[value]).unwrap();
        assert_eq!(
            machine.run(&mut Nothing, 10),
            Stop::Finished(hart, value + 1)
        );
        assert_eq!(machine.run(&mut Nothing, 10), Stop::Idle);
    }
    assert_eq!(
        (machine.retired(), machine.hart(hart).unwrap().retired()),
        (2000, 2000)
    );
}

#[test]
fn harts_are_bounded() {
    let mut machine = machine(&[RET]);
    for expect in 0..8 {
        assert_eq!(machine.create_hart(), Ok(expect));
    }
    assert_eq!(machine.create_hart(), Err(MachineError::NoHart(8)));
    machine.start(3, CODE, &[]).unwrap();
    assert_eq!(machine.start(3, CODE, &[]), Err(MachineError::Busy(3)));
    machine.destroy_hart(3).unwrap();
    assert_eq!(machine.destroy_hart(3), Err(MachineError::UnknownHart(3)));
    assert_eq!(
        machine.start(3, CODE, &[]),
        Err(MachineError::UnknownHart(3))
    );
    assert_eq!(machine.run(&mut Nothing, 10), Stop::Idle);
    assert_eq!(machine.create_hart(), Ok(3), "the lowest free number");
    assert_eq!(
        machine.start(3, CODE, &[0; 9]),
        Err(MachineError::Arguments(9))
    );
    assert_eq!(
        machine.start(3, DATA, &[]),
        Err(MachineError::Function(DATA))
    );
    assert_eq!(
        machine.start(99, CODE, &[]),
        Err(MachineError::UnknownHart(99))
    );
    assert_eq!(
        machine.resume(3),
        Err(MachineError::UnknownHart(3)),
        "not started"
    );
}

#[test]
fn all_256_harts_of_the_default_run() {
    let program =
        Program::parse(&Elf::new(&[store(3, A0, SP, -8), load(3, A0, SP, -8), RET]).build())
            .unwrap();
    let mut machine = Machine::new(&program, &Config::default()).unwrap();
    for hart in 0..256 {
        assert_eq!(started(&mut machine, &[u64::from(hart) * 3]), hart);
    }
    assert!(machine.create_hart().is_err());
    for hart in 0..256 {
        let stop = machine.run(&mut Nothing, 1 << 20);
        assert_eq!(stop, Stop::Finished(hart, u64::from(hart) * 3));
    }
    // Code, data and 256 stacks.
    let ranges: Vec<_> = machine.memory().memory_ranges().collect();
    assert_eq!(
        (ranges.len(), ranges[0], ranges[1].1),
        (258, (CODE, 12, rv64::Rights::READ_EXECUTE), 4096)
    );
}

#[test]
fn impossible_sizes_are_refused() {
    let program = Program::parse(&Elf::new(&[RET]).build()).unwrap();
    let check = |config: Config, part: &str| {
        let error = Machine::new(&program, &config).unwrap_err().to_string();
        assert!(error.starts_with(part), "{error}");
    };
    let good = config();
    check(
        Config { harts: 0, ..good },
        "harts = 0: allowed are multiples of 1 from 1 to 256",
    );
    check(Config { harts: 257, ..good }, "harts = 257");
    check(
        Config {
            stack_bytes: 100,
            ..good
        },
        "stack_bytes = 100: allowed are multiples of 4096",
    );
    check(
        Config {
            stack_bytes: 2 << 20,
            ..good
        },
        "stack_bytes",
    );
    check(
        Config {
            heap_bytes: 512 << 20,
            ..good
        },
        "heap_bytes",
    );
    check(Config { heap: 0, ..good }, "heap = 0");
    check(
        Config { heap: CODE, ..good },
        "the heap, 65536 bytes at 0x10000, overlaps 4 bytes at 0x10000",
    );
    check(
        Config {
            stacks: DATA - PAGE,
            ..good
        },
        "a guard page",
    );
    check(
        Config {
            stacks: !0xfff,
            ..good
        },
        "stacks",
    );
}

#[test]
fn stacks_have_guards() {
    let mut machine = machine(&[
        store(3, 0, SP, -8),
        addi(SP, SP, -2048),
        branch(0, 0, 0, -8),
    ]);
    for expect in 0..2 {
        let hart = started(&mut machine, &[]);
        let (bottom, bytes) = machine.stack(hart);
        assert_eq!(bytes, 4096);
        let stop = machine.run(&mut Nothing, 100);
        assert_eq!(
            trap(stop),
            (Cause::Store(Refusal::Guard), bottom - 8),
            "{expect}"
        );
        let Stop::Trapped(trap) = stop else { panic!() };
        let text = format!(
            "hart {hart} at 0x10000: store to {:#x}: guard page of a stack or of thread-local storage",
            bottom - 8
        );
        assert_eq!(trap.to_string(), text);
        assert_eq!(machine.hart(hart).unwrap().state(), State::Trapped(trap));
        // Above the stack is the guard of the next hart.
        let mut byte = [0];
        let fault = Fault {
            address: bottom + bytes,
            refusal: Refusal::Guard,
        };
        assert_eq!(machine.memory().read(bottom + bytes, &mut byte), Err(fault));
        assert_eq!(machine.memory().read(bottom + bytes - 1, &mut byte), Ok(()));
    }
}

#[test]
fn thread_local_storage_is_kept_between_calls() {
    let mut elf = Elf::new(&[
        load(3, A0, TP, 0),
        addi(A1, A0, 1),
        store(3, A1, TP, 0),
        RET,
    ]);
    elf.parts.push(part(7, DATA, 4, &7_u64.to_le_bytes(), 24));
    let program = Program::parse(&elf.build()).unwrap();
    let mut machine = Machine::new(&program, &config()).unwrap();
    for _ in 0..2 {
        let (one, two) = (
            machine.create_hart().unwrap(),
            machine.create_hart().unwrap(),
        );
        for (hart, expect) in [(one, 7), (one, 8), (two, 7), (one, 9)] {
            machine.start(hart, CODE, &[]).unwrap();
            assert_eq!(machine.run(&mut Nothing, 10), Stop::Finished(hart, expect));
        }
        machine.destroy_hart(one).unwrap();
        machine.destroy_hart(two).unwrap();
    }
    // Without any, the address is that of a guard page.
    let mut machine = common::machine(&[load(3, A0, TP, 0), RET]);
    started(&mut machine, &[]);
    assert!(matches!(
        trap(machine.run(&mut Nothing, 10)),
        (Cause::Load(Refusal::Guard), _)
    ));
}

#[test]
fn budgets_are_exact() {
    let mut machine = machine(&[addi(A0, A0, 1), branch(0, 0, 0, -4)]);
    let hart = started(&mut machine, &[0]);
    for (budget, pc, a0) in [
        (0, CODE, 0),
        (1, CODE + 4, 1),
        (1, CODE, 1),
        (997, CODE + 4, 500),
        (1_000_000, CODE + 4, 500_500),
    ] {
        assert_eq!(machine.run(&mut Nothing, budget), Stop::Budget);
        let found = machine.hart(hart).unwrap();
        assert_eq!((found.pc(), found.x(10)), (pc, a0), "{budget}");
    }
    assert_eq!(machine.retired(), 1_000_999);
    assert_eq!(machine.run_hart(&mut Nothing, hart, 3), Stop::Budget);
    assert_eq!(machine.retired(), 1_001_002);
    assert_eq!(machine.run_hart(&mut Nothing, 7, 3), Stop::Idle);
}

#[test]
fn the_environment_answers_calls() {
    let mut machine = machine(&[ECALL, ECALL, RET]);
    let hart = machine.create_hart().unwrap();
    let run = |machine: &mut Machine, actions: &[Action]| {
        let mut answers = Answers {
            actions: actions.to_vec(),
            ..Answers::default()
        };
        machine.start(hart, CODE, &[5]).unwrap();
        (machine.run(&mut answers, 100), answers.seen.len())
    };
    assert_eq!(run(&mut machine, &[]), (Stop::Finished(hart, 7), 2));
    assert_eq!(
        run(&mut machine, &[Action::Yield]),
        (Stop::Finished(hart, 7), 2)
    );
    assert_eq!(
        run(&mut machine, &[Action::Finish(9)]),
        (Stop::Finished(hart, 9), 1)
    );
    let (stop, _) = run(&mut machine, &[Action::Continue, Action::Trap(3)]);
    assert_eq!(trap(stop), (Cause::Environment(3), CODE + 4));
    assert_eq!(run(&mut machine, &[Action::Stop]), (Stop::Stopped(hart), 1));
    assert_eq!(machine.hart(hart).unwrap().pc(), CODE + 4);
    assert_eq!(
        machine.run(&mut Answers::default(), 100),
        Stop::Finished(hart, 7)
    );
    // Waiting: with the next instruction, and with the same one again.
    for (action, calls) in [(Action::Wait, 1), (Action::WaitAgain, 2)] {
        assert_eq!(run(&mut machine, &[action]), (Stop::Idle, 1));
        assert_eq!(machine.hart(hart).unwrap().state(), State::Waiting);
        assert_eq!(
            machine.start(hart, CODE, &[]),
            Err(MachineError::Busy(hart))
        );
        assert!(machine.wake(hart) && !machine.wake(hart));
        let mut answers = Answers::default();
        assert!(matches!(machine.run(&mut answers, 100), Stop::Finished(..)));
        assert_eq!(answers.seen.len(), calls, "{action:?}");
    }
    assert_eq!(
        trap({
            machine.start(hart, CODE, &[]).unwrap();
            machine.run(&mut Nothing, 100)
        }),
        (Cause::Environment(0), CODE)
    );
}

#[test]
fn own_instructions_fences_and_time_reach_the_environment() {
    let time = i((2, 0x73), A0, 0, 0xc01);
    let mut machine = machine(&[CUSTOM, 0x0330_000f, time, i((0, 0x13), A0, A0, 0), RET]);
    machine.create_hart().unwrap();
    let hart = started(&mut machine, &[1]);
    let mut answers = Answers::default();
    assert_eq!(machine.run(&mut answers, 100), Stop::Finished(hart, 1002));
    assert_eq!(answers.seen, ["custom 0xabcde00b", "fence 0x33"]);
    assert_eq!(machine.hart(hart).unwrap().x(11), 101);
}

#[test]
fn one_hart_wakes_another() {
    let mut machine = machine(&[ECALL, RET]);
    let (one, two) = (started(&mut machine, &[0]), started(&mut machine, &[10]));
    let mut answers = Answers {
        actions: vec![Action::Wait],
        wake: Some(one),
        ..Answers::default()
    };
    assert_eq!(
        machine.run(&mut answers, 1),
        Stop::Budget,
        "a hart cannot wake itself before it waits"
    );
    assert_eq!(machine.hart(one).unwrap().state(), State::Ready);
    let mut finished = vec![
        machine.run(&mut answers, 100),
        machine.run(&mut answers, 100),
    ];
    finished.sort_by_key(|stop| format!("{stop:?}"));
    assert_eq!(finished, [Stop::Finished(one, 1), Stop::Finished(two, 11)]);
}

#[test]
fn windows_are_answered_by_the_environment() {
    const WINDOW: u64 = 0x5000_0000;
    let mut machine = machine(&[
        store(2, A1, A0, 8),
        load(1, A2, A0, 2),
        amo(0, 3, A2, A0, A1),
        amo(2, 2, A2, A0, 0),
        amo(3, 2, A2, A0, A1),
        addi(A0, A2, 0),
        RET,
    ]);
    machine.map_window(WINDOW, 0x100, 42).unwrap();
    let hart = started(&mut machine, &[WINDOW, 0xffff]);
    let mut answers = Answers::default();
    assert_eq!(machine.run(&mut answers, 100), Stop::Finished(hart, 0));
    let seen = [
        "store 42 0x8 4",
        "load 42 0x2 2",
        "Add 0x0 8",
        "load 42 0x0 4",
        "CompareSwap(131070) 0x0 4",
    ];
    assert_eq!(answers.seen, seen);
    assert_eq!(answers.value, 0xffff);
    // Refusals keep their code; a part outside is a fault at the first address outside.
    let check = |machine: &mut Machine, address, expect| {
        machine.start(hart, CODE, &[address, 0]).unwrap();
        assert_eq!(trap(machine.run(&mut Answers::default(), 100)), expect);
    };
    check(
        &mut machine,
        WINDOW + 0x78,
        (Cause::Store(Refusal::Environment(6)), WINDOW + 0x80),
    );
    check(
        &mut machine,
        WINDOW + 0xf6,
        (Cause::Store(Refusal::Window), WINDOW + 0x100),
    );
    assert_eq!(
        machine
            .map_window(WINDOW + 0xff, 1, 0)
            .unwrap_err()
            .to_string(),
        "a window, 1 bytes at 0x500000ff, overlaps 256 bytes at 0x50000000"
    );
    assert!(matches!(
        machine.map_window(config().heap + 5, 1, 0),
        Err(MachineError::Overlap { .. })
    ));
    assert!(matches!(
        machine.map_window(WINDOW, 0, 0),
        Err(MachineError::Range { .. })
    ));
    assert_eq!(
        machine.unmap_window(WINDOW + 1),
        Err(MachineError::UnknownWindow(WINDOW + 1))
    );
    assert_eq!(
        machine.unmap_window(DATA),
        Err(MachineError::UnknownWindow(DATA))
    );
    machine.unmap_window(WINDOW).unwrap();
    check(
        &mut machine,
        WINDOW,
        (Cause::Store(Refusal::Unmapped), WINDOW + 8),
    );
}

#[test]
fn allocations_end_exactly() {
    let mut machine = machine(&[store(0, A1, A0, 0), load(4, A0, A0, 0), RET]);
    let hart = machine.create_hart().unwrap();
    let (one, two) = (machine.allocate(100).unwrap(), machine.allocate(8).unwrap());
    let byte = |machine: &mut Machine, address| {
        machine.start(hart, CODE, &[address, 3]).unwrap();
        machine.run(&mut Nothing, 10)
    };
    for address in [one, one + 103, two, two + 7] {
        assert_eq!(
            byte(&mut machine, address),
            Stop::Finished(hart, 3),
            "{address:#x}"
        );
    }
    for address in [one - 1, one + 104, two - 1, two + 8] {
        assert_eq!(
            trap(byte(&mut machine, address)),
            (Cause::Store(Refusal::Unmapped), address)
        );
    }
    assert_eq!(machine.allocation(one + 99), Some((one, 100)));
    machine.free(one).unwrap();
    assert_eq!(
        trap(byte(&mut machine, one)),
        (Cause::Store(Refusal::Unmapped), one),
        "freed"
    );
    assert_eq!(machine.allocate(50), Ok(one));
    assert!(machine.allocate(1 << 16).is_err());
}

/// `harts` harts that each add 1 to the same number `rounds` times.
fn count_together(
    adder: &[u32],
    schedule: Schedule,
    harts: u32,
    rounds: u64,
) -> (u64, Vec<u32>, u64) {
    let back = -4 * i32::try_from(adder.len() + 1).unwrap();
    let code = [adder, &[addi(A1, A1, -1), branch(1, A1, 0, back), RET]].concat();
    let program = Program::parse(&Elf::new(&code).build()).unwrap();
    let mut machine = Machine::new(
        &program,
        &Config {
            schedule,
            ..config()
        },
    )
    .unwrap();
    for _ in 0..harts {
        started(&mut machine, &[DATA, rounds]);
    }
    let mut order = Vec::new();
    loop {
        match machine.run(&mut Nothing, 1_000_000) {
            Stop::Finished(hart, _) => order.push(hart),
            Stop::Idle => break,
            other => panic!("{other:?}"),
        }
    }
    let mut sum = [0; 8];
    machine.memory().read(DATA, &mut sum).unwrap();
    (u64::from_le_bytes(sum), order, machine.retired())
}

#[test]
fn seeds_determine_the_run() {
    let plain = [load(3, A2, A0, 0), addi(A2, A2, 1), store(3, A2, A0, 0)];
    let run = |seed| count_together(&plain, Schedule::Random { seed, longest: 7 }, 8, 200);
    assert_eq!(run(1), run(1));
    let runs: Vec<_> = (0..8).map(run).collect();
    assert!(runs.iter().any(|other| other.1 != runs[0].1), "{runs:?}");
    // Additions of several instructions are lost, so harts do interleave.
    assert!(
        runs.iter()
            .all(|(sum, order, _)| *sum < 1600 && order.len() == 8),
        "{runs:?}"
    );
}

#[test]
fn atomic_additions_are_never_lost() {
    let add = [addi(A2, 0, 1), amo(0, 3, 0, A0, A2)];
    let reserved = [
        amo(2, 3, A2, A0, 0),
        addi(A2, A2, 1),
        amo(3, 3, A2, A0, A2),
        branch(1, A2, 0, -12),
    ];
    for schedule in [
        Schedule::RoundRobin(1),
        Schedule::RoundRobin(3),
        Schedule::Random {
            seed: 5,
            longest: 1,
        },
        Schedule::Random {
            seed: 6,
            longest: 9,
        },
    ] {
        assert_eq!(
            count_together(&add, schedule, 8, 100).0,
            800,
            "{schedule:?}"
        );
        assert_eq!(
            count_together(&reserved, schedule, 8, 100).0,
            800,
            "{schedule:?}"
        );
    }
}

#[test]
fn reservations_end() {
    let finish = |code: &[u32], budget: u64, change: &dyn Fn(&mut Machine)| {
        let mut machine = machine(code);
        let hart = started(&mut machine, &[DATA, 1]);
        assert_eq!(machine.run_hart(&mut Nothing, hart, budget), Stop::Budget);
        change(&mut machine);
        match machine.run_hart(&mut Nothing, hart, 100) {
            Stop::Finished(_, value) => value,
            other => panic!("{other:?}"),
        }
    };
    let (lr, sc) = (amo(2, 3, A2, A0, 0), amo(3, 3, A2, A0, A1));
    let result = addi(A0, A2, 0);
    let nothing = |_: &mut Machine| ();
    assert_eq!(
        finish(&[lr, sc, result, RET], 1, &nothing),
        0,
        "single steps keep it"
    );
    assert_eq!(
        finish(&[lr, sc, sc, result, RET], 1, &nothing),
        1,
        "it serves once"
    );
    assert_eq!(
        finish(&[addi(0, 0, 0), sc, result, RET], 1, &nothing),
        1,
        "none"
    );
    let word = amo(2, 2, A2, A0, 0);
    assert_eq!(
        finish(&[word, sc, result, RET], 1, &nothing),
        1,
        "another size"
    );
    let write = |machine: &mut Machine| machine.memory_mut().write(DATA, &[1]).unwrap();
    assert_eq!(
        finish(&[lr, sc, result, RET], 1, &write),
        1,
        "a write of the embedder"
    );
    let other = |machine: &mut Machine| {
        let other = machine.create_hart().unwrap();
        machine.start(other, CODE + 8, &[DATA, 1]).unwrap();
        assert!(matches!(
            machine.run_hart(&mut Nothing, other, 10),
            Stop::Finished(..)
        ));
    };
    assert_eq!(
        finish(&[lr, sc, result, RET], 1, &other),
        1,
        "another hart ran"
    );
}

#[test]
fn a_wild_jump_names_its_place() {
    let mut machine = machine(&[
        addi(A1, A1, 1),
        i((0, 0x67), 0, A0, 0),
        branch(0, 0, 0, -8),
        RET,
    ]);
    let hart = started(&mut machine, &[0x5000]);
    assert_eq!(
        trap(machine.run(&mut Nothing, 10)),
        (Cause::Fetch(Refusal::Unmapped), 0x5000)
    );
    let jump = |machine: &Machine| machine.hart(hart).unwrap().last_jump();
    assert_eq!(jump(&machine), CODE + 4);
    // A branch that is taken counts as well, and a new call begins without a jump.
    machine.start(hart, CODE + 8, &[0x5000]).unwrap();
    assert_eq!(
        (machine.run(&mut Nothing, 1), jump(&machine)),
        (Stop::Budget, CODE + 8)
    );
    machine.destroy_hart(hart).unwrap();
    let hart = started(&mut machine, &[0x5000]);
    machine.run(&mut Nothing, 1);
    assert_eq!(machine.hart(hart).unwrap().last_jump(), 0);
}

#[test]
fn changed_instructions_count_at_once() {
    let mut elf = Elf::new(&[
        store(2, A1, A0, 12),
        0x0000_100f,
        addi(A0, 0, 1),
        addi(A0, 0, 2),
        RET,
    ]);
    elf.parts[0].flags = 7;
    let limits = Limits {
        writable_code: true,
        ..Limits::default()
    };
    let program = Program::parse_with(&elf.build(), &limits).unwrap();
    let mut machine = Machine::new(&program, &config()).unwrap();
    let hart = machine.create_hart().unwrap();
    for (value, expect) in [(addi(A0, 0, 5), 5), (addi(A0, 0, 6), 6)] {
        machine.start(hart, CODE, &[CODE, value.into()]).unwrap();
        assert_eq!(machine.run(&mut Nothing, 10), Stop::Finished(hart, expect));
    }
    // A debugger's breakpoint in code that is not writable.
    let mut machine = common::machine(&[addi(A0, 0, 1), addi(A0, A0, 1), RET]);
    let hart = started(&mut machine, &[]);
    assert_eq!(machine.run(&mut Nothing, 10), Stop::Finished(hart, 2));
    assert!(machine.memory_mut().write(CODE + 4, &[0]).is_err());
    let saved = addi(A0, A0, 1).to_le_bytes();
    machine
        .memory_mut()
        .poke(CODE + 4, &0x0010_0073_u32.to_le_bytes())
        .unwrap();
    machine.start(hart, CODE, &[]).unwrap();
    assert_eq!(
        trap(machine.run(&mut Nothing, 10)),
        (Cause::Breakpoint, CODE + 4)
    );
    machine.memory_mut().poke(CODE + 4, &saved).unwrap();
    machine.resume(hart).unwrap();
    assert_eq!(machine.run(&mut Nothing, 10), Stop::Finished(hart, 2));
}

#[test]
fn machines_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<Machine>();
    is_send::<Program>();
    is_send::<rv64::Lines>();
    let mut machine = machine(&[lui(A0, 1), RET]);
    let hart = started(&mut machine, &[]);
    let stop = std::thread::spawn(move || machine.run(&mut Nothing, 10))
        .join()
        .unwrap();
    assert_eq!(stop, Stop::Finished(hart, 4096));
}
