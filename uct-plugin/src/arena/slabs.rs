//! The slab table: which pages of the arena the program has, which rest, and which are free. This
//! module does no I/O and touches no memory of the program.
//!
//! A page is in one of four states:
//! - *free*: a new range may get it.
//! - *live*: the program has mapped it.
//! - *resting*: the program has unmapped it, and a memory handle still covers it.
//! - *retired*: it is never part of a new range. Its mapping may no longer be the one that was
//!   registered, or its key may still work.
//!
//! A *pin* is one memory handle over a page.

use super::bits::Pages;
use super::pages::{SLAB_PAGES, Span};

/// Parts of a range that are zeroed separately. Further parts are zeroed together with the pages
/// between them.
const PARTS: usize = 4;

/// State of a slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Address space only. Zeroed memory has this value.
    #[default]
    Absent = 0,
    /// A thread maps its memory.
    Making,
    /// Ranges are taken from it.
    Ready,
    /// No new ranges; its registrations end.
    Going,
}

/// One slab. All zero is an absent one.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    state: State,
    /// NUMA node of its memory.
    node: u32,
    /// Number of pages that are not free.
    used_count: usize,
    /// Time at which its last page became free.
    empty_since_ms: u64,
    /// Pages that are live, resting or retired.
    used: Pages,
    live: Pages,
    retired: Pages,
    /// Pages that may contain other bytes than zero.
    dirty: Pages,
    /// Pages with memory handles.
    pinned: Pages,
    /// Number of memory handles over each page.
    pins: [u16; SLAB_PAGES],
}

/// A new range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) slab: usize,
    pub(super) span: Span,
    /// Parts that the caller must zero before the program gets the range.
    parts: [Option<Span>; PARTS],
}

impl Range {
    /// Parts that the caller must zero before the program gets the range.
    pub(super) fn dirty(&self) -> impl Iterator<Item = Span> + use<> {
        self.parts.into_iter().flatten()
    }
}

/// Answer to a request for a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    Range(Range),
    /// No slab has space. The caller maps the memory of this one, reports it with
    /// [`Slabs::made`], and asks again.
    Make(usize),
    /// No slab has space, and there can be no further one.
    Full,
}

/// Result of unmapping pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// Pages that are free or rest now.
    pub(super) pages: usize,
    /// Of these, pages that rest.
    pub(super) resting: usize,
    /// True if some pages are retired: the caller must unmap those really.
    pub(super) has_retired: bool,
}

impl Slab {
    #[cfg(test)]
    pub(super) const ABSENT: Self = Self {
        state: State::Absent,
        node: 0,
        used_count: 0,
        empty_since_ms: 0,
        used: Pages::NONE,
        live: Pages::NONE,
        retired: Pages::NONE,
        dirty: Pages::NONE,
        pinned: Pages::NONE,
        pins: [0; SLAB_PAGES],
    };

    /// Frees the pages of the span that nothing holds.
    fn settle(&mut self, span: Span, now_ms: u64) {
        let (pinned, live, retired) = (&self.pinned, &self.live, &self.retired);
        let held = |at| pinned.word(at) | live.word(at) | retired.word(at);
        self.used_count -= self.used.keep_only(span, held);
        if self.used_count == 0 {
            self.empty_since_ms = now_ms;
        }
    }

    /// Counts a memory handle over the pages. False if a page has too many.
    fn pin(&mut self, span: Span) -> bool {
        let pins = &mut self.pins[span.first..span.end()];
        // The whole span in each pass: the compiler then handles many pages at once.
        if pins.iter().fold(0, |most, pins| most.max(*pins)) == u16::MAX {
            return false;
        }
        for pins in pins {
            *pins += 1;
        }
        self.pinned.add(span);
        true
    }

    /// Ends a memory handle over the pages.
    fn unpin(&mut self, span: Span) {
        let pins = &mut self.pins[span.first..span.end()];
        for pins in &mut *pins {
            *pins = pins.saturating_sub(1);
        }
        if pins.iter().fold(0, |any, pins| any | *pins) == 0 {
            return self.pinned.remove(span);
        }
        for page in span.first..span.end() {
            if self.pins[page] == 0 {
                self.pinned.remove(Span::new(page, page + 1));
            }
        }
    }

