//! The pool: keys that were created once and are bound again and again.

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
use crate::slots::State;
use crate::span::Span;
use crate::stats::PoolStats;
use crate::upkeep::Upkeep;

/// A pool of keys of one function. Cheap to clone; all clones are the same pool, and any thread may
/// use it. A key is handed out only in the free state.
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
    /// A pool over the device, with as many keys as the policy wants at once. A prefill that the
    /// device cuts short is not an error: the rest is created when it is needed.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open(device: Arc<D>, policy: PoolPolicy) -> Result<Self, PoolError> {
        Self::open_observed(device, policy, None)
    }

    /// As [`MkeyPool::open`], with somebody who is told what no return value says.
    ///
    /// # Errors
    /// If the policy cannot be followed.
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

    /// Creates keys until `count` of them are free, or the pool may have no more. Returns how many
    /// it created.
    pub fn prefill(&self, count: u32) -> u32 {
        let mut created = 0;
        while self.core.shelf.queued() < count as usize {
            match self.core.create(State::Free) {
                Ok(id) => self.core.shelf.add(id),
                Err(_) => break,
            }
            created += 1;
        }
        created
    }

    /// A free key, out of the pool or newly created.
    ///
    /// # Errors
    /// If all keys are in use, or a new one cannot be created.
    #[inline]
    pub fn lease(&self) -> Result<Lease<'_, D>, PoolError> {
        match self.core.take_now() {
            Some(id) => Ok(Lease::new(&self.core, id)),
            None => Ok(Lease::new(&self.core, self.core.take_slowly()?)),
        }
    }

    /// A key that stands for a [`Region`], or for a [`Span`] of several. One work request if the
    /// pool has a free key.
    ///
    /// # Errors
    /// As [`MkeyPool::lease`]; if the memory is too long for a pooled key; if the bind fails.
    pub fn export<'a>(&self, memory: impl Into<Span<'a>>) -> Result<Export<D>, PoolError> {
        let span = memory.into();
        let (id, mkey) = self.core.draw(span)?;
        Ok(Export::new(&self.core, id, mkey, &span))
    }

    /// As [`MkeyPool::export`], for those who keep many exports in tables of their own: the result is
    /// eight bytes, holds no reference to the pool, and is given back by [`MkeyPool::unbind`]. One
    /// that is dropped instead stays bound until the pool is closed.
    ///
    /// # Errors
    /// As [`MkeyPool::export`].
    pub fn bind<'a>(&self, memory: impl Into<Span<'a>>) -> Result<BoundKey, PoolError> {
        let (id, mkey) = self.core.draw(memory.into())?;
        Ok(BoundKey::new(id, mkey))
    }

    /// Gives a key back, as [`Export::release`] does.
    ///
    /// # Errors
    /// If the key could be neither invalidated nor destroyed.
    ///
    /// # Panics
    /// If the key is not one that this pool bound, or was given back before.
    pub fn unbind(&self, key: BoundKey) -> Result<(), ReleaseError> {
        self.core.release(key.slot(), key.mkey())
    }

    /// A key for each of the regions, bound together: one doorbell and one completion for as many as
    /// the device takes in a chain. What fails for one region does not fail for the others, but those
    /// behind it in its chain. Results are in the order of the regions.
    pub fn export_many(&self, regions: &[Region]) -> Vec<Result<Export<D>, PoolError>> {
        let mut leased = Vec::with_capacity(regions.len());
        let mut refused = Vec::new();
        for (number, region) in regions.iter().enumerate() {
            let taken = self
                .core
                .check_length(&(*region).into())
                .and_then(|()| self.core.take());
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

    /// Invalidates all released keys that wait for it. Returns how many there were. When it returns,
    /// what was released before cannot be reached any more.
    pub fn flush(&self) -> usize {
        self.core.flush()
    }

    /// One round of upkeep: creates keys if there are fewer free ones than the policy's low mark, and
    /// destroys those that were not needed for long. Hundreds of microseconds for each key, at most
    /// 64 keys. For those who do not let the pool have a thread.
    pub fn upkeep(&self) -> Upkeep {
        self.core.upkeep()
    }

    /// All keys of the pool, for an importer to make their aliases ahead of time. `sequence` must be
    /// higher than in all messages of the owner before. Keys that are created later are not in it.
    #[must_use]
    pub fn announce(&self, owner: OwnerUuid, sequence: u64) -> Announcement {
        let slots = &self.core.slots;
        let used = |id: &_| !matches!(slots.state(*id), State::Vacant | State::Lost);
        let keys = slots.ids().filter(used).map(|id| slots.mkey(id)).collect();
        Announcement {
            gvmi: self.core.gvmi,
            owner,
            sequence,
            body: Body::Keys(keys),
        }
    }

    /// The function that the keys belong to.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.core.gvmi
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let core = &*self.core;
        let traffic = core.shelf.traffic();
        PoolStats {
            hits: traffic.taken,
            returns: traffic.returned,
            in_use: core.counters.in_use.now(),
            in_use_max: core.counters.in_use.high(),
            pending: core.pending.len() as u64,
            keys: u64::from(core.live_keys()),
            cap: u64::from(core.cap()),
            recoveries: core.device.recoveries(),
            ..core.counters.snapshot()
        }
    }

    /// How long things took so far.
    #[must_use]
    pub fn latencies(&self) -> PoolLatencies {
        self.core.latencies.summary()
    }

    /// How many keys are in which state.
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

    /// Destroys all keys, those that are still leased or bound as well. What is released later is
    /// already dead. The device stays open. True if nothing is left behind.
    pub fn close(&self) -> bool {
        self.core.close()
    }
}

/// How many keys are in which state. A key that moves meanwhile may be counted twice or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLevels {
    /// Keys that wait to be used.
    pub free: u32,
    /// Keys in somebody's hands that stand for nothing yet.
    pub leased: u32,
    /// Keys that stand for a region.
    pub bound: u32,
    /// Keys that were released and wait for their invalidation.
    pub pending: u32,
    /// Keys of unknown state that are being invalidated or destroyed.
    pub unsure: u32,
    /// Keys that could be neither invalidated nor destroyed.
    pub lost: u32,
}
