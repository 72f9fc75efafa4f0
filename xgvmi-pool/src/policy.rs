//! Every number that the pool and the alias map go by, with its unit, its default and the reason.
//! Policy does no I/O.

use std::time::Duration;

use crate::device::MkeyLimits;
use crate::key::{AccessKey, Tag};

/// When a released key is invalidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalidate {
    /// Before the release returns. Nobody reaches the region through the key afterwards, so the
    /// caller may free the memory at once. The only mode that keeps a peer with a stale handle out
    /// at all times, hence the default.
    #[default]
    Strict,
    /// Together with others: when [`PoolPolicy::batch_ops`] keys wait for it, when the first of them
    /// has waited for [`PoolPolicy::batch_time`], when the pool has no free key left, or when
    /// [`MkeyPool::flush`](crate::MkeyPool::flush) is called. One doorbell and one completion for all
    /// of them.
    ///
    /// Until then a peer that kept the key reaches whatever the region's local key stands for: the
    /// region while its registration lives, nothing once that is gone, and other memory once the
    /// kernel has given the same local key to another registration that covers some of the same
    /// addresses. Use it only where every peer that had the key is trusted with all of the process's
    /// registered memory, or flush before the registration goes.
    Batched,
    /// In front of the next bind, in the same chain: an export and a release cost one doorbell, as
    /// long as the pool has another key for the bind. Like [`Invalidate::Batched`] otherwise, with
    /// the same consequence.
    Chained,
}

/// What the pool does when all keys that it may have are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Fail at once with [`PoolError::Full`](crate::PoolError::Full); the caller takes its other
    /// path. The default, because stock UCX has such a path and waiting could cost more than it.
    #[default]
    Fail,
    /// Wait for a key, first come first served, and fail with
    /// [`PoolError::WaitedTooLong`](crate::PoolError::WaitedTooLong) after this time.
    Wait(Duration),
}

/// Which free key is bound next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReuseOrder {
    /// The one that was released longest ago. A peer that kept a stale handle then meets an invalid
    /// key for as long as the pool's other free keys last, and not the next buffer. The default.
    ///
    /// What remains possible: once the key's turn has come, the stale handle reaches the buffer that it
    /// is bound to then, within that buffer's own addresses. Only a key that is never bound again
    /// excludes it, which is one of a pool that is closed, or of stock UCX's other way (KSM); a job's
    /// own [`access_key`](PoolPolicy::access_key) excludes peers that are not of the job.
    #[default]
    Fifo,
    /// The one that was released last, which the adapter most likely has in its cache. A stale
    /// handle reaches the very next buffer, as in stock UCX: for jobs whose processes are one
    /// another's friends.
    Lifo,
    /// The one that stood for the same address last, if it is free; else as [`ReuseOrder::Fifo`]. A
    /// buffer that comes back at its place is exported with the key that its importer knows for it, so
    /// that the importer's own cache hits.
    ///
    /// A peer that kept a stale handle reaches the next buffer at that address, at once and as long as
    /// it is exported, where by FIFO it would meet a key that rests. It never reaches another address
    /// by that than by FIFO, and strict invalidation still keeps it out between the two exports. For
    /// buffers that one process exports to one importer again and again it tells the importer nothing
    /// that it is not told anyway. Free keys are in one list under one lock, without trays.
    Affinity,
}