    fn take(&mut self, count: usize) -> Option<(Span, [Option<Span>; PARTS])> {
        if SLAB_PAGES - self.used_count < count {
            return None;
        }
        let span = self.used.place(count)?;
        let mut parts = [None; PARTS];
        let mut from = span.first;
        for (number, part) in (1..).zip(&mut parts) {
            if from == span.end() {
                break;
            }
            let Some(run) = self.dirty.run(Span::new(from, span.end()), true) else {
                break;
            };
            // The last part covers the rest.
            from = if number == PARTS {
                span.end()
            } else {
                run.end()
            };
            *part = Some(Span::new(run.first, from));
        }
        self.used.add(span);
        self.live.add(span);
        self.dirty.add(span);
        self.used_count += count;
        Some((span, parts))
    }
}

/// The table over the slabs' memory.
#[derive(Debug)]
pub(super) struct Slabs<S> {
    slabs: S,
    /// True if there is no further slab, because one could not be registered.
    is_capped: bool,
}

impl<S: AsRef<[Slab]> + AsMut<[Slab]>> Slabs<S> {
    /// The table of these slabs, all of which are absent.
    pub(super) const fn new(slabs: S) -> Self {
        Self {
            slabs,
            is_capped: false,
        }
    }

    fn slab(&self, slab: usize) -> &Slab {
        &self.slabs.as_ref()[slab]
    }

    fn slab_mut(&mut self, slab: usize) -> &mut Slab {
        &mut self.slabs.as_mut()[slab]
    }

    /// Number of slabs.
    pub(super) fn len(&self) -> usize {
        self.slabs.as_ref().len()
    }

    /// Takes a range of `count` pages for a thread on a node.
    pub(super) fn take(&mut self, count: usize, node: u32) -> Taken {
        let mut absent = None;
        let mut is_being_made = false;
        for (number, slab) in self.slabs.as_mut().iter_mut().enumerate() {
            match slab.state {
                State::Ready if slab.node == node => {
                    if let Some((span, parts)) = slab.take(count) {
                        return Taken::Range(Range {
                            slab: number,
                            span,
                            parts,
                        });
                    }
                }
                // Retired pages of an absent slab are another user's.
                State::Absent if absent.is_none() && slab.used_count == 0 => absent = Some(number),
                State::Making if slab.node == node => is_being_made = true,
                _ => {}
            }
        }
        match absent {
            // Another thread makes a slab; this one takes the ordinary path meanwhile.
            Some(number) if !is_being_made && !self.is_capped && count <= SLAB_PAGES => {
                let slab = self.slab_mut(number);
                (slab.state, slab.node) = (State::Making, node);
                Taken::Make(number)
            }
            _ => Taken::Full,
        }
    }

    /// Ends a [`Taken::Make`]. Fresh memory is zero.
    pub(super) fn made(&mut self, slab: usize, is_mapped: bool, now_ms: u64) {
        let slab = self.slab_mut(slab);
        debug_assert_eq!(slab.state, State::Making);
        slab.dirty.remove(Span::ALL);
        slab.empty_since_ms = now_ms;
        slab.state = if is_mapped {
            State::Ready
        } else {
            State::Absent
        };
    }

    /// The program unmaps the pages. Pages that it does not have stay as they are.
    pub(super) fn give(&mut self, slab: usize, span: Span, now_ms: u64) -> Given {
        let slab = self.slab_mut(slab);
        let (pinned, retired) = (&slab.pinned, &slab.retired);
        let given = Given {
            pages: slab.live.count_where(span, |at| !retired.word(at)),
            resting: slab
                .live
                .count_where(span, |at| pinned.word(at) & !retired.word(at)),
            has_retired: !retired.has_none(span),
        };
        slab.live.remove(span);
        slab.settle(span, now_ms);
        given
    }

