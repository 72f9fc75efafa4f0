//! The adapter: executes posted work when a doorbell rings.
//!
//! No separate process or thread executes work. A doorbell is a store to a read-only page, which
//! the storing thread's signal handler receives. The thread executes its posted requests, moves
//! data between the processes, writes the completions, and resumes after its store. No other thread
//! has to be scheduled. On machines with few cores this is the difference between microseconds and
//! milliseconds.
//!
//! Three other modes exist: [`deferred`] finds programs that depend on immediate execution,
//! `adversary` those that depend on an order that no standard promises, and in [`polling`] mode a
//! thread watches the doorbell records.
//!
//! All code here may run in a signal handler. It does not allocate, takes no lock except the
//! device's, and does not panic.

pub(crate) mod access;
mod adversary;
mod agree;
mod arrival;
mod atomic;
mod carried;
pub(crate) mod complete;
mod datagram;
pub mod deferred;
mod delivery;
mod doorbell;
mod entry;
pub mod event;
mod execute;
mod fault;
mod header;
pub mod join;
mod link;
mod list;
pub(crate) mod memcpy;
pub(crate) mod message;
pub(crate) mod migration;
pub(crate) mod moderation;
mod multicast;
mod notice;
mod outcome;
mod overtake;
mod owed;
pub(crate) mod pace;
mod partition;
mod peer;
pub mod poller;
pub mod polling;
pub mod port;
pub(crate) mod rdma_cm;
pub(crate) mod receive;
mod refused;
mod room;
mod scatter;
mod step;
#[cfg(test)]
mod tests;
pub(crate) mod tick;
mod traffic;
mod umr;
mod wake;
pub mod wire;
pub(crate) mod work;

use std::path::Path;

pub(crate) use doorbell::{Place, ring_arm, ring_send, run};

use crate::fabric::{Fabric, FabricError};
use crate::model::profile::Profile;
use crate::model::topology::Topology;

/// Opens the device in directory `state`.
///
/// # Errors
/// No device exists there, or it has another version.
pub fn open(state: &Path) -> Result<Fabric, FabricError> {
    Fabric::open(state, complete::recover)
}

/// Creates the device of a topology in directory `state`, or checks that the existing one is the
/// same.
///
/// # Errors
/// The file cannot be created, or describes another device.
pub fn create(state: &Path, topology: &Topology, profile: &Profile) -> Result<Fabric, FabricError> {
    let profile = (profile.table(), profile.name());
    Fabric::create(state, topology, profile, complete::recover)
}
