//! The counters for programs, `struct xgvmi_stats` of `include/xgvmi.h`. New counters are appended,
//! so programs and libraries of different versions are compatible.

macro_rules! numbers {
    ($(#[$meta:meta])* $numbers:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub(crate) struct $numbers {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl $numbers {
            /// All zero.
            pub(crate) const NONE: Self = Self { $($name: 0,)* };

            /// The sum of both.
            pub(crate) fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)* }
            }

            /// Name and value of each, in their order.
            pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

numbers! {
    /// Counts of all memory domains of this process, and current values of the open ones.
    Numbers {
        /// Exports that found a free key in the pool.
        pool_hits,
        /// Exports that did not find one.
        pool_misses,
        /// Keys in the pools now.
        pool_keys,
        /// Of these, keys bound to memory now.
        pool_in_use,
        /// Exports served from the pool.
        exports,
        /// Exports that UCX handled.
        exports_left,
        /// Released exports of the pool.
        releases,
        /// Of these, keys that may have worked until UCX deregistered the memory.
        releases_failed,
        /// Imports that found an alias in the map.
        alias_hits,
        /// Imports and announced keys that needed a new alias.
        alias_misses,
        /// Replaced aliases of dead exporters.
        alias_stale,
        /// Aliases in the maps now.
        aliases,
        /// Imports served from the map.
        imports,
        /// Imports that UCX handled.
        imports_left,
        /// Served imports that UCX has released.
        imports_released,
        /// Exporters with an import cache in UCP now, for all memory domains together.
        exporters,
        /// Mappings of the program that were given ranges of the arena, for all memory domains
        /// together, as all counters of the arena.
        arena_ranges,
        /// Bytes zeroed before the reuse of a range.
        arena_zeroed,
        /// Bytes of slabs with memory now.
        arena_bytes,
        /// Bytes of the arena that are not given out again.
        arena_retired,
        /// Registrations answered with a slab's key.
        arena_registrations,
        /// Registrations of memory of the arena that UCX made.
        arena_left,
        /// Registrations answered with a kept one, for all memory domains together, as the next two.
        kept_hits,
        /// Kept registrations now.
        kept_now,
        /// Their bytes.
        kept_bytes,
    }
}

impl Numbers {
    /// The part that remains of a closed memory domain: its counts without its current values.
    pub(crate) fn of_closed(self) -> Self {
        Self {
            pool_keys: 0,
            pool_in_use: 0,
            aliases: 0,
            ..self
        }
    }
}
