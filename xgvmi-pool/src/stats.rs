//! Counters, and snapshots of them.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counters {
    (
        $(#[$meta:meta])* $live:ident => $snapshot:ident;
        $($(#[$doc:meta])* $name:ident,)*
    ) => {
        #[derive(Debug, Default)]
        pub(crate) struct $live {
            $(pub(crate) $name: Counter,)*
        }

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $live {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.get(),)* ..$snapshot::default() }
            }
        }

        impl $snapshot {
            /// Name and value of each number, in a fixed order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

/// A number that only grows, or follows a level.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// What a pool has done since it was opened. Each number is exact; two of them may be a
    /// moment apart while other threads work.
    PoolCounters => PoolStats;
    /// Leases served by a key of the pool.
    hits,
    /// Leases that found no key in the pool.
    misses,
    /// Leases that got no key at all.
    refusals,
    /// Keys created.
    creates,
    /// Keys that could not be created.
    create_failures,
    /// Keys destroyed.
    destroys,
    /// Binds that took effect.
    binds,
    /// Binds that failed.
    bind_failures,
    /// Invalidations that took effect.
    invalidates,
    /// Invalidations that failed.
    invalidate_failures,
    /// Chains of requests posted.
    chains,
    /// Keys that could be neither invalidated nor destroyed.
    lost,
    /// Times the device was full and the cap was lowered.
    cap_lowered,
}

counters! {
    /// What an alias map has done since it was opened. Each number is exact; two of them may be a
    /// moment apart while other threads work.
    AliasCounters => AliasStats;
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
    /// Aliases of an owner that is gone, replaced when its key came again from another owner.
    stale,
    /// Aliases put out because their owner was reported dead.
    reaped,
    /// Lookups refused because every alias was in use.
    refusals,
}
