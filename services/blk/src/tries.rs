//! Which blocks are worth a compression: it is left out where it has saved nothing lately. Does no I/O.

/// Blocks in a row that saved nothing, after which compression is left out if a sample looks like noise or like the last one
/// of them.
const IN_VAIN: u32 = 8;
/// Of so many of these one is compressed at first, and of twice as many each time that this is in vain, up to the second number.
const TRIED: [u32; 2] = [32, 256];
/// Samples in a row that look so, after which of so many blocks one is looked at until one does not look so.
const ALIKE: u32 = 32;
const LOOKED_AT: u32 = 16;
/// Words of a sample.
const SAMPLE: usize = 32;

/// Whether compression has saved something lately.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// Blocks that were compressed in a row and saved nothing, up to [`IN_VAIN`].
    in_vain: u32,
    /// Blocks of which one is compressed, see [`TRIED`]; 0: all are.
    every: u32,
    /// Those before the next one.
    left: u32,
    /// How uneven the last one of them was that was compressed.
    uneven: u32,
    /// Blocks in a row whose sample looked like noise or like that one, up to [`ALIKE`], and those since that were not looked at.
    alike: u32,
}

impl Tries {
    /// True if compression of a block should be tried.
    pub(crate) fn tries(&mut self, block: &[u8]) -> bool {
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        self.alike += 1;
        if self.alike > ALIKE {
            if self.alike < ALIKE + LOOKED_AT {
                return false;
            }
            self.alike = ALIKE;
        }
        let (uneven, noise) = unevenness(block);
        // Bytes of some values only, such as those of numbers, save nothing either if none of them come again together.
        let differs = uneven > (noise + noise / 2).max(self.uneven + self.uneven / 8);
        if differs {
            self.alike = 0;
        }
        differs
    }

    /// Compression was tried.
    pub(crate) fn learn(&mut self, block: &[u8], saves: bool) {
        if saves {
            *self = Self::default();
            return;
        }
        self.in_vain = (self.in_vain + 1).min(IN_VAIN);
        if self.in_vain == IN_VAIN {
            self.uneven = unevenness(block).0;
            if self.left == 0 {
                let [first, last] = TRIED;
                self.every = (2 * self.every).clamp(first, last);
                self.left = self.every - 1;
            }
        }
    }
}

/// How unevenly bytes from all of a block are distributed, and about how unevenly so many bytes of noise are.
fn unevenness(block: &[u8]) -> (u32, u32) {
    let words = block.as_chunks::<8>().0;
    let step = (words.len() / SAMPLE).max(1);
    let mut counts = [0u16; 256];
    let mut sampled = 0;
    for (nth, part) in words.chunks_exact(step).enumerate() {
        for byte in part[nth % step] {
            counts[usize::from(byte)] += 1;
        }
        sampled += 8;
    }
    // Behind the counts: several at once, and no count waits for the sum.
    let squares = counts.iter().map(|count| u32::from(*count).pow(2)).sum();
    // Of noise the sum of the squares is about n + n^2 / 256.
    (squares, sampled + sampled * sampled / 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..4096).map(|_| random.u8(..)).collect()
    }

    /// Blocks that do not look like noise are missed behind much noise only, and few of them.
    #[test]
    fn what_does_not_look_like_noise_is_tried_soon() {
        for before in [0, 7, 8, 20, 1000, 1001, 1002] {
            let mut tries = Tries::default();
            for seed in 0..before {
                if tries.tries(&noise(seed)) {
                    tries.learn(&noise(seed), false);
                }
            }
            let mut missed = 0;
            while !tries.tries(&[7; 4096]) {
                missed += 1;
            }
            let most = if before < 20 { 0 } else { LOOKED_AT - 1 };
            assert!(missed <= most, "{missed} behind {before}");
            tries.learn(&[7; 4096], true);
            assert!(tries.tries(&noise(0)));
        }
    }
}
