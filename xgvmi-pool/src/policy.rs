//! Settings of the pool and the alias map, each with its unit, default and reason. This module does
//! no I/O.

use std::time::Duration;

use crate::device::MkeyLimits;
use crate::error::PolicyError;
use crate::key::{AccessKey, Tag};

/// When the pool invalidates a released key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalidate {
    /// Before the release returns. Afterwards no peer can reach the region through the key, so the
    /// caller may free the memory at once. Only this mode excludes a peer with a stale handle at
    /// all times, hence it is the default.
    #[default]
    Strict,
    /// Together with other keys. The pool invalidates when [`PoolPolicy::batch_ops`] keys wait,
    /// when the first of them has waited for [`PoolPolicy::batch_time`], when it has no free key
    /// left, or when the caller calls [`MkeyPool::flush`](crate::MkeyPool::flush). The whole batch
    /// costs one doorbell and one completion.
    ///
    /// Until then a peer that kept the key can reach all memory that the region's local key refers
    /// to. That is the region while its registration exists. Without the registration it is
    /// nothing, until the kernel gives the same local key to another registration. If that
    /// registration covers some of the same addresses, the peer reaches this other memory. Use this
    /// mode only if every peer that had the key is trusted with all registered memory of the
    /// process, or flush before you deregister the region.
    Batched,
    /// In the chain of the next bind, ahead of the bind. An export and a release then cost one
    /// doorbell, if the pool has another key for the bind. Otherwise like [`Invalidate::Batched`],
    /// with the same security consequence.
    Chained,
}

/// The pool's reaction when all keys that it may have are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Fail at once with [`PoolError::Full`](crate::PoolError::Full). The caller then uses its
    /// other path. This is the default because stock UCX has such a path, and waiting could cost
    /// more.
    #[default]
    Fail,
    /// Wait for a key in first-come, first-served order. Fail after this time with
    /// [`PoolError::WaitedTooLong`](crate::PoolError::WaitedTooLong).
    Wait(Duration),
}

/// Selection of the next free key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReuseOrder {
    /// The least recently released key. A peer with a stale handle then meets an invalid key until
    /// the pool has used all its other free keys. This is the default.
    ///
    /// A risk remains: when the pool binds that key again, the stale handle reaches the new buffer,
    /// within the addresses of that buffer. Only a key that is never bound again excludes this: a
    /// key of a closed pool, or a KSM key of stock UCX. An [`access_key`](PoolPolicy::access_key)
    /// of the job excludes peers outside the job.
    #[default]
    Fifo,
    /// The most recently released key, which is most likely in the adapter's cache. A stale handle
    /// reaches the very next buffer, as in stock UCX. Use it in jobs whose processes trust one
    /// another.
    Lifo,
    /// The free key that was last bound to the same address, otherwise the key that
    /// [`ReuseOrder::Fifo`] selects. A buffer that returns to its address gets the key that the
    /// importer already knows for it. A cache of the importer by address and key then hits. UCX's own
    /// cache of imports does not: it compares the number of the registration.
    ///
    /// A peer with a stale handle reaches the next buffer at that address as soon as it is
    /// exported. With FIFO it would meet an idle key. In both orders it reaches no other address,
    /// and strict invalidation still excludes it between the two exports. If one process repeatedly
    /// exports the same buffers to one importer, this order discloses nothing new to the importer.
    /// The free keys are in one list under one lock, without caches.
    Affinity,
}

