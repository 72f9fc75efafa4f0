//! What a server exports: a volume, its name and what clients are told about it.

use super::wire::{LENGTH_MAX, export_flag};
use crate::disk::Disk;
use crate::geometry::SECTOR;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A volume and its name.
#[derive(Clone)]
pub struct Export {
    volume: Arc<dyn Disk>,
    name: String,
    read_only: bool,
    /// Bytes of requests that have no whole reply.
    buffered: Arc<AtomicU64>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// Exports a volume as `name`. The empty name is the default export.
    #[must_use]
    pub fn new(volume: Arc<dyn Disk>, name: &str) -> Self {
        Self {
            volume,
            name: name.to_owned(),
            read_only: false,
            buffered: Arc::default(),
        }
    }

    /// Refuses what changes the volume, if `read_only` is set.
    #[must_use]
    pub fn read_only(self, read_only: bool) -> Self {
        Self { read_only, ..self }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only || self.volume.is_read_only()
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &dyn Disk {
        self.volume.as_ref()
    }

    /// Bytes of the READs and WRITEs of all clients that have no whole reply. Each client has 32 MiB at most.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered.load(Ordering::Relaxed)
    }

    pub(super) fn buffer(&self, bytes: usize) {
        self.buffered.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn unbuffer(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The export that a client means: this one, also by the empty name, or a snapshot of its volume.
    pub(super) fn named(&self, name: &str) -> Option<Self> {
        if name.is_empty() || name == self.name {
            return Some(self.clone());
        }
        Some(Self {
            volume: Arc::clone(&self.volume).open_snapshot(name)?,
            name: name.to_owned(),
            read_only: true,
            buffered: Arc::clone(&self.buffered),
        })
    }

    /// Names of all exports.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = self.volume.snapshot_names();
        names.insert(0, self.name.clone());
        names
    }

    pub(super) fn description(&self) -> String {
        format!("volume {}, {}", self.volume.id(), self.volume.geometry())
    }

    pub(super) fn size(&self) -> u64 {
        self.volume.geometry().size()
    }

    pub(super) fn flags(&self) -> u16 {
        let of_writers = export_flag::FUA | export_flag::TRIM | export_flag::WRITE_ZEROES;
        let access = match self.is_read_only() {
            true => export_flag::READ_ONLY,
            false => of_writers,
        };
        access
            | export_flag::HAS_FLAGS
            | export_flag::FLUSH
            | export_flag::DF
            | export_flag::MULTI_CONN
            | export_flag::CACHE
    }

    /// Smallest, preferred and largest request in bytes.
    pub(super) fn block_sizes(&self) -> [u32; 3] {
        let preferred = self.volume.geometry().block_size().next_power_of_two();
        [SECTOR, preferred.clamp(4096, LENGTH_MAX), LENGTH_MAX]
    }
}
