//! Safe, thin wrappers over UCP: one file per object, handles own what they name, every wait has a limit.
//!
//! Beside them stand the memory that programs move: temporary buffers ([`buffer`]) and the bytes that a receiver can
//! verify ([`pattern`]).
//!
//! Ownership follows UCP's: an [`Endpoint`] keeps its [`Worker`] alive, which keeps its [`Context`]; memory handles
//! keep the context. None of them is `Send`: a context and all that hangs off it belong to one thread, which is
//! UCX's cheapest thread mode. What is not here was not needed yet.

pub mod buffer;
mod context;
mod endpoint;
mod error;
mod memory;
pub mod pattern;
mod request;
mod rkey;
mod worker;

pub use context::Context;
pub use endpoint::Endpoint;
pub use error::{Result, UcpError};
pub use memory::{ExportedMemh, ImportedMemory, MappedBuffer, MappedRange};
pub use request::Request;
pub use rkey::{PackedRkey, RemoteKey};
pub use worker::{Message, Waiter, Worker};
