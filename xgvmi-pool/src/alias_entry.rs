//! Pins of aliases, and what an alias needs until its destruction, which may come after its removal from the map.

use std::fmt;
use std::sync::Arc;

use crate::alias_table::{Place, Table, Unpinned};
use crate::device::{Alias, AliasDevice};
use crate::gate::Gate;
use crate::key::{Lkey, RemoteKey};
use crate::stats::AliasCounters;
use crate::sync::thread_number;
use crate::unpinned;
use crate::use_clock::UseClock;

/// State of a map that its references share.
#[derive(Debug)]
pub(crate) struct Core<D> {
    /// Number of the map.
    pub(crate) map: u32,
    pub(crate) table: Table,
    pub(crate) clock: UseClock,
    pub(crate) unpinned: unpinned::Unpinned,
    pub(crate) device: Arc<D>,
    pub(crate) gate: Gate,
    pub(crate) counters: AliasCounters,
}

/// A pin of an alias: the map does not destroy the alias before [`AliasMap::unpin`](crate::AliasMap::unpin). It is smaller
/// than an [`AliasRef`], and its begin and end cost one locked instruction each. If it is dropped instead, the alias stays
/// pinned until the map closes.
#[derive(Debug)]
#[must_use = "the alias stays pinned until the map unpins it"]
pub struct AliasPin {
    pub(crate) map: u32,
    pub(crate) at: Place,
    lkey: Lkey,
}

impl AliasPin {
    pub(crate) const fn new(map: u32, (at, lkey): (Place, Lkey)) -> Self {
        Self { map, at, lkey }
    }

    /// The key for local work requests to the remote memory. Peers can use it as rkey.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }
}

/// A pinned alias. The map does not destroy an alias while a reference to it exists.
pub struct AliasRef<D: AliasDevice> {
    core: Arc<Core<D>>,
    /// Ended by the drop.
    pin: AliasPin,
}

impl<D: AliasDevice> AliasRef<D> {
    /// The key for local work requests to the remote memory. Peers can use it as rkey.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.pin.lkey
    }

    /// The remote key of the alias.
    #[must_use]
    pub fn remote(&self) -> RemoteKey {
        self.core.table.remote(self.pin.at)
    }

    #[inline]
    pub(crate) fn new(core: &Arc<Core<D>>, pin: AliasPin) -> Self {
        let core = Arc::clone(core);
        Self { core, pin }
    }

    /// Place of the alias.
    pub(crate) fn at(&self) -> Place {
        self.pin.at
    }

    /// One more pin of the same alias.
    pub(crate) fn pin_again(&self) -> AliasPin {
        let AliasPin { map, at, lkey } = self.pin;
        self.core.table.pin_again(at);
        AliasPin { map, at, lkey }
    }
}

impl<D: AliasDevice> Clone for AliasRef<D> {
    fn clone(&self) -> Self {
        Self::new(&self.core, self.pin_again())
    }
}

impl<D: AliasDevice> Drop for AliasRef<D> {
    fn drop(&mut self) {
        self.core.unpin(self.pin.at);
    }
}

impl<D: AliasDevice> Core<D> {
    /// Ends a pin.
    #[inline]
    pub(crate) fn unpin(&self, at: Place) {
        let used = self.clock.tick(thread_number(D::thread_mark()));
        let is_tight = self.unpinned.is_tight();
        match self.table.unpin(at, used) {
            Unpinned::Stays(map_key) if is_tight => self.unpinned.note((map_key, used)),
            Unpinned::Stays(_) => {}
            Unpinned::Last => self.end(at),
            Unpinned::LastOfDead => self.table.free(at),
        }
    }

    /// Destroys an alias that is outside the map and unpinned, and frees its slot.
    #[cold]
    pub(crate) fn end(&self, at: Place) {
        // An alias in a forked child belongs to the parent.
        if !self.device.is_ours() {
            return;
        }
        // If a closed map had such an alias, closing the device destroys it.
        if let Some(_inside) = self.gate.enter() {
            self.destroy(self.table.alias(at));
        }
        self.table.free(at);
    }

    /// Destroys an alias on the device.
    pub(crate) fn destroy(&self, alias: Alias) -> bool {
        match self.device.destroy_alias(alias.index) {
            Ok(()) => {
                self.counters.destroys.one();
                true
            }
            Err(_) => {
                self.counters.destroy_failures.one();
                false
            }
        }
    }
}

impl<D: AliasDevice> fmt::Debug for AliasRef<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AliasRef")
            .field("remote", &self.remote())
            .field("lkey", &self.lkey())
            .finish_non_exhaustive()
    }
}
