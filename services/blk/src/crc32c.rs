//! CRC32C, as all formats and messages have it. Does no I/O.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC32C of bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    short(checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC32C of the bytes with this one, and of those behind them.
pub(crate) fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    short(digest.finalize())
}

fn short(crc: u64) -> u32 {
    // Cannot be cut: the algorithm has 32 bits.
    u32::try_from(crc).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn by_bits(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
            })
        })
    }

    /// Values that are published (RFC 3720, B.4).
    #[test]
    fn the_checksum_is_crc32c() {
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..5000), at in 0usize..5000) {
            let (first, rest) = bytes.split_at(at.min(bytes.len()));
            let crc = by_bits(&bytes);
            prop_assert_eq!(crc32c(&bytes), crc);
            prop_assert_eq!(crc32c_append(crc32c(first), rest), crc);
        }
    }
}
