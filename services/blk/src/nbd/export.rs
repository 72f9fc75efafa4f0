//! What a server exports: volumes, their names and what clients are told about them.

use super::wire::{LENGTH_MAX, export_flag, reply};
use crate::disk::{Disk, FindDisk, always};
use crate::geometry::SECTOR;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All exports of a server: one volume, whose snapshots have their own names; or volumes with names, whose snapshots are
/// `VOLUME@SNAPSHOT`.
pub struct Exports(Vec<Entry>);

struct Entry {
    find: FindDisk,
    name: String,
    /// Among several.
    is_named: bool,
    read_only: bool,
    buffered: Arc<AtomicU64>,
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.iter().map(|entry| &entry.name);
        f.debug_list().entries(names).finish()
    }
}

impl From<Export> for Exports {
    fn from(export: Export) -> Self {
        Self(vec![Entry {
            find: always(export.volume),
            name: export.name,
            is_named: false,
            read_only: export.read_only,
            buffered: export.buffered,
        }])
    }
}

impl Exports {
    /// Volumes with names, some of which may be read-only. The default export is the only one, if there is one only.
    #[must_use]
    pub fn named(volumes: impl IntoIterator<Item = (String, FindDisk, bool)>) -> Self {
        let entry = |(name, find, read_only)| Entry {
            find,
            name,
            is_named: true,
            read_only,
            buffered: Arc::default(),
        };
        Self(volumes.into_iter().map(entry).collect())
    }

    /// Bytes of requests that have no whole reply.
    pub(super) fn buffered_bytes(&self) -> u64 {
        let of_one = |entry: &Entry| entry.buffered.load(Ordering::Relaxed);
        self.0.iter().map(of_one).sum()
    }

    /// The export that a client means, or the kind of the refusal and its reason.
    pub(super) fn find(&self, name: &str) -> Result<Export, (u32, String)> {
        let (entry, snapshot) = match &self.0[..] {
            [only] if !only.is_named => {
                let is_volume = name.is_empty() || name == only.name;
                (only, (!is_volume).then_some(name))
            }
            [only] if name.is_empty() => (only, None),
            all => {
                let (volume, snapshot) = match name.split_once('@') {
                    Some((volume, snapshot)) => (volume, Some(snapshot)),
                    None => (name, None),
                };
                let found = all.iter().find(|entry| entry.name == volume);
                (found.ok_or_else(|| self.unknown(name))?, snapshot)
            }
        };
        let found = (entry.find)().and_then(|volume| volume.renew().map(|()| volume));
        let export = Export {
            volume: found.map_err(|reason| (reply::ERR_POLICY, reason))?,
            name: name.to_owned(),
            read_only: entry.read_only,
            buffered: Arc::clone(&entry.buffered),
        };
        match snapshot {
            None => Ok(Export {
                name: entry.name.clone(),
                ..export
            }),
            Some(snapshot) => {
                let volume = export.volume.open_snapshot(snapshot);
                Ok(Export {
                    volume: volume.ok_or_else(|| self.unknown(name))?,
                    read_only: true,
                    ..export
                })
            }
        }
    }

    fn unknown(&self, name: &str) -> (u32, String) {
        let names: Vec<_> = self.0.iter().map(|entry| &*entry.name).collect();
        let text = match &self.0[..] {
            [only] if !only.is_named => format!(
                "the volume's export is '{}'; others have the names of its snapshots",
                only.name
            ),
            _ => format!(
                "there is no export '{name}': name one of {}, or VOLUME@SNAPSHOT",
                names.join(", ")
            ),
        };
        (reply::ERR_UNKNOWN, text)
    }

    /// Names of all exports that can be used: a client that lists them asks for each, and gives up with the first that is refused.
    pub(super) fn names(&self) -> Vec<String> {
        let of_one = |entry: &Entry| {
            let volume = (entry.find)().ok()?;
            let snapshots = volume.snapshot_names().into_iter();
            let snapshots = snapshots.map(|snapshot| match entry.is_named {
                true => format!("{}@{snapshot}", entry.name),
                false => snapshot,
            });
            let name = std::iter::once(entry.name.clone());
            Some(name.chain(snapshots).collect::<Vec<_>>())
        };
        self.0.iter().filter_map(of_one).flatten().collect()
    }
}

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
