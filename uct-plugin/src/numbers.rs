//! The numbers that a program can ask for, `struct xgvmi_stats` of `include/xgvmi.h`. New ones go to
//! the end, so that a program and a library of different versions understand each other.

macro_rules! numbers {
    ($(#[$meta:meta])* $numbers:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub(crate) struct $numbers {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl $numbers {
            /// Nothing was done yet.
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
    /// What all memory domains of this process have done so far, and what those that are open have.
    Numbers {
        /// Exports for which the pool had a free key.
        pool_hits,
        /// Exports for which it had none.
        pool_misses,
        /// Keys that the pools have now.
        pool_keys,
        /// Of these, those that stand for a region now.
        pool_in_use,
        /// Exports served from the pool.
        exports,
        /// Exports left to UCX.
        exports_left,
        /// Served exports that were released.
        releases,
        /// Of these, those whose key may have worked until UCX had freed the memory.
        releases_failed,
        /// Imports for which the map had an alias.
        alias_hits,
        /// Imports, and keys that were announced, for which an alias had to be made.
        alias_misses,
        /// Aliases of an exporter that was gone, replaced.
        alias_stale,
        /// Aliases that the maps have now.
        aliases,
        /// Imports served from the map.
        imports,
        /// Imports left to UCX.
        imports_left,
        /// Served imports that UCX has given back.
        imports_released,
        /// Exporters that UCP has a cache of now, for all memory domains together.
        exporters,
    }
}

impl Numbers {
    /// What remains of a memory domain that is closed: what it has done, not what it had.
    pub(crate) fn of_closed(self) -> Self {
        Self {
            pool_keys: 0,
            pool_in_use: 0,
            aliases: 0,
            ..self
        }
    }
}
