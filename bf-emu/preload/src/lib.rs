//! The preload library: interposers of the C library's calls through which a process would find a
//! kernel with mlx5 devices. No device logic is here; every call that concerns the device is handed
//! to `bf_emu`, every other one to the definition that would have been called without us.
//!
//! Without `BFEMU_STATE` and `BFEMU_AS` in its environment, a process is left alone; so is one with
//! raised privileges, whose environment is not to be trusted.
//!
//! Layers, from the bottom; each uses only those before it:
//!
//! - [`call`], [`next`]: what every interposed call needs, and the definition that it hides.
//! - [`masks`], [`records`], [`context`], [`watch`]: signal masks, the program's own actions for the trap's
//!   signals, a thread's saved registers, and the files that are contexts of the device.
//! - [`resume`], [`fault`], [`install`]: the doorbell trap: its handler, the way back from it, and putting it
//!   in place.
//! - [`signals`], [`files`], [`names`], [`open`], [`stat`]: the interposed calls: on signals, on open files
//!   (ioctl, close, dup), those that need nothing but another path, and those that present a uverbs device
//!   as a character device.
//!
//! `mmap`, `read`, `write` and `poll` are not interposed, because UCX rewrites the entry of `mmap`:
//! the file behind a uverbs device is a memory file and serves them as it is.
//!
//! Several of the calls are variadic in C (`open`, `ioctl`, `fcntl`), which Rust cannot define.
//! They are defined here with the fixed arguments that Linux knows for them. In the C calling
//! conventions of x86-64 and AArch64 Linux the first variadic integer or pointer arguments are
//! passed as fixed ones are, and one that the caller left out is only an unused register.

mod call;
#[cfg(target_arch = "x86_64")]
mod context;
#[cfg(target_arch = "x86_64")]
mod fault;
mod files;
mod install;
mod masks;
mod names;
mod next;
mod open;
mod records;
#[cfg(target_arch = "x86_64")]
mod resume;
mod signals;
mod stat;
mod watch;
