//! A vhost-user-blk device for one volume on a Unix socket: reads, writes, flushes, discards and zeros of a virtual machine,
//! in several queues.
//!
//! The front end (QEMU) shares the memory of its guest and is trusted, as its process may do what it wants with that memory.
//! The guest is not: each descriptor is checked before it is used.

pub(crate) mod any;
mod device;
mod lane;
mod request;
mod server;
mod shared;

pub use crate::crew::REQUESTS_MAX;
pub use device::QUEUES_MAX;
pub use server::VhostServer;

#[cfg(test)]
mod tests;
