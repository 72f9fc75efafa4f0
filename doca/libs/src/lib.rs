//! The host side of DPA programs: DOCA's libraries common, argp, rdma, verbs, dpa, pcc and telemetry_pcc, in one
//! library.
//! `include/` documents them.
//!
//! An install prefix has the library once, and the other names are links to it: all parts share one list of live objects
//! (`object`), one log ([`log`]) and one rule of threads. Each C function runs inside `error::call`, which turns a fault
//! into one line of the log and keeps panics inside.
//!
//! The types and names are those that public programs use. The headers and their texts are this project's own.

pub mod argp;
pub mod buf;
pub mod buf_array;
pub mod ctx;
mod description;
pub mod dev;
pub mod dpa;
pub mod error;
mod lines;
pub mod log;
pub mod mmap;
mod object;
mod path;
pub mod pcc;
pub mod rdma;
pub mod sync_event;
pub mod telemetry;
pub mod umem;
pub mod verbs;