/// Settings of a key pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Maximum number of keys, including leased ones. Default 4096: more concurrent exports than 64
    /// ranks with 64 buffers need, and two orders of magnitude below the size of the adapter's
    /// table. A pool alone therefore never fills the table.
    pub mkeys_max: u32,
    /// Number of keys to create when the pool opens. Default 0: a process that never exports should
    /// not pay hundreds of microseconds per key. Set it if you know the number of buffers.
    pub prefill: u32,
    /// Upkeep creates keys if fewer than this number are free. Default 0: upkeep creates none.
    pub low: u32,
    /// Upkeep creates keys up to this number of free keys. Above it, upkeep destroys keys that were
    /// idle for [`PoolPolicy::age`]. Default 256: a burst of 256 exports creates no key, and an
    /// idle process uses 64 KiB of the adapter's memory.
    pub high: u32,
    /// Idle time after which upkeep destroys a key above the high mark. Default 60 s, as in the
    /// pools of the Linux driver.
    pub age: Duration,
    /// Runs upkeep in a thread of the pool. Default off: a library inside a foreign process should
    /// start a thread only on request. Without the thread,
    /// [`MkeyPool::upkeep`](crate::MkeyPool::upkeep) does the same work when the caller calls it.
    pub keeper: bool,
    /// Selection of the next free key.
    pub order: ReuseOrder,
    /// Number of keys that a group of threads keeps in its cache. Default 24, at most 24; a small pool
    /// uses fewer. With 0 there are no caches, and the order of reuse is exact.
    pub cache_keys: u32,
    /// Number of groups of threads, with one cache each. Rounded up to a power of two, maximum 64.
    /// Default 0: the number of processors of the process, read when the pool opens.
    pub caches: u32,
    /// Maximum number of KLM entries per key. Default 16: regions of almost 32 GiB. Most keys have four, as a key
    /// without a pool, or fewer if this is fewer. Memory that needs more gets one of up to a quarter of the keys,
    /// which is created with all entries, and never waits for it. A device that supports fewer entries lowers it.
    pub klm_entries: u32,
    /// Tag of the keys. Default [`Tag::UCX_POOLED`]: a stock importer caches only the aliases of
    /// keys with this tag. If a new key reuses the index of an earlier key of this pool, it gets a
    /// lower tag, and importers treat it as an unknown key.
    pub tag: Tag,
    /// Access key that an importer must present. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// When the pool invalidates released keys.
    pub invalidate: Invalidate,
    /// Maximum number of released keys that wait for their invalidation, in the modes that defer
    /// it. Default 64: each key then costs about a sixtieth of a doorbell, and fewer than 64
    /// regions remain reachable after their release. A device with shorter chains lowers it.
    pub batch_ops: u32,
    /// Maximum time that a released key waits for its invalidation, in the modes that defer it.
    /// Default 10 ms: a process that releases continuously fills its batches sooner, and other
    /// processes should not leave memory reachable. The next export, the next release, a round of
    /// upkeep or the keeper enforces the limit, whichever comes first. Without a keeper, a process
    /// that stops calling the pool invalidates nothing more.
    pub batch_time: Duration,
    /// Reaction at the cap.
    pub on_full: OnFull,
}

impl Default for PoolPolicy {
    fn default() -> Self {
        Self {
            mkeys_max: 4096,
            prefill: 0,
            low: 0,
            high: 256,
            age: Duration::from_secs(60),
            keeper: false,
            order: ReuseOrder::default(),
            cache_keys: 24,
            caches: 0,
            klm_entries: Self::KLM_ENTRIES,
            tag: Tag::UCX_POOLED,
            access_key: AccessKey::UCX_COMPATIBLE,
            invalidate: Invalidate::default(),
            batch_ops: 64,
            batch_time: Duration::from_millis(10),
            on_full: OnFull::default(),
        }
    }
}

/// Settings of an alias map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasPolicy {
    /// Maximum number of aliases, including pinned ones. Default 65,536: 1024 ranks with 64 buffers
    /// each, at well under 256 bytes of process memory per alias.
    pub aliases_max: u32,
    /// Access key that the exporters require. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// Maximum time that a thread waits for an alias that another thread creates. Default 10 s: a
    /// command takes hundreds of microseconds, and the kernel abandons a command after tens of
    /// seconds.
    pub create_wait: Duration,
    /// Number of threads that create aliases in one bulk call, including the caller's thread.
    /// Default 4: a service process of a DPU shares its cores with other such processes.
    pub threads: u32,
    /// Idle time after which upkeep evicts an unpinned alias, plus at most a quarter of this time.
    /// Default `None`: the map evicts only when it is full.
    pub ttl: Option<Duration>,
    /// Runs upkeep in a thread of the map, if [`AliasPolicy::ttl`] is set. Default off, as for
    /// pools. Without the thread, [`AliasMap::upkeep`](crate::AliasMap::upkeep) does the same work
    /// when the caller calls it.
    pub keeper: bool,
}

