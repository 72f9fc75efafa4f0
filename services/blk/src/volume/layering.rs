//! Where the blocks of the volume and of its snapshots are (`layers`): what requests, targets that return, and growth need.

use super::stack::View;
use super::state::{BlockState, Volume};
use crate::error::{BlkError, Result};
use crate::layers::Layers;
use crate::store::Target;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl BlockState {
    /// True if its layer has the block, or should have.
    pub(super) fn is_in_layer(self) -> bool {
        self.lost || (self.generation != 0 && !self.hole)
    }
}

impl Volume {
    /// End of the blocks that the targets have for the volume and its snapshots.
    pub(super) fn end(&self) -> u64 {
        let size = self.size.load(Ordering::Acquire);
        self.layering.end.load(Ordering::Acquire).max(size)
    }

    /// The table of layers, if there ever was a snapshot.
    pub(super) fn layers(&self) -> Option<Arc<Layers>> {
        let is_used = self.layering.is_used.load(Ordering::Acquire);
        is_used.then(|| self.layering.table())
    }

    /// The layers of the volume, or those of a snapshot. The caller has a lock of a block.
    ///
    /// # Errors
    /// The snapshot was deleted.
    pub(super) fn view(&self, of: Option<u32>) -> Result<View> {
        let layers = self.layers();
        match (layers, of) {
            (None, None) => Ok(None),
            (Some(layers), None) => {
                let top = layers.all.len().saturating_sub(1);
                Ok(Some((layers, top)))
            }
            (layers, Some(id)) => {
                let found = layers.and_then(|layers| {
                    let top = layers.find_id(id)?;
                    Some((layers, top))
                });
                match found {
                    None => Err(BlkError::Argument("the snapshot was deleted".to_owned())),
                    found => Ok(found),
                }
            }
        }
    }

    /// Looks up the states of blocks in all layers of a view.
    pub(super) fn know_of(&self, view: &View, blocks: Range<u64>) -> Result<()> {
        let Some((layers, top)) = view else {
            return self.know(blocks);
        };
        let layers = layers.all.iter().take(top + 1).rev();
        for segment in layers.flat_map(|layer| layer.within(blocks.clone())) {
            self.know(segment.place..segment.place + segment.length)?;
        }
        Ok(())
    }

    /// Where a view has a block: in the newest layer that has it. One that no layer has is in the oldest one, as zeros.
    pub(super) fn source(&self, view: &View, block: u64) -> u64 {
        let Some((layers, top)) = view else {
            return block;
        };
        let mut oldest = block;
        for layer in layers.all.iter().take(top + 1).rev() {
            let Some(place) = layer.place(block) else {
                continue;
            };
            oldest = place;
            if self.state(place).is_in_layer() {
                break;
            }
        }
        oldest
    }

    /// Where a write of the volume puts a block: in the last layer. While the one before takes over what that has, a block that
    /// it has not goes there at once.
    pub(super) fn sink(&self, view: &View, block: u64) -> u64 {
        let Some((layers, top)) = view else {
            return block;
        };
        let last = layers.all.get(*top).and_then(|layer| layer.place(block));
        let last = last.unwrap_or(block);
        let lower = layers.merging().filter(|lower| lower + 1 == *top);
        let lower = lower.and_then(|lower| layers.all[lower].place(block));
        match lower {
            Some(lower) if !self.state(last).is_in_layer() => lower,
            _ => last,
        }
    }

    /// Lets a target that takes its place have the table.
    ///
    /// # Errors
    /// Its index has no room for the snapshots, or it fails.
    pub(super) fn tell_layers(&self, target: &Arc<dyn Target>) -> Result<()> {
        let mut layers = Layers::clone(&self.layering.table());
        let theirs = target.layers()?;
        if layers.is_empty() {
            if theirs.is_empty() {
                return Ok(());
            }
            // Snapshots that count as gone: theirs are older, and the newer table counts.
            layers = layers.with_version((self.epoch, 0));
        }
        let room = target.identity().room;
        if room < layers.end {
            return Err(BlkError::NoRoom {
                target: target.name().to_owned(),
                blocks: layers.end,
                room,
            });
        }
        match theirs == layers {
            true => Ok(()),
            false => target.set_layers(&layers),
        }
    }

    /// Makes a table that of the volume: durably, at enough targets. The caller has all locks of blocks, and keeps targets
    /// from taking their places.
    ///
    /// # Errors
    /// Too few targets took it. A later opening may find it nevertheless: it shows no other data.
    pub(super) fn adopt(&self, layers: Layers) -> Result<()> {
        let tell = |layers: &Layers| {
            self.layout.map(|role| -> Result<()> {
                let target = self.target(role)?;
                let told = target.set_layers(layers);
                told.inspect_err(|error| self.fail(&target, error))
            })
        };
        let told = tell(&layers);
        let done = self.enough(&told);
        if let Err(error) = done.and_then(|()| self.acknowledge(self.successful(&told))) {
            let mut before = Layers::clone(&self.layering.table());
            before.version = layers.version;
            let before = before.next();
            // One that fails learns it when it returns.
            let _ = tell(&before);
            self.layering.replace(before);
            return Err(error);
        }
        if !layers.is_empty() {
            self.locks.share(layers.step);
        }
        self.layering.replace(layers);
        Ok(())
    }

    /// Gives the layer of the volume more blocks. The caller keeps targets from taking their places.
    pub(super) fn grow_layers(&self, blocks: u64) -> Result<()> {
        let Some(layers) = self.layers() else {
            return Ok(());
        };
        let grown = layers.grown(blocks)?;
        if grown == *layers {
            return Ok(());
        }
        let _all = self.locks.all();
        self.adopt(grown)
    }
}
