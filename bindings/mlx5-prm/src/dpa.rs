//! The data path accelerator (DPA): processes, threads and memory, as general objects.
//!
//! The numbers of the object types are NVIDIA's. Their layouts are not public: those here are this project's own, and so are
//! the operations of `MODIFY_GENERAL_OBJECT` and `QUERY_GENERAL_OBJECT`. Queues in DPA memory have the PRM's own commands. Their
//! umem is the one that a process has, and offsets count from the start of its heap.

mod launch;
mod message;
mod thread;

use crate::Field;
use crate::field::fields;
pub use launch::{Done, DoneOperation, Wait, Word};
pub use message::MessageHead;
pub use thread::{Affinity, ThreadAttr, ThreadCounters, ThreadKind};

/// A number in a command that stands for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    what: &'static str,
    number: u8,
}

impl Unknown {
    const fn new(what: &'static str, number: u8) -> Self {
        Self { what, number }
    }
}

impl core::fmt::Display for Unknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no {} {}", self.what, self.number)
    }
}

impl core::error::Error for Unknown {}

/// Writes fields. False if one is outside.
fn put(input: &mut [u8], fields: &[(Field, u64)]) -> bool {
    fields.iter().all(|(field, value)| field.set(input, *value))
}

/// Types of general objects.
pub mod object {
    /// An allocation of a process's heap.
    pub const MEMORY: u16 = 0x28;
    /// A process.
    pub const PROCESS: u16 = 0x2a;
    /// A thread of a process, which events activate.
    pub const THREAD: u16 = 0x2b;
    /// A page of doorbells for threads.
    pub const OUTBOX: u16 = 0x2d;
    /// An event queue in memory of a process.
    pub const EVENT_QUEUE: u16 = 0x33;
    /// Memory of the host, by a key.
    pub const WINDOW: u16 = 0x39;
    /// Tasks and the threads that execute them. The number is this project's own.
    pub const COMMAND_QUEUE: u16 = 0xfd00;
    /// What a card's congestion control states. The number is this project's own.
    pub const TELEMETRY: u16 = 0xff01;
}

/// Operations of a process, in [`OPERATION`] of `MODIFY_GENERAL_OBJECT`.
pub mod modify {
    /// Copies from a umem of the caller.
    pub const COPY_IN: u16 = 1;
    /// Copies to a umem of the caller.
    pub const COPY_OUT: u16 = 2;
    /// Fills memory with a byte.
    pub const FILL: u16 = 3;
    /// Launches a kernel. The command ends when the launch is in the queue.
    pub const LAUNCH: u16 = 5;
    /// Arms a completion queue in memory of the process.
    pub const ARM: u16 = 6;
    /// Thread: events start it from now on.
    pub const RUN: u16 = 8;
    /// Thread: an event.
    pub const ACTIVATE: u16 = 9;
    /// Thread: new attributes.
    pub const SET: u16 = 10;
    /// Command queue: one more task, see [`FUNCTION`](super::FUNCTION) and [`ARGUMENT`](super::ARGUMENT).
    pub const TASK: u16 = 11;
    /// Command queue: its threads take tasks from now on.
    pub const START: u16 = 12;
    /// The process handles events of congestion control from now on, or waits until others no longer do.
    pub const ATTACH: u16 = 13;
    /// It handles them no longer.
    pub const DETACH: u16 = 14;
}

/// Operations of a process, in [`OPERATION`] of `QUERY_GENERAL_OBJECT`.
pub mod query {
    /// State and fault.
    pub const STATUS: u16 = 0;
    /// Takes messages of threads.
    pub const MESSAGES: u16 = 1;
    /// Counters of the threads.
    pub const COUNTERS: u16 = 2;
    /// Calls a function and waits for its result.
    pub const CALL: u16 = 4;
    /// The text of the last refused command of the context.
    pub const REASON: u16 = 6;
    /// Registers and memory, as an ELF core file, from an offset on.
    pub const CORE: u16 = 7;
    /// Command queue: whether all tasks have ended.
    pub const EMPTY: u16 = 8;
    /// State of a process that is attached to congestion control, and the reason of its end.
    pub const CONGESTION: u16 = 9;
    /// Telemetry: a number of the active program.
    pub const VALUE: u16 = 10;
    /// Telemetry: a text of the active program, by the questions for its address and its bytes.
    pub const TEXT: u16 = 11;
    /// Telemetry: sets the counters of a slot to 0.
    pub const CLEAR: u16 = 12;
}

