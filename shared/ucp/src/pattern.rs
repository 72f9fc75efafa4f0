//! A byte pattern for buffers, and its verification.
//!
//! Word `i` of a message is `seed + i * STEP` (64 bits, wrapping, little endian). The seed is
//! unique to the message, so a stale, shifted, swapped or torn word differs. Filling and checking
//! run at memory speed.

/// Odd, so that all words of a message differ; 2^64 / golden ratio, so that neighbours share no
/// byte.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Block size of the check: small enough to find the first wrong byte soon, large enough to
/// vectorise.
const BLOCK: usize = 4096;

/// The contents of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

/// The bytes that differ from a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Number of differing bytes.
    pub bytes: u64,
    /// Offset of the first one.
    pub first: usize,
}

impl Pattern {
    /// The pattern of the message with this identity.
    #[must_use]
    pub fn new(identity: &[u64]) -> Self {
        Self {
            seed: identity.iter().fold(STEP, |seed, part| mix(seed ^ part)),
        }
    }

    /// Writes the pattern over all of `bytes`.
    pub fn fill(self, bytes: &mut [u8]) {
        let (words, tail) = bytes.as_chunks_mut::<8>();
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(index).to_le_bytes();
        }
        let last = self.word(words.len()).to_le_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
    }

    /// Compares every byte. `None` if all are correct.
    #[must_use]
    pub fn check(self, bytes: &[u8]) -> Option<Mismatch> {
        let mut found: Option<Mismatch> = None;
        for (block, chunk) in bytes.chunks(BLOCK).enumerate() {
            let start = block * BLOCK;
            if self.differs(start, chunk) {
                for (offset, byte) in chunk.iter().enumerate() {
                    let at = start + offset;
                    if *byte != self.word(at / 8).to_le_bytes()[at % 8] {
                        let mismatch = found.get_or_insert(Mismatch {
                            bytes: 0,
                            first: at,
                        });
                        mismatch.bytes += 1;
                    }
                }
            }
        }
        found
    }

    /// Whether `chunk`, at offset `start` (a multiple of 8) of the message, contains a wrong byte.
    fn differs(self, start: usize, chunk: &[u8]) -> bool {
        let (words, tail) = chunk.as_chunks::<8>();
        let first = start / 8;
        let wrong = words.iter().enumerate().fold(0, |wrong, (index, word)| {
            wrong | (u64::from_le_bytes(*word) ^ self.word(first + index))
        });
        let expected = self.word(first + words.len()).to_le_bytes();
        wrong != 0 || tail != &expected[..tail.len()]
    }

    fn word(self, index: usize) -> u64 {
        self.seed.wrapping_add((index as u64).wrapping_mul(STEP))
    }
}

/// The finaliser of splitmix64: each input bit changes about half of the output bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(identity: &[u64], length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        Pattern::new(identity).fill(&mut bytes);
        bytes
    }

    fn check(change: impl Fn(&mut Vec<u8>), expect: Option<Mismatch>) {
        for length in [3 * BLOCK, 3 * BLOCK + 13] {
            let mut bytes = filled(&[1, 2, 3], length);
            change(&mut bytes);
            assert_eq!(
                Pattern::new(&[1, 2, 3]).check(&bytes),
                expect,
                "{length} bytes"
            );
        }
    }

    #[test]
    fn what_was_filled_is_right() {
        check(|_| (), None);
        assert_eq!(Pattern::new(&[9]).check(&[]), None);
    }

    #[test]
    fn each_wrong_byte_is_counted_and_the_first_is_named() {
        check(|bytes| bytes[0] ^= 1, Some(Mismatch { bytes: 1, first: 0 }));
        check(
            |bytes| bytes[BLOCK + 7] ^= 0x80,
            Some(Mismatch {
                bytes: 1,
                first: BLOCK + 7,
            }),
        );
        check(
            |bytes| {
                for at in [17, BLOCK + 18, 2 * BLOCK + 4095] {
                    bytes[at] = !bytes[at];
                }
            },
            Some(Mismatch {
                bytes: 3,
                first: 17,
            }),
        );
    }

    #[test]
    fn a_wrong_last_byte_of_an_odd_length_is_found() {
        let mut bytes = filled(&[5], BLOCK + 3);
        bytes[BLOCK + 2] ^= 4;
        assert_eq!(
            Pattern::new(&[5]).check(&bytes),
            Some(Mismatch {
                bytes: 1,
                first: BLOCK + 2
            })
        );
    }

    #[test]
    fn stale_and_shifted_messages_are_wrong_nearly_everywhere() {
        let length = 2 * BLOCK;
        let almost = |bytes: &[u8]| {
            let wrong = Pattern::new(&[1, 2, 3]).check(bytes).map_or(0, |m| m.bytes);
            assert!(wrong > length as u64 * 9 / 10, "{wrong} of {length}");
        };
        almost(&filled(&[1, 2, 4], length));
        almost(&filled(&[1, 3, 2], length));
        let mut shifted = filled(&[1, 2, 3], length);
        shifted.rotate_left(8);
        almost(&shifted);
    }
}
