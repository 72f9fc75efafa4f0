//! The bytes of the tests: each sector's contents follow from its place, a seed and the kind of data.

use serde::{Deserialize, Serialize};

/// Bytes of a sector.
const SECTOR: usize = 512;
/// Bytes of a run of sectors of one kind in mixed data.
const RUN: u64 = 64 << 10;

/// Kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Half of it compresses: half of each sector repeats.
    Half,
    /// All but a stamp of each sector repeats.
    Plain,
    /// Runs of 64 KiB that are random, half compressible, plain, or zero.
    Mixed,
}

/// Fills `bytes`, which belong at `offset`. Both are multiples of a sector.
pub(crate) fn fill(bytes: &mut [u8], offset: u64, seed: u64, kind: Kind) {
    for (sector, at) in bytes.chunks_mut(SECTOR).zip((offset..).step_by(SECTOR)) {
        let random = match kind {
            Kind::Half => SECTOR / 2,
            Kind::Plain => 16,
            Kind::Mixed => match (at / RUN).wrapping_add(seed) % 4 {
                0 => SECTOR,
                1 => SECTOR / 2,
                2 => 16,
                _ => 0,
            },
        };
        let (noise, rest) = sector.split_at_mut(random);
        // The factor keeps the sums of different seeds and places apart.
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_add(1);
        fastrand::Rng::with_seed(state).fill(noise);
        rest.fill(if random == 0 { 0 } else { b'x' });
    }
}

/// Number of bytes that differ from those of [`fill`].
pub(crate) fn wrong(bytes: &[u8], offset: u64, seed: u64, kind: Kind) -> u64 {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, offset, seed, kind);
    if expected == bytes {
        return 0;
    }
    let pairs = expected.iter().zip(bytes);
    pairs.filter(|(a, b)| a != b).count() as u64
}
