//! Targets in other processes, over TCP, and RDMA if both have a device: the target's side and the volume's side.

mod client;
mod line;
mod parts;
mod pieces;
mod server;
#[cfg(test)]
pub(crate) mod stall_tests;
mod syncs;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{Address, RemoteTarget};
pub use line::Rdma;
pub use server::{Load, TargetServer};

/// Parses a call and an answer, for fuzz targets.
pub(crate) fn any_bytes(bytes: &[u8]) {
    let bytes = &bytes::Bytes::copy_from_slice(bytes);
    if let Ok(call) = wire::Call::parse(bytes) {
        assert_eq!(wire::Call::parse(&call.to_bytes().into()), Ok(call));
    }
    let _ = wire::Answer::parse(bytes);
}
