//! A hash of short keys for the tables of the data path.
//!
//! The standard library's hash takes about a hundred instructions. Peers choose some of the keys, so the hash depends
//! on a random number, as that one does.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A map with this hash.
pub type Map<K, V> = std::collections::HashMap<K, V, Seed>;

/// The random number of a table.
#[derive(Debug, Clone)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seed {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// Multiplies each word into the state, and folds the high half of the product into the low half.
#[derive(Debug)]
pub struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ word) * u128::from(ODD);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        self.0 = low ^ high;
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
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
