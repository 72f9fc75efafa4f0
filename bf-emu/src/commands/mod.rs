//! The kernel's side of the device: the calls of a process, and the device commands in them.

pub(crate) mod devx;
pub(crate) mod uverbs;
