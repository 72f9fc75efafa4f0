//! Objects that the host library has made in the memory of the process, and arguments of calls.

use crate::context::{Context, Refusal};
use dpa_dev::objects::{Kind, WORD};

/// An object of the host library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object(pub(super) u64);

impl Object {
    /// The object behind a handle.
    pub(super) fn of(
        context: &mut Context<'_, '_>,
        kind: Kind,
        handle: u64,
    ) -> Result<Self, Refusal> {
        let name = kind.name();
        if handle == 0 {
            return Err(Refusal(format!("the handle of the {name} is 0")));
        }
        match context.read_u64(handle) {
            Ok(first) if first == kind as u64 && handle.is_multiple_of(WORD) => Ok(Self(handle)),
            _ => Err(Refusal(format!(
                "{handle:#x} is no handle of a live {name} of this process"
            ))),
        }
    }

    /// The object of an argument.
    pub(super) fn argument(
        context: &mut Context<'_, '_>,
        kind: Kind,
        n: u8,
    ) -> Result<Self, Refusal> {
        let handle = context.argument(n)?;
        Self::of(context, kind, handle)
    }

    pub(super) fn word(self, context: &mut Context<'_, '_>, index: usize) -> Result<u64, Refusal> {
        context.read_u64(self.0 + WORD * index as u64)
    }

    pub(super) fn set(
        self,
        context: &mut Context<'_, '_>,
        index: usize,
        value: u64,
    ) -> Result<(), Refusal> {
        context.write_u64(self.0 + WORD * index as u64, value)
    }
}

/// The lower half of an argument of 32 bits.
pub(super) fn half(context: &Context<'_, '_>, n: u8) -> Result<u32, Refusal> {
    let bytes = context.argument(n)?.to_le_bytes();
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
