//! The model: the adapter, the fabric's topology, its cost profile, and the faults to inject.

pub mod adapter;
pub mod address;
pub mod faults;
pub mod multicast;
pub(crate) mod names;
pub mod profile;
pub mod sockaddr;
pub mod topology;
