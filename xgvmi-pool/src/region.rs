//! A checked piece of registered memory.

use crate::key::{Lkey, VirtAddr};

/// Registered memory to export: `len` bytes from `addr`, with the local key `lkey`. The
/// registration must outlive every key that is bound to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    addr: VirtAddr,
    len: u64,
    lkey: Lkey,
}

/// The reason why a region cannot be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region is empty. A key cannot be bound to zero bytes, and UCX does not register zero
    /// bytes either.
    #[error("region at {addr:?} is empty")]
    Empty {
        /// Requested start.
        addr: VirtAddr,
    },
    /// The end lies beyond the address space.
    #[error("region of {len} bytes at {addr:?} leaves the address space")]
    Wraps {
        /// Requested start.
        addr: VirtAddr,
        /// Requested length in bytes.
        len: u64,
    },
    /// A part of a span does not begin at the end of the previous part.
    #[error("a part of a span at {found:?}, the one before it ends at {expected:?}")]
    Gap {
        /// End of the previous part.
        expected: VirtAddr,
        /// Start of the part.
        found: VirtAddr,
    },
}

impl Region {
    /// Maximum number of bytes per KLM entry. The length field has 32 bits, and the adapter accepts
    /// lengths up to 2 GiB. Some implementations encode 2 GiB as zero and others as 2^31, so an entry
    /// has less: 2 GiB without the largest page, so that the next entry begins at a page too.
    pub const KLM_BYTES_MAX: u64 = (1 << 31) - (1 << 16);

    /// Creates a region. It needs no alignment.
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

    /// A region of the parts of another one. Calls off the hot path pass parts: the address of a region on
    /// the stack would keep the parts out of registers.
    pub(crate) const fn of_parts(addr: VirtAddr, len: u64, lkey: Lkey) -> Self {
        Self { addr, len, lkey }
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

    /// Number of KLM entries that cover the region.
    #[must_use]
    pub const fn klm_entries(&self) -> u64 {
        self.len.div_ceil(Self::KLM_BYTES_MAX)
    }

    /// Address and length of each KLM entry, in ascending order of addresses. No entry covers more
    /// than [`Region::KLM_BYTES_MAX`] bytes.
    pub fn klm_pieces(&self) -> impl ExactSizeIterator<Item = (VirtAddr, u32)> + use<> {
        let Self { addr, len, .. } = *self;
        // A 64-bit address space whose top is far below 2^62 has no region of more than 2^32
        // pieces, and the device refuses a key of so many entries long before.
        let entries = u32::try_from(self.klm_entries()).expect("a region ends below 2^62");
        (0..entries).map(move |entry| {
            let offset = u64::from(entry) * Self::KLM_BYTES_MAX;
            let piece = (len - offset).min(Self::KLM_BYTES_MAX);
            // The sum cannot overflow because the whole region was checked; the piece fits in 31
            // bits because of the minimum.
            (
                VirtAddr::new(addr.get() + offset),
                u32::try_from(piece).expect("a piece has at most 31 bits"),
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
        const MAX: u64 = 0x7fff_0000;
        let max = 0x7fff_0000;
        check(0x1001, 1, &[(0x1001, 1)]);
        check(0x1001, MAX - 1, &[(0x1001, max - 1)]);
        check(0x1000, MAX, &[(0x1000, max)]);
        check(0x1000, MAX + 7, &[(0x1000, max), (0x1000 + MAX, 7)]);
        check(7, 2 * MAX, &[(7, max), (7 + MAX, max)]);
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
