//! The table of layers of a store: in two places behind the superblocks' sectors, of which a change writes the one that does
//! not count. A store without snapshots has none.

use super::Store;
use super::layout::{PAGE, SECTOR};
use super::superblock::Superblock;
use crate::error::Result;
use crate::layers::Layers;

/// Offset of a copy.
fn place(copy: usize) -> u64 {
    (copy * PAGE + SECTOR) as u64
}

/// The table that counts and its place, given the first two pages of the medium.
///
/// # Errors
/// Both are damaged.
pub(super) fn read(superblock: &Superblock, pages: &[u8]) -> Result<(Layers, usize), String> {
    if !superblock.has_layers {
        return Ok((Layers::default(), 0));
    }
    let copies = pages.chunks(PAGE).take(2).enumerate();
    let copies =
        copies.filter_map(|(copy, page)| Some((Layers::parse(page.get(SECTOR..)?)?, copy)));
    let newest = copies.max_by_key(|(layers, _)| layers.version);
    newest.ok_or_else(|| "its table of snapshots is damaged".to_owned())
}

impl Store {
    /// Makes a table durable. If that fails, the one before counts, or this one.
    pub(super) fn store_layers(&self, layers: &Layers) -> Result<()> {
        let _syncing = self.syncing();
        let (superblock, copy) = {
            let state = self.state();
            (state.superblock, state.layers.1)
        };
        if !superblock.has_layers {
            // Before the superblock says that it counts, there is one.
            for copy in 0..2 {
                self.write_table(&Layers::default(), copy)?;
            }
            self.sync_table()?;
            self.store_superblock(Superblock {
                has_layers: true,
                ..superblock
            })?;
        }
        let other = 1 - copy;
        self.write_table(layers, other)?;
        self.sync_table()?;
        self.state().layers = (layers.clone(), other);
        Ok(())
    }

    fn write_table(&self, layers: &Layers, copy: usize) -> Result<()> {
        let written = self.medium.write(place(copy), &layers.to_bytes());
        written.map_err(|error| self.io(error))
    }

    fn sync_table(&self) -> Result<()> {
        self.medium.sync().map_err(|error| {
            self.state().doubt();
            self.io(error)
        })
    }

    /// The last process may have written it without a sync.
    pub(super) fn write_layers_again(&self) -> Result<()> {
        let (layers, copy) = {
            let state = self.state();
            if !state.superblock.has_layers {
                return Ok(());
            }
            state.layers.clone()
        };
        self.write_table(&layers, copy)
    }
}
