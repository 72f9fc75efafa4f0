//! The operating system of a DPA process.
//!
//! It does no I/O, and runs the process on an [`rv64::Machine`].
//!
//! [`Os`] has the program, the threads and the launches of a process. Its embedder, the emulated device, calls [`Os::run`]
//! while there is something to do, carries out the commands of the host between two calls, and implements [`Device`]:
//! memory behind keys, doorbells, messages. Nothing here allocates without a bound or panics because of a program.
//!
//! - **Threads.** A process has up to [`THREADS_MAX`] threads, each a hart. One executes the remote calls, one after the
//!   other. Threads of launches exist as long as the process, so that a launch of the same width creates none. The others
//!   are event handlers: an activation calls their function, and ends with a reschedule, a finish or a return.
//! - **Launches** start in the order of the calls, when the one before has finished and the word that they wait for has
//!   the wanted value.
//! - **Device calls** have the numbers of [`dpa_dev::calls`]. [`doca`] has those of DOCA,
//!   `congestion` those of the library for congestion control, this crate's own modules the rest.
//! - **Windows.** [`WINDOWS`] is a range of addresses in which each key of memory has a part of its own. The device checks
//!   each access. The outbox is a page of registers, as in [`dpa_dev::outbox`].
//! - **Faults.** A trap, a refused call or the limit of instructions ends all threads of the process. [`Os::fault`] says
//!   which thread, at which instruction and why. Nothing but a new process helps then.
//!
//! The device changes memory of the process while no thread runs: doorbells are collected during a run, and carried out when
//! the machine has stopped.

mod calls;
mod congestion;
mod context;
mod core_file;
mod debugger;
mod device;
pub mod doca;
mod environment;
mod event_queue;
mod fault;
mod fixed;
mod format;
mod kernel;
mod launch;
mod order;
mod os;
mod refusal;
mod task_queue;
mod thread;
mod window;

pub use congestion::{STREAM_REFUSED, STREAM_TRACE};
pub use context::{Answer, Context};
pub use core_file::CoreFile;
pub use debugger::{REGISTERS, Stopped};
pub use device::{Denied, Device, Message};
pub use fault::Fault;
pub use launch::{LAUNCHES_MAX, Launch};
pub use order::OrderReport;
pub use os::{Finished, Limits, Os, OsError, Progress};
pub use refusal::Refusal;
pub use task_queue::TASKS_MAX;
pub use thread::{THREADS_MAX, ThreadView};
pub use window::{WINDOW_BYTES, WINDOWS, WINDOWS_MAX};
