//! A piece of registered memory, checked once.

use crate::key::{Lkey, VirtAddr};

/// Memory that its owner registered and wants to export: `len` bytes from `addr`, reached locally
/// with `lkey`. The registration must outlive every key that is bound to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    addr: VirtAddr,
    len: u64,
    lkey: Lkey,
}

/// Why a region cannot be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// No byte: no key stands for nothing, and UCX does not register nothing either.
    #[error("region at {addr:?} is empty")]
    Empty {
        /// Where it was to start.
        addr: VirtAddr,
    },
    /// The end lies beyond the address space.
    #[error("region of {len} bytes at {addr:?} leaves the address space")]
    Wraps {
        /// Where it starts.
        addr: VirtAddr,
        /// Its length in bytes.
        len: u64,
    },
    /// A part of a span does not begin where the one before it ends.
    #[error("a part of a span at {found:?}, the one before it ends at {expected:?}")]
    Gap {
        /// Where it should begin.
        expected: VirtAddr,
        /// Where it begins.
        found: VirtAddr,
    },
}

impl Region {
    /// Bytes that one KLM entry covers at most. The length field is 32 bits wide and the adapter
    /// takes lengths up to 2 GiB, the last of them written as zero by some and as 2^31 by others;
    /// half of it has one spelling only.
    pub const KLM_BYTES_MAX: u64 = 1 << 30;

    /// The region, if it is one. It need not be aligned to anything.
    ///
    /// # Errors
    /// If it is empty or leaves the address space.
    pub const fn new(addr: VirtAddr, len: u64, lkey: Lkey) -> Result<Self, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty { addr });
        }
        match addr.checked_add(len) {
            Some(_) => Ok(Self { addr, len, lkey }),
            None => Err(RegionError::Wraps { addr, len }),
        }
    }

    /// First byte.
    #[must_use]
    pub const fn addr(&self) -> VirtAddr {
        self.addr
    }

    /// Length in bytes, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Local key of the registration.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// KLM entries that a key needs to cover the region.
    #[must_use]
    pub const fn klm_entries(&self) -> u64 {
        self.len.div_ceil(Self::KLM_BYTES_MAX)
    }

    /// The pieces of at most [`Region::KLM_BYTES_MAX`] bytes that the KLM entries stand for, in the
    /// order of their addresses: address and length of each.
    pub fn klm_pieces(&self) -> impl ExactSizeIterator<Item = (VirtAddr, u32)> + use<> {
        let Self { addr, len, .. } = *self;
        // Regions of more than 2^32 pieces do not exist in a 64-bit address space whose top is far
        // below 2^62, and a key of so many entries is refused long before.
        let entries = u32::try_from(self.klm_entries()).unwrap_or(u32::MAX);
        (0..entries).map(move |entry| {
            let offset = u64::from(entry) * Self::KLM_BYTES_MAX;
            let piece = (len - offset).min(Self::KLM_BYTES_MAX);
            // The sum cannot overflow because the whole region was checked; the piece fits in 31
            // bits because of the minimum.
            (
                VirtAddr::new(addr.get() + offset),
                u32::try_from(piece).unwrap_or(u32::MAX),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LKEY: Lkey = Lkey::from_raw(0x4100);

    #[track_caller]
    fn check(addr: u64, len: u64, expect: &[(u64, u32)]) {
        let region = Region::new(VirtAddr::new(addr), len, LKEY).expect("a good region");
        let pieces: Vec<_> = region
            .klm_pieces()
            .map(|(addr, len)| (addr.get(), len))
            .collect();
        assert_eq!(pieces, expect);
        assert_eq!(region.klm_entries(), expect.len() as u64);
    }

    #[test]
    fn pieces_cover_the_region_without_gap() {
        const GIB: u64 = 1 << 30;
        let gib = 1 << 30;
        check(0x1001, 1, &[(0x1001, 1)]);
        check(0x1001, GIB - 1, &[(0x1001, gib - 1)]);
        check(0x1000, GIB, &[(0x1000, gib)]);
        check(0x1000, GIB + 7, &[(0x1000, gib), (0x1000 + GIB, 7)]);
        check(7, 2 * GIB, &[(7, gib), (7 + GIB, gib)]);
    }

    #[test]
    fn what_is_no_region_is_refused() {
        let addr = VirtAddr::new(0x1000);
        assert_eq!(Region::new(addr, 0, LKEY), Err(RegionError::Empty { addr }));
        let len = u64::MAX - 0xfff;
        assert_eq!(
            Region::new(addr, len, LKEY),
            Err(RegionError::Wraps { addr, len })
        );
        assert!(Region::new(addr, len - 1, LKEY).is_ok());
    }
}