/// How a pool of keys behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Keys that the pool has at most, leased ones included. Default 4096: more concurrent exports
    /// than 64 ranks of 64 buffers need, and two orders of magnitude below the adapter's table, so
    /// that a pool is never what fills it.
    pub mkeys_max: u32,
    /// Keys that are created when the pool opens. Default 0: a process that never exports should
    /// not pay hundreds of microseconds per key; who knows the number of buffers, sets it.
    pub prefill: u32,
    /// Free keys below which upkeep creates more. Default 0: it creates none.
    pub low: u32,
    /// Free keys up to which upkeep creates, and beyond which it destroys those that were not
    /// needed for [`PoolPolicy::age`]. Default 256: a burst of as many exports pays for no creation,
    /// and an idle process keeps 64 KiB of the adapter's memory.
    pub high: u32,
    /// How long a key beyond the high mark must not have been needed to be destroyed. Default 60 s,
    /// as in the Linux driver's pools.
    pub age: Duration,
    /// Runs upkeep in a thread of the pool's own. Default off: who opens a pool inside a foreign
    /// process should decide; without it [`MkeyPool::upkeep`](crate::MkeyPool::upkeep) does the same
    /// when it is called.
    pub keeper: bool,
    /// Which free key is bound next.
    pub order: ReuseOrder,
    /// Keys that a group of threads keeps at hand, on each side of its tray. Default 8, at most 16;
    /// less in a small pool, and none with 0, which makes the order of reuse exact.
    pub tray_keys: u32,
    /// Groups of threads, which is as many trays; rounded up to a power of two, at most 64. Default 0: as
    /// many as the process has processors, which is asked for when the pool is opened.
    pub trays: u32,
    /// KLM entries of each key. Default 16: regions up to 16 GiB, for 256 bytes of adapter memory a
    /// key; a device that can take fewer lowers it.
    pub klm_entries: u32,
    /// Tag of the keys. Default [`Tag::UCX_POOLED`]: a stock importer caches the aliases of no
    /// other. A key whose index had been another key of this pool has a lower one, which an importer
    /// therefore takes for a key that it has not seen yet.
    pub tag: Tag,
    /// What an importer must present. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// When released keys are invalidated.
    pub invalidate: Invalidate,
    /// Released keys that wait for their invalidation at most, in the modes in which they do.
    /// Default 64: the doorbell is then a sixtieth of the cost, and fewer regions than that are
    /// reachable for longer than they should be. A device that takes shorter chains lowers it.
    pub batch_ops: u32,
    /// How long a released key waits for its invalidation at most, in the modes in which it does.
    /// Default 10 ms: a process that releases all the time fills its batches sooner, and one that does
    /// not should not leave memory reachable. Held by whichever comes first: the next export or
    /// release, a round of upkeep, or the keeper. Without a keeper, a process that calls nothing any
    /// more invalidates nothing.
    pub batch_time: Duration,
    /// What happens at the cap.
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
            tray_keys: 8,
            trays: 0,
            klm_entries: 16,
            tag: Tag::UCX_POOLED,
            access_key: AccessKey::UCX_COMPATIBLE,
            invalidate: Invalidate::default(),
            batch_ops: 64,
            batch_time: Duration::from_millis(10),
            on_full: OnFull::default(),
        }
    }
}

/// How a map of aliases behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasPolicy {
    /// Aliases that the map holds at most, pinned ones included. Default 65,536: 1024 ranks with 64
    /// buffers each, at well under 256 bytes of process memory an alias.
    pub aliases_max: u32,
    /// What the exporters ask for. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// How long one thread waits for the alias that another one is making. Default 10 s: a command
    /// takes hundreds of microseconds, the kernel gives up on one after tens of seconds.
    pub create_wait: Duration,
    /// Threads that make aliases at the same time, the caller's included, when many are made at
    /// once. Default 4: a service process of a DPU shares its cores with others of its kind.
    pub threads: u32,
    /// How long an alias may rest unpinned before upkeep puts it out; it does so within a quarter
    /// more. Default: for ever, until there is no room for another one.
    pub ttl: Option<Duration>,
    /// Runs upkeep in a thread of the map's own, if there is a [`AliasPolicy::ttl`]. Default off, as
    /// for pools; without it [`AliasMap::upkeep`](crate::AliasMap::upkeep) does the same when it is
    /// called.
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

/// A policy that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number lies outside of its range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Field of the policy.
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
}

/// Largest cap: the adapter's key table has 2^24 entries, and a slot of the pool takes memory.
const MKEYS_CAP: u32 = 1 << 20;
/// Largest bound of the alias map, for the same reason.
const ALIASES_CAP: u32 = 1 << 22;
/// Most threads that make aliases: the adapter carries out few commands at a time.
const THREADS_CAP: u32 = 64;
/// Most KLM entries of a key: the field of `mlx5dv_create_mkey` has 16 bits.
const KLM_ENTRIES_CAP: u32 = 1 << 16;
/// Most keys on one side of a tray.
const TRAY_KEYS_CAP: u32 = crate::shelf::TRAY_KEYS_MAX;
/// Longest wait: who waits for a day waits for ever, and a sum of times must not overflow.
const WAIT_CAP: Duration = Duration::from_secs(24 * 3600);
/// Longest batch: requests of two building blocks in the largest send queue.
const BATCH_OPS_CAP: u32 = 1 << 14;

impl PoolPolicy {
    /// The policy as far as the device can follow it.
    ///
    /// # Errors
    /// If a number lies outside of its range.
    pub(crate) fn checked(mut self, limits: MkeyLimits) -> Result<Self, PolicyError> {
        within("mkeys_max", self.mkeys_max, 1, MKEYS_CAP)?;
        within("prefill", self.prefill, 0, self.mkeys_max)?;
        within("klm_entries", self.klm_entries, 1, KLM_ENTRIES_CAP)?;
        within("tray_keys", self.tray_keys, 0, TRAY_KEYS_CAP)?;
        within("batch_ops", self.batch_ops, 1, BATCH_OPS_CAP)?;
        // A pool smaller than the default marks has the marks that it can have.
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
    /// The policy, if it can be followed.
    ///
    /// # Errors
    /// If a number lies outside of its range.
    pub(crate) fn checked(mut self) -> Result<Self, PolicyError> {
        self.create_wait = self.create_wait.min(WAIT_CAP);
        within("aliases_max", self.aliases_max, 1, ALIASES_CAP)?;
        within("threads", self.threads, 1, THREADS_CAP)?;
        // Beyond the cap it is as good as for ever.
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
