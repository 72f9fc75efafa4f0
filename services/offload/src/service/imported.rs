//! A rank's buffer, imported into a service process, or memory of the service process in its place.

use crate::error::{OffloadError, Result};
use crate::wire::ExportRef;
use std::rc::Rc;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, ImportedMemory};
use xgvmi_verbs::Access;

/// An imported buffer of a rank. The range that UCX has imported may be larger and start earlier.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) memory: ImportedMemory,
    pub(super) address: u64,
    /// The alias for the DPA, if it can access the memory.
    pub(super) alias: Option<Rc<Access>>,
}

impl Imported {
    pub(super) fn new(context: &Context, export: ExportRef<'_>) -> Result<Self> {
        // SAFETY: the rank sends the bytes of UCX's packed handle unchanged; its UCX version equals ours.
        let memory = unsafe { ImportedMemory::new(context, export.packed) }?;
        let end = |start: u64, length: u64| start.checked_add(length);
        let inside = memory.address() <= export.address
            && end(export.address, export.length) <= end(memory.address(), memory.length() as u64);
        if !inside {
            return Err(OffloadError::Failed(format!(
                "a rank has exported {memory} for its buffer {:#x}+{}",
                export.address, export.length
            )));
        }
        Ok(Self {
            memory,
            address: export.address,
            alias: None,
        })
    }

    /// Allocates memory of this process.
    pub(super) fn stage(context: &Context, length: usize) -> Result<Self> {
        let buffer = Buffer::untouched(length)
            .map_err(|error| OffloadError::io("memory for an allreduce", error))?;
        let address = buffer.address();
        let memory = ImportedMemory::own(context, buffer)?;
        Ok(Self {
            memory,
            address,
            alias: None,
        })
    }
}
