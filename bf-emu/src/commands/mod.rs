//! The kernel's side of the device: uverbs calls of a process, and the device commands inside them.

mod call;
mod devx;
mod queue_pair;
mod uverbs;

pub use uverbs::ioctl;
