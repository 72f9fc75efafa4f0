//! The demo: the offloaded transfer of the slides, four processes per scheme, every byte verified.
//!
//! [`process`] is what each of the four does, [`wire`] what they say to each other over UCP, [`control`] what the
//! orchestrator says to them, [`orchestrate`] how the schemes take turns and what is counted.

mod control;
mod dpu;
mod host;
pub mod orchestrate;
mod process;
mod session;
mod wire;

pub use control::{Place, Role, Side};
pub use process::{ProcessOptions, serve};
