//! Programs on the operating system, with a device that is a table of words.

use dpa_os::{Denied, Device, Finished, Launch, Limits, Message, Os, Progress, Stopped, TASKS_MAX};
use mlx5_prm::dpa::{Done, DoneOperation, ThreadAttr, Wait, Word};
use rv64::{Atomic, Config, Program};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const COMPILER: &str = "riscv64-unknown-elf-gcc";
/// The only key.
const KEY: u32 = 0x700;

/// Words behind [`KEY`], and what a doorbell does: it writes to the heap, as an engine does.
#[derive(Debug, Default)]
struct Words {
    words: HashMap<u64, u64>,
    rung: Vec<(u32, u32, u16)>,
    /// Address in this process of the word that a doorbell changes.
    place: usize,
}

impl Words {
    fn at(&mut self, key: u32, address: u64) -> Result<&mut u64, Denied> {
        if key != KEY {
            return Err(Denied(format!("key {key:#x}: no such key")));
        }
        Ok(self.words.entry(address).or_default())
    }
}

impl Device for Words {
    fn read(&mut self, key: u32, address: u64, bytes: &mut [u8]) -> Result<(), Denied> {
        let word = self.at(key, address)?.to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
        Ok(())
    }

    fn write(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Denied> {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        *self.at(key, address)? = u64::from_le_bytes(word);
        Ok(())
    }

    fn atomic(
        &mut self,
        key: u32,
        address: u64,
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, Denied> {
        let word = self.at(key, address)?;
        let old = *word;
        *word = operation.apply(old, operand, size);
        Ok(old)
    }

    fn ring_send(&mut self, uar: u32, qpn: u32, index: u16) -> Result<(), Denied> {
        self.rung.push((uar, qpn, index));
        let place = std::ptr::with_exposed_provenance_mut::<u64>(self.place);
        if self.place != 0 {
            // SAFETY: a word of the machine's heap, whose memory has a fixed place. No hart runs now.
            unsafe { place.write(77) };
        }
        Ok(())
    }

    fn arm(&mut self, _uar: u32, cqn: u32, _consumer: u32) -> Result<(), Denied> {
        Err(Denied(format!("no queue {cqn:#x}")))
    }

    fn message(&mut self, _message: Message) {}
}

/// The compiled functions; `None` without a compiler.
fn program() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    PROGRAM.get_or_init(compile).as_ref()
}

fn compile() -> Option<Program> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).find(|dir| dir.join(COMPILER).is_file())?;
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (library, script, image) = (dir.join("os.s"), dir.join("os.ld"), dir.join("os.elf"));
    std::fs::write(&library, dpa_dev::assembly()).expect("a file");
    std::fs::write(&script, dpa_dev::LINKER_SCRIPT).expect("a file");
    let done = Command::new(COMPILER)
        .args([
            "-march=rv64imac",
            "-mabi=lp64",
            "-mcmodel=medany",
            "-O1",
            "-ffreestanding",
        ])
        .args([
            "-nostdlib",
            "-static",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-D__DPA__",
            "-T",
        ])
        .arg(&script)
        .arg("-I")
        .arg(manifest.join("../dev/include"))
        .arg(manifest.join("tests/programs/kernels.c"))
        .arg(&library)
        .args(["-lgcc", "-o"])
        .arg(&image)
        .status();
    assert!(done.expect("the compiler").success());
    let file = std::fs::read(&image).expect("the program");
    Some(Program::parse(&file).expect("a program"))
}

/// Prints the name of a skipped test and the reason.
#[expect(
    clippy::print_stdout,
    reason = "the test run counts the skips by their lines"
)]
fn skip(test: &str) {
    println!("SKIP {test}: no {COMPILER}; cargo xtask doctor names the packages");
}

const LIMITS: Limits = Limits {
    instructions: 100_000,
    wait_ns: 1_000_000,
};

fn os(program: &Program) -> Os {
    Os::new(program.clone(), &Config::default(), LIMITS, 1).expect("a process")
}

fn symbol(program: &Program, name: &str) -> u64 {
    program.symbol(name).expect("a function")
}

