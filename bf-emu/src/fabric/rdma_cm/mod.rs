//! State of the connection manager: open files, identifiers and unread events. It is common to all
//! functions, so that processes on any functions can connect.
//!
//! An identifier follows the state machines of the kernel: [`Stage`] is that of `rdma_cm`
//! (core/cma.c), [`Exchange`] that of the messages between two sides (core/cm.c). Here a message is
//! a change of the peer's identifier and an event in its file, under the device's lock. The first
//! byte of a file's pipe that an event leaves wakes its reader.
//!
//! A side on another machine has an identifier too, in the file of the process that carries requests there
//! (`carried`).

mod carried;
mod groups;
mod ports;
mod post;
mod release;
pub(super) mod state;

pub(crate) use carried::CARRIER_UID;
pub use state::{
    Awaits, CmFile, CmId, Event, EventKind, EventParam, Exchange, IP_HEADER, LOOKUP_REPLY_ROOM,
    LOOKUP_ROOM, Manager, Membership, PARAM_BYTES, PRIVATE_BYTES, Params, Port, REJECT_ROOM,
    REPLY_ROOM, REQUEST_ROOM, Side, Stage, lookup, reason,
};
