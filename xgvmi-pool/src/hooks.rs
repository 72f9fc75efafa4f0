//! The four points at which a registration cache meets the pool and the alias map.
//!
//! A cache miss on the host draws a key ([`HostHooks::export`]), an eviction gives it back
//! ([`HostHooks::release`]); a miss on the DPU asks for an alias ([`DpuHooks::attach`]), an eviction
//! unpins it ([`DpuHooks::detach`]). Whatever they refuse, the caller serves in its own way. All of
//! it may be called from any thread.

use std::sync::Arc;

use crate::alias::{AliasMap, AliasRef, Prepared};
use crate::announce::{AnnounceError, Announcement, Inbox};
use crate::device::{AliasDevice, MkeyDevice};
use crate::error::{AliasError, PoolError, ReleaseError};
use crate::event::Observer;
use crate::export::{BoundKey, Export};
use crate::key::{Gvmi, OwnerUuid, RemoteKey};
use crate::policy::{AliasPolicy, PoolPolicy};
use crate::pool::MkeyPool;
use crate::region::Region;
use crate::secret::Seal;
use crate::span::Span;
use crate::stats::{AliasStats, PoolStats};
use crate::sync::{Mutex, lock};

/// What the exporting side of a registration cache calls.
#[derive(Debug)]
pub struct HostHooks<D: MkeyDevice> {
    pool: MkeyPool<D>,
}

impl<D: MkeyDevice> HostHooks<D> {
    /// Opens a pool over the device.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open(device: Arc<D>, policy: PoolPolicy) -> Result<Self, PoolError> {
        Ok(Self {
            pool: MkeyPool::open(device, policy)?,
        })
    }

    /// As [`HostHooks::open`], with somebody who is told what no return value says.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open_observed(
        device: Arc<D>,
        policy: PoolPolicy,
        observer: Observer,
    ) -> Result<Self, PoolError> {
        Ok(Self {
            pool: MkeyPool::open_observed(device, policy, Some(observer))?,
        })
    }

    /// Draws a key and binds it to a [`Region`], or to a [`Span`] of several.
    ///
    /// # Errors
    /// If there is no key to be had, the memory is too long for one, or the bind fails. The caller
    /// goes its other way; the pool stays usable.
    pub fn export<'a>(&self, memory: impl Into<Span<'a>>) -> Result<Export<D>, PoolError> {
        self.pool.export(memory)
    }

    /// As [`HostHooks::export`], see [`MkeyPool::bind`].
    ///
    /// # Errors
    /// As [`HostHooks::export`].
    #[inline]
    pub fn bind<'a>(&self, memory: impl Into<Span<'a>>) -> Result<BoundKey, PoolError> {
        self.pool.bind(memory)
    }

    /// As [`HostHooks::release`], see [`MkeyPool::unbind`].
    ///
    /// # Errors
    /// As [`HostHooks::release`].
    #[inline]
    pub fn unbind(&self, key: BoundKey) -> Result<(), ReleaseError> {
        self.pool.unbind(key)
    }

    /// Draws a key for each region and binds them together, see [`MkeyPool::export_many`].
    pub fn export_many(&self, regions: &[Region]) -> Vec<Result<Export<D>, PoolError>> {
        self.pool.export_many(regions)
    }

    /// Gives a key back. With the policy's default mode of invalidation, the caller may
    /// deregister the region as soon as this has returned.
    ///
    /// # Errors
    /// If the key could be neither invalidated nor destroyed, so that a peer may still reach the
    /// region through it until the registration itself is gone.
    pub fn release(&self, export: Export<D>) -> Result<(), ReleaseError> {
        export.release()
    }

    /// The function that the keys belong to.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.pool.gvmi()
    }

    /// The pool itself.
    #[must_use]
    pub fn pool(&self) -> &MkeyPool<D> {
        &self.pool
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Destroys all keys, exported ones as well. Later calls fail with [`PoolError::Closed`]; later
    /// releases do nothing. True if nothing is left behind.
    pub fn close(&self) -> bool {
        self.pool.close()
    }
}

/// What the importing side of a registration cache calls.
#[derive(Debug)]
pub struct DpuHooks<D: AliasDevice> {
    aliases: AliasMap<D>,
    inbox: Mutex<Inbox>,
}

impl<D: AliasDevice> DpuHooks<D> {
    /// Opens an alias map over the device, for messages of jobs without a secret.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open(device: Arc<D>, policy: AliasPolicy) -> Result<Self, AliasError> {
        Self::open_sealed(device, policy, Seal::OPEN)
    }

    /// Opens an alias map over the device, for messages under a job's seal.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open_sealed(
        device: Arc<D>,
        policy: AliasPolicy,
        seal: Seal,
    ) -> Result<Self, AliasError> {
        let inbox = Mutex::new(Inbox::new(seal));
        Ok(Self {
            aliases: AliasMap::open(device, policy)?,
            inbox,
        })
    }

    /// The alias of a remote key, pinned.
    ///
    /// # Errors
    /// If there is none to be had. The caller goes its other way; the map stays usable.
    pub fn attach(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        self.aliases.attach(key)
    }

    /// Takes an exporter's message in and makes the aliases of its keys, ahead of their use. The
    /// exports in it, if it has any, are attached like any other afterwards.
    ///
    /// # Errors
    /// If it is no announcement, damaged, another job's, or old; then nothing is changed.
    pub fn receive(&self, message: &[u8]) -> Result<(Announcement, Prepared), AnnounceError> {
        let announcement = lock(&self.inbox).receive(message)?;
        let keys: Vec<_> = announcement.keys().collect();
        let prepared = self.aliases.prepare(&keys);
        Ok((announcement, prepared))
    }

    /// Aliases of many remote keys, pinned, see [`AliasMap::attach_many`].
    pub fn attach_many(&self, keys: &[RemoteKey]) -> Vec<Result<AliasRef<D>, AliasError>> {
        self.aliases.attach_many(keys)
    }

    /// Unpins an alias. It stays in the map for the next [`DpuHooks::attach`].
    pub fn detach(&self, alias: AliasRef<D>) {
        drop(alias);
    }

    /// Puts out all aliases of an owner that is known to be dead. Returns how many.
    pub fn reap_owner(&self, owner: OwnerUuid) -> usize {
        lock(&self.inbox).forget(owner);
        self.aliases.reap_owner(owner)
    }

    /// The map itself.
    #[must_use]
    pub fn aliases(&self) -> &AliasMap<D> {
        &self.aliases
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> AliasStats {
        self.aliases.stats()
    }

    /// Destroys all aliases, those in use as well. Later calls fail with [`AliasError::Closed`].
    /// True if nothing is left behind.
    pub fn close(&self) -> bool {
        self.aliases.close()
    }
}
