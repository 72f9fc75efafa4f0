//! A RISC-V processor of many harts that runs one program in an address space of its own.
//!
//! It executes RV64IMAC with Zicsr (the counters `cycle`, `time` and `instret`), Zifencei, Zba, Zbb and Zbs as in the RISC-V
//! unprivileged ISA 20240411. There are no floating-point registers and no privileged instructions. Misaligned loads and stores
//! are allowed. The crate does no I/O, has no unsafe code, and knows nothing of the device that it is a part of: an
//! [`Environment`] answers calls, own instructions (opcode custom-0) and accesses to windows.
//!
//! - [`Program`] is a checked ELF file. [`Machine`] is such a program in memory, with a heap and up to 256 harts. Each hart
//!   has a stack and thread-local storage between guard pages.
//! - [`Machine::run`] executes a number of instructions and returns the first event. A fault is a [`Trap`], a value with hart,
//!   program counter, address and cause. No program can make the crate panic or allocate without a bound.
//! - Harts run in turns on the caller's thread. The same [`Schedule`] and the same answers give the same run. Atomic operations
//!   are atomic between harts, and a reservation ends when another hart runs.
//!
//! Each halfword of code has a decoded instruction of 8 bytes, and a cache of recently used ranges serves most loads and stores.
//! Crates with an interpreter exist, but ckb-vm has neither counters nor harts nor windows and executes its portable mode at a
//! tenth of the speed; it is a judge here.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = Vec::new();
//! use rv64::{Config, Machine, Nothing, Program, Stop};
//!
//! let program = Program::parse(&file)?;
//! let mut machine = Machine::new(&program, &Config::default())?;
//! let hart = machine.create_hart()?;
//! let triple = program.symbol("triple").ok_or("no function")?;
//! machine.start(hart, triple, &[14])?;
//! assert_eq!(machine.run(&mut Nothing, 1000), Stop::Finished(hart, 42));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod alu;
mod code;
mod compressed;
mod decode;
mod environment;
mod exec;
mod hart;
mod heap;
#[cfg(feature = "lines")]
mod lines;
mod machine;
mod op;
mod program;
mod schedule;
mod space;
mod trap;

pub use environment::{Action, Atomic, Call, Environment, MemoryAccess, Nothing, WindowAccess};
pub use hart::{Hart, State};
pub use heap::{ALLOCATIONS_MAX, GRANULE, HeapError};
#[cfg(feature = "lines")]
pub use lines::{Line, Lines};
pub use machine::{
    Config, HARTS_MAX, HEAP_BYTES_MAX, Machine, MachineError, STACK_BYTES_MAX, Stop, WINDOWS_MAX,
};
pub use program::{Limits, LoadError, Program, Segment, SegmentFault};
pub use schedule::Schedule;
pub use space::{PAGE, RANGES_MAX, Rights, Space};
pub use trap::{Cause, Fault, HartId, Refusal, Trap};
