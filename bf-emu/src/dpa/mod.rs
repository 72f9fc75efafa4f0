//! The DPA's runner: a process that has the memory of all processes of the DPA and executes their threads.
//!
//! The first command of a program for the DPA starts it, and it ends with the last context that has used it. It is attached to
//! the device like any process. Queues and keys in DPA memory belong to it, so that the engine reaches that memory as it
//! reaches any other, and they go away if the runner is killed. What belongs to a context goes away with the context's
//! connection (see `process::dpa`), and so with its program.
//!
//! Each process of the DPA has a thread of the runner (`worker`), so that one that computes does not keep others waiting. It
//! sleeps on a pipe while there is nothing to do: the engine writes the events of completion queues to it.

mod command;
mod commands;
mod congestion;
mod core;
mod create;
mod debug;
mod device;
mod log;
mod modify;
mod order;
mod probe;
mod query;
mod queues;
mod report;
mod server;
mod tables;
mod worker;

pub use debug::{Ask, DebugState, Debugger, MEMORY_MAX, Said, program};
pub use order::{OrderReport, order_reports};
pub use report::{ProcessReport, ThreadReport, report};
pub use server::serve;