    /// The pages will not be part of a new range any more.
    pub(super) fn retire(&mut self, slab: usize, span: Span) -> usize {
        let slab = self.slab_mut(slab);
        let new = span.count() - slab.retired.count(span);
        slab.used_count += span.count() - slab.used.count(span);
        slab.used.add(span);
        slab.retired.add(span);
        new
    }

    /// Counts a memory handle over the pages. False if the program does not have all of them, or if
    /// one is retired.
    pub(super) fn pin(&mut self, slab: usize, span: Span) -> bool {
        let slab = self.slab_mut(slab);
        slab.state == State::Ready
            && slab.live.has_all(span)
            && slab.retired.has_none(span)
            && slab.pin(span)
    }

    /// Ends a memory handle over the pages. If its key may still work, the pages are retired.
    pub(super) fn unpin(&mut self, slab: usize, span: Span, is_clean: bool, now_ms: u64) {
        if !is_clean {
            self.retire(slab, span);
        }
        let slab = self.slab_mut(slab);
        slab.unpin(span);
        slab.settle(span, now_ms);
    }

    /// True if the program has all pages and none is retired.
    pub(super) fn is_live(&self, slab: usize, span: Span) -> bool {
        let slab = self.slab(slab);
        slab.live.has_all(span) && slab.retired.has_none(span)
    }

    /// The first run of pages in the span that the program has and that are not retired.
    pub(super) fn live_run(&self, slab: usize, span: Span) -> Option<Span> {
        let slab = self.slab(slab);
        let mut from = span.first;
        while from < span.end() {
            let run = slab.live.run(Span::new(from, span.end()), true)?;
            if let Some(run) = slab.retired.run(run, false) {
                return Some(run);
            }
            from = run.end();
        }
        None
    }

    /// The first run of retired pages in the span.
    pub(super) fn retired_run(&self, slab: usize, span: Span) -> Option<Span> {
        self.slab(slab).retired.run(span, true)
    }

    /// The slabs that no range and no handle has had for `idle_ms`. No new range is taken from them.
    pub(super) fn let_go(&mut self, now_ms: u64, idle_ms: u64) -> usize {
        let mut going = 0;
        for slab in self.slabs.as_mut() {
            let idle = now_ms.saturating_sub(slab.empty_since_ms) >= idle_ms;
            if slab.state == State::Ready && slab.used_count == 0 && idle {
                slab.state = State::Going;
                going += 1;
            }
        }
        going
    }

    /// The slab cannot be registered: no new range is taken from it, and there is no further slab.
    pub(super) fn refuse(&mut self, slab: usize) {
        self.is_capped = true;
        self.end(slab);
    }

    /// True if the kernel may have other memory, or none, at pages of the slab.
    pub(super) fn has_retired(&self, slab: usize) -> bool {
        !self.slab(slab).retired.has_none(Span::ALL)
    }

    /// No new range is taken from the slab.
    pub(super) fn end(&mut self, slab: usize) {
        let slab = self.slab_mut(slab);
        if slab.state == State::Ready {
            slab.state = State::Going;
        }
    }

    /// True if nothing has a page of the slab, and its registrations should end.
    pub(super) fn is_going(&self, slab: usize) -> bool {
        let slab = self.slab(slab);
        slab.state == State::Going && slab.used_count == 0
    }

    /// True if the slab has memory.
    #[cfg(test)]
    pub(super) fn is_mapped(&self, slab: usize) -> bool {
        matches!(self.slab(slab).state, State::Ready | State::Going)
    }

    /// A going slab has no memory any more.
    pub(super) fn gone(&mut self, slab: usize) {
        let slab = self.slab_mut(slab);
        debug_assert_eq!((slab.state, slab.used_count), (State::Going, 0));
        slab.state = State::Absent;
    }

    /// Number of slabs with memory.
    #[cfg(test)]
    pub(super) fn mapped(&self) -> usize {
        (0..self.len()).filter(|slab| self.is_mapped(*slab)).count()
    }
}

#[cfg(test)]
mod tests;
