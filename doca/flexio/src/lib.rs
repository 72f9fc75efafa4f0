//! `libflexio`: a program runs functions on the DPA.
//!
//! It commands the DPA of a BlueField through stock libmlx5. The shared library that contains it is built by `doca-libs`, so
//! that a program of FlexIO and DOCA has it once.
//!
//! [`App`] is a program for the DPA with the functions that the host may call. [`Process`] is such a program on the DPA of one
//! function of the adapter, with memory, remote calls and launches. [`Thread`] is a function of it that events activate. [`Cq`] and
//! [`Qp`] are queues in its memory, [`Mkey`] is a key onto it, [`Outbox`] and [`Window`] are what device code needs for doorbells and
//! for memory behind keys.
//!
//! An object keeps what it needs: the process ends with its last object. Objects may move between threads; two threads may use a
//! process at a time, so that one copies while another waits for a remote call.
//!
//! Layouts of the commands are this project's own (`mlx5_prm::dpa`), because NVIDIA's are not public. So the library needs a device
//! that knows them.
//!
//! The C interface has the names and types of FlexIO. Its status values are those of [`Status`].

mod app;
mod capi;
mod congestion;
mod dct;
mod error;
mod events;
pub mod fuzzing;
mod launch;
mod memory;
mod object;
mod process;
mod queue;
mod resources;
mod shared;
mod tasks;
mod thread;
pub mod variadic;
mod verbs;

pub use app::{App, Function, Pack};
pub use congestion::{Probes, Role, Standing, Telemetry};
pub use dct::{Dct, DctAttr};
pub use error::{Error, Result, Status};
pub use events::{Eq, EqAttr};
pub use launch::Launch;
pub use mlx5_prm::dpa::{
    Affinity, Done, DoneOperation, ThreadAttr, ThreadCounters, ThreadKind, Wait, Word,
};
pub use process::{Fault, Limits, Message, Process};
pub use queue::{
    Cq, CqAttr, CqTarget, Mkey, Outbox, Qp, QpAttr, Receive, Remote, Retries, Transport, Window,
};
pub use resources::parse as units_of_resources;
pub use shared::{Rmp, RmpAttr};
pub use tasks::{CommandQueue, CommandQueueAttr};
pub use thread::Thread;