fn packed(words: [u64; 2]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Runs until nothing is left to do.
fn settle(os: &mut Os, device: &mut Words) {
    for now in 1..1000 {
        if os.run(device, now, 10_000) == Progress::Idle {
            return;
        }
    }
    panic!("the process does not come to rest");
}

fn call(os: &mut Os, device: &mut Words, name: &str, words: [u64; 2]) -> Result<u64, String> {
    let program = program().expect("checked before");
    let functions = (symbol(program, "unpack"), symbol(program, name));
    os.call(7, functions, packed(words))
        .map_err(|error| error.to_string())?;
    settle(os, device);
    let [Finished { ticket: 7, result }] = &os.take_finished()[..] else {
        panic!("one call");
    };
    result.clone()
}

fn word(os: &Os, address: u64) -> u64 {
    let mut bytes = [0; 8];
    os.read(address, &mut bytes).expect("a word");
    u64::from_le_bytes(bytes)
}

#[test]
fn calls_return_results_and_give_their_buffers_back() {
    let Some(program) = program() else {
        return skip("calls_return_results_and_give_their_buffers_back");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let before = os.allocate(8).expect("memory");
    os.free(before).expect("memory");
    for number in 0..100 {
        let result = call(&mut os, &mut device, "multiply", [number, 3]);
        assert_eq!(result, Ok(3 * number));
    }
    assert_eq!(os.allocate(8), Ok(before), "no buffer is left");
    let counters: Vec<_> = os.counters().collect();
    assert_eq!((counters.len(), counters[0].activations), (1, 100));
}

#[test]
fn a_doorbell_takes_effect_before_the_next_instruction() {
    let Some(program) = program() else {
        return skip("a_doorbell_takes_effect_before_the_next_instruction");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let address = os.allocate(8).expect("memory");
    os.write(address, &[0; 8]).expect("memory");
    let (place, heap, _) = os.heap(&Config::default());
    device.place = place + usize::try_from(address - heap).expect("a small heap");
    assert_eq!(
        call(&mut os, &mut device, "ring", [4, address]),
        Ok(1),
        "no outbox 4"
    );
    os.add_outbox(4, 0x99).expect("an outbox");
    assert_eq!(call(&mut os, &mut device, "ring", [4, address]), Ok(77));
    assert_eq!(device.rung, [(0x99, 0x123, 5)]);
}

#[test]
fn atomics_and_denials_of_windows_are_the_devices() {
    let Some(program) = program() else {
        return skip("atomics_and_denials_of_windows_are_the_devices");
    };
    let (mut os, mut device) = (os(program), Words::default());
    os.add_window(2).expect("a window");
    device.words.insert(0x1000, 40);
    assert_eq!(
        call(&mut os, &mut device, "add", [9, KEY.into()]),
        Ok(1),
        "no window 9"
    );
    assert_eq!(call(&mut os, &mut device, "add", [2, KEY.into()]), Ok(40));
    assert_eq!(device.words[&0x1000], 43);
    let error = call(&mut os, &mut device, "add", [2, 5]).expect_err("no key");
    assert!(error.contains("key 0x5: no such key"), "{error}");
    assert!(
        os.fault()
            .is_some_and(|fault| fault.function.starts_with("add+"))
    );
    assert!(os.allocate(8).is_err(), "the process has ended");
}

#[test]
fn launches_run_in_their_order_when_their_words_are_reached() {
    let Some(program) = program() else {
        return skip("launches_run_in_their_order_when_their_words_are_reached");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let table = os.allocate(32).expect("memory");
    os.fill(table, 0, 32).expect("memory");
    let event = Word::Key {
        key: KEY,
        address: 8,
    };
    let launch = |threads, above, value| Launch {
        unpack: symbol(program, "unpack"),
        function: symbol(program, "rank"),
        arguments: packed([table, 0]),
        threads,
        wait: Some(Wait {
            word: event,
            mask: u64::MAX,
            above,
        }),
        done: Some(Done {
            word: event,
            operation: DoneOperation::Set,
            value,
        }),
    };
    // The first one wakes the second one.
    let mut numbers = 10..14;
    for (threads, above, value) in [(2, 0, 5), (4, 4, 9)] {
        let made = os.launch(launch(threads, above, value), || numbers.next());
        assert_eq!(made, Ok(()));
    }
    assert_eq!(os.run(&mut device, 1, 10_000), Progress::Waiting);
    assert_eq!(word(&os, table), 0);
    device.words.insert(8, 1);
    settle(&mut os, &mut device);
    assert_eq!(device.words[&8], 9);
    let found = [0, 8, 16, 24].map(|at| word(&os, table + at));
    assert_eq!(found, [6, 6, 4, 4]);
    assert_eq!(os.ranks(), 4, "the first two threads are used again");
    let refused = os.launch(launch(5, 0, 0), || None).expect_err("no thread");
    assert!(
        refused.to_string().contains("allowed are 1 to 4"),
        "{refused}"
    );
}

#[test]
fn a_handler_runs_once_for_each_event() {
    let Some(program) = program() else {
        return skip("a_handler_runs_once_for_each_event");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let count = os.allocate(8).expect("memory");
    os.fill(count, 0, 8).expect("memory");
    let attributes = ThreadAttr {
        function: symbol(program, "handler"),
        ..ThreadAttr::default()
    };
    os.create_thread(20, attributes).expect("a thread");
    os.prepare(20, count).expect("a thread");
    // The second activation starts itself again; the fifth one is the last.
    for expect in [1, 3, 4, 5, 5] {
        os.activate(20).expect("a thread");
        settle(&mut os, &mut device);
        assert_eq!(word(&os, count), expect);
    }
    assert!(os.activate(21).is_err());
    os.destroy_thread(20).expect("a thread");
    assert!(os.activate(20).is_err());
}

#[test]
fn mistakes_end_the_process_with_their_place() {
    let Some(program) = program() else {
        return skip("mistakes_end_the_process_with_their_place");
    };
    for (name, expect) in [
        ("loop", "killed at the limit of 100000 instructions"),
        ("finish", "only event handlers may"),
    ] {
        let (mut os, mut device) = (os(program), Words::default());
        let error = call(&mut os, &mut device, name, [0, 0]).expect_err(name);
        assert!(error.contains(expect), "{error}");
        let again = call(&mut os, &mut device, "multiply", [1, 1]).expect_err("it has ended");
        assert!(
            again.starts_with("the process has ended: thread 1 at "),
            "{again}"
        );
    }
}

/// Runs up to the next stop of a debugger, and returns its thread.
fn stop(os: &mut Os, device: &mut Words) -> u32 {
    settle(os, device);
    match os.stopped() {
        Stopped::Thread(number) => number,
        other => panic!("no thread has stopped: {other:?}"),
    }
}

#[test]
fn a_debugger_stops_steps_and_changes_a_thread() {
    let Some(program) = program() else {
        return skip("a_debugger_stops_steps_and_changes_a_thread");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let multiply = symbol(program, "multiply");
    let functions = (symbol(program, "unpack"), multiply);
    os.hold();
    os.call(1, functions, packed([6, 7])).expect("a call");
    settle(&mut os, &mut device);
    assert!(os.is_held(), "nothing runs before the debugger has come");
    assert!(os.attach() && !os.attach(), "one debugger");
    // The first instruction of the program.
    assert_eq!(stop(&mut os, &mut device), 1);
    assert_eq!(os.registers(1).expect("registers")[32], program.entry());
    let mut before = [0; 4];
    assert_eq!(os.peek(multiply, &mut before), 4);
    assert!(os.set_breakpoint(multiply, true));
    assert!(!os.set_breakpoint(0x10, true), "no code is there");
    let mut seen = [0; 4];
    assert_eq!(os.peek(multiply, &mut seen), 4);
    assert_eq!(seen, before, "a debugger does not see its breakpoint");
    assert!(!os.poke(multiply, &[0]), "nor overwrites it");
    os.go();
    assert_eq!(stop(&mut os, &mut device), 1);
    let mut registers = os.registers(1).expect("registers");
    assert_eq!(
        (registers[10], registers[11], registers[32]),
        (6, 7, multiply)
    );
    registers[11] = 70;
    assert!(os.set_registers(1, &registers) && !os.set_registers(2, &registers));
    assert!(os.set_breakpoint(multiply, false));
    os.step(&mut device, 1, 1);
    let after = os.registers(1).expect("registers")[32];
    assert!(after > multiply && after <= multiply + 4, "{after:#x}");
    os.detach();
    settle(&mut os, &mut device);
    let finished = os.take_finished();
    assert_eq!(finished[0].result, Ok(420));
    assert_eq!(os.stopped(), Stopped::No);
}

#[test]
fn a_debugger_sees_a_fault_before_the_host() {
    let Some(program) = program() else {
        return skip("a_debugger_sees_a_fault_before_the_host");
    };
    let (mut os, mut device) = (os(program), Words::default());
    assert!(os.attach());
    let functions = (symbol(program, "unpack"), symbol(program, "finish"));
    os.call(1, functions, packed([0, 0])).expect("a call");
    stop(&mut os, &mut device);
    os.go();
    settle(&mut os, &mut device);
    assert_eq!(os.stopped(), Stopped::Fault(1));
    assert!(os.take_finished().is_empty());
    os.go();
    settle(&mut os, &mut device);
    assert_eq!(os.stopped(), Stopped::Ended);
    assert!(os.take_finished()[0].result.is_err());
}

#[test]
fn a_core_file_has_registers_and_memory() {
    use object::{Object as _, ObjectSegment as _};
    let Some(program) = program() else {
        return skip("a_core_file_has_registers_and_memory");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let address = os.allocate(100).expect("memory");
    os.write(address, &[0xab; 100]).expect("memory");
    call(&mut os, &mut device, "finish", [0, 0]).expect_err("a fault");
    let core = os.core_file();
    let mut file = vec![0; usize::try_from(core.bytes()).expect("small") + 1];
    let count = os.read_core(&core, 0, &mut file);
    assert_eq!(count as u64, core.bytes());
    file.truncate(count);
    // Parts are those of the whole.
    for (offset, bytes) in [(1, 500), (5000, 70_000), (count - 3, 10)] {
        let mut part = vec![0; bytes];
        let got = os.read_core(&core, offset as u64, &mut part);
        assert_eq!(part[..got], file[offset..offset + got]);
        assert_eq!(got, bytes.min(count - offset));
    }
    let parsed = object::File::parse(&*file).expect("an ELF file");
    assert_eq!(parsed.kind(), object::ObjectKind::Core);
    let mut segments = parsed.segments();
    let own = segments.find(|segment| segment.address() == address);
    let data = own.expect("the allocation").data().expect("its bytes");
    assert_eq!(data[..100], [0xab; 100]);
}

#[test]
fn event_queues_wrap_and_their_overflow_is_a_fault() {
    let Some(program) = program() else {
        return skip("event_queues_wrap_and_their_overflow_is_a_fault");
    };
    let mut os = os(program);
    let ring = os.allocate(128).expect("memory");
    assert!(os.add_event_queue(9, (64, 1), None).is_err(), "no memory");
    assert!(os.add_event_queue(9, (ring, 2), None).is_err(), "too large");
    assert!(
        os.add_event_queue(9, (ring, 1), Some(77)).is_err(),
        "no handler"
    );
    os.add_event_queue(9, (ring, 1), None).expect("a queue");
    for cqn in [0x10, 0x11] {
        os.event(9, cqn).expect("an event");
    }
    let mut entries = [0; 128];
    os.read(ring, &mut entries).expect("memory");
    assert_eq!((entries[0x3b], entries[0x40 + 0x3b]), (0x10, 0x11));
    assert_eq!((entries[0x3f], entries[0x7f]), (0, 0), "the first round");
    os.event(9, 0x12).expect("the fault is that of the process");
    let fault = os.fault().expect("a fault");
    assert!(fault.text.contains("event queue 9 has no room"), "{fault}");
}

#[test]
fn tasks_of_a_command_queue_are_bounded() {
    let Some(program) = program() else {
        return skip("tasks_of_a_command_queue_are_bounded");
    };
    let (mut os, mut device) = (os(program), Words::default());
    let count = os.allocate(8).expect("memory");
    os.fill(count, 0, 8).expect("memory");
    os.add_task_queue(5, &[50, 51], 4, false).expect("a queue");
    let function = symbol(program, "task");
    for _ in 0..TASKS_MAX {
        os.add_task(5, function, count).expect("a task");
    }
    let full = os.add_task(5, function, count).expect_err("full");
    assert!(full.to_string().contains("65536"), "{full}");
    assert!(os.add_task(6, function, count).is_err(), "no queue");
    assert!(os.add_task(5, 1, count).is_err(), "no function");
    assert_eq!(os.has_no_tasks(5), Ok(false));
    os.run_task_queue(5).expect("a queue");
    while os.run(&mut device, 1, 1_000_000) != Progress::Idle {}
    assert_eq!(os.has_no_tasks(5), Ok(true));
    assert_eq!(word(&os, count), TASKS_MAX as u64);
    os.remove_task_queue(5);
    assert!(os.has_no_tasks(5).is_err());
    assert_eq!(os.counters().count(), 1, "its threads are gone");
}
