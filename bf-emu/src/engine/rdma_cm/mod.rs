//! The connection manager's messages: requests, replies, rejections and ends of connections between
//! two identifiers, and their time limits.
//!
//! The kernel sends datagrams to the other side's kernel. Here the sender changes the other side's
//! identifier under the device's lock. Errors are those of core/cma.c and core/cm.c.

pub(crate) mod answer;
mod deadline;
mod ids;
mod remote;
mod request;
mod route;

pub(crate) use deadline::expire;
pub(crate) use ids::get;
pub(crate) use request::{
    REFUSAL_NS, connect, datagrams, deliver, deliver_waiting, number, service_id, service_of,
};
pub(crate) use route::{ADDRESS_BYTES, RECORD_BYTES, Route};
