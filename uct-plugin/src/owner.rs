//! Numbers of exporters. Part of a number is a checksum of the rest, so an importer recognises the
//! exporters that use this library.
//!
//! The keys of such an exporter stay in its pool, whatever their tag is. A key that the pool created
//! again on the index of a destroyed one has another tag than UCX's pooled keys, and UCX's unpooled
//! keys have such tags too.

use std::fs::File;
use std::io::Read as _;

use xgvmi_pool::OwnerUuid;

/// Bits of a number that are random. The others are the checksum: one in 16 million foreign numbers
/// matches.
const RANDOM_BITS: u32 = 40;
const RANDOM: u64 = (1 << RANDOM_BITS) - 1;

/// A number that is unique among exporters. `None` without random numbers.
pub(crate) fn draw() -> Option<OwnerUuid> {
    let mut bytes = [0_u8; 8];
    File::open("/dev/urandom")
        .ok()?
        .read_exact(&mut bytes)
        .ok()?;
    Some(OwnerUuid::new(marked(u64::from_ne_bytes(bytes))))
}

/// True if the exporter uses this library, which keeps its keys in a pool.
pub(crate) const fn has_pool(owner: OwnerUuid) -> bool {
    let number = owner.get();
    number == marked(number)
}

/// The number with these random bits. Never zero, which means "unknown" on the wire.
const fn marked(random: u64) -> u64 {
    let random = random & RANDOM;
    // The text makes the checksum of zero differ from zero.
    let mixed = (random ^ u64::from_le_bytes(*b"xgvmi st")).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    random | (mixed >> RANDOM_BITS) << RANDOM_BITS
}

const _: () = assert!(marked(0) != 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_this_library_are_recognised_and_others_are_not() {
        let drawn: Vec<OwnerUuid> = (0..64).filter_map(|_| draw()).collect();
        assert_eq!(drawn.len(), 64);
        assert!(
            drawn
                .iter()
                .all(|owner| has_pool(*owner) && owner.get() != 0)
        );
        let different: std::collections::BTreeSet<u64> =
            drawn.iter().map(|owner| owner.get()).collect();
        assert_eq!(different.len(), 64);
        for other in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert!(!has_pool(OwnerUuid::new(other)), "{other:#x}");
        }
        for owner in drawn {
            for bit in 0..64 {
                assert!(
                    !has_pool(OwnerUuid::new(owner.get() ^ 1 << bit)),
                    "{owner:?} {bit}"
                );
            }
        }
    }
}
