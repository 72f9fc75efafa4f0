//! Which aliases became unpinned lately, while hardly any are: then a search of the whole map for one
//! to evict would find next to nothing, again and again.
//!
//! A search that finds few unpinned aliases makes the map *tight*: from then on each alias that is
//! unpinned is noted here, and evictions are served from the notes. Otherwise nothing is noted, so that
//! an unpin costs one load more. An alias that was on its way from pinned to unpinned while the map
//! became tight is in neither: later searches find it, of which there is one for each time that all
//! aliases of the map could have been used.

use std::collections::VecDeque;

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Notes that are kept. When there are more, the next eviction searches the map instead.
const NOTES_MAX: usize = 4096;

/// An alias, and the time of the use that ended: one that was used since has a later note.
pub(crate) type Note = (u64, u64);

/// The notes.
#[derive(Debug)]
pub(crate) struct Unpinned {
    is_tight: AtomicBool,
    notes: Mutex<Notes>,
}

#[derive(Debug)]
struct Notes {
    notes: VecDeque<Note>,
    /// Some were dropped.
    overflowed: bool,
}

impl Unpinned {
    pub(crate) fn new() -> Self {
        Self {
            is_tight: AtomicBool::new(false),
            notes: Mutex::new(Notes {
                notes: VecDeque::new(),
                overflowed: false,
            }),
        }
    }

    /// True while unpinned aliases are to be noted.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::Relaxed)
    }

    /// Notes an alias that was just unpinned.
    #[cold]
    pub(crate) fn note(&self, note: Note) {
        let mut notes = lock(&self.notes);
        if notes.notes.len() == NOTES_MAX || notes.notes.try_reserve(1).is_err() {
            notes.overflowed = true;
            return;
        }
        notes.notes.push_back(note);
    }

    /// The oldest note.
    pub(crate) fn pop(&self) -> Option<Note> {
        lock(&self.notes).notes.pop_front()
    }

    /// Begins to note what is unpinned, before a search. What was noted before, the search finds.
    pub(crate) fn tighten(&self) {
        self.is_tight.store(true, Ordering::SeqCst);
        let mut notes = lock(&self.notes);
        notes.notes.clear();
        notes.overflowed = false;
    }

    /// Ends it: a search has found plenty.
    pub(crate) fn loosen(&self) {
        self.is_tight.store(false, Ordering::Relaxed);
    }

    /// True if notes were lost, so that only a search can tell.
    pub(crate) fn has_overflowed(&self) -> bool {
        lock(&self.notes).overflowed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notes_are_bounded_and_come_out_in_their_order() {
        let unpinned = Unpinned::new();
        assert!(!unpinned.is_tight());
        unpinned.tighten();
        assert!(unpinned.is_tight());
        let notes = NOTES_MAX as u64;
        (0..notes).for_each(|note| unpinned.note((note, note)));
        assert!(!unpinned.has_overflowed());
        unpinned.note((notes, notes));
        assert!(unpinned.has_overflowed());
        assert_eq!(unpinned.pop(), Some((0, 0)));
        unpinned.tighten();
        assert!(!unpinned.has_overflowed());
        assert_eq!(unpinned.pop(), None);
        unpinned.loosen();
        assert!(!unpinned.is_tight());
    }
}
