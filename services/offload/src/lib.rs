//! Offloaded collectives: host ranks pass their buffers to service processes (SPs) on the DPUs, which move the data.
//!
//! A rank uses [`Client`]. A DPU runs [`Service`] (`xgvmi-sp`). Ranks find each other through an [`Exchange`]: MPI in an
//! MPI program, [`TcpExchange`] elsewhere. `docs/OFFLOAD.md` describes use and limits, `wire.rs` the protocol.
//!
//! ```no_run
//! use std::time::Duration;
//! use xgvmi_offload::{Client, ClientArgs, CommunicatorId, Memory, Scheme, Side, TcpExchange};
//!
//! let (rank, size) = (0, 2);
//! let mut exchange = TcpExchange::meet("10.0.0.1:7799", rank, size, Duration::from_secs(30))?;
//! let args = ClientArgs { services: vec!["192.168.100.2:7700".to_owned()], ..Default::default() };
//! let mut client = Client::connect(&args.options(Scheme::Xgvmi)?, rank, size, &mut exchange)?;
//!
//! // One block of 4 KiB to and from each rank.
//! let (mut send, mut receive) = (vec![1_u8; 8192], vec![0_u8; 8192]);
//! let side = |bytes: &mut Vec<u8>| Memory::Temporary { start: bytes.as_mut_ptr(), length: bytes.len() };
//! let (from, to) = (side(&mut send), side(&mut receive));
//! let blocks = |memory| Side { memory, counts: &[4096, 4096], displacements: &[0, 4096] };
//! // SAFETY: nothing accesses the two buffers until the call is complete.
//! let request = unsafe { client.alltoallv(CommunicatorId(0), blocks(from), blocks(to)) }?;
//! client.wait(request)?;
//! client.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Client`], [`Service`] and all objects of [`xgvmi_ucp`] belong to one thread each.

pub mod check;
mod client;
mod control;
mod draft;
mod error;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
mod job_id;
mod library;
mod radix;
mod reduction;
mod scheme;
mod secret;
mod service;
mod token;
mod wire;

pub use client::{
    Call, Client, ClientArgs, ClientOptions, ClientStats, CommunicatorId, Memory, Numbered,
    Patience, Registered, Request, Side, Verdict,
};
/// How a call is divided, for predictions.
pub mod figures {
    pub use crate::client::{RANKS_PER_SP, SLICE_MIN, services_used};
    pub use crate::radix::BROADCAST as BROADCAST_RADIX;
    pub use crate::service::{
        DIRECT_LENGTH, Division, OFFER_BLOCKS, RECEIVES, SENDS, WINDOWS_AT_ONCE, Window,
    };
}
pub use control::{PROTOCOL, RANKS_MAX};
pub use error::{OffloadError, Result};
pub use exchange::{Exchange, TcpExchange};
pub use library::LibraryStats;
pub use reduction::{Element, Operation, Reduction};
pub use scheme::Scheme;
#[cfg(any(test, feature = "stand-in"))]
#[doc(hidden)]
pub use service::standin;
pub use service::{Service, ServiceOptions, Status};
pub use xgvmi_daemon::options::time;
pub use xgvmi_daemon::{LogLevel, Secret, supervise};

/// Whether this project's library is loaded in this process. Scheme xgvmi requires it.
#[must_use]
pub fn library_is_loaded() -> bool {
    library::Library::is_loaded()
}
