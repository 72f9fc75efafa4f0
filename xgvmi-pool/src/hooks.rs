//! The four hooks that connect a registration cache to the pool and the alias map.
//!
//! A cache miss on the host exports a region ([`HostHooks::export`]), and an eviction releases the
//! export ([`HostHooks::release`]). A miss on the DPU attaches an alias ([`DpuHooks::attach`]), and
//! an eviction unpins it ([`DpuHooks::detach`]). If a hook returns an error, the caller uses its
//! other path. Any thread may call the hooks.

use std::sync::Arc;

use crate::alias::AliasMap;
use crate::alias_entry::{AliasPin, AliasRef};
use crate::announce::{AnnounceError, Announcement, Inbox};
use crate::device::{AliasDevice, MkeyDevice};
use crate::error::{AliasError, PoolError, ReleaseError};
use crate::event::Observer;
use crate::export::{BoundKey, Export};
use crate::key::{AccessKey, Gvmi, OwnerUuid, RemoteKey};
use crate::policy::{AliasPolicy, PoolPolicy};
use crate::pool::MkeyPool;
use crate::region::Region;
use crate::secret::Seal;
use crate::span::Span;
use crate::stats::{AliasStats, PoolStats, Prepared};
use crate::sync::{Mutex, lock};

/// Hooks for the exporting side of a registration cache.
#[derive(Debug)]
pub struct HostHooks<D: MkeyDevice> {
    pool: MkeyPool<D>,
}

impl<D: MkeyDevice> HostHooks<D> {
    /// Opens a pool on the device.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open(device: Arc<D>, policy: PoolPolicy) -> Result<Self, PoolError> {
        Ok(Self {
            pool: MkeyPool::open(device, policy)?,
        })
    }

    /// Like [`HostHooks::open`], with an observer that receives the events that no return value
    /// reports.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open_observed(
        device: Arc<D>,
        policy: PoolPolicy,
        observer: Observer,
    ) -> Result<Self, PoolError> {
        Ok(Self {
            pool: MkeyPool::open_observed(device, policy, Some(observer))?,
        })
    }

    /// Leases a key and binds it to a [`Region`], or to a [`Span`] of several regions.
    ///
    /// # Errors
    /// If the pool has no key, the memory is too long for a pooled key, or the bind fails. The
    /// caller then uses its other path. The pool remains usable.
    pub fn export<'a>(&self, memory: impl Into<Span<'a>>) -> Result<Export<D>, PoolError> {
        self.pool.export(memory)
    }

    /// Like [`HostHooks::unbind`], for a caller that knows the number of its thread.
    ///
    /// # Errors
    /// The errors of [`HostHooks::release`].
    #[inline(always)]
    pub fn unbind_in(&self, thread: usize, key: BoundKey) -> Result<(), Box<ReleaseError>> {
        self.pool.unbind_in(thread, key)
    }

    /// Like [`HostHooks::export`], but the result holds no reference to the pool. See
    /// [`MkeyPool::bind`].
    ///
    /// # Errors
    /// The errors of [`HostHooks::export`].
    #[inline]
    pub fn bind<'a>(&self, memory: impl Into<Span<'a>>) -> Result<BoundKey, PoolError> {
        self.pool.bind(memory)
    }

    /// Releases a key from [`HostHooks::bind`]. See [`MkeyPool::unbind`].
    ///
    /// # Errors
    /// The errors of [`HostHooks::release`].
    #[inline]
    pub fn unbind(&self, key: BoundKey) -> Result<(), ReleaseError> {
        self.pool.unbind(key)
    }

    /// Leases one key per region and binds them together, see [`MkeyPool::export_many`].
    pub fn export_many(&self, regions: &[Region]) -> Vec<Result<Export<D>, PoolError>> {
        self.pool.export_many(regions)
    }

    /// Releases an export. With the default mode of invalidation, the caller may deregister the
    /// region after the return.
    ///
    /// # Errors
    /// If the device could neither invalidate nor destroy the key. A peer may then reach the region
    /// through the key until the registration ends.
    pub fn release(&self, export: Export<D>) -> Result<(), ReleaseError> {
        export.release()
    }

    /// The function that owns the keys.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.pool.gvmi()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &MkeyPool<D> {
        &self.pool
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Destroys all keys, including exported ones. Later calls fail with [`PoolError::Closed`];
    /// later releases do nothing. Returns false if the device could not destroy a key.
    pub fn close(&self) -> bool {
        self.pool.close()
    }
}

