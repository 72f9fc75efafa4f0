//! A hash of short keys for the tables of the data path.
//!
//! The standard library's hash takes about a hundred instructions. Peers choose some of the keys, so the hash depends
//! on random numbers of the system, as that one does.

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// A map with this hash.
pub type Map<K, V> = std::collections::HashMap<K, V, Seed>;

/// The random numbers of a table: one of its own, and those of the process.
#[derive(Debug, Clone)]
pub struct Seed(SeedableRandomState);

impl Default for Seed {
    fn default() -> Self {
        // The library's own seeds follow from addresses and the time.
        static PROCESS: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(random()));
        Self(SeedableRandomState::with_seed(random(), &PROCESS))
    }
}

impl BuildHasher for Seed {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// A number that follows from the system's random numbers.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_spread_over_the_table_and_differently_in_each() {
        let seeds = [Seed::default(), Seed::default()];
        let low = |seed: &Seed| -> BTreeSet<u64> {
            (0..1024_u32)
                .map(|key| seed.hash_one((key, 7_u64)) % 4096)
                .collect()
        };
        for seed in &seeds {
            // Random places: 1,024 keys take about 906 of 4,096.
            assert!(low(seed).len() > 700);
        }
        assert_ne!(seeds[0].hash_one(1_u32), seeds[1].hash_one(1_u32));
    }
}
