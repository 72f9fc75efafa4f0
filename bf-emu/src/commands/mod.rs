//! The kernel's side of the device: uverbs calls of a process, the device commands inside them, and
//! the commands of the connection manager.

mod call;
mod devx;
mod queue_pair;
mod rdma_cm;
mod uverbs;

pub use rdma_cm::{Written, write as write_rdma_cm};
pub use uverbs::ioctl;