impl Default for AliasPolicy {
    fn default() -> Self {
        Self {
            aliases_max: 65_536,
            access_key: AccessKey::UCX_COMPATIBLE,
            create_wait: Duration::from_secs(10),
            threads: 4,
            ttl: None,
            keeper: false,
        }
    }
}

/// Largest cap: the adapter's key table has 2^24 entries, and each slot of the pool takes memory.
const MKEYS_CAP: u32 = 1 << 20;
/// Largest bound of the alias map, for the same reason.
const ALIASES_CAP: u32 = 1 << 22;
/// Maximum number of threads that create aliases: the adapter executes few commands at a time.
const THREADS_CAP: u32 = 64;
/// Maximum number of KLM entries per key: the field of `mlx5dv_create_mkey` has 16 bits.
const KLM_ENTRIES_CAP: u32 = 1 << 16;
/// Maximum number of keys of a local cache.
pub(crate) const CACHE_KEYS_MAX: u32 = 24;
/// Longest wait. A wait of a day is as good as unlimited, and a sum of times must not overflow.
const WAIT_CAP: Duration = Duration::from_secs(24 * 3600);
/// Longest batch: requests of two building blocks in the largest send queue.
const BATCH_OPS_CAP: u32 = 1 << 14;

impl PoolPolicy {
    /// Default of [`PoolPolicy::klm_entries`].
    pub const KLM_ENTRIES: u32 = 16;

    /// The policy, lowered to the limits of the device.
    ///
    /// # Errors
    /// If a value is out of range.
    pub(crate) fn checked(mut self, limits: MkeyLimits) -> Result<Self, PolicyError> {
        within("mkeys_max", self.mkeys_max, 1, MKEYS_CAP)?;
        within("prefill", self.prefill, 0, self.mkeys_max)?;
        within("klm_entries", self.klm_entries, 1, KLM_ENTRIES_CAP)?;
        within("cache_keys", self.cache_keys, 0, CACHE_KEYS_MAX)?;
        within("batch_ops", self.batch_ops, 1, BATCH_OPS_CAP)?;
        // A pool smaller than the default marks lowers the marks.
        self.high = self.high.min(self.mkeys_max);
        within("low", self.low, 0, self.high)?;
        if let OnFull::Wait(limit) = &mut self.on_full {
            *limit = (*limit).min(WAIT_CAP);
        }
        self.klm_entries = self.klm_entries.min(limits.klm_entries_max);
        self.batch_ops = self.batch_ops.min(limits.chain_ops_max.max(1));
        Ok(self)
    }
}

impl AliasPolicy {
    /// The policy after its check.
    ///
    /// # Errors
    /// If a value is out of range.
    pub(crate) fn checked(mut self) -> Result<Self, PolicyError> {
        self.create_wait = self.create_wait.min(WAIT_CAP);
        within("aliases_max", self.aliases_max, 1, ALIASES_CAP)?;
        within("threads", self.threads, 1, THREADS_CAP)?;
        // A ttl above the cap is as good as unlimited.
        self.ttl = self.ttl.filter(|ttl| *ttl <= WAIT_CAP);
        Ok(self)
    }
}

fn within(name: &'static str, value: u32, min: u32, max: u32) -> Result<(), PolicyError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let [value, min, max] = [value, min, max].map(u64::from);
    Err(PolicyError::OutOfRange {
        name,
        value,
        min,
        max,
    })
}
