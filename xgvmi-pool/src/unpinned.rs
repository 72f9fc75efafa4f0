//! Notes of recently unpinned aliases, kept while almost all aliases are pinned. In that state a
//! search of the whole map for an alias to evict would find almost nothing, on every miss.
//!
//! A search that finds few unpinned aliases makes the map *tight*. From then on the map notes each
//! unpinned alias here, and evictions use the notes. Otherwise it notes nothing, and an unpin costs
//! only one additional load. A search and the notes can both miss an alias that a thread unpins
//! while the map becomes tight. Later searches find it: there is one search for each period in
//! which all aliases of the map could have been used.

use std::collections::VecDeque;

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Maximum number of notes. On overflow, the next eviction searches the map instead.
const NOTES_MAX: usize = 4096;

/// An alias and the end time of its use. A later use leaves a later note.
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
    /// The list overflowed and dropped notes.
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

    /// True while the map must note unpinned aliases.
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

    /// Removes and returns the oldest note.
    pub(crate) fn pop(&self) -> Option<Note> {
        lock(&self.notes).notes.pop_front()
    }

    /// Starts to note unpinned aliases, before a search. The search itself finds the aliases
    /// unpinned earlier.
    pub(crate) fn tighten(&self) {
        self.is_tight.store(true, Ordering::SeqCst);
        let mut notes = lock(&self.notes);
        notes.notes.clear();
        notes.overflowed = false;
    }

    /// Stops noting: a search found many unpinned aliases.
    pub(crate) fn loosen(&self) {
        self.is_tight.store(false, Ordering::Relaxed);
    }

    /// True if notes were dropped. Only a search is complete then.
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
