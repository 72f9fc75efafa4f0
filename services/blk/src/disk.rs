//! What an NBD server exports: a volume in this process, or one behind a service.

use crate::error::Result;
use crate::geometry::{Geometry, Id};
use crate::volume::{Extent, Volume, VolumeStatus};
use std::sync::Arc;
use xgvmi_daemon::Secret;

/// Finds a volume that is open, or tells why it is not.
pub type FindDisk = Arc<dyn Fn() -> std::result::Result<Arc<dyn Disk>, String> + Send + Sync>;

/// Finds a volume that is always open.
#[must_use]
pub fn always(disk: Arc<dyn Disk>) -> FindDisk {
    Arc::new(move || Ok(Arc::clone(&disk)))
}

/// A block device. Any thread may call it.
pub trait Disk: Send + Sync {
    /// Identifier of the volume.
    fn id(&self) -> Id;

    /// Size of the volume.
    fn geometry(&self) -> Geometry;

    /// Reads `bytes` from `offset`.
    ///
    /// # Errors
    /// The range is outside the volume, or its data cannot be read.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The range is outside the volume, or too few targets take the data.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// As [`Disk::write`], of bytes that may be kept.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn write_owned(&self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.write(offset, &bytes)
    }

    /// Memory for the bytes of a write, with other ones in it. Empty: there is none.
    fn memory(&self, length: usize) -> Vec<u8> {
        let _ = length;
        Vec::new()
    }

    /// Writes zeros, with space of their own if `allocate` is set.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()>;

    /// Gives the space of whole blocks back. They are zero afterwards.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn trim(&self, offset: u64, length: u64) -> Result<()>;

    /// Makes everything durable that was acknowledged before.
    ///
    /// # Errors
    /// Too few targets could do it.
    fn flush(&self) -> Result<()>;

    /// States of the bytes from `offset` on, up to `length` bytes in at most `limit` runs.
    ///
    /// # Errors
    /// The range is outside the volume.
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>>;

    /// True if nobody may write it.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Before another client uses it: learns what it may do with the volume of a service now.
    ///
    /// # Errors
    /// Why the service refuses it.
    fn renew(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Proves this secret from the next connection to the service on, if it is the volume of one.
    fn set_secret(&self, secret: &Secret) {
        let _ = secret;
    }

    /// Names of its snapshots.
    fn snapshot_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// A snapshot of it.
    fn open_snapshot(self: Arc<Self>, name: &str) -> Option<Arc<dyn Disk>> {
        let _ = name;
        None
    }

    /// State and counters, as far as this process knows them.
    fn status(&self) -> VolumeStatus;
}

impl Disk for Volume {
    fn id(&self) -> Id {
        self.id()
    }

    fn geometry(&self) -> Geometry {
        self.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(offset, bytes)
    }

    fn write_owned(&self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.write_owned(offset, bytes)
    }

    fn memory(&self, length: usize) -> Vec<u8> {
        self.memory(length)
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.write_zeroes(offset, length, allocate)
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.trim(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.flush()
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.extents(offset, length, limit)
    }

    fn snapshot_names(&self) -> Vec<String> {
        let names = self.snapshots().into_iter().map(|snapshot| snapshot.name);
        names.filter(|name| !name.is_empty()).collect()
    }

    fn open_snapshot(self: Arc<Self>, name: &str) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(self.snapshot(name)?))
    }

    fn status(&self) -> VolumeStatus {
        self.status()
    }
}
