//! Snapshots: the volume as it was. They are made at once, read beside the volume, and deleted piece by piece (`merge`).
//!
//! A snapshot is of all requests that were answered before it, and of none that begin later. Its table (`layers`) and its data
//! are durable at enough targets when it is answered. A target that was absent gets both when it returns.

use super::io::Extent;
use super::state::{Volume, VolumeStatus};
use crate::disk::Disk;
use crate::error::{BlkError, Result};
use crate::geometry::{Geometry, Id};
use crate::layers::Layers;
use std::sync::Arc;

/// A snapshot of a volume.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SnapshotStatus {
    /// Its name. Empty: it was deleted, and its space is not free yet.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

impl Volume {
    /// Makes a snapshot. It is durable.
    ///
    /// # Errors
    /// A target is absent or lacks blocks, unless `force` is set; the name cannot be taken; there are too many snapshots; the
    /// index has no room; or too few targets answer.
    pub fn create_snapshot(&self, name: &str, force: bool) -> Result<()> {
        // A target that takes its place meanwhile would not know it.
        let turn = self.arrival();
        if !force {
            self.check_whole()?;
        }
        // Most of what waits is durable before requests have to wait. No target returns meanwhile.
        self.flush_once()?;
        {
            let _all = self.locks.all();
            let known = self.layering.table();
            let first = match known.is_empty() {
                true => Layers::new(self.geometry().blocks(), (self.room(), self.step))
                    .with_version((self.epoch, known.version.1)),
                false => Layers::clone(&known),
            };
            let layers = first.snapshot(name, self.geometry().blocks())?;
            self.adopt(layers)?;
        }
        drop(turn);
        self.flush()
    }

    /// Deletes a snapshot. [`Volume::merge`] gives its space back.
    ///
    /// # Errors
    /// There is none with this name, or too few targets answer.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        let _turn = self.arrival();
        let _all = self.locks.all();
        let layers = self.layering.table().without(name)?;
        self.adopt(layers)
    }

    /// The snapshots, the oldest first.
    #[must_use]
    pub fn snapshots(&self) -> Vec<SnapshotStatus> {
        let Some(layers) = self.layers() else {
            return Vec::new();
        };
        let status = |layer: &crate::layers::Layer| SnapshotStatus {
            name: layer.name.clone(),
            size: layer.blocks * u64::from(self.block_size),
        };
        let frozen = layers.all.len().saturating_sub(1);
        layers.all.iter().take(frozen).map(status).collect()
    }

    /// A snapshot, to read it.
    #[must_use]
    pub fn snapshot(self: &Arc<Self>, name: &str) -> Option<Snapshot> {
        let layers = self.layers()?;
        let layer = layers.all.get(layers.find(name)?)?;
        Some(Snapshot {
            volume: Arc::clone(self),
            layer: layer.id,
            geometry: Geometry::known(self.block_size, layer.blocks),
        })
    }

    /// Blocks for which the indexes of all targets in use have room.
    fn room(&self) -> u64 {
        let targets = self.targets();
        let rooms = targets
            .iter()
            .flatten()
            .map(|target| target.identity().room);
        rooms.min().unwrap_or(0)
    }

    fn check_whole(&self) -> Result<()> {
        let lacking = self.layout.roles().find(|role| {
            self.target(*role).is_err()
                || !self.is_complete(*role)
                || self.missing_blocks(*role) != 0
        });
        let reason = match (lacking, self.lost_blocks()) {
            (Some(role), _) => format!("{role} is absent or lacks blocks"),
            (None, 0) => return Ok(()),
            (None, lost) => format!("{lost} blocks cannot be read"),
        };
        Err(BlkError::Argument(format!(
            "{reason}: wait until the volume is whole, or give --force for a snapshot without redundancy"
        )))
    }
}

/// A snapshot that is read. Writes are refused.
#[derive(Debug, Clone)]
pub struct Snapshot {
    volume: Arc<Volume>,
    layer: u32,
    geometry: Geometry,
}

impl Snapshot {
    fn refuse<T>() -> Result<T> {
        Err(BlkError::ReadOnly)
    }
}

impl Disk for Snapshot {
    fn id(&self) -> Id {
        self.volume.id()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.geometry.check(offset, bytes.len() as u64)?;
        self.volume.read_of(Some(self.layer), offset, bytes)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Self::refuse()
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<()> {
        Self::refuse()
    }

    fn trim(&self, _: u64, _: u64) -> Result<()> {
        Self::refuse()
    }

    fn flush(&self) -> Result<()> {
        // It was durable when it was made.
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.geometry.check(offset, length)?;
        self.volume
            .extents_of(Some(self.layer), (offset, length), limit)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn status(&self) -> VolumeStatus {
        self.volume.status()
    }
}