/// State of a process that is attached to congestion control.
pub mod congestion {
    /// It handles events.
    pub const ACTIVE: u8 = 0;
    /// It waits until the active one fails.
    pub const STANDBY: u8 = 1;
    /// It did not handle an event in time, and another one is active.
    pub const DEACTIVATED: u8 = 2;
    /// A fault has ended it.
    pub const ERROR: u8 = 3;
    /// It is not attached.
    pub const DETACHED: u8 = 4;
    /// Role of the sender.
    pub const REACTION: u8 = 0;
    /// Role of the receiver, which answers probes.
    pub const NOTIFICATION: u8 = 1;
    /// Probes that the receiver's device answers with times.
    pub const PROBE_TIMES: u8 = 0;
    /// Management datagrams that the receiver's program answers.
    pub const PROBE_CCMAD: u8 = 1;
    /// Probes with metadata of the switches (IFA 1.0), which the receiver's program answers.
    pub const PROBE_IFA1: u8 = 2;
    /// The same with a header of their own (IFA 2.0).
    pub const PROBE_IFA2: u8 = 3;
}

/// State of a process.
pub mod state {
    /// It can execute functions.
    pub const ALIVE: u8 = 0;
    /// A fault has ended it.
    pub const FAULT: u8 = 1;
    /// A thread has ended it.
    pub const FINISHED: u8 = 2;
}

/// Places of a word.
pub mod word {
    /// No word.
    pub const NONE: u8 = 0;
    /// DPA memory.
    pub const DPA: u8 = 1;
    /// Behind a key.
    pub const KEY: u8 = 2;
}

/// Changes of a word at the end of a launch.
pub mod done {
    /// It gets the value.
    pub const SET: u8 = 0;
    /// The value is added.
    pub const ADD: u8 = 1;
}

/// Affinity of a thread.
pub mod affinity {
    /// Any execution unit.
    pub const ANY: u8 = 0;
    /// One execution unit.
    pub const UNIT: u8 = 1;
    /// A group of execution units.
    pub const GROUP: u8 = 2;
}

/// Bytes of the input of `CREATE_GENERAL_OBJECT` for any of the objects.
pub const CREATE_IN_BYTES: usize = 0x40;
/// Bytes of the output of `CREATE_GENERAL_OBJECT` for any of the objects.
pub const CREATE_OUT_BYTES: usize = 0x40;
/// Bytes before the arguments of a call or launch, and before the bytes of an answer.
pub const BODY_AT: usize = 0x80;
/// Most bytes of arguments of a call or launch.
pub const ARGUMENT_BYTES_MAX: usize = 4096;

