//! Owners of librdmacm's and libibverbs' objects. Each object ends once, after everything that uses it.

mod address;
mod channel;
mod memory;
mod queues;

pub(crate) use address::resolve;
pub(crate) use channel::{Event, EventChannel, EventKind, Id};
pub(crate) use memory::{Registration, Rights};
pub(crate) use queues::{Queues, Work};

use crate::error::Result;
use rdmacm_sys::RdmaCmLib;
use std::sync::OnceLock;

/// The libraries, loaded by the first session of the process.
pub(crate) fn lib() -> Result<&'static RdmaCmLib> {
    static LIB: OnceLock<RdmaCmLib> = OnceLock::new();
    if let Some(lib) = LIB.get() {
        return Ok(lib);
    }
    let lib = RdmaCmLib::open()?;
    Ok(LIB.get_or_init(|| lib))
}
