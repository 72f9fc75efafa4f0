//! Sessions with a service on the host's DPU. The host exports each region by a key; the service reads inputs and
//! writes outputs through aliases of these keys.

mod client;
pub mod frames;
mod host;

pub(crate) use client::create;
pub use host::Way;
