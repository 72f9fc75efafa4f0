//! A span: memory of one registration, or of several adjacent registrations, to bind a key to.

use crate::key::{Lkey, VirtAddr};
use crate::region::{Region, RegionError};

/// One region, or several regions without a gap between them. Applications often register large
/// memory in pieces, with several threads at once. One key then covers all pieces.
///
/// ```
/// use xgvmi_pool::{Lkey, Region, Span, VirtAddr};
///
/// let part = |addr, lkey| Region::new(VirtAddr::new(addr), 0x1000, Lkey::from_raw(lkey));
/// let parts = [part(0x7000, 0x4100)?, part(0x8000, 0x4200)?];
/// let span = Span::of(&parts)?;
/// assert_eq!((span.addr(), span.len()), (VirtAddr::new(0x7000), 0x2000));
/// assert!(Span::of(&[parts[1], parts[0]]).is_err());
/// # Ok::<(), xgvmi_pool::RegionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    parts: Parts<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts<'a> {
    One(Region),
    Many {
        len: u64,
        klm_entries: u64,
        /// At least two.
        parts: &'a [Region],
    },
}

impl From<Region> for Span<'_> {
    #[inline]
    fn from(region: Region) -> Self {
        Self {
            parts: Parts::One(region),
        }
    }
}

impl<'a> Span<'a> {
    /// The span of these regions, which must be in ascending order of addresses.
    ///
    /// # Errors
    /// If the slice is empty, or a region does not begin at the end of the previous one.
    pub fn of(parts: &'a [Region]) -> Result<Self, RegionError> {
        let (first, rest) = match parts {
            [] => {
                let addr = VirtAddr::new(0);
                return Err(RegionError::Empty { addr });
            }
            [region] => return Ok((*region).into()),
            [first, rest @ ..] => (first, rest),
        };
        let (mut len, mut klm_entries) = (first.len(), first.klm_entries());
        for region in rest {
            // No overflow: `first` and `len` lie within the address space. Otherwise the check of
            // the previous region would have failed.
            let expected = VirtAddr::new(first.addr().get() + len);
            if region.addr() != expected {
                let found = region.addr();
                return Err(RegionError::Gap { expected, found });
            }
            // No overflow: every region ends within the address space and begins at this length.
            len += region.len();
            klm_entries += region.klm_entries();
        }
        Ok(Self {
            parts: Parts::Many {
                len,
                klm_entries,
                parts,
            },
        })
    }

    /// First byte.
    #[must_use]
    pub fn addr(&self) -> VirtAddr {
        self.first().addr()
    }

    /// Length in bytes, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a span is never empty")]
    pub fn len(&self) -> u64 {
        match self.parts {
            Parts::One(region) => region.len(),
            Parts::Many { len, .. } => len,
        }
    }

    /// The regions, in the order of their addresses.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        match &self.parts {
            Parts::One(region) => std::slice::from_ref(region),
            Parts::Many { parts, .. } => parts,
        }
    }

    /// Number of KLM entries that cover the span.
    #[must_use]
    #[inline]
    pub fn klm_entries(&self) -> u64 {
        match self.parts {
            Parts::One(region) => region.klm_entries(),
            Parts::Many { klm_entries, .. } => klm_entries,
        }
    }

    /// Address, length and local key of each KLM entry, in ascending order of addresses. See
    /// [`Region::klm_pieces`].
    pub fn klm_pieces(&self) -> impl Iterator<Item = (VirtAddr, u32, Lkey)> + '_ {
        self.regions().iter().flat_map(|region| {
            let lkey = region.lkey();
            region
                .klm_pieces()
                .map(move |(addr, len)| (addr, len, lkey))
        })
    }

    fn first(&self) -> &Region {
        match &self.parts {
            Parts::One(region) => region,
            Parts::Many { parts, .. } => &parts[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn region(addr: u64, len: u64, lkey: u32) -> Region {
        Region::new(VirtAddr::new(addr), len, Lkey::from_raw(lkey)).expect("a region")
    }

    #[test]
    fn pieces_keep_to_the_borders_of_the_regions() {
        // UCX registers 4 GiB at an odd page like this: a short chunk, one of 2 GiB, and the rest.
        let parts = [
            region(0x5000_1000, 0x2fff_f000, 1),
            region(0x8000_0000, 2 * GIB, 2),
            region(0x1_0000_0000, GIB + 0x1000, 3),
        ];
        let span = Span::of(&parts).expect("no gap");
        assert_eq!(span.len(), 0x2fff_f000 + 3 * GIB + 0x1000);
        let pieces: Vec<_> = span
            .klm_pieces()
            .map(|(addr, len, lkey)| (addr.get(), u64::from(len), lkey.raw()))
            .collect();
        assert_eq!(
            pieces,
            [
                (0x5000_1000, 0x2fff_f000, 1),
                (0x8000_0000, 2 * GIB - 0x1_0000, 2),
                (0xffff_0000, 0x1_0000, 2),
                (0x1_0000_0000, GIB + 0x1000, 3),
            ]
        );
        assert_eq!(span.klm_entries(), 4);
    }

    #[test]
    fn one_region_is_a_span() {
        let one = region(0x1000, 5, 7);
        assert_eq!(Span::of(&[one]), Ok(one.into()));
        assert_eq!(Span::from(one).regions(), [one]);
    }

    #[track_caller]
    fn check_refused(parts: &[Region], expect: RegionError) {
        assert_eq!(Span::of(parts), Err(expect));
    }

    #[test]
    fn what_is_no_span_is_refused() {
        let addr = VirtAddr::new;
        check_refused(&[], RegionError::Empty { addr: addr(0) });
        let (expected, found) = (addr(0x2000), addr(0x2001));
        let gap = [region(0x1000, 0x1000, 1), region(0x2001, 1, 2)];
        check_refused(&gap, RegionError::Gap { expected, found });
        let (expected, found) = (addr(0x2000), addr(0x1fff));
        let overlap = [region(0x1000, 0x1000, 1), region(0x1fff, 8, 2)];
        check_refused(&overlap, RegionError::Gap { expected, found });
    }
}
