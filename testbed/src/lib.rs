//! An emulated cluster with programs on it, for tests, demos and benchmarks.
//!
//! Devices ([`cluster`]) and their counters ([`stats`]), children with time limits ([`process`]), clients of batches
//! ([`client`]), servers with clients ([`pair`]), free ports ([`port`]), link layers ([`link`]), namespaces with another root
//! ([`place`]), programs of accelerators ([`naaice`]), and programs of another processor ([`foreign`]). For development commands
//! also the progress line, the paths of the workspace, and values of C headers.
//!
//! ```
//! use testbed::process;
//! use std::process::Command;
//! use std::time::Duration;
//!
//! let done = process::run(Command::new("echo").arg("ready"), Duration::from_secs(10))?;
//! assert!(done.ok() && done.output == "ready\n");
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod client;
pub mod cluster;
pub mod foreign;
pub mod headers;
pub mod link;
pub mod naaice;
pub mod pair;
pub mod place;
pub mod port;
pub mod process;
pub mod progress;
pub mod stats;
pub mod workspace;
