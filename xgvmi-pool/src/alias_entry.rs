//! An alias on the device, and the references that keep it there.

use std::fmt;
use std::sync::Arc;

use crate::device::{Alias, AliasDevice};
use crate::gate::Gate;
use crate::key::{Lkey, OwnerUuid, RemoteKey};
use crate::stats::AliasCounters;
use crate::sync::{AtomicBool, AtomicU64, CountedArc, Ordering};
use crate::unpinned::Unpinned;

/// State that an alias needs until its destruction, which may come after its removal from the map.
#[derive(Debug)]
pub(crate) struct Core<D> {
    pub(crate) device: Arc<D>,
    pub(crate) gate: Gate,
    /// Incremented at every unpin. Evictions compare aliases by this time.
    pub(crate) clock: AtomicU64,
    pub(crate) unpinned: Unpinned,
    pub(crate) counters: AliasCounters,
}

/// An alias on the device. The last reference destroys it on the device.
pub(crate) struct Entry<D: AliasDevice> {
    pub(crate) core: Arc<Core<D>>,
    pub(crate) key: RemoteKey,
    /// Owner of the key. If a prepared key names none, the owner in the first lookup that names one.
    pub(crate) owner: AtomicU64,
    /// Created ahead of the first import, for an exporter that announced the key.
    pub(crate) is_prepared: bool,
    pub(crate) alias: Alias,
    /// Time of its creation or last unpin.
    pub(crate) used: AtomicU64,
    /// The alias is already destroyed on the device.
    pub(crate) dead: AtomicBool,
}

/// A pinned alias. The map does not destroy an alias while a reference to it exists.
pub struct AliasRef<D: AliasDevice> {
    /// `None` during the drop.
    entry: Option<CountedArc<Entry<D>>>,
}

impl<D: AliasDevice> AliasRef<D> {
    /// The key for local work requests to the remote memory. Peers can use it as rkey.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.entry().alias.lkey
    }

    /// The remote key of the alias.
    #[must_use]
    pub fn remote(&self) -> RemoteKey {
        RemoteKey {
            owner: self.entry().owner(),
            ..self.entry().key
        }
    }

    #[inline]
    pub(crate) fn new(entry: CountedArc<Entry<D>>) -> Self {
        Self { entry: Some(entry) }
    }

    #[inline]
    pub(crate) fn entry(&self) -> &CountedArc<Entry<D>> {
        // Only the drop sets `None`.
        self.entry.as_ref().expect("an alias that is not dropped")
    }
}

impl<D: AliasDevice> Clone for AliasRef<D> {
    fn clone(&self) -> Self {
        Self::new(CountedArc::clone(self.entry()))
    }
}

impl<D: AliasDevice> Drop for AliasRef<D> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else {
            return;
        };
        // Before the decrement: an eviction that finds the alias unpinned must read this time.
        let used = entry.core.tick();
        entry.used.store(used, Ordering::Relaxed);
        if entry.core.unpinned.is_tight() {
            let core = Arc::clone(&entry.core);
            let map_key = entry.key.map_key();
            // After the decrement: an eviction may take a noted alias at once.
            drop(entry);
            core.unpinned.note((map_key, used));
        }
    }
}

impl<D> Core<D> {
    pub(crate) fn tick(&self) -> u64 {
        // No overflow: with one tick per nanosecond the clock lasts five centuries.
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl<D: AliasDevice> Entry<D> {
    pub(crate) fn owner(&self) -> OwnerUuid {
        OwnerUuid::new(self.owner.load(Ordering::Relaxed))
    }

    /// True if the alias belongs to the owner, or if the owner is not known. An alias that was
    /// prepared for an unknown owner then becomes an alias of this owner. Another alias without an
    /// owner does not: its key may be that of an exporter that has ended.
    pub(crate) fn is_of(&self, owner: OwnerUuid) -> bool {
        let unknown = OwnerUuid::UNKNOWN.get();
        let (found, owner) = (self.owner.load(Ordering::Relaxed), owner.get());
        if found == owner || owner == unknown {
            return true;
        }
        let take = |owner| {
            let (from, to) = (Ordering::Relaxed, Ordering::Relaxed);
            self.owner.compare_exchange(unknown, owner, from, to)
        };
        // Another thread may have set the same owner first.
        found == unknown
            && self.is_prepared
            && take(owner).map_or_else(|now| now == owner, |_unknown| true)
    }

    /// Valid only under the lock of the shard that holds the entry.
    pub(crate) fn is_unpinned(entry: &CountedArc<Self>) -> bool {
        CountedArc::strong_count(entry) == 1
    }

    /// Destroys the alias on the device, at most once.
    pub(crate) fn destroy(&self) -> bool {
        if self.dead.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.core.device.destroy_alias(self.alias.index) {
            Ok(()) => {
                self.core.counters.destroys.one();
                true
            }
            Err(_) => {
                self.core.counters.destroy_failures.one();
                false
            }
        }
    }
}

impl<D: AliasDevice> Drop for Entry<D> {
    fn drop(&mut self) {
        // If an entry outlives the map, closing the device destroys its alias. An entry in a forked
        // child belongs to the parent.
        if self.core.device.is_ours()
            && let Some(_inside) = self.core.gate.enter()
        {
            self.destroy();
        }
    }
}

impl<D: AliasDevice> fmt::Debug for AliasRef<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AliasRef")
            .field("remote", &self.entry().key)
            .field("lkey", &self.lkey())
            .finish_non_exhaustive()
    }
}
