//! DPU-offloaded transfers over stock UCX: what a pool of cross-GVMI keys is for, shown and measured.
//!
//! The library holds the parts that every program of this crate shares: safe wrappers over UCP ([`ucp`]), temporary
//! buffers ([`buffer`]) and what they are filled with ([`pattern`]), device counters ([`counters`]), samples
//! ([`samples`]), reports ([`report`]). [`demo`] is the first user: `xgvmi-demo`.
//!
//! Nothing here knows whether a device is emulated: programs are started by a launcher given as a command line, and
//! counters come from another.

pub mod buffer;
pub mod cost;
pub mod counters;
pub mod demo;
pub mod model;
pub mod offload;
pub mod pattern;
pub mod report;
pub mod samples;
mod svg;
pub mod ucp;
