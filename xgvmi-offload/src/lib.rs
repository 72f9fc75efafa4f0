//! An offloaded alltoallv: host ranks hand their buffers to service processes (SPs) on the DPUs, which move the data.
//!
//! [`Client`] is what a rank uses, [`Service`] what runs on a DPU (`xgvmi-sp`). Ranks find each other by an
//! [`Exchange`]: MPI in an MPI program, [`TcpExchange`] elsewhere. `docs/OFFLOAD.md` has the protocol and the limits.
//!
//! [`Client`] and [`Service`] are of one thread each, as all of [`xgvmi_ucp`] is.

pub mod check;
mod client;
mod codec;
mod control;
mod error;
mod exchange;
mod library;
mod link;
mod secret;
mod service;
mod wire;

pub use client::{
    Client, ClientArgs, ClientOptions, ClientStats, CommunicatorId, Memory, Registered, Request,
    Side,
};
pub use control::{PROTOCOL, RANKS_MAX, Scheme};
pub use error::{OffloadError, Result};
pub use exchange::{Exchange, TcpExchange};
pub use library::LibraryStats;
pub use secret::Secret;
pub use service::{Credits, LogLevel, Service, ServiceArgs, ServiceOptions, supervise};

/// Bits that no other process has.
fn random() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    // SAFETY: as many bytes as named can be written.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if count == 16 {
        Ok(u128::from_ne_bytes(bytes))
    } else {
        Err(std::io::Error::last_os_error())
    }
}
