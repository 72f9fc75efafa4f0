//! An emulated BlueField below unmodified rdma-core.
//!
//! Stock libibverbs, libmlx5 and the software above them run on a machine without an RDMA device.
//! The emulator presents a kernel with mlx5 devices to each process. The posting thread itself
//! executes its work requests and moves data between the memories of the processes.
//!
//! ```
//! use bf_emu::model::topology::Topology;
//!
//! // Two nodes, each with a host function and a DPU function.
//! let topology = Topology::with_nodes(2)?;
//! assert_eq!(topology.functions().len(), 4);
//! assert!(topology.function("node1.dpu").is_some());
//! # Ok::<(), bf_emu::model::topology::TopologyError>(())
//! ```
//!
//! Layers, from the bottom. Each uses only the layers before it:
//!
//! - [`sys`], [`guard`], [`memory`], [`trap`]: system calls, memory of processes, trapped stores.
//! - [`model`]: the user's configuration: topology, cost profile, faults.
//! - [`fabric`]: the state of the device, shared by all processes in one file.
//! - [`engine`]: the adapter: doorbells, work requests, completions.
//! - [`view`]: the device as a process sees it: state directory, sysfs, paths.
//! - [`process`]: this process's contexts and doorbell pages.
//! - `commands`: the kernel: ioctls and device commands.
//! - [`dpa`]: the runner of the DPA's processes.
//! - [`report`]: counters and live objects for the user.
//!
//! This library interposes no function of the C library. The crate in `preload/` does.

pub(crate) mod bits;
pub mod commands;
pub mod dpa;
pub mod engine;
pub mod fabric;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guard;
pub mod memory;
pub mod model;
pub mod process;
pub mod report;
pub mod sys;
pub mod trap;
pub mod view;
