//! A machine: one program, its memory and its harts.

mod config;
mod layout;

use crate::code::Decodes;
use crate::environment::{Action, Environment};
use crate::exec::{Core, End, RETURN, Reservation};
use crate::hart::{Hart, State};
use crate::heap::{Heap, HeapError};
use crate::program::Program;
use crate::schedule::Turns;
use crate::space::{Backing, PAGE, Range, Rights, Space};
use crate::trap::{HartId, Trap};
pub use config::{Config, HARTS_MAX, HEAP_BYTES_MAX, MachineError, STACK_BYTES_MAX, WINDOWS_MAX};
use layout::Layout;

/// Why [`Machine::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The instructions are used up.
    Budget,
    /// No hart is ready.
    Idle,
    /// A hart has finished with this value.
    Finished(HartId, u64),
    /// A hart cannot go on.
    Trapped(Trap),
    /// The environment answered a call of this hart with [`Action::Stop`].
    Stopped(HartId),
}

/// Instructions that a turn may be longer than planned, to let a hart store to what it has reserved. Loops that the standard
/// promises to succeed have at most 16 (the chapter of the extension "A").
const RESERVED_LONGER: u32 = 64;

/// A program in memory, and its harts. One thread uses a machine at a time; it may move between threads.
#[derive(Debug)]
pub struct Machine {
    space: Space,
    code: Decodes,
    heap: Heap,
    layout: Layout,
    harts: Vec<Option<Hart>>,
    turns: Turns,
    windows: usize,
    reservation: Option<Reservation>,
    /// The hart that ran last.
    last: Option<HartId>,
    wakes: Vec<HartId>,
    retired: u64,
}

impl Machine {
    /// Loads a program.
    ///
    /// # Errors
    /// A size or a place of the configuration is not possible.
    pub fn new(program: &Program, config: &Config) -> Result<Self, MachineError> {
        let layout = Layout::new(program, config)?;
        let (space, code) = layout.build(program)?;
        Ok(Self {
            space,
            code,
            heap: Heap::new(config.heap, config.heap_bytes),
            harts: (0..config.harts).map(|_| None).collect(),
            turns: Turns::new(config.schedule),
            windows: 0,
            reservation: None,
            last: None,
            wakes: Vec::new(),
            retired: 0,
            layout,
        })
    }

    /// Creates a hart: the lowest free number, with new thread-local storage.
    ///
    /// # Errors
    /// All harts exist.
    pub fn create_hart(&mut self) -> Result<HartId, MachineError> {
        let free = (0..self.layout.harts).find(|id| self.hart(*id).is_none());
        let id = free.ok_or(MachineError::NoHart(self.layout.harts))?;
        self.layout.fill_local(&mut self.space, id);
        self.harts[id as usize] = Some(Hart::new(id));
        Ok(id)
    }

    /// Ends a hart, whatever it is doing.
    ///
    /// # Errors
    /// No such hart exists.
    pub fn destroy_hart(&mut self, id: HartId) -> Result<(), MachineError> {
        let slot = self.harts.get_mut(id as usize);
        slot.and_then(Option::take)
            .ok_or(MachineError::UnknownHart(id))?;
        self.turns.remove(id);
        if self.last == Some(id) {
            (self.last, self.reservation) = (None, None);
        }
        Ok(())
    }

    /// Calls a function in a hart that is idle, has finished or has trapped. Registers and stack begin anew; thread-local storage
    /// stays as it is. The function's result becomes the value of [`Stop::Finished`].
    ///
    /// # Errors
    /// The hart does not exist or is busy, no instruction is at `function`, or there are more than 8 arguments.
    pub fn start(
        &mut self,
        id: HartId,
        function: u64,
        arguments: &[u64],
    ) -> Result<(), MachineError> {
        if arguments.len() > 8 {
            return Err(MachineError::Arguments(arguments.len()));
        }
        if self.space.fetch(function).is_err() {
            return Err(MachineError::Function(function));
        }
        let (stack, local, global) = (
            self.layout.stack_top(id),
            self.layout.local(id),
            self.layout.global,
        );
        let hart = self.hart_mut(id).ok_or(MachineError::UnknownHart(id))?;
        if matches!(hart.state, State::Ready | State::Waiting) {
            return Err(MachineError::Busy(id));
        }
        hart.file.fill(0);
        for (register, value) in (1..).zip([RETURN, stack, global, local]) {
            hart.set_x(register, value);
        }
        for (register, value) in (10..).zip(arguments) {
            hart.set_x(register, *value);
        }
        hart.set_pc(function);
        hart.state = State::Ready;
        self.turns.add(id);
        if self.last == Some(id) {
            self.reservation = None;
        }
        Ok(())
    }

