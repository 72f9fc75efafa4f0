//! The kernel's side of the device: the calls of a process, and the device commands in them.

mod call;
mod devx;
mod queue_pair;
mod uverbs;

pub use uverbs::ioctl;
