//! Which targets a volume trusts (`trust`), as it knows and as they have recorded.

use crate::geometry::Layout;
use crate::store::Trusted;
use std::sync::atomic::AtomicU16;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The trusted targets of an open volume.
#[derive(Debug)]
pub(super) struct Trust {
    /// Those that must take part: those that are recorded, or are about to be.
    pub(super) required: AtomicU16,
    /// What they have recorded last. Held while they do.
    recorded: Mutex<Recorded>,
}

/// What the trusted targets have recorded.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) last: Trusted,
    /// The last ones that all of them have recorded: an opening may know of these alone.
    pub(super) sure: u16,
}

impl Trust {
    pub(super) fn new(recorded: Trusted) -> Self {
        Self {
            required: AtomicU16::new(recorded.roles),
            recorded: Mutex::new(Recorded {
                last: recorded,
                sure: recorded.roles,
            }),
        }
    }

    /// Those that any opening trusts.
    pub(super) fn surely(&self) -> u16 {
        let recorded = self.recorded();
        recorded.last.roles & recorded.sure
    }

    pub(super) fn recorded(&self) -> MutexGuard<'_, Recorded> {
        // After a panic the targets may have recorded more: then it is recorded again.
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the targets record which ones are trusted.
pub(super) fn is_used(layout: Layout) -> bool {
    layout != Layout::HALVES
}
