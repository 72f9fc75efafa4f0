//! A process of the DPA: its program, launches and remote calls, and their execution.

mod core;
mod debug;
mod events;
mod memory;
mod objects;
mod tasks;
mod weak;

use crate::debugger::Debugger;
use crate::device::{Denied, Device};
use crate::environment::{ALL_WINDOWS, Env, OUTBOX};
use crate::fault::Fault;
use crate::kernel::{Doorbell, Kernel};
use crate::launch::{LAUNCHES_MAX, Launch, Running};
use crate::refusal::Refusal;
use crate::task_queue::TaskQueue;
use crate::thread::{Ending, THREADS_MAX, Thread};
use crate::window::{WINDOW_BYTES, WINDOWS, WINDOWS_MAX};
use dpa_dev::outbox;
use mlx5_prm::dpa::{
    Done, DoneOperation, ThreadAttr, ThreadCounters, ThreadKind as Kind, Wait, Word,
};
use rv64::{Config, HartId, HeapError, Machine, MachineError, Program, State, Stop, Trap};
use std::collections::{HashMap, VecDeque};

/// Most bytes of the arguments of a call or launch.
const ARGUMENTS_MAX: usize = 4096;
/// Most remote calls of a process that have not finished.
const CALLS_MAX: usize = 1024;

/// Bounds of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Instructions of one activation, launch or call of a thread.
    pub instructions: u64,
    /// Time that a thread may wait for a word.
    pub wait_ns: u64,
}

/// Why a command of the host fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OsError {
    /// The process has a fault.
    #[error("the process has ended: {0}")]
    Dead(String),
    /// Part of the machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The heap.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// Memory that the process does not have, or may not access in this way.
    #[error("{bytes} bytes of DPA memory at {address:#x}: {what}")]
    Memory {
        /// First address.
        address: u64,
        /// Size.
        bytes: u64,
        /// What is wrong.
        what: String,
    },
    /// No such thread.
    #[error("the process has no event handler {0}")]
    NoThread(u32),
    /// No such command queue.
    #[error("the process has no command queue {0}")]
    NoQueue(u32),
    /// The thread executes a function.
    #[error("thread {0} is running")]
    Running(u32),
    /// A launch of 0 threads, or of more than are free.
    #[error("a launch of {threads} threads: allowed are 1 to {most}")]
    Width {
        /// Threads of the launch.
        threads: u32,
        /// Most threads.
        most: u32,
    },
    /// A table is full.
    #[error("the process has {most} {what}, the maximum")]
    Full {
        /// Kind of objects.
        what: &'static str,
        /// Bound.
        most: usize,
    },
    /// More arguments than a buffer has.
    #[error("{0} bytes of arguments; the maximum is {ARGUMENTS_MAX}")]
    Arguments(usize),
}

/// The end of a remote call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The number that the embedder has given to it.
    pub ticket: u64,
    /// Its result, or the fault of the process.
    pub result: Result<u64, String>,
}

/// What remains to do after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Threads are ready.
    Busy,
    /// Threads, or the first launch, wait for a word that may change at any time.
    Waiting,
    /// Nothing, until a command or an event comes.
    Idle,
}

/// A remote call.
#[derive(Debug)]
struct Call {
    ticket: u64,
    unpack: u64,
    function: u64,
    arguments: Vec<u8>,
}

/// A process of the DPA.
#[derive(Debug)]
pub struct Os {
    machine: Machine,
    kernel: Kernel,
    program: Program,
    limits: Limits,
    calls: VecDeque<Call>,
    /// The call that runs: its ticket, and the address of its arguments.
    call: Option<(u64, u64)>,
    caller: HartId,
    launches: VecDeque<Launch>,
    running: Option<Running>,
    /// Harts of the threads of launches.
    ranks: Vec<HartId>,
    finished: Vec<Finished>,
    tasks: HashMap<u32, TaskQueue>,
    debugger: Option<Debugger>,
    /// No thread runs before a debugger has come.
    is_held: bool,
    /// First address of the heap, for the record of accesses.
    heap_start: u64,
}

