//! An emulated BlueField beneath unmodified rdma-core.
//!
//! Stock libibverbs and libmlx5, and all that is built on them, run on a machine without any RDMA
//! device: the processes are shown a kernel that has mlx5 devices, and what they post is executed
//! by the posting thread itself, between the memories of the processes.
//!
//! - [`topology`], [`profile`], [`state`], [`sysfs`]: what the device is and how it is shown.
//! - [`fabric`]: the device as all processes share it, one file.
//! - [`process`], [`uverbs`], [`devx`]: the kernel's side: contexts, ioctls, device commands.
//! - [`engine`]: the adapter's side: doorbells, work requests, completions.
//! - [`faults`]: what goes wrong on purpose; [`trace`]: what happened lately;
//!   [`dump`]: what there is.
//! - [`guard`], [`memory`], [`sys`], [`trap`]: the ground they stand on.
//!
//! This library interposes nothing: that is the business of the crate in `preload/`.

pub mod devx;
pub mod dump;
pub mod engine;
pub mod fabric;
pub mod faults;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod guard;
pub mod memory;
pub mod paths;
pub mod process;
pub mod profile;
pub mod state;
pub mod stats;
pub mod sys;
pub mod sysfs;
pub mod topology;
pub mod trace;
pub mod trap;
pub mod uverbs;
