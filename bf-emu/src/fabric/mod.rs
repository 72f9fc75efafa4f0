//! The device as all processes share it: one file, its tables, and the lock that guards them.

pub mod counters;
mod device;
mod error;
pub mod journal;
pub mod klm;
mod limits;
pub(crate) mod link;
pub mod lock;
pub mod numbers;
pub mod objects;
pub mod port;
mod ports;
pub mod release;
pub mod route;
pub mod rules;
pub mod table;
pub mod tables;
mod text;
pub mod trace;

pub use device::{Fabric, Locked, Recovery};
pub use error::FabricError;
pub use limits::{
    CHANNELS_MAX, CQS_MAX, MKEYS_MAX, PDS_MAX, PROCESSES_MAX, QPS_MAX, SRQS_MAX, UMEMS_MAX,
};
pub use numbers::{MKEY_BASE, NUMBER_BASE, QPN_BASE};
pub use port::{Identity, Place, PortState};
pub use tables::{Common, Function};