/// Hooks for the importing side of a registration cache.
#[derive(Debug)]
pub struct DpuHooks<D: AliasDevice> {
    aliases: AliasMap<D>,
    inbox: Mutex<Inbox>,
}

impl<D: AliasDevice> DpuHooks<D> {
    /// Opens an alias map on the device, for messages of jobs without a secret.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open(device: Arc<D>, policy: AliasPolicy) -> Result<Self, AliasError> {
        Self::open_sealed(device, policy, Seal::OPEN)
    }

    /// Opens an alias map on the device, for messages under a job's seal.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
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

    /// Returns the alias of a remote key and pins it.
    ///
    /// # Errors
    /// If the map cannot return an alias. The caller then uses its other path. The map remains
    /// usable.
    pub fn attach(&self, key: RemoteKey) -> Result<AliasRef<D>, AliasError> {
        self.aliases.attach(key)
    }

    /// Like [`DpuHooks::attach`]. The caller passes the pin to [`DpuHooks::unpin`].
    ///
    /// # Errors
    /// The errors of [`DpuHooks::attach`].
    #[inline]
    pub fn pin(&self, key: RemoteKey) -> Result<AliasPin, AliasError> {
        self.aliases.pin(key)
    }

    /// Ends a pin.
    #[inline]
    pub fn unpin(&self, pin: AliasPin) {
        self.aliases.unpin(pin);
    }

    /// Like [`DpuHooks::attach`], for a key of an exporter with its own access key. See
    /// [`AliasMap::attach_with`].
    ///
    /// # Errors
    /// The errors of [`DpuHooks::attach`].
    pub fn attach_with(
        &self,
        key: RemoteKey,
        access: &AccessKey,
    ) -> Result<AliasRef<D>, AliasError> {
        self.aliases.attach_with(key, access)
    }

    /// Accepts an exporter's message and creates the aliases of its keys in advance. Attach the
    /// exports in the message afterwards like any other export.
    ///
    /// # Errors
    /// If the message is no announcement, is damaged, comes from another job, or is old. Nothing
    /// changes then.
    pub fn receive(&self, message: &[u8]) -> Result<(Announcement, Prepared), AnnounceError> {
        let announcement = lock(&self.inbox).receive(message)?;
        let keys: Vec<_> = announcement.keys().collect();
        let prepared = self.aliases.prepare(&keys);
        Ok((announcement, prepared))
    }

    /// Like [`DpuHooks::receive`], for an exporter with its own access key. Refuses a message that
    /// names another owner than that of the access key.
    ///
    /// # Errors
    /// The errors of [`DpuHooks::receive`], and [`AnnounceError::Owner`].
    pub fn receive_with(
        &self,
        message: &[u8],
        access: &AccessKey,
    ) -> Result<(Announcement, Prepared), AnnounceError> {
        let announcement = lock(&self.inbox).receive_from(message, access.owner())?;
        let keys: Vec<_> = announcement.keys().collect();
        let prepared = self.aliases.prepare_with(&keys, access);
        Ok((announcement, prepared))
    }

    /// Returns and pins the aliases of many remote keys, see [`AliasMap::attach_many`].
    pub fn attach_many(&self, keys: &[RemoteKey]) -> Vec<Result<AliasRef<D>, AliasError>> {
        self.aliases.attach_many(keys)
    }

    /// Unpins an alias. It stays in the map for the next [`DpuHooks::attach`].
    pub fn detach(&self, alias: AliasRef<D>) {
        drop(alias);
    }

    /// Removes all aliases of an owner that is known to be dead. Returns their number.
    pub fn reap_owner(&self, owner: OwnerUuid) -> usize {
        lock(&self.inbox).forget(owner);
        self.aliases.reap_owner(owner)
    }

    /// The alias map.
    #[must_use]
    pub fn aliases(&self) -> &AliasMap<D> {
        &self.aliases
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> AliasStats {
        self.aliases.stats()
    }

    /// Destroys all aliases, including pinned ones. Later calls fail with [`AliasError::Closed`].
    /// Returns false if the device could not destroy an alias.
    pub fn close(&self) -> bool {
        self.aliases.close()
    }
}
