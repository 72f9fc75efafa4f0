//! A set of a slab's pages, one bit per page.

use super::pages::{SLAB_PAGES, Span};

/// Bits of a word.
const BITS: usize = 64;
/// Words of a set.
const WORDS: usize = SLAB_PAGES / BITS;

/// The set. All zero is the empty set.
#[derive(Clone, Debug)]
#[repr(transparent)]
pub(super) struct Pages([u64; WORDS]);

impl Pages {
    /// The empty set.
    #[cfg(test)]
    pub(super) const NONE: Self = Self([0; WORDS]);

    /// True if the page is in the set.
    #[cfg(test)]
    pub(super) fn has(&self, page: usize) -> bool {
        self.0[page / BITS] >> (page % BITS) & 1 != 0
    }

    /// Adds all pages of the span.
    pub(super) fn add(&mut self, span: Span) {
        self.each_word(span, |word, mask| *word |= mask);
    }

    /// Removes all pages of the span.
    pub(super) fn remove(&mut self, span: Span) {
        self.each_word(span, |word, mask| *word &= !mask);
    }

    /// Number of pages of the span that are in the set.
    pub(super) fn count(&self, span: Span) -> usize {
        self.count_where(span, |_| u64::MAX)
    }

    /// Number of pages of the span that are in the set and in that of the words `other`.
    pub(super) fn count_where(&self, span: Span, other: impl Fn(usize) -> u64) -> usize {
        masks(span)
            .map(|(at, mask)| (self.0[at] & other(at) & mask).count_ones() as usize)
            .sum()
    }

    /// Removes the pages of the span that are not in the set of the words `others`. Returns their number.
    pub(super) fn keep_only(&mut self, span: Span, others: impl Fn(usize) -> u64) -> usize {
        let mut removed = 0;
        for (at, mask) in masks(span) {
            let out = self.0[at] & mask & !others(at);
            self.0[at] &= !out;
            removed += out.count_ones() as usize;
        }
        removed
    }

    /// The word of 64 pages.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.0[at]
    }

    /// True if all pages of the span are in the set.
    pub(super) fn has_all(&self, span: Span) -> bool {
        masks(span).all(|(at, mask)| self.0[at] & mask == mask)
    }

    /// True if no page of the span is in the set.
    pub(super) fn has_none(&self, span: Span) -> bool {
        masks(span).all(|(at, mask)| self.0[at] & mask == 0)
    }

    /// The first run of at least one page inside the span whose membership is `wanted`.
    pub(super) fn run(&self, span: Span, wanted: bool) -> Option<Span> {
        let first = self.first(span, wanted)?;
        let rest = Span::new(first, span.end());
        let end = self.first(rest, !wanted).unwrap_or(span.end());
        Some(Span::new(first, end))
    }

    /// The first page of the span whose membership is `wanted`.
    fn first(&self, span: Span, wanted: bool) -> Option<usize> {
        masks(span).find_map(|(at, mask)| {
            let word = if wanted { self.0[at] } else { !self.0[at] };
            let found = word & mask;
            (found != 0).then(|| at * BITS + found.trailing_zeros() as usize)
        })
    }

    /// The first place for `count` pages that are not in the set.
    pub(super) fn place(&self, count: usize) -> Option<Span> {
        let (mut first, mut length) = (0, 0);
        for (at, &word) in self.0.iter().enumerate() {
            let mut bit = 0;
            while bit < BITS {
                let rest = word >> bit;
                let in_set = rest.trailing_ones() as usize;
                if in_set > 0 {
                    length = 0;
                    bit += in_set;
                    continue;
                }
                let free = (rest.trailing_zeros() as usize).min(BITS - bit);
                if length == 0 {
                    first = at * BITS + bit;
                }
                length += free;
                if length >= count {
                    return Some(Span::new(first, first + count));
                }
                bit += free;
            }
        }
        None
    }

    fn each_word(&mut self, span: Span, change: impl Fn(&mut u64, u64)) {
        for (at, mask) in masks(span) {
            change(&mut self.0[at], mask);
        }
    }
}

/// Index and mask of each word of the span.
fn masks(span: Span) -> impl Iterator<Item = (usize, u64)> {
    let words = span.first / BITS..span.end().div_ceil(BITS);
    words.map(move |at| {
        let low = span.first.saturating_sub(at * BITS);
        let high = (span.end() - at * BITS).min(BITS);
        (at, (u64::MAX >> (BITS - (high - low))) << low)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_any_place_and_length_are_counted() {
        for (first, end) in [(0, 1), (0, 64), (63, 65), (1, 200), (64, 128), (8191, 8192)] {
            let span = Span::new(first, end);
            let mut pages = Pages::NONE;
            assert!(pages.has_none(span));
            pages.add(span);
            assert!(pages.has_all(span) && pages.has(first) && pages.has(end - 1));
            assert_eq!(pages.count(Span::new(0, SLAB_PAGES)), end - first);
            assert_eq!(pages.run(Span::new(0, SLAB_PAGES), true), Some(span));
            pages.remove(span);
            assert_eq!(pages.count(Span::new(0, SLAB_PAGES)), 0);
        }
    }

    #[test]
    fn pages_of_several_sets_are_counted_and_removed_word_by_word() {
        let (mut pages, mut others) = (Pages::NONE, Pages::NONE);
        pages.add(Span::new(10, 300));
        others.add(Span::new(70, 80));
        others.add(Span::new(200, 8000));
        let span = Span::new(60, 250);
        assert_eq!(pages.count_where(span, |at| others.word(at)), 10 + 50);
        assert_eq!(pages.keep_only(span, |at| others.word(at)), 10 + 120);
        assert_eq!(pages.count(Span::new(0, SLAB_PAGES)), 290 - 130);
        assert!(pages.has_all(Span::new(10, 60)) && pages.has_all(Span::new(70, 80)));
        assert!(pages.has_none(Span::new(80, 200)) && pages.has_all(Span::new(200, 300)));
    }

    #[test]
    fn a_place_is_the_first_that_is_long_enough() {
        let mut pages = Pages::NONE;
        pages.add(Span::new(3, 70));
        pages.add(Span::new(72, 100));
        assert_eq!(pages.place(3), Some(Span::new(0, 3)));
        assert_eq!(pages.place(2), Some(Span::new(0, 2)));
        assert_eq!(pages.place(4), Some(Span::new(100, 104)));
        assert_eq!(
            pages.place(SLAB_PAGES - 100),
            Some(Span::new(100, SLAB_PAGES))
        );
        assert_eq!(pages.place(SLAB_PAGES - 99), None);
        pages.add(Span::new(0, SLAB_PAGES));
        assert_eq!(pages.place(1), None);
    }
}