    /// Lets a waiting hart, or one that stopped at a breakpoint or another trap, go on at its program counter. Does nothing if the
    /// hart is ready.
    ///
    /// # Errors
    /// The hart does not exist, has not been started or has finished.
    pub fn resume(&mut self, id: HartId) -> Result<(), MachineError> {
        let hart = self.hart_mut(id).ok_or(MachineError::UnknownHart(id))?;
        match hart.state {
            State::Ready | State::Waiting | State::Trapped(_) => {
                hart.state = State::Ready;
                self.turns.add(id);
                Ok(())
            }
            State::Idle | State::Finished(_) => Err(MachineError::UnknownHart(id)),
        }
    }

    /// Wakes a hart that waits. Returns whether it did.
    pub fn wake(&mut self, id: HartId) -> bool {
        let waits = self
            .hart(id)
            .is_some_and(|hart| hart.state == State::Waiting);
        waits && self.resume(id).is_ok()
    }

    /// A hart.
    #[must_use]
    pub fn hart(&self, id: HartId) -> Option<&Hart> {
        self.harts.get(id as usize)?.as_ref()
    }

    /// A hart, for a debugger.
    pub fn hart_mut(&mut self, id: HartId) -> Option<&mut Hart> {
        self.harts.get_mut(id as usize)?.as_mut()
    }

    /// All harts.
    pub fn harts(&self) -> impl Iterator<Item = &Hart> {
        self.harts.iter().flatten()
    }

    /// First address and bytes of a hart's stack. It grows from the end.
    #[must_use]
    pub fn stack(&self, id: HartId) -> (u64, u64) {
        let bytes = self.layout.stack_bytes;
        (self.layout.stack_top(id) - bytes, bytes)
    }

    /// True if a range of memory that begins here is the stack or the thread-local storage of a hart.
    #[must_use]
    pub fn has_range(&self, id: HartId, start: u64) -> bool {
        start == self.stack(id).0 || start == self.layout.local(id)
    }

