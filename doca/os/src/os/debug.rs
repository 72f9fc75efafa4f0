//! What a debugger does with a process: it stops all threads, looks at them, and lets them go on.

use super::Os;
use crate::debugger::{Debugger, REGISTERS, Stopped};
use crate::device::Device;
use crate::environment::Env;
use rv64::{Cause, HartId, State, Stop, Trap};

/// Most breakpoints.
const BREAKPOINTS_MAX: usize = 1024;
/// `c.ebreak`.
const BREAK: [u8; 2] = 0x9002u16.to_le_bytes();

impl Os {
    /// Lets no thread execute an instruction until a debugger has come.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// True if the process waits for a debugger, and has something to execute.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let runs = |hart: &rv64::Hart| hart.state() == State::Ready;
        self.is_held && (self.has_work() || self.machine.harts().any(runs))
    }

    /// Begins the work of a debugger: all threads stop as soon as one executes a function. False if there is another debugger.
    pub fn attach(&mut self) -> bool {
        if self.debugger.is_some() {
            return false;
        }
        self.is_held = false;
        self.debugger = Some(Debugger {
            wants_thread: true,
            ..Debugger::default()
        });
        true
    }

    /// Ends the work of a debugger: threads go on without breakpoints.
    pub fn detach(&mut self) {
        let Some(debugger) = &self.debugger else {
            return;
        };
        let addresses: Vec<u64> = debugger.breakpoints.keys().copied().collect();
        for address in addresses {
            self.set_breakpoint(address, false);
        }
        self.go();
        self.debugger = None;
    }

    /// True while a debugger has stopped all threads.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_held
            || self
                .debugger
                .as_ref()
                .is_some_and(|debugger| debugger.stopped.is_some())
    }

    /// Stops all threads because of one.
    fn stop_at(&mut self, hart: HartId) {
        if let Some(debugger) = &mut self.debugger {
            debugger.stopped = Some(hart);
            debugger.wants_thread = false;
        }
    }

    /// Stops before the next instruction if the debugger waits for a thread.
    pub(super) fn stop_for_debugger(&mut self) {
        let wants = |debugger: &Debugger| debugger.wants_thread;
        if !self.debugger.as_ref().is_some_and(wants) {
            return;
        }
        let active = |hart: &&rv64::Hart| matches!(hart.state(), State::Ready | State::Waiting);
        let found = self.machine.harts().find(active).map(rv64::Hart::id);
        if let Some(hart) = found {
            self.stop_at(hart);
        }
    }

    /// A trap of a thread: true if it is a breakpoint of the debugger. All threads stop then. They also stop after a fault.
    pub(super) fn hit(&mut self, trap: Trap) -> bool {
        let Some(debugger) = &self.debugger else {
            return false;
        };
        let is_own = trap.cause == Cause::Breakpoint && debugger.breakpoints.contains_key(&trap.pc);
        self.stop_at(trap.hart);
        is_own
    }

    /// What the threads do now.
    #[must_use]
    pub fn stopped(&self) -> Stopped {
        let stopped = self.debugger.as_ref().and_then(|own| own.stopped);
        let number = stopped
            .and_then(|hart| self.kernel.thread(hart))
            .map(|thread| thread.view.number);
        match (number, self.kernel.fault.is_some()) {
            (Some(number), true) => Stopped::Fault(number),
            (Some(number), false) => Stopped::Thread(number),
            (None, _) if self.alive().is_err() => Stopped::Ended,
            (None, _) => Stopped::No,
        }
    }

    /// Numbers of the threads that execute a function.
    #[must_use]
    pub fn active(&self) -> Vec<u32> {
        let threads = self.kernel.threads.iter().flatten();
        let active = threads.filter(|thread| thread.is_running);
        active.map(|thread| thread.view.number).collect()
    }

    /// Lets all threads go on.
    pub fn go(&mut self) {
        let trapped = |hart: &rv64::Hart| {
            let is_break = |trap: Trap| trap.cause == Cause::Breakpoint;
            matches!(hart.state(), State::Trapped(trap) if is_break(trap))
        };
        let harts = self.machine.harts().filter(|hart| trapped(hart));
        let harts: Vec<HartId> = harts.map(rv64::Hart::id).collect();
        if self.kernel.fault.is_none() {
            for hart in harts {
                let resumed = self.machine.resume(hart);
                debug_assert!(resumed.is_ok(), "{resumed:?}");
            }
        }
        // The time of the debugger is no waiting.
        for thread in self.kernel.threads.iter_mut().flatten() {
            thread.waits_since_ns = 0;
        }
        if let Some(debugger) = &mut self.debugger {
            debugger.stopped = None;
        }
    }

    /// Stops all threads as soon as one executes a function.
    pub fn interrupt(&mut self) {
        if let Some(debugger) = &mut self.debugger {
            debugger.wants_thread = debugger.stopped.is_none();
        }
    }

    /// Executes one instruction of a stopped thread, and stops again. If its function ends, all threads go on.
    pub fn step(&mut self, device: &mut dyn Device, now_ns: u64, number: u32) {
        let Some(hart) = self.kernel.hart_of(number) else {
            return;
        };
        if !self.is_stopped() || self.kernel.fault.is_some() || self.machine.resume(hart).is_err() {
            return;
        }
        self.kernel.now_ns = now_ns;
        let mut env = Env {
            kernel: &mut self.kernel,
            device,
        };
        let stop = self.machine.run_hart(&mut env, hart, 1);
        self.after(device, stop);
        match stop {
            Stop::Finished(..) => self.go(),
            _ => self.stop_at(hart),
        }
    }

    /// Registers of a thread.
    #[must_use]
    pub fn registers(&self, number: u32) -> Option<[u64; REGISTERS]> {
        let hart = self.machine.hart(self.kernel.hart_of(number)?)?;
        let mut registers = [0; REGISTERS];
        registers[..32].copy_from_slice(&hart.registers());
        registers[32] = hart.pc();
        Some(registers)
    }

    /// Sets registers of a thread. False if there is none.
    pub fn set_registers(&mut self, number: u32, registers: &[u64; REGISTERS]) -> bool {
        let hart = self.kernel.hart_of(number);
        let Some(hart) = hart.and_then(|hart| self.machine.hart_mut(hart)) else {
            return false;
        };
        for (n, value) in (0..32).zip(registers) {
            hart.set_x(n, *value);
        }
        hart.set_pc(registers[32]);
        true
    }

    /// Reads memory as the program has it, without breakpoints. Returns how many bytes there are.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) -> usize {
        let memory = self.machine.memory();
        let readable = |count: usize| memory.peek(address, &mut vec![0; count]).is_ok();
        let mut count = bytes.len();
        while count > 0 && !readable(count) {
            count /= 2;
        }
        if memory.peek(address, &mut bytes[..count]).is_err() {
            return 0;
        }
        let debugger = self.debugger.iter();
        for (place, original) in debugger.flat_map(|own| &own.breakpoints) {
            for (offset, byte) in (0..).zip(original) {
                let at = place.wrapping_add(offset).wrapping_sub(address);
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                if let Some(target) = bytes[..count].get_mut(at) {
                    *target = *byte;
                }
            }
        }
        count
    }

    /// Writes memory, whatever the program's rights are. False where no memory is, or a breakpoint.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) -> bool {
        let end = address.wrapping_add(bytes.len() as u64);
        let mut breakpoints = self.debugger.iter().flat_map(|own| own.breakpoints.keys());
        let overlaps = breakpoints.any(|place| *place < end && place.wrapping_add(2) > address);
        !overlaps && self.machine.memory_mut().poke(address, bytes).is_ok()
    }

    /// Sets or removes a breakpoint. False if it is not possible.
    pub fn set_breakpoint(&mut self, address: u64, is_set: bool) -> bool {
        let Some(debugger) = &mut self.debugger else {
            return false;
        };
        let is_code = self.program.segments().iter().any(|segment| {
            segment.rights.execute && address.wrapping_sub(segment.start) < segment.length
        });
        let known = debugger.breakpoints.get(&address).copied();
        match (is_set, known) {
            (true, Some(_)) | (false, None) => true,
            (true, None) => {
                let mut original = [0; 2];
                let memory = self.machine.memory_mut();
                let is_possible = is_code
                    && address.is_multiple_of(2)
                    && debugger.breakpoints.len() < BREAKPOINTS_MAX
                    && memory.peek(address, &mut original).is_ok()
                    && memory.poke(address, &BREAK).is_ok();
                if is_possible {
                    debugger.breakpoints.insert(address, original);
                }
                is_possible
            }
            (false, Some(original)) => {
                debugger.breakpoints.remove(&address);
                self.machine.memory_mut().poke(address, &original).is_ok()
            }
        }
    }
}
