//! Safe, thin wrapper of UCP: one file per object. Handles own their UCP objects, and each wait has a time limit.
//!
//! The crate also contains the memory that programs transfer: temporary buffers ([`buffer`]) and a byte pattern that the
//! receiver can verify ([`pattern`]).
//!
//! An [`Endpoint`] keeps its [`Worker`] alive, a worker keeps its [`Context`], and memory handles keep the context. No
//! object but an [`Exporter`] is `Send`: a context and everything created from it belong to one thread, which is UCX's
//! fastest thread mode.
//! The wrapper covers only the parts of UCP that the project uses.
//!
//! ```no_run
//! use xgvmi_ucp::{Context, MappedBuffer, buffer::Buffer};
//!
//! let ucp = ucx_sys::Ucp::load(None)?;
//! let context = Context::new(ucp, "example")?;
//! // Registers the buffer and exports it for a process on the DPU.
//! let mapped = MappedBuffer::new(&context, Buffer::new(1 << 20)?)?;
//! let exported = mapped.export()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod buffer;
mod context;
mod endpoint;
mod error;
mod exported_key;
mod exporter;
mod get;
mod gets;
pub mod hash;
mod inbox;
mod memory;
pub mod pattern;
mod request;
mod rkey;
mod worker;

pub use context::Context;
pub use endpoint::{Endpoint, Sent};
pub use error::{Result, UcpError};
pub use exported_key::ExportedKey;
pub use exporter::{ExportedRange, Exporter};
pub use get::Get;
pub use gets::{Gets, Places, Taken};
pub use inbox::{Header, InboxBudget, InboxLimits, Message, Sender};
pub use memory::{ExportedMemh, ImportedMemory, MappedBuffer, MappedRange, PackedRkey};
pub use request::Request;
pub use rkey::RemoteKey;
pub use worker::{Waiter, Worker};