    /// Instructions that all harts have executed.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Space {
        &self.space
    }

    /// The memory. A write to what a hart has reserved lets its conditional store fail, as that of another hart does.
    pub fn memory_mut(&mut self) -> &mut Space {
        self.reservation = None;
        &mut self.space
    }

    /// Lets the environment learn of each load and store of instructions in a range of addresses, which are slower then. 0 bytes end it.
    pub fn watch(&mut self, start: u64, bytes: u64) {
        self.space.watch(start, bytes);
    }

    /// Adds a window: a range whose accesses [`Environment`] answers, with `number` for the environment. It may begin anywhere.
    ///
    /// # Errors
    /// The range is not free, or all windows exist.
    pub fn map_window(&mut self, start: u64, bytes: u64, number: u32) -> Result<(), MachineError> {
        if self.windows >= WINDOWS_MAX {
            return Err(MachineError::TooManyWindows);
        }
        self.layout.outside_heap(start, bytes)?;
        let backing = Backing::Window(number);
        let range = Range {
            start,
            length: bytes,
            rights: Rights::READ_WRITE,
            backing,
        };
        layout::add(&mut self.space, "a window", range)?;
        self.windows += 1;
        Ok(())
    }

    /// Removes the window that begins at `start`.
    ///
    /// # Errors
    /// No window begins there.
    pub fn unmap_window(&mut self, start: u64) -> Result<(), MachineError> {
        let is_window =
            |range: &Range| range.start == start && matches!(range.backing, Backing::Window(_));
        if !self.space.ranges().iter().any(is_window) {
            return Err(MachineError::UnknownWindow(start));
        }
        self.space.unmap(start);
        self.windows -= 1;
        Ok(())
    }

    /// Allocates memory of the heap, with the content that it had before, or 0. An access from the end of the allocation (rounded
    /// up to 8 bytes) up to the next one traps.
    ///
    /// # Errors
    /// The heap is full.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, HeapError> {
        let start = self.heap.allocate(bytes)?;
        let range = self.layout.heap_range(start, bytes);
        if self.space.map(range).is_err() {
            // Only the bound of ranges can refuse it.
            let _ = self.heap.free(start);
            return Err(HeapError::TooMany);
        }
        Ok(start)
    }

    /// Returns an allocation. Later accesses to it trap.
    ///
    /// # Errors
    /// No allocation begins there.
    pub fn free(&mut self, start: u64) -> Result<(), HeapError> {
        self.heap.free(start)?;
        self.space.unmap(start);
        self.reservation = None;
        Ok(())
    }

    /// Address in this process and bytes of the memory of all allocations: the byte at an address of the heap is as far from
    /// its start. It stays there as long as the machine. A device may change it while no hart runs.
    #[must_use]
    pub fn heap_place(&self) -> (usize, u64) {
        let (bytes, before) = self.layout.heap_place();
        (self.space.place(before), bytes)
    }

    /// First address and bytes of the allocation that contains an address.
    #[must_use]
    pub fn allocation(&self, address: u64) -> Option<(u64, u64)> {
        self.heap.allocation(address)
    }

    /// Runs ready harts in turns for up to `budget` instructions of all together.
    pub fn run(&mut self, environment: &mut dyn Environment, budget: u64) -> Stop {
        let mut left = budget;
        while left > 0 {
            let Some((id, slice)) = self.turns.next() else {
                return Stop::Idle;
            };
            let (stop, spent) = self.turn(environment, id, slice.min(left), left);
            left = left.saturating_sub(spent);
            if let Some(stop) = stop {
                return stop;
            }
        }
        Stop::Budget
    }

    /// Runs one hart alone, if it is ready, for up to `budget` instructions: for debuggers and calls that block.
    ///
    /// Returns [`Stop::Idle`] as soon as the hart waits.
    pub fn run_hart(&mut self, environment: &mut dyn Environment, id: HartId, budget: u64) -> Stop {
        let mut left = budget;
        loop {
            if self.hart(id).is_none_or(|hart| hart.state != State::Ready) {
                return Stop::Idle;
            }
            if left == 0 {
                return Stop::Budget;
            }
            let (stop, spent) = self.turn(environment, id, left, left);
            left = left.saturating_sub(spent);
            if let Some(stop) = stop {
                return stop;
            }
        }
    }

    /// A turn of a hart: `slice` instructions, or up to `most` while it has a reservation. Returns what the embedder must know,
    /// and the instructions.
    fn turn(
        &mut self,
        environment: &mut dyn Environment,
        id: HartId,
        slice: u64,
        most: u64,
    ) -> (Option<Stop>, u64) {
        if self.last != Some(id) {
            (self.last, self.reservation) = (Some(id), None);
        }
        let Some(hart) = self.harts.get_mut(id as usize).and_then(Option::as_mut) else {
            return (None, 0);
        };
        let before = hart.retired;
        let mut core = Core {
            hart,
            space: &mut self.space,
            code: &mut self.code,
            reservation: &mut self.reservation,
            wakes: &mut self.wakes,
            environment,
            stored_outside: false,
        };
        let mut end = core.run(slice);
        for _ in 0..RESERVED_LONGER {
            if end != End::Spent || core.reservation.is_none() || core.hart.retired - before >= most
            {
                break;
            }
            end = core.run(1);
        }
        let spent = hart.retired - before;
        self.retired = self.retired.saturating_add(spent);
        let stop = match end {
            End::Spent | End::Action(Action::Continue | Action::Yield) => None,
            End::Action(Action::Stop) => Some(Stop::Stopped(id)),
            End::Action(Action::Wait | Action::WaitAgain) => {
                hart.state = State::Waiting;
                None
            }
            End::Action(Action::Finish(value)) | End::Returned(value) => {
                hart.state = State::Finished(value);
                Some(Stop::Finished(id, value))
            }
            // The core makes a trap of it.
            End::Action(Action::Trap(_)) => None,
            End::Trap(trap) => {
                hart.state = State::Trapped(trap);
                Some(Stop::Trapped(trap))
            }
        };
        if hart.state != State::Ready {
            self.turns.remove(id);
        }
        for id in std::mem::take(&mut self.wakes) {
            self.wake(id);
        }
        // An instruction that only waits counts, so that a run has an end.
        (stop, spent.max(1))
    }
}

const _: () = assert!(PAGE.is_power_of_two());
