//! The forms of bind requests. The device proves each form before the first bind with it.

use std::fmt;

use crate::region::Region;
use crate::span::Span;

/// The encoding of a bind. Invalidations have one form, and the proof of each bind form includes
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Form {
    /// One registration below 2 GiB: libmlx5's request for `IBV_WR_BIND_MW` of a type 1 window,
    /// which stock UCX posts.
    Stock,
    /// Several registrations, or 2 GiB and more: the same request with a longer translation list.
    /// No stock program posts it.
    List,
}

impl Form {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Stock, Self::List];

    /// Length from which on a region needs the list: the length of a list entry has 31 bits.
    pub const STOCK_BYTES_END: u64 = 1 << 31;

    /// The form of a bind to this memory.
    #[must_use]
    #[inline]
    pub fn of(span: &Span<'_>) -> Self {
        match Self::stock_region(span) {
            Some(_) => Self::Stock,
            None => Self::List,
        }
    }

    /// The one region of a bind in the stock form, and its length.
    #[inline]
    pub(super) fn stock_region<'a>(span: &'a Span<'_>) -> Option<(&'a Region, u32)> {
        match span.regions() {
            [region] => Some((region, Self::stock_bytes(*region)?)),
            _ => None,
        }
    }

    /// Length of a region that a bind in the stock form can cover.
    #[inline]
    pub(super) fn stock_bytes(region: Region) -> Option<u32> {
        match region.len() < Self::STOCK_BYTES_END {
            true => u32::try_from(region.len()).ok(),
            false => None,
        }
    }

    /// The form's index in a table of forms.
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Stock => 0,
            Self::List => 1,
        }
    }

    /// The form's bit in a set of forms.
    #[inline]
    pub(super) const fn bit(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::List => 2,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stock => "stock",
            Self::List => "list",
        })
    }
}
