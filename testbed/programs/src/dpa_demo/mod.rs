//! Kernels of the DPA on emulated nodes: launches, a ping-pong, and an all-to-all on aliases of the hosts' keys. `cargo
//! xtask demo dpa` and the system tests run it.

mod agent;
mod clock;
mod counters;
mod device;
mod launches;
mod link;
mod orchestrate;
mod pong;
mod rank;
mod report;

pub(crate) use agent::Agent;
pub(crate) use counters::Counters;
pub(crate) use launches::Launches;
pub(crate) use orchestrate::Demo;
pub(crate) use pong::Pong;
pub(crate) use rank::Rank;