fields! {
    /// Create (except a process): the process.
    PROCESS_ID = 0x080, 32;
    /// Create a process: umem of the caller with the program.
    IMAGE_UMEM = 0x080, 32;
    /// Create a process or a window: protection domain for accesses to memory behind keys.
    PD = 0x0a8, 24;
    /// Create a process: offset of the program in the umem.
    IMAGE_OFFSET = 0x0c0, 64;
    /// Create a process: bytes of the program.
    IMAGE_BYTES = 0x100, 64;
    /// Create a process: most instructions of a function; 0 for the device's own limit.
    INSTRUCTIONS = 0x140, 64;
    /// Process created: its umem.
    UMEM = 0x080, 32;
    /// Process created: first address of its heap.
    HEAP = 0x0c0, 64;
    /// Process created: bytes of its heap.
    HEAP_BYTES = 0x100, 64;
    /// Process created: most threads of the device.
    THREADS = 0x140, 32;
    /// Process created: its execution units.
    UNITS = 0x160, 32;
    /// Create memory: bytes.
    MEMORY_BYTES = 0x0c0, 64;
    /// Memory created: its address.
    MEMORY_ADDRESS = 0x0c0, 64;
    /// Create an event queue: log2 of its entries.
    LOG_EVENTS = 0x0a0, 8;
    /// Create an event queue: address of its ring.
    EVENT_RING = 0x0c0, 64;
    /// Create an event queue: the thread that its events activate; 0 for none.
    EVENT_THREAD = 0x100, 32;
    /// Create a command queue: its threads.
    WORKERS = 0x0a0, 16;
    /// Create a command queue: its threads take tasks from the start.
    RUNS = 0x0b0, 1;
    /// Create a command queue: tasks that a thread takes at a time.
    BATCH = 0x0c0, 32;
    /// Create an outbox: its page of doorbells.
    UAR = 0x0a8, 24;
    /// Outbox or window created: its number in the process, for device code.
    CONFIG_ID = 0x0a0, 32;
    /// Create or change a thread: kind of its affinity.
    AFFINITY = 0x0a0, 8;
    /// Create or change a thread: the execution unit or group.
    AFFINITY_ID = 0x0b0, 16;
    /// Create or change a thread: address of its function.
    FUNCTION = 0x0c0, 64;
    /// Create, change or run a thread: argument of its function.
    ARGUMENT = 0x100, 64;
    /// Create or change a thread: address of its local storage.
    LOCAL_STORAGE = 0x140, 64;
    /// Operation of modify or query.
    OPERATION = 0x080, 16;
    /// Arm: the completion queue.
    ARM_CQ = 0x0a8, 24;
    /// Arm: its consumer counter.
    ARM_COUNTER = 0x0c8, 24;
    /// Fill: the byte.
    BYTE = 0x098, 8;
    /// Copy: umem of the caller.
    COPY_UMEM = 0x0a0, 32;
    /// Copy: offset in the umem.
    COPY_OFFSET = 0x0c0, 64;
    /// Copy or fill: bytes.
    COPY_BYTES = 0x100, 64;
    /// Copy or fill: address in DPA memory.
    COPY_ADDRESS = 0x140, 64;
    /// Call or launch: address of the unpack function.
    UNPACK = 0x0c0, 64;
    /// Call or launch: address of the function.
    KERNEL = 0x100, 64;
    /// Call or launch: bytes of the arguments, which follow at [`BODY_AT`].
    ARGUMENT_BYTES = 0x140, 32;
    /// Launch: threads.
    WIDTH = 0x160, 32;
    /// Launch: place of the word to wait for, see [`word`].
    WAIT_WORD = 0x180, 8;
    /// Launch: place of the word that reports the end.
    DONE_WORD = 0x188, 8;
    /// Launch: change of that word, see [`done`].
    DONE_OPERATION = 0x190, 8;
    /// Launch: key of the word to wait for.
    WAIT_KEY = 0x1a0, 32;
    /// Launch: address of the word to wait for.
    WAIT_ADDRESS = 0x1c0, 64;
    /// Launch: bits of the word that count.
    WAIT_MASK = 0x200, 64;
    /// Launch: it starts when they are above this number.
    WAIT_ABOVE = 0x240, 64;
    /// Launch: key of the word that reports the end.
    DONE_KEY = 0x280, 32;
    /// Launch: address of the word that reports the end.
    DONE_ADDRESS = 0x2c0, 64;
    /// Launch: operand of its change.
    DONE_VALUE = 0x300, 64;
    /// Called: the result. Asked whether a command queue is empty: 1 or 0.
    RESULT = 0x0c0, 64;
    /// Query: the stream, or the offset in a core file.
    QUERY_OFFSET = 0x0c0, 64;
    /// Queried: bytes of the answer, which follow at [`BODY_AT`].
    BODY_BYTES = 0x0a0, 32;
    /// Status: state of the process, see [`state`].
    STATE = 0x080, 8;
    /// Attach: role, see [`congestion`].
    ROLE = 0x098, 8;
    /// Attach: mask of the types of events that it does not want.
    DISABLED_EVENTS = 0x0a0, 32;
    /// Attach: form of the sender's probes, see [`congestion`].
    PROBE_FORM = 0x0c0, 8;
    /// Attach: hop limit of the sender's probes.
    PROBE_HOPS = 0x0c8, 8;
    /// Telemetry: the question, as the device library numbers it; of a text, that for its address, and the next number for
    /// its bytes.
    TELEMETRY_WHAT = 0x0a0, 16;
    /// Telemetry: the slot.
    TELEMETRY_SLOT = 0x0b0, 16;
    /// Telemetry: the parameter or counter.
    TELEMETRY_NUMBER = 0x0c0, 32;
    /// Status: thread of the fault.
    FAULT_THREAD = 0x140, 32;
    /// Status: program counter of the fault.
    FAULT_PC = 0x0c0, 64;
    /// Status: address of the fault.
    FAULT_ADDRESS = 0x100, 64;
    /// `CREATE_CQ`: the queue's events go to the thread or the event queue whose id is in [`CQ_THREAD`].
    CQ_APU = 0x087, 1;
    /// `CREATE_CQ`: the thread or event queue of the DPA, in place of the adapter's event queue.
    CQ_THREAD = 0x120, 32;
}
