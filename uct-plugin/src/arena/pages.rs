//! Units of the arena: pages, slabs, and rows of pages.

pub(super) use crate::system_pages::PAGE;

/// Bytes of a slab: one registration.
pub(super) const SLAB_BYTES: usize = 32 << 20;
/// Pages of a slab.
pub(super) const SLAB_PAGES: usize = SLAB_BYTES / PAGE;
/// A not empty row of pages of one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first page.
    pub(super) first: usize,
    end: usize,
}

impl Span {
    /// The pages from `first` to before `end`.
    pub(super) fn new(first: usize, end: usize) -> Self {
        debug_assert!(first < end && end <= SLAB_PAGES);
        Self { first, end }
    }

    /// All pages of a slab.
    pub(super) const ALL: Self = Self {
        first: 0,
        end: SLAB_PAGES,
    };

    /// The page after the last one.
    pub(super) fn end(self) -> usize {
        self.end
    }

    /// Number of pages.
    pub(super) fn count(self) -> usize {
        self.end - self.first
    }
}
