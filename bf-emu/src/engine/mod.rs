//! The adapter: what happens when a doorbell rings.
//!
//! There is no engine of its own. A doorbell is a store into a page that may not be written; the
//! thread that made the store is led here by the signal, carries out what it posted, moves the data
//! between the processes, writes the completions, and goes on behind its store. Nobody else has to
//! be scheduled for that, which on few cores is the difference between microseconds and
//! milliseconds.
//!
//! Two other ways exist: [`deferred`], to find out who relies on work being done at once, and
//! [`polling`], with a thread that looks at doorbell records.
//!
//! Everything here runs in a signal handler: no allocation, no lock but the device's, no panic.

pub(crate) mod access;
mod atomic;
pub(crate) mod complete;
mod datagram;
pub mod deferred;
mod doorbell;
pub mod event;
mod execute;
mod fault;
mod header;
mod link;
mod list;
pub(crate) mod message;
pub(crate) mod moderation;
mod outcome;
mod owed;
mod peer;
pub mod poller;
pub mod polling;
pub mod port;
pub(crate) mod receive;
mod scatter;
mod step;
#[cfg(test)]
mod tests;
pub(crate) mod tick;
mod umr;
mod wake;
pub(crate) mod work;

use std::path::Path;

pub(crate) use doorbell::{ring_arm, ring_send, run};

use crate::fabric::{Fabric, FabricError};
use crate::model::profile::Profile;
use crate::model::topology::Topology;

/// Opens the device in directory `state`.
///
/// # Errors
/// There is none, or it is of another version.
pub fn open(state: &Path) -> Result<Fabric, FabricError> {
    Fabric::open(state, complete::recover)
}

/// Makes the device of a topology in directory `state`, or checks that the one there is the same.
///
/// # Errors
/// The file cannot be made, or describes another device.
pub fn create(state: &Path, topology: &Topology, profile: &Profile) -> Result<Fabric, FabricError> {
    let profile = (profile.table(), profile.name());
    Fabric::create(state, topology, profile, complete::recover)
}
