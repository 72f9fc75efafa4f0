//! Common parts of the development commands: child processes with a time limit, one progress line for parallel work, free
//! TCP ports, and the paths of the workspace. For tests of FFI bindings, also values of C headers.
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

pub mod headers;
pub mod launch;
pub mod port;
pub mod process;
pub mod progress;
pub mod workspace;
