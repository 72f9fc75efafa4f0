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
        if export.packed.is_empty() {
            return Err(OffloadError::Failed("an empty exported handle".to_owned()));
        }
        // SAFETY: the rank sends the bytes of UCX's packed handle unchanged; its UCX version equals ours.
        let memory = unsafe { ImportedMemory::new(context, export.packed) }?;
        let imported = Self {
            memory,
            address: export.address,
            alias: None,
        };
        if !imported.holds(export.address, export.length) {
            return Err(OffloadError::Failed(format!(
                "a rank has exported {} for its buffer {:#x}+{}",
                imported.memory, export.address, export.length
            )));
        }
        Ok(imported)
    }

    /// Whether the memory contains this range.
    pub(super) fn holds(&self, address: u64, length: u64) -> bool {
        let memory = &self.memory;
        let end = |start: u64, length: u64| start.checked_add(length);
        let limit = end(memory.address(), memory.length() as u64);
        memory.address() <= address && end(address, length).is_some_and(|end| Some(end) <= limit)
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
