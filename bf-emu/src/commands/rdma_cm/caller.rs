//! A call in progress.

use std::os::fd::RawFd;

use crate::fabric::Locked;
use crate::fabric::rdma_cm::CmId;
use crate::guard;
use crate::process::Process;
use crate::sys::Errno;

/// A call in progress.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) process: &'a Process,
    /// The descriptor that the caller has written to.
    pub(super) fd: RawFd,
    /// The file's slot on the device.
    pub(super) file: u32,
    /// Room for the answer in bytes.
    pub(super) room: usize,
}

impl Caller<'_> {
    pub(super) fn lock(&self) -> Locked<'static> {
        self.process.fabric().lock()
    }

    /// The identifier with this number, if it belongs to the file.
    ///
    /// # Errors
    /// ENOENT: it does not exist. EINVAL: it belongs to another file.
    pub(super) fn id<'a>(
        &self,
        locked: &'a mut Locked<'_>,
        id: u32,
    ) -> Result<&'a mut CmId, Errno> {
        let ids = &mut locked.common().rdma_cm.ids;
        let known = ids.get_mut(id).ok_or(Errno(libc::ENOENT))?;
        if known.file != self.file || known.uid == 0 && !known.reported {
            return Err(Errno(libc::EINVAL));
        }
        Ok(known)
    }

    /// Like [`Self::id`], for a command that needs a device.
    ///
    /// # Errors
    /// Also EINVAL: the identifier has no device yet.
    pub(super) fn attached<'a>(
        &self,
        locked: &'a mut Locked<'_>,
        id: u32,
    ) -> Result<&'a mut CmId, Errno> {
        let known = self.id(locked, id)?;
        match known.local.place() {
            Some(_) => Ok(known),
            None => Err(Errno(libc::EINVAL)),
        }
    }

    /// Writes an answer.
    ///
    /// # Errors
    /// EFAULT: the address is not writable.
    pub(super) fn answer(&self, response: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the caller named this memory for the answer.
        unsafe { guard::write(response, bytes) }
    }

    /// Checks the room for an answer.
    ///
    /// # Errors
    /// ENOSPC: there is not enough.
    pub(super) fn needs_room(&self, bytes: usize) -> Result<(), Errno> {
        match self.room < bytes {
            true => Err(Errno(libc::ENOSPC)),
            false => Ok(()),
        }
    }
}
