//! Counters, and snapshots of them. They decide nothing, so they are not part of what loom tries.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    (
        $(#[$meta:meta])* $live:ident => $snapshot:ident;
        counted { $($(#[$doc:meta])* $name:ident,)* }
        added { $($(#[$added_doc:meta])* $added:ident,)* }
        levels { $($level:ident,)* }
    ) => {
        #[derive(Debug, Default)]
        pub(crate) struct $live {
            $(pub(crate) $name: Counter,)*
            $(pub(crate) $level: Level,)*
        }

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$added_doc])* pub $added: u64,)*
        }

        impl $live {
            /// The numbers that are counted here; the others are zero.
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

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// Counts one, and returns how many there were before.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls, and how high it has been.
#[derive(Debug, Default)]
pub(crate) struct Level {
    now: AtomicU64,
    high: AtomicU64,
}

impl Level {
    pub(crate) fn up(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        // Most of the time the mark is higher, and a load tells.
        if self.high.load(Ordering::Relaxed) < now {
            self.high.fetch_max(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn down(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }
}

counters! {
    /// What a pool has done since it was opened, and what it has. Leases and returns are those of
    /// one moment; any other number is exact, and may be a moment apart while threads work.
    PoolCounters => PoolStats;
    counted {
        /// Leases that found no free key in the pool.
        misses,
        /// Leases that waited for a key at the cap.
        waits,
        /// Leases that got no key at all.
        refusals,
        /// Keys created.
        creates,
        /// Keys that could not be created.
        create_failures,
        /// Keys destroyed.
        destroys,
        /// Keys destroyed because they were not needed any more. Part of `destroys`.
        aged,
        /// Binds that took effect.
        binds,
        /// Binds that failed.
        bind_failures,
        /// Invalidations that took effect.
        invalidates,
        /// Invalidations that failed.
        invalidate_failures,
        /// Chains of requests: each costs a doorbell and a completion.
        chains,
        /// Keys that could be neither invalidated nor destroyed.
        lost,
        /// Times that the device was full and the cap was lowered.
        cap_lowered,
    }
    added {
        /// Leases served by a free key of the pool.
        hits,
        /// Keys that came back free.
        returns,
        /// Keys that stand for a region.
        in_use,
        /// Most keys that stood for regions at any time.
        in_use_max,
        /// Keys that were released and wait for their invalidation.
        pending,
        /// Keys that there are, in whatever state.
        keys,
        /// Keys that the pool may have at present.
        cap,
        /// Times that the device's work queue had failed and was replaced.
        recoveries,
    }
    levels { in_use, }
}

counters! {
    /// What an alias map has done since it was opened, and what it has. Each number is exact; two of
    /// them may be a moment apart while threads work.
    AliasCounters => AliasStats;
    counted {
        /// Lookups served by an alias of the map.
        hits,
        /// Lookups that had to make an alias.
        misses,
        /// Lookups that waited for another thread's alias of the same key.
        joins,
        /// Aliases created.
        creates,
        /// Aliases that could not be created.
        create_failures,
        /// Aliases destroyed.
        destroys,
        /// Aliases that could not be destroyed.
        destroy_failures,
        /// Aliases put out to make room.
        evictions,
        /// Times that the whole map was searched for aliases to put out.
        searches,
        /// Aliases of an owner that is gone, replaced when its key came again from another owner.
        stale,
        /// Aliases put out because their owner was reported dead.
        reaped,
        /// Lookups refused because every alias was in use.
        refusals,
        /// Aliases put out because nobody had used them for long.
        expired,
    }
    added {
        /// Aliases that the map has, those in the making included.
        aliases,
    }
    levels {}
}
