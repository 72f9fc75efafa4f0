//! Owners of librdmacm's and libibverbs' objects. Each object ends once, after everything that uses it.

mod address;
mod channel;
mod memory;
mod nonblocking;
mod queues;

pub(crate) use address::resolve;
pub(crate) use channel::{Event, EventChannel, EventKind, Id};
pub(crate) use memory::{Registration, Rights};
pub(crate) use queues::{Queues, WRITE_BYTES_MAX, Work};

use crate::error::{NaaError, Result};
use rdmacm_sys::RdmaCmLib;
use std::sync::OnceLock;

/// The libraries, loaded by the first session of the process. A forked child inherits librdmacm's open devices, whose
/// doorbell pages it does not have.
pub(crate) fn lib() -> Result<&'static RdmaCmLib> {
    static LIB: OnceLock<(u32, RdmaCmLib)> = OnceLock::new();
    let process = std::process::id();
    let (owner, lib) = match LIB.get() {
        Some(loaded) => loaded,
        None => {
            let lib = RdmaCmLib::open()?;
            LIB.get_or_init(|| (process, lib))
        }
    };
    match *owner == process {
        true => Ok(lib),
        false => Err(NaaError::Forked),
    }
}
