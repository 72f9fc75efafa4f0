//! Storage through a DPU on emulated nodes; `cargo xtask demo storage` and the system tests run it.

mod client;
mod done;
mod layout;
mod memory;
mod orchestrate;
mod parts;
mod pattern;
mod plot;
mod report;
mod torture;

pub(crate) use client::Client;
pub(crate) use memory::Pages;
pub(crate) use parts::Demo;
pub(crate) use plot::Plot;
