//! The mkey pool: each key is created once and bound many times.

use std::sync::Arc;

use crate::announce::{Announcement, Body};
use crate::core::Core;
use crate::device::MkeyDevice;
use crate::error::{PoolError, ReleaseError};
use crate::event::Observer;
use crate::export::{BoundKey, Export, Lease};
use crate::key::{Gvmi, OwnerUuid};
use crate::latency::PoolLatencies;
use crate::policy::PoolPolicy;
use crate::region::Region;
use crate::slots::{Size, State};
use crate::span::Span;
use crate::stats::PoolStats;
use crate::upkeep::Upkeep;

/// A pool of mkeys of one function. Clones are cheap and share one pool. Any thread may use it. The
/// pool leases a key only if the key is free.
#[derive(Debug)]
pub struct MkeyPool<D: MkeyDevice> {
    core: Arc<Core<D>>,
}

impl<D: MkeyDevice> Clone for MkeyPool<D> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
        }
    }
}

impl<D: MkeyDevice> MkeyPool<D> {
    /// Opens a pool on the device and creates the policy's prefill keys. If the device creates
    /// fewer, that is not an error: the pool creates the others on demand.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open(device: Arc<D>, policy: PoolPolicy) -> Result<Self, PoolError> {
        Self::open_observed(device, policy, None)
    }

    /// Like [`MkeyPool::open`], with an observer that receives the events that no return value
    /// reports.
    ///
    /// # Errors
    /// If the policy contains an invalid value.
    pub fn open_observed(
        device: Arc<D>,
        policy: PoolPolicy,
        observer: Option<Observer>,
    ) -> Result<Self, PoolError> {
        let core = Arc::new(Core::new(device, policy, observer)?);
        let pool = Self { core };
        pool.prefill(pool.core.policy.prefill);
        if pool.core.policy.keeper {
            pool.core.start_keeper();
        }
        Ok(pool)
    }

    /// Creates keys until `count` of them are free or the pool reaches its limit. Returns the
    /// number of keys created.
    pub fn prefill(&self, count: u32) -> u32 {
        let mut created = 0;
        while self.core.free_list.queued() < count as usize {
            match self.core.create(State::Free, Size::Short) {
                Ok(id) => self.core.free_list.add(id),
                Err(_) => break,
            }
            created += 1;
        }
        created
    }

    /// Leases a free key. Creates one if the pool has none.
    ///
    /// # Errors
    /// If all keys are in use, or the device cannot create a key.
    #[inline]
    pub fn lease(&self) -> Result<Lease<'_, D>, PoolError> {
        match self.core.take_now() {
            Some(id) => Ok(Lease::new(&self.core, id)),
            None => Ok(Lease::new(&self.core, self.core.take_slowly()?)),
        }
    }

    /// Leases a key and binds it to a [`Region`], or to a [`Span`] of several regions. This takes
    /// one work request if the pool has a free key.
    ///
    /// # Errors
    /// The errors of [`MkeyPool::lease`]; if the memory is too long for a pooled key; if the bind
    /// fails.
    pub fn export<'a>(&self, memory: impl Into<Span<'a>>) -> Result<Export<D>, PoolError> {
        let span = memory.into();
        let (id, mkey) = self.core.draw(span)?;
        Ok(Export::new(&self.core, id, mkey, &span))
    }

    /// Like [`MkeyPool::export`], for callers that keep many exports in tables of their own. The
    /// result is eight bytes and holds no reference to the pool. [`MkeyPool::unbind`] returns the
    /// key. A result that is dropped instead stays bound until the pool closes.
    ///
    /// # Errors
    /// The errors of [`MkeyPool::export`].
    pub fn bind<'a>(&self, memory: impl Into<Span<'a>>) -> Result<BoundKey, PoolError> {
        let (id, mkey) = self.core.draw(memory.into())?;
        Ok(BoundKey::new(id, mkey))
    }

    /// Like [`MkeyPool::bind`] for one region and a caller that knows the number of its thread, which only
    /// chooses one of the pool's caches. It is compiled into the caller, and its result fits into registers.
    ///
    /// # Errors
    /// The errors of [`MkeyPool::export`].
    #[inline(always)]
    pub fn bind_region_in(
        &self,
        thread: usize,
        region: Region,
    ) -> Result<BoundKey, Box<PoolError>> {
        self.core.draw_region(thread, region)
    }

    /// Like [`MkeyPool::unbind`], for a caller that knows the number of its thread.
    ///
    /// # Errors
    /// Those of [`MkeyPool::unbind`].
    ///
    /// # Panics
    /// As [`MkeyPool::unbind`].
    #[inline(always)]
    pub fn unbind_in(&self, thread: usize, key: BoundKey) -> Result<(), Box<ReleaseError>> {
        self.core.release_in(thread, key.slot(), key.mkey())
    }

    /// Returns a key to the pool, as [`Export::release`] does.
    ///
    /// # Errors
    /// If the device can neither invalidate nor destroy the key.
    ///
    /// # Panics
    /// If this pool did not bind the key, or the key was returned before.
    #[inline]
    pub fn unbind(&self, key: BoundKey) -> Result<(), ReleaseError> {
        self.core.release(key.slot(), key.mkey())
    }

    /// Binds one key to each of the regions. A chain of binds, as long as the device allows, costs
    /// one doorbell and one completion. A failed region fails only itself and the regions behind it
    /// in its chain. The results have the order of the regions.
    pub fn export_many(&self, regions: &[Region]) -> Vec<Result<Export<D>, PoolError>> {
        let mut leased = Vec::with_capacity(regions.len());
        let mut refused = Vec::new();
        for (number, region) in regions.iter().enumerate() {
            let taken = self
                .core
                .size_for(&(*region).into())
                .and_then(|size| match size {
                    Size::Short => self.core.take(),
                    Size::Long => self.core.take_long(),
                });
            match taken {
                Ok(id) => leased.push((id, *region)),
                Err(error) => refused.push((number, error)),
            }
        }
        let mut bound = leased.iter().zip(self.core.bind_many(&leased));
        let mut refused = refused.into_iter().peekable();
        let mut results = Vec::with_capacity(regions.len());
        for number in 0..regions.len() {
            if let Some((_, error)) = refused.next_if(|(at, _)| *at == number) {
                results.push(Err(error));
            } else if let Some(((id, region), result)) = bound.next() {
                results
                    .push(result.map(|mkey| Export::new(&self.core, *id, mkey, &(*region).into())));
            }
        }
        results
    }

    /// Invalidates all released keys that wait for invalidation, and returns their number. After
    /// the return no peer can reach memory through a key that was released before the call.
    pub fn flush(&self) -> usize {
        self.core.flush()
    }

    /// Runs one round of upkeep: creates keys if fewer than the policy's low mark are free, and
    /// destroys keys that were idle for longer than the policy's age. A round takes hundreds of
    /// microseconds per key and handles at most 64 keys. It serves callers that do not let the pool
    /// start a thread.
    pub fn upkeep(&self) -> Upkeep {
        self.core.upkeep()
    }

    /// Destroys up to `most` free keys, and returns their number. The device's memory of these keys may serve others.
    pub fn shed(&self, most: u32) -> u32 {
        self.core.shed(most)
    }

    /// A message with all keys of the pool, from which an importer creates the aliases ahead of
    /// time. `sequence` must be higher than in all earlier messages of the owner. The message does
    /// not contain keys that are created later.
    #[must_use]
    pub fn announce(&self, owner: OwnerUuid, sequence: u64) -> Announcement {
        let slots = &self.core.slots;
        let used = |id: &_| !matches!(slots.state(*id), State::Vacant | State::Lost);
        let keys = slots.ids().filter(used).map(|id| slots.mkey(id)).collect();
        Announcement {
            gvmi: self.core.hot.gvmi,
            owner,
            sequence,
            body: Body::Keys(keys),
        }
    }

    /// The function that owns the keys.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.core.hot.gvmi
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let core = &*self.core;
        let traffic = core.free_list.traffic();
        let (long_taken, long_returned) = core.long.traffic();
        let direct = core.free_list.requests();
        let shared = core.counters.snapshot();
        let in_use = &core.counters.in_use;
        PoolStats {
            hits: traffic.taken + long_taken,
            returns: traffic.returned + long_returned,
            in_use: in_use.observe(in_use.now() + direct.bound()),
            in_use_max: in_use.high(),
            binds: shared.binds + direct.binds,
            invalidates: shared.invalidates + direct.invalidates,
            chains: shared.chains + direct.binds + direct.invalidates,
            pending: core.pending.len() as u64,
            keys: u64::from(core.live_keys()),
            cap: u64::from(core.cap()),
            recoveries: core.device.recoveries(),
            ..shared
        }
    }

    /// A snapshot of the latency histograms.
    #[must_use]
    pub fn latencies(&self) -> PoolLatencies {
        self.core.latencies.summary()
    }

    /// The number of keys in each state.
    #[must_use]
    pub fn levels(&self) -> PoolLevels {
        let mut levels = PoolLevels::default();
        for id in self.core.slots.ids() {
            match self.core.slots.state(id) {
                State::Vacant => {}
                State::Free => levels.free += 1,
                State::Leased => levels.leased += 1,
                State::Bound => levels.bound += 1,
                State::Pending => levels.pending += 1,
                State::Unsure => levels.unsure += 1,
                State::Lost => levels.lost += 1,
            }
        }
        levels
    }

    /// Destroys all keys, including leased and bound ones. A later release of such a key finds it
    /// destroyed. The device stays open. Returns false if the device could not destroy a key.
    pub fn close(&self) -> bool {
        self.core.close()
    }
}

/// The number of keys in each state. A key that changes its state meanwhile may be counted twice or
/// not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLevels {
    /// Keys ready to be leased.
    pub free: u32,
    /// Keys that are leased and not bound.
    pub leased: u32,
    /// Keys that are bound to a region.
    pub bound: u32,
    /// Released keys that wait for their invalidation.
    pub pending: u32,
    /// Keys of unknown state, during their invalidation or destruction.
    pub unsure: u32,
    /// Keys that the device could neither invalidate nor destroy.
    pub lost: u32,
}