impl Os {
    /// Loads a program. `caller` is the number of the thread that executes the remote calls.
    ///
    /// # Errors
    /// A part of the configuration is not possible.
    pub fn new(
        program: Program,
        config: &Config,
        limits: Limits,
        caller: u32,
    ) -> Result<Self, OsError> {
        let mut machine = Machine::new(&program, config)?;
        machine.map_window(WINDOWS, WINDOW_BYTES * WINDOWS_MAX as u64, ALL_WINDOWS)?;
        machine.map_window(outbox::BASE, outbox::BYTES, OUTBOX)?;
        let mut os = Self {
            machine,
            kernel: Kernel::new(),
            program,
            limits,
            calls: VecDeque::new(),
            call: None,
            caller: 0,
            launches: VecDeque::new(),
            running: None,
            ranks: Vec::new(),
            finished: Vec::new(),
            tasks: HashMap::new(),
            debugger: None,
            is_held: false,
            heap_start: 0,
        };
        os.caller = os.add(caller, Kind::Call, ThreadAttr::default())?;
        Ok(os)
    }

    fn add(&mut self, number: u32, kind: Kind, attributes: ThreadAttr) -> Result<HartId, OsError> {
        let hart = self.machine.create_hart()?;
        match self.kernel.threads.get_mut(hart as usize) {
            Some(place) => *place = Some(Thread::new(number, kind, attributes)),
            // The machine has at most as many harts.
            None => return Err(MachineError::NoHart(THREADS_MAX).into()),
        }
        Ok(hart)
    }

