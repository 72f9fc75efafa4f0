//! The demo: the offloaded transfer of the slides, four processes per scheme, every byte verified.
//!
//! `process` contains the work of each process, `wire` their messages over UCP, `control` the messages of the
//! orchestrator, and [`orchestrate`] the order of the schemes and the counters.

mod control;
mod dpu;
mod host;
pub mod orchestrate;
mod process;
mod session;
mod wire;

pub use control::{Place, Role, Side};
pub use process::{ProcessOptions, serve};
