//! An emulated BlueField beneath unmodified rdma-core.
//!
//! Stock libibverbs and libmlx5, and all that is built on them, run on a machine without any RDMA
//! device: the processes are shown a kernel that has mlx5 devices, and what they post is executed
//! by the posting thread itself, between the memories of the processes.
//!
//! Layers, from the bottom; each uses only those before it:
//!
//! - [`sys`], [`guard`], [`memory`], [`trap`]: the machine: system calls, memory of processes, trapped stores.
//! - [`model`]: what the user asks for: topology, cost profile, faults.
//! - [`fabric`]: the device as all processes share it, one file.
//! - [`engine`]: the adapter's side: doorbells, work requests, completions.
//! - [`view`]: what a process sees of the device: state directory, sysfs, paths.
//! - [`process`]: this process at the device: its contexts and doorbell pages.
//! - `commands`: the kernel's side: ioctls and device commands.
//! - [`report`]: counters and live objects, for the user.
//!
//! This library interposes nothing: that is the business of the crate in `preload/`.

pub(crate) mod bits;
pub mod commands;
pub mod engine;
pub mod fabric;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod guard;
pub mod memory;
pub mod model;
pub mod process;
pub mod report;
pub mod sys;
pub mod trap;
pub mod view;
