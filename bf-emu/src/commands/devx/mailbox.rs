//! The mailboxes of a command: fields of its input, its output, and its errors.

use mlx5_prm::Field;
use mlx5_prm::cmd::status;

use crate::bits::low32;
use crate::commands::call::{Call, Full};
use crate::fabric::Function;
use crate::fabric::numbers::slot_of_number;
use crate::sys::Errno;

/// Reason why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The device refuses it: status and syndrome.
    Refused(u8, u32),
    /// The kernel refuses it before the device sees it.
    Kernel(Errno),
}

impl From<Errno> for CommandError {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

/// Result of a command: its output mailbox.
pub(crate) type Result<T = Vec<u8>> = std::result::Result<T, CommandError>;

/// A command names an object that does not exist.
pub(super) const BAD_RESOURCE: CommandError = CommandError::Refused(status::BAD_RESOURCE, 0x1);
/// A field has a value that the device does not accept.
pub(super) const BAD_PARAM: CommandError = CommandError::Refused(status::BAD_PARAM, 0x2);
/// A table is full.
pub(super) const NO_RESOURCES: CommandError = CommandError::Refused(status::LIMITS_EXCEEDED, 0x3);
/// The error for a full table.
pub(super) fn full(call: &Call<'_>, table: Full) -> CommandError {
    call.tell_full(table);
    NO_RESOURCES
}

/// The device does not know the command.
pub(super) const BAD_OP: CommandError = CommandError::Refused(status::BAD_OP, 0x4);
/// An object is in a state in which the command does not apply.
pub(super) const BAD_STATE: CommandError = CommandError::Refused(status::BAD_RES_STATE, 0x5);

/// An output mailbox.
#[derive(Clone, Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
}

impl Output {
    /// An answer of `length` bytes, cut to the caller's buffer.
    pub(super) fn new(length: usize, capacity: usize) -> Self {
        Self {
            bytes: vec![0; length.min(capacity)],
        }
    }

    pub(super) fn set(&mut self, field: Field, value: u64) -> &mut Self {
        // A field beyond the caller's buffer is dropped.
        let _ = field.set(&mut self.bytes, value);
        self
    }

    pub(super) fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// The value of a field of up to 32 bits.
pub(super) fn get(input: &[u8], field: Field) -> u32 {
    low32(field.get(input))
}

/// A field of up to 8 bits.
pub(super) fn get8(input: &[u8], field: Field) -> u8 {
    u8::try_from(field.get(input)).expect("the field has at most 8 bits")
}

/// A field of up to 16 bits.
pub(super) fn get16(input: &[u8], field: Field) -> u16 {
    u16::try_from(field.get(input)).expect("the field has at most 16 bits")
}

/// Number of ports of the function.
pub(super) fn ports(call: &Call<'_>) -> Result<u8> {
    let identity = call.fabric().identity(call.function());
    let identity = identity.ok_or(BAD_RESOURCE)?;
    Ok(*identity.ports().end())
}

/// Address of `offset` in a umem of the caller. At least `length` bytes follow it.
pub(super) fn in_umem(
    call: &Call<'_>,
    function: &Function,
    number: u32,
    offset: u64,
    length: u64,
) -> Result<u64> {
    let slot = slot_of_number(number).ok_or(BAD_RESOURCE)?;
    let umem = function
        .umems
        .owned(slot, call.context.number)
        .filter(|umem| umem.device_page == 0)
        .ok_or(BAD_RESOURCE)?;
    let end = offset.checked_add(length).ok_or(BAD_PARAM)?;
    if end > umem.length {
        return Err(BAD_PARAM);
    }
    // Cannot overflow: registration checked that the umem does not wrap.
    Ok(umem.address + offset)
}

/// Slot of the protection domain of this number, if the caller may use it.
pub(super) fn pd_slot(call: &Call<'_>, function: &Function, number: u32) -> Result<u32> {
    let slot = slot_of_number(number).ok_or(BAD_RESOURCE)?;
    function
        .pds
        .owned(slot, call.context.number)
        .filter(|pd| pd.xrc_domain == 0)
        .ok_or(BAD_RESOURCE)?;
    Ok(slot)
}

/// Slot of the completion queue of this number, if the caller may use it.
pub(super) fn cq_slot(call: &Call<'_>, function: &Function, number: u32) -> Result<u32> {
    let slot = slot_of_number(number).ok_or(BAD_RESOURCE)?;
    function
        .cqs
        .owned(slot, call.context.number)
        .ok_or(BAD_RESOURCE)?;
    Ok(slot)
}
