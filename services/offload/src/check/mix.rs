//! Random bits that all ranks can compute.

/// The step and the finalizer of splitmix64, applied to several words.
pub(super) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x5851_f42d_4c95_7f2d, |state, word| {
        let mut bits = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    })
}
