//! Counters and their snapshots. No decision depends on them, so the loom tests leave them out.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::error::AliasError;

macro_rules! counters {
    (
        $(#[$meta:meta])* $live:ident => $snapshot:ident;
        counted { $($(#[$doc:meta])* $name:ident,)* }
        added { $($(#[$added_doc:meta])* $added:ident,)* }
        levels { $($level:ident,)* }
    ) => {
        #[derive(Debug, Default)]
        #[repr(C)]
        pub(crate) struct $live {
            $(pub(crate) $level: Level,)*
            $(pub(crate) $name: Counter,)*
        }

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$added_doc])* pub $added: u64,)*
        }

        impl $live {
            /// A snapshot of the counters here; the other fields are zero.
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.get(),)* ..$snapshot::default() }
            }
        }

        impl $snapshot {
            /// Name and value of each number, in a fixed order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [
                    $((stringify!($name), self.$name),)*
                    $((stringify!($added), self.$added),)*
                ].into_iter()
            }
        }
    };
}

/// A counter that only increases.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// Adds one and returns the previous count.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A part of a gauge, and the highest value of the whole gauge. The part is below zero if a unit was
/// added to another part.
#[derive(Debug, Default)]
pub(crate) struct Level {
    now: AtomicI64,
    high: AtomicU64,
}

impl Level {
    /// Adds one, to a gauge whose other parts are `others`.
    #[inline]
    pub(crate) fn up(&self, others: i64) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.observe(now + others);
    }

    #[inline]
    pub(crate) fn down(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Raises the highest value. Returns the value, which is not below zero.
    pub(crate) fn observe(&self, whole: i64) -> u64 {
        let whole = u64::try_from(whole).unwrap_or_default();
        // The mark is usually higher already, and then a load is enough.
        if self.high.load(Ordering::Relaxed) < whole {
            self.high.fetch_max(whole, Ordering::Relaxed);
        }
        whole
    }

    pub(crate) fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }
}

counters! {
    /// Counters since the pool was opened, and its present contents. `hits` and `returns` belong to
    /// one moment. Every other number is exact, but numbers may differ by a moment while threads
    /// work.
    PoolCounters => PoolStats;
    counted {
        /// Binds that took effect.
        binds,
        /// Invalidations that took effect.
        invalidates,
        /// Chains of requests: each costs a doorbell and a completion.
        chains,
        /// Leases that found no free key in the pool.
        misses,
        /// Leases that waited for a key at the cap.
        waits,
        /// Leases that the pool refused.
        refusals,
        /// Keys created.
        creates,
        /// Keys that could not be created.
        create_failures,
        /// Keys destroyed.
        destroys,
        /// Keys destroyed because they were not needed any more. Part of `destroys`.
        aged,
        /// Binds that failed.
        bind_failures,
        /// Invalidations that failed.
        invalidate_failures,
        /// Keys that could be neither invalidated nor destroyed.
        lost,
        /// Times that the device was full and the pool lowered its cap.
        cap_lowered,
    }
    added {
        /// Leases served by a free key of the pool.
        hits,
        /// Keys that became free again.
        returns,
        /// Keys that are bound to a region.
        in_use,
        /// Highest number of keys bound at one time. With strict invalidation it is observed when a
        /// thread finds no free key at hand, and by each snapshot.
        in_use_max,
        /// Released keys that wait for their invalidation.
        pending,
        /// Existing keys, in any state.
        keys,
        /// Current maximum number of keys.
        cap,
        /// Times that the device's work queue failed and was replaced.
        recoveries,
    }
    levels { in_use, }
}

counters! {
    /// Counters since the alias map was opened, and its present contents. Each number is exact. Two
    /// numbers may differ by a moment while threads work.
    AliasCounters => AliasStats;
    counted {
        /// Lookups served by an alias of the map.
        hits,
        /// Lookups that had to create an alias.
        misses,
        /// Lookups that waited for another thread to create the same alias.
        joins,
        /// Aliases created.
        creates,
        /// Aliases created by a lookup. Part of `creates`; the others were prepared.
        made,
        /// Aliases that could not be created.
        create_failures,
        /// Aliases destroyed.
        destroys,
        /// Aliases that could not be destroyed.
        destroy_failures,
        /// Aliases evicted from a full map.
        evictions,
        /// Searches of the whole map for aliases to evict.
        searches,
        /// Aliases of an owner that ended, replaced when another owner sent the same key.
        stale,
        /// Aliases evicted because their owner was reported dead.
        reaped,
        /// Lookups refused because every alias was in use.
        refusals,
        /// Aliases evicted because they were idle too long.
        expired,
    }
    added {
        /// Aliases in the map, including those under creation.
        aliases,
    }
    levels {}
}

/// Result of a preparation of aliases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Keys that have an alias now.
    pub ready: usize,
    /// Keys skipped because the map is full, or after 16 failures.
    pub left_out: usize,
    /// Keys whose alias could not be created.
    pub failed: usize,
    /// The first error.
    pub error: Option<AliasError>,
}