    /// The fault that has ended the process.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.kernel.fault.as_ref()
    }

    /// True if a thread has ended the process.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.kernel.is_finished
    }

    fn alive(&self) -> Result<(), OsError> {
        match &self.kernel.fault {
            Some(fault) => Err(OsError::Dead(fault.to_string())),
            None if self.kernel.is_finished => {
                Err(OsError::Dead("a thread has ended it".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The machine, for a report of its registers and memory.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Takes the calls that have ended.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Counters of all threads.
    pub fn counters(&self) -> impl Iterator<Item = ThreadCounters> {
        let threads = self.kernel.threads.iter().zip(0..);
        threads.filter_map(|(thread, hart)| {
            let thread = thread.as_ref()?;
            Some(ThreadCounters {
                number: thread.view.number,
                kind: thread.view.kind,
                runs: thread.is_running,
                activations: thread.activations,
                instructions: self.machine.hart(hart)?.retired(),
            })
        })
    }

    // Calls and launches.

    fn check_work(&self, functions: [u64; 2], arguments: &[u8]) -> Result<(), OsError> {
        self.alive()?;
        for function in functions {
            self.check_function(function)?;
        }
        if arguments.len() > ARGUMENTS_MAX {
            return Err(OsError::Arguments(arguments.len()));
        }
        Ok(())
    }

    /// Calls a function by its unpack function. [`take_finished`](Self::take_finished) then has the ticket with the result.
    ///
    /// # Errors
    /// The functions or arguments are not possible, or too many calls wait.
    pub fn call(
        &mut self,
        ticket: u64,
        (unpack, function): (u64, u64),
        arguments: Vec<u8>,
    ) -> Result<(), OsError> {
        self.check_work([unpack, function], &arguments)?;
        if self.calls.len() >= CALLS_MAX {
            return Err(OsError::Full {
                what: "remote calls",
                most: CALLS_MAX,
            });
        }
        self.calls.push_back(Call {
            ticket,
            unpack,
            function,
            arguments,
        });
        Ok(())
    }

    /// Launches a kernel. `number` gives the numbers of threads that do not exist yet; they stay for later launches.
    ///
    /// # Errors
    /// The launch is not possible, or too many wait.
    pub fn launch(
        &mut self,
        launch: Launch,
        mut number: impl FnMut() -> Option<u32>,
    ) -> Result<(), OsError> {
        self.check_work([launch.unpack, launch.function], &launch.arguments)?;
        if self.launches.len() >= LAUNCHES_MAX {
            return Err(OsError::Full {
                what: "launches",
                most: LAUNCHES_MAX,
            });
        }
        for word in [
            launch.wait.map(|wait| wait.word),
            launch.done.map(|done| done.word),
        ] {
            self.check_word(word)?;
        }
        let width = |most: usize| OsError::Width {
            threads: launch.threads,
            most: u32::try_from(most).unwrap_or(THREADS_MAX),
        };
        if launch.threads == 0 || launch.threads > THREADS_MAX {
            return Err(width(THREADS_MAX as usize));
        }
        while self.ranks.len() < launch.threads as usize {
            let Some(number) = number() else {
                return Err(width(self.ranks.len()));
            };
            let hart = self.add(number, Kind::Launch, ThreadAttr::default())?;
            self.ranks.push(hart);
        }
        self.launches.push_back(launch);
        Ok(())
    }

    /// Threads that launches have made so far.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(THREADS_MAX)
    }

    fn check_word(&self, word: Option<Word>) -> Result<(), OsError> {
        let Some(word) = word else { return Ok(()) };
        let (Word::Dpa(address) | Word::Key { address, .. }) = word;
        if !address.is_multiple_of(8) {
            return Err(OsError::Memory {
                address,
                bytes: 8,
                what: "a word at no multiple of 8".to_owned(),
            });
        }
        match word {
            Word::Dpa(address) => self.check(address, 8),
            Word::Key { .. } => Ok(()),
        }
    }

    // Execution.

    /// Runs threads for up to `budget` instructions of all together, and less if nothing is ready.
    pub fn run(&mut self, device: &mut dyn Device, now_ns: u64, budget: u64) -> Progress {
        self.kernel.now_ns = now_ns;
        self.kernel.is_polling = false;
        self.wake_all();
        if self.is_stopped() {
            return Progress::Idle;
        }
        self.order_rings(device);
        let mut left = budget;
        while left > 0 && self.alive().is_ok() {
            self.begin(device);
            self.stop_for_debugger();
            if self.is_stopped() {
                return Progress::Idle;
            }
            let before = self.machine.retired();
            let mut env = Env {
                kernel: &mut self.kernel,
                device,
            };
            let stop = self.machine.run(&mut env, left);
            // A run that executes nothing counts, so that the loop ends.
            left = left.saturating_sub((self.machine.retired() - before).max(1));
            let rung = self.after(device, stop);
            match stop {
                Stop::Budget => break,
                Stop::Idle if !rung && self.kernel.activations.is_empty() => break,
                _ => {}
            }
            if self.is_stopped() {
                return Progress::Idle;
            }
        }
        self.check_limits();
        self.progress()
    }

    /// What follows from the end of a run. Returns whether there were doorbells.
    fn after(&mut self, device: &mut dyn Device, stop: Stop) -> bool {
        let rung = self.flush(device);
        match stop {
            Stop::Finished(hart, value) => self.ended(device, hart, value),
            Stop::Trapped(trap) if self.hit(trap) => {}
            Stop::Trapped(trap) => self.trapped(trap),
            Stop::Stopped(_) | Stop::Budget | Stop::Idle => {}
        }
        rung
    }

    /// Something can begin without an event.
    fn has_work(&self) -> bool {
        !self.kernel.activations.is_empty()
            || self.call.is_none() && !self.calls.is_empty()
            || self.running.is_none()
                && self
                    .launches
                    .front()
                    .is_some_and(|next| next.wait.is_none())
            || self.has_ready_tasks()
    }

    fn progress(&mut self) -> Progress {
        if self.alive().is_err() {
            self.refuse_calls();
            return Progress::Idle;
        }
        let is_ready = |hart: &rv64::Hart| hart.state() == State::Ready;
        if self.has_work() || self.machine.harts().any(is_ready) {
            Progress::Busy
        } else if self.kernel.is_polling || !self.launches.is_empty() {
            Progress::Waiting
        } else {
            Progress::Idle
        }
    }

    /// Threads that wait for a word ask again.
    fn wake_all(&mut self) {
        let waits = |hart: &rv64::Hart| hart.state() == State::Waiting;
        let harts = self.machine.harts().filter(|hart| waits(hart));
        let waiting: Vec<HartId> = harts.map(rv64::Hart::id).collect();
        for hart in waiting {
            self.machine.wake(hart);
        }
    }

    /// Starts what can start: activations, the next call, the next launch.
    fn begin(&mut self, device: &mut dyn Device) {
        for hart in std::mem::take(&mut self.kernel.activations) {
            let Some(thread) = self.kernel.thread_mut(hart) else {
                continue;
            };
            if !thread.is_prepared || thread.is_running {
                thread.is_pending = true;
                continue;
            }
            thread.is_pending = false;
            let (function, argument) = (thread.attributes.function, thread.attributes.argument);
            self.start(hart, [function, argument, 0]);
        }
        if self.call.is_none()
            && let Some(call) = self.calls.pop_front()
        {
            match self.buffer(&call.arguments) {
                Ok(buffer) => {
                    self.call = Some((call.ticket, buffer));
                    self.start(self.caller, [call.unpack, buffer, call.function]);
                }
                Err(error) => self.finished.push(Finished {
                    ticket: call.ticket,
                    result: Err(error.to_string()),
                }),
            }
        }
        self.begin_tasks();
        self.begin_launch(device);
    }

    /// Memory with the arguments; 0 without any.
    fn buffer(&mut self, arguments: &[u8]) -> Result<u64, OsError> {
        if arguments.is_empty() {
            return Ok(0);
        }
        let address = self.machine.allocate(arguments.len() as u64)?;
        let written = self.machine.memory_mut().write(address, arguments);
        debug_assert!(written.is_ok(), "{written:?}");
        Ok(address)
    }

    fn release(&mut self, buffer: u64) {
        if buffer != 0 {
            let freed = self.machine.free(buffer);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    fn start(&mut self, hart: HartId, arguments: [u64; 3]) {
        let entry = self.program.entry();
        let began_at = self.machine.hart(hart).map_or(0, rv64::Hart::retired);
        let started = self.machine.start(hart, entry, &arguments);
        debug_assert!(started.is_ok(), "{started:?}");
        if let Some(thread) = self.kernel.thread_mut(hart) {
            thread.is_running = true;
            thread.activations += 1;
            thread.began_at = began_at;
            thread.ending = Ending::Return;
            thread.waits_since_ns = 0;
        }
    }

    fn begin_launch(&mut self, device: &mut dyn Device) {
        if self.running.is_some() {
            return;
        }
        let Some(first) = self.launches.front() else {
            return;
        };
        if let Some(wait) = first.wait {
            match self.reached(device, wait) {
                Ok(true) => {}
                Ok(false) => return,
                Err(refusal) => return self.fail_launch(&refusal),
            }
        }
        let Some(launch) = self.launches.pop_front() else {
            return;
        };
        let buffer = match self.buffer(&launch.arguments) {
            Ok(buffer) => buffer,
            Err(error) => return self.fail_launch(&Refusal(error.to_string())),
        };
        self.running = Some(Running {
            left: launch.threads,
            buffer,
            done: launch.done,
        });
        let ranks: Vec<HartId> = self.ranks.clone();
        for (rank, hart) in (0..launch.threads).zip(ranks) {
            if let Some(thread) = self.kernel.thread_mut(hart) {
                (thread.view.rank, thread.view.count) = (rank, launch.threads);
            }
            self.start(hart, [launch.unpack, buffer, launch.function]);
        }
    }

    /// The word of a launch, or the one that reports its end, is not accessible: the process has a fault.
    fn fail_launch(&mut self, refusal: &Refusal) {
        let thread = self
            .ranks
            .first()
            .and_then(|hart| self.kernel.thread(*hart));
        self.kernel.fault = Some(Fault {
            thread: thread.map_or(0, |thread| thread.view.number),
            pc: 0,
            address: 0,
            function: String::new(),
            text: format!("a launch: {refusal}"),
        });
    }

    fn reached(&self, device: &mut dyn Device, wait: Wait) -> Result<bool, Refusal> {
        let mut word = [0; 8];
        match wait.word {
            Word::Dpa(address) => self.machine.memory().read(address, &mut word)?,
            Word::Key { key, address } => device.read(key, address, &mut word)?,
        }
        Ok(u64::from_le_bytes(word) & wait.mask > wait.above)
    }

    fn report(&mut self, device: &mut dyn Device, done: Done) -> Result<(), Refusal> {
        let operation = match done.operation {
            DoneOperation::Set => rv64::Atomic::Swap,
            DoneOperation::Add => rv64::Atomic::Add,
        };
        match done.word {
            Word::Key { key, address } => {
                device.atomic(key, address, 8, operation, done.value)?;
            }
            Word::Dpa(address) => {
                let memory = self.machine.memory_mut();
                let mut word = [0; 8];
                memory.read(address, &mut word)?;
                let new = operation.apply(u64::from_le_bytes(word), done.value, 8);
                memory.write(address, &new.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Carries out doorbells. Returns whether there were any.
    fn flush(&mut self, device: &mut dyn Device) -> bool {
        let doorbells = std::mem::take(&mut self.kernel.doorbells);
        let rung = !doorbells.is_empty();
        for (hart, doorbell) in doorbells {
            self.order_doorbell(device, hart, doorbell);
            let done = match doorbell {
                Doorbell::Send { uar, qpn, index } => device.ring_send(uar, qpn, index),
                Doorbell::Arm { uar, cqn, consumer } => device.arm(uar, cqn, consumer),
                Doorbell::Events { id, counter, arms } => {
                    self.consumed(id, counter, arms).map_err(Denied)
                }
            };
            if let Err(denied) = done {
                self.fail(hart, &denied.0);
                break;
            }
        }
        rung
    }

    /// A function of a thread has ended.
    fn ended(&mut self, device: &mut dyn Device, hart: HartId, value: u64) {
        let Some(thread) = self.kernel.thread_mut(hart) else {
            return;
        };
        thread.is_running = false;
        self.order_ended(hart);
        let Some(thread) = self.kernel.thread_mut(hart) else {
            return;
        };
        let (kind, ending) = (thread.view.kind, thread.ending);
        match kind {
            Kind::Call => {
                if let Some((ticket, buffer)) = self.call.take() {
                    self.release(buffer);
                    let result = Ok(value);
                    self.finished.push(Finished { ticket, result });
                }
            }
            Kind::Launch => self.rank_ended(device),
            // An idle one takes the next task.
            Kind::Worker => {}
            Kind::Handler => {
                let again = match ending {
                    Ending::Retrigger => true,
                    Ending::Reschedule => thread.is_pending,
                    Ending::Return | Ending::Finish => {
                        thread.is_prepared = false;
                        thread.is_pending = false;
                        false
                    }
                };
                if again && !self.kernel.activations.contains(&hart) {
                    self.kernel.activations.push(hart);
                }
            }
        }
    }

    fn rank_ended(&mut self, device: &mut dyn Device) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.left = running.left.saturating_sub(1);
        if running.left > 0 {
            return;
        }
        let (buffer, done) = (running.buffer, running.done);
        self.running = None;
        self.release(buffer);
        if let Some(done) = done
            && let Err(refusal) = self.report(device, done)
        {
            self.fail_launch(&refusal);
        }
    }

    fn trapped(&mut self, trap: Trap) {
        let refusal = self.kernel.refusal.take();
        let text = match trap.cause {
            rv64::Cause::Environment(_) => refusal.unwrap_or_default(),
            rv64::Cause::Load(rv64::Refusal::Environment(_)) => {
                format!(
                    "load from {:#x}: {}",
                    trap.address,
                    refusal.unwrap_or_default()
                )
            }
            rv64::Cause::Store(rv64::Refusal::Environment(_)) => {
                format!(
                    "store to {:#x}: {}",
                    trap.address,
                    refusal.unwrap_or_default()
                )
            }
            rv64::Cause::Atomic(rv64::Refusal::Environment(_)) => format!(
                "atomic operation on {:#x}: {}",
                trap.address,
                refusal.unwrap_or_default()
            ),
            _ => {
                // The text without the hart and the program counter, which the fault has.
                let text = trap.to_string();
                text.split_once(": ")
                    .map_or(text.clone(), |(_, cause)| cause.to_owned())
            }
        };
        // After a jump into nothing, the place of the mistake is the jump.
        let pc = match trap.cause {
            rv64::Cause::Fetch(_) => self.machine.hart(trap.hart).map(rv64::Hart::last_jump),
            _ => None,
        };
        let pc = pc.filter(|pc| *pc != 0).unwrap_or(trap.pc);
        self.set_fault(trap.hart, pc, trap.address, text);
    }

    /// A fault of a thread at its present instruction.
    fn fail(&mut self, hart: HartId, text: &str) {
        let pc = self.machine.hart(hart).map_or(0, rv64::Hart::pc);
        self.set_fault(hart, pc, pc, text.to_owned());
    }

    fn set_fault(&mut self, hart: HartId, pc: u64, address: u64, text: String) {
        if self.kernel.fault.is_some() {
            return;
        }
        let thread = self
            .kernel
            .thread(hart)
            .map_or(0, |thread| thread.view.number);
        let function = match self.program.symbol_at(pc) {
            Some((name, distance)) => format!("{name}+{distance:#x}"),
            None => String::new(),
        };
        self.kernel.fault = Some(Fault {
            thread,
            pc,
            address,
            function,
            text,
        });
    }

    /// Ends the process if a thread has run or waited for too long.
    fn check_limits(&mut self) {
        let Limits {
            instructions,
            wait_ns,
        } = self.limits;
        let mut found = None;
        for (thread, hart) in self.kernel.threads.iter().zip(0..) {
            let Some(thread) = thread.as_ref().filter(|thread| thread.is_running) else {
                continue;
            };
            let retired = self.machine.hart(hart).map_or(0, rv64::Hart::retired);
            if retired.saturating_sub(thread.began_at) > instructions {
                let text = format!("killed at the limit of {instructions} instructions");
                found = Some((hart, text));
            }
            let waited = self.kernel.now_ns.saturating_sub(thread.waits_since_ns);
            if thread.waits_since_ns != 0 && waited > wait_ns {
                let seconds = wait_ns / 1_000_000_000;
                found = Some((hart, format!("killed after {seconds} s of waiting")));
            }
        }
        if let Some((hart, text)) = found {
            self.fail(hart, &text);
        }
    }

    /// Answers all calls of a process that has ended.
    fn refuse_calls(&mut self) {
        let Err(error) = self.alive() else { return };
        let running = self.call.take().map(|(ticket, _)| ticket);
        let waiting = std::mem::take(&mut self.calls);
        for ticket in running
            .into_iter()
            .chain(waiting.into_iter().map(|call| call.ticket))
        {
            let result = Err(error.to_string());
            self.finished.push(Finished { ticket, result });
        }
        self.launches.clear();
    }
}
