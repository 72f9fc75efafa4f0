//! `cargo xtask demo naaice`: the cost of a remote call on fresh buffers, by the way in which the accelerator reaches
//! them. `Demo` starts services and clients on an emulated cluster and writes the report; `Client` is one host.

mod client;
mod orchestrate;
mod report;

pub(crate) use client::Client;
pub(crate) use orchestrate::Demo;
