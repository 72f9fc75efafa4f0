//! Identifiers by their slots.

use crate::fabric::Locked;
use crate::fabric::rdma_cm::CmId;
use crate::sys::Errno;

/// The identifier in a slot.
///
/// # Errors
/// ENOENT: it does not exist.
pub(crate) fn get<'a>(locked: &'a mut Locked<'_>, id: u32) -> Result<&'a mut CmId, Errno> {
    let ids = &mut locked.common().rdma_cm.ids;
    ids.get_mut(id).ok_or(Errno(libc::ENOENT))
}
