//! The numbers that a program can ask for, `struct xgvmi_stats` of `include/xgvmi.h`. New ones go to
//! the end, so that a program and a library of different versions understand each other.

/// What all memory domains of this process have done so far, and what those that are open have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Numbers {
    /// Exports for which the pool had a free key.
    pub(crate) pool_hits: u64,
    /// Exports for which it had none.
    pub(crate) pool_misses: u64,
    /// Keys that the pools have now.
    pub(crate) pool_keys: u64,
    /// Of these, those that stand for a region now.
    pub(crate) pool_in_use: u64,
    /// Exports served from the pool.
    pub(crate) exports: u64,
    /// Exports left to UCX.
    pub(crate) exports_left: u64,
    /// Served exports that were released.
    pub(crate) releases: u64,
    /// Of these, those whose key may have worked until UCX had freed the memory.
    pub(crate) releases_failed: u64,
    /// Imports for which the map had an alias.
    pub(crate) alias_hits: u64,
    /// Imports, and keys that were announced, for which an alias had to be made.
    pub(crate) alias_misses: u64,
    /// Aliases of an exporter that was gone, replaced.
    pub(crate) alias_stale: u64,
    /// Aliases that the maps have now.
    pub(crate) aliases: u64,
    /// Imports served from the map.
    pub(crate) imports: u64,
    /// Imports left to UCX.
    pub(crate) imports_left: u64,
}

impl Numbers {
    /// Nothing was done yet.
    pub(crate) const NONE: Self = Self {
        pool_hits: 0,
        pool_misses: 0,
        pool_keys: 0,
        pool_in_use: 0,
        exports: 0,
        exports_left: 0,
        releases: 0,
        releases_failed: 0,
        alias_hits: 0,
        alias_misses: 0,
        alias_stale: 0,
        aliases: 0,
        imports: 0,
        imports_left: 0,
    };

    /// The sum of both.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            pool_hits: self.pool_hits + other.pool_hits,
            pool_misses: self.pool_misses + other.pool_misses,
            pool_keys: self.pool_keys + other.pool_keys,
            pool_in_use: self.pool_in_use + other.pool_in_use,
            exports: self.exports + other.exports,
            exports_left: self.exports_left + other.exports_left,
            releases: self.releases + other.releases,
            releases_failed: self.releases_failed + other.releases_failed,
            alias_hits: self.alias_hits + other.alias_hits,
            alias_misses: self.alias_misses + other.alias_misses,
            alias_stale: self.alias_stale + other.alias_stale,
            aliases: self.aliases + other.aliases,
            imports: self.imports + other.imports,
            imports_left: self.imports_left + other.imports_left,
        }
    }

    /// What remains of a memory domain that is closed: what it has done, not what it had.
    #[must_use]
    pub(crate) fn of_closed(self) -> Self {
        Self {
            pool_keys: 0,
            pool_in_use: 0,
            aliases: 0,
            ..self
        }
    }
}
