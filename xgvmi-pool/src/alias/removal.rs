//! Aliases that leave the map: evicted in a full map, idle for too long, or of an owner that has ended.

use std::time::Instant;

use super::{Inner, Oldest, Place};
use crate::alias_table;
use crate::device::AliasDevice;
use crate::keeper::ROUND_MAX;
use crate::key::OwnerUuid;
use crate::sync::{Ordering, lock, read, write};
use crate::unpinned::Note;

/// Number of least recently used aliases that one search picks. A search scans the whole map, and
/// its result serves this number of evictions.
const EVICTION_BATCH: usize = 64;

impl<D: AliasDevice> Inner<D> {
    /// Evicts the least recently unpinned alias. Returns false if all are pinned. However many are
    /// pinned, its cost depends on the number of uses since the last call and not on the size of
    /// the map.
    pub(super) fn evict(&self) -> bool {
        let mut oldest = lock(&self.oldest);
        loop {
            let noted = || self.core.unpinned.pop();
            while let Some((map_key, used)) = oldest.candidates.pop().or_else(noted) {
                if let Some(evicted) = self.take_unused(map_key, used) {
                    drop(oldest);
                    self.core.counters.evictions.one();
                    self.core.end(evicted);
                    return true;
                }
            }
            if !self.may_search(&oldest) {
                return false;
            }
            self.core.counters.searches.one();
            oldest.is_confirmed = self.core.unpinned.is_tight();
            self.core.unpinned.tighten();
            oldest.searched = self.core.clock.advance();
            oldest.candidates = self.search_oldest();
            if oldest.candidates.len() == EVICTION_BATCH {
                self.core.unpinned.loosen();
            }
        }
    }

    /// True if a search may find aliases that neither the last search nor the notes contain.
    fn may_search(&self, oldest: &Oldest) -> bool {
        let unpinned = &self.core.unpinned;
        let since = self.core.clock.advance().saturating_sub(oldest.searched);
        // Neither of them contains the aliases that threads unpinned while the map became tight.
        let confirms = !oldest.is_confirmed;
        let is_due = since >= u64::from(self.len.load(Ordering::Relaxed)).max(1);
        !unpinned.is_tight() || confirms || is_due || unpinned.has_overflowed()
    }

    /// Removes an alias from the map if it was not used after `used`. Aliases that were unpinned
    /// after the last search are younger than all candidates of the search, so the order holds.
    pub(super) fn take_unused(&self, map_key: u64, used: u64) -> Option<alias_table::Place> {
        let mut shard = write(self.shard(map_key));
        let &Place::Ready(at) = shard.get(&map_key)? else {
            return None;
        };
        let removed = self.core.table.remove_unused(at, used)?;
        self.core.counters.hits.add(removed.hits);
        shard.remove(&map_key);
        self.shrink(1);
        Some(at)
    }

    /// Removes an alias, under its shard's lock. Returns it if it is unpinned: the caller ends it without the lock.
    /// Otherwise its last unpin does.
    pub(super) fn remove(&self, at: alias_table::Place) -> Option<alias_table::Place> {
        let removed = self.core.table.remove(at, false);
        self.core.counters.hits.add(removed.hits);
        removed.is_unpinned.then_some(at)
    }

    /// Evicts aliases that were idle for too long, up to the limit of a round.
    pub(super) fn expire(&self) -> usize {
        let Some(expiry) = &self.expiry else {
            return 0;
        };
        if !self.core.device.is_ours() || self.core.gate.is_shut() {
            return 0;
        }
        let ticks = self.core.clock.advance();
        let Some(last) = expiry.last_expired(Instant::now(), ticks) else {
            return 0;
        };
        let mut expired = 0;
        for (map_key, used) in self.search_unpinned(last) {
            if expired == ROUND_MAX as usize {
                break;
            }
            if let Some(out) = self.take_unused(map_key, used) {
                self.core.counters.expired.one();
                expired += 1;
                self.core.end(out);
            }
        }
        expired
    }

    /// Unpinned aliases whose last use is not later than `last`.
    fn search_unpinned(&self, last: u64) -> Vec<Note> {
        let mut unpinned = Vec::new();
        for shard in &self.shards {
            for (map_key, place) in read(shard).iter() {
                if let Place::Ready(at) = place
                    && let Some(used) = self.core.table.unpinned_since(*at)
                    && used <= last
                {
                    if unpinned.try_reserve(1).is_err() {
                        // No memory for more: return the aliases found so far.
                        return unpinned;
                    }
                    unpinned.push((*map_key, used));
                }
            }
        }
        unpinned
    }

    fn search_oldest(&self) -> Vec<Note> {
        let mut unpinned = self.search_unpinned(u64::MAX);
        let by_use = |candidate: &Note| candidate.1;
        if unpinned.len() > EVICTION_BATCH {
            unpinned.select_nth_unstable_by_key(EVICTION_BATCH, by_use);
            unpinned.truncate(EVICTION_BATCH);
        }
        unpinned.sort_unstable_by_key(|candidate| std::cmp::Reverse(by_use(candidate)));
        unpinned
    }

    pub(super) fn reap(&self, owner: OwnerUuid) -> usize {
        let mut reaped = 0;
        for shard in &self.shards {
            let gone = |_: &u64, place: &mut Place<D>| match place {
                Place::Ready(at) => self.core.table.remote(*at).owner == owner,
                Place::Making(_) => false,
            };
            let mut locked = write(shard);
            let out: Vec<_> = locked
                .extract_if(gone)
                .map(|(_, place)| match place {
                    Place::Ready(at) => self.remove(at),
                    Place::Making(_) => None,
                })
                .collect();
            // Under the lock: an eviction that finds no alias here finds space.
            self.shrink(out.len());
            drop(locked);
            reaped += out.len();
            out.into_iter().flatten().for_each(|at| self.core.end(at));
        }
        self.core.counters.reaped.add(reaped as u64);
        reaped
    }
}
