//! Syncs of a store, and what is known after a failed one.

use super::index::{Age, Slot};
use super::layout::write_again;
use super::{Change, RELEASE_MIN, State, Store};
use crate::error::{BlkError, Result};
use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

impl Store {
    pub(super) fn syncing(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything durable, and what was freed before usable again. Then drops generations that are not needed any more.
    pub(super) fn sync(&self, _syncing: &MutexGuard<'_, ()>) -> Result<()> {
        let (freed, touched) = {
            let _alone = self.alone();
            self.write_doubtful()?;
            let mut state = self.state();
            let touched = std::mem::take(&mut state.touched);
            state.change_age(&touched, Age::Fresh, Age::Syncing);
            (state.space.begin_sync(), touched)
        };
        let synced = self.medium.sync();
        let _alone = self.alone();
        if let Err(error) = synced {
            let mut state = self.state();
            state.change_age(&touched, Age::Syncing, Age::Doubtful);
            state.doubtful.extend(touched);
            state.doubt();
            state.space.not_synced(freed);
            return Err(self.io(error));
        }
        self.state()
            .change_age(&touched, Age::Syncing, Age::Durable);
        let merged = self.state().space.synced(freed);
        // Another write may take such a range at once, so the lock is held while it is given back.
        for extent in merged {
            let state = self.state();
            if extent.length >= RELEASE_MIN && state.space.is_free(extent) {
                self.medium.release(extent.offset, extent.length);
            }
        }
        self.drop_old(&touched);
        Ok(())
    }

    /// Writes again what was written before a sync failed, so that the next one makes it durable. The caller excludes changes.
    fn write_doubtful(&self) -> Result<()> {
        let (identity, blocks) = {
            let state = self.state();
            (state.superblock.identity, state.doubtful.clone())
        };
        let mut dropped = None;
        for block in blocks {
            let entry = self.entry(block)?;
            let is_doubtful = |slot: &Slot| slot.age == Age::Doubtful;
            let medium = self.medium.as_ref();
            let are_whole = write_again(medium, identity, block, &entry, is_doubtful);
            let are_whole = are_whole.map_err(|error| self.io(error))?;
            let mut state = self.state();
            state.doubtful.remove(&block);
            state.touched.insert(block);
            if are_whole {
                state.change_age(&BTreeSet::from([block]), Age::Doubtful, Age::Fresh);
            } else {
                dropped.get_or_insert(block);
            }
        }
        dropped.map_or(Ok(()), |block| {
            Err(BlkError::Corrupt {
                target: self.name.clone(),
                block,
                fault: "the system has dropped its record after a failed sync".to_owned(),
            })
        })
    }

    /// Drops the generations before those that are durable now. If an entry cannot be written, the next change of it does so.
    fn drop_old(&self, touched: &BTreeSet<u64>) {
        let mut changes = Vec::new();
        for &block in touched {
            if let Ok(old) = self.entry(block) {
                let new = old.aged();
                changes.extend((new != old).then_some(Change { block, old, new }));
            }
        }
        for run in changes.chunk_by(|one, next| one.block + 1 == next.block) {
            let _ = self.replace(run);
        }
    }
}

impl State {
    /// A sync has failed. The system may have dropped what it could not write: a later sync says nothing about it.
    pub(super) fn doubt(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        self.change_age(&touched, Age::Fresh, Age::Doubtful);
        self.doubtful.extend(touched);
    }

    pub(super) fn change_age(&mut self, blocks: &BTreeSet<u64>, from: Age, to: Age) {
        for block in blocks {
            let index = usize::try_from(*block).ok();
            if let Some(entry) = index.and_then(|block| self.index.get_mut(block)) {
                entry.change_age(from, to);
            }
        }
    }
}
