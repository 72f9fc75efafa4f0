//! The preload library of `bf-emu`: interposes the functions of the C library through which a process finds
//! a kernel with mlx5 devices. It contains no device logic. Calls that concern the device go to
//! `bf_emu`. All other calls go to the definition that this library hides.
//!
//! A process without `BFEMU_STATE` and `BFEMU_AS` in its environment is unaffected. A privileged
//! (setuid) process is unaffected too, because its environment is not trusted.
//!
//! `bf-emu run` sets the environment and loads the library:
//!
//! ```text
//! $ bf-emu run --as node0.host -- ibv_devinfo
//! hca_id: mlx5_0
//! ...
//! ```
//!
//! Layers, from the bottom. Each uses only the layers before it:
//!
//! - `call`, `next`: common parts of all interposed functions, and the definitions that they hide.
//! - `masks`, `records`, `context`, `watch`: signal masks, the program's own actions for the trap's
//!   signals, a thread's saved registers, and the files that are contexts of the device.
//! - `resume`, `fault`, `store`, `install`: the doorbell trap: return from the handler, the handler, the
//!   processor's stores, and the installation. `context` and `resume` exist for x86-64 only.
//! - `signals`, `files`, `names`, `open`, `stat`, `exec`, `interfaces`: the interposed functions: for
//!   signals, for open files (ioctl, write, close, dup), functions that need only another path,
//!   functions that present a device's file as a character device, functions that start programs, and
//!   the list of network interfaces.
//!
//! `mmap`, `read` and `poll` are not interposed, because UCX rewrites the entry of `mmap`. The file
//! of a uverbs device is a memory file, and the connection manager's file is a pipe. Both support
//! them directly.
//!
//! Several functions are variadic in C (`open`, `ioctl`, `fcntl`), and Rust cannot define variadic
//! functions. They are defined with the fixed arguments that Linux uses. In the C calling
//! conventions of x86-64 and AArch64 Linux, the first variadic integer or pointer arguments are
//! passed like fixed ones. An omitted argument is an unused register.

mod call;
mod complaint;
#[cfg(target_arch = "x86_64")]
mod context;
mod exec;
mod fault;
mod files;
mod install;
mod interfaces;
mod masks;
mod names;
mod next;
mod open;
mod record;
mod records;
#[cfg(target_arch = "x86_64")]
mod resume;
mod signals;
mod stat;
#[cfg_attr(target_arch = "aarch64", path = "store_aarch64.rs")]
mod store;
mod watch;
