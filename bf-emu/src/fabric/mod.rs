//! The state of the device, shared by all processes: one file with its tables, and the locks that
//! protect them.

pub(crate) mod cards;
mod carrier;
pub mod congestion;
pub mod counters;
mod device;
mod error;
mod flow;
mod holder;
pub mod journal;
pub mod klm;
mod limits;
pub(crate) mod link;
pub mod lock;
mod locking;
pub mod multicast;
pub mod numbers;
pub mod objects;
pub mod port;
mod ports;
mod posted;
pub mod rdma_cm;
pub mod release;
pub mod remote;
pub mod route;
pub mod rules;
pub mod table;
pub mod tables;
mod text;
pub mod trace;

pub use device::{Fabric, Locked, Recovery};
pub use error::FabricError;
pub use limits::{
    CHANNELS_MAX, CM_EVENTS_MAX, CM_FILES_MAX, CM_IDS_MAX, CM_MEMBERSHIPS_MAX, CQS_MAX,
    MCAST_ATTACHMENTS_MAX, MCAST_GROUP_QPS_MAX, MCAST_GROUPS_MAX, MKEYS_MAX, PDS_MAX,
    PROCESSES_MAX, QPS_MAX, SRQS_MAX, UMEMS_MAX,
};
pub use numbers::{MKEY_BASE, NUMBER_BASE, QPN_BASE};
pub use port::{Identity, Place, PortState};
pub use tables::{Common, Function};

/// Allocates a zeroed value on the heap, as in a new device file. Most of these values are too
/// large for the stack.
///
/// # Safety
/// All zeroes are a valid value of the type.
#[cfg(test)]
pub(crate) unsafe fn zeroed<T>() -> Box<T> {
    let mut value = Box::<T>::new_uninit();
    // SAFETY: the memory belongs to this value.
    unsafe { value.as_mut_ptr().write_bytes(0, 1) };
    // SAFETY: the caller promises that all zeroes are valid.
    unsafe { value.assume_init() }
}
