//! What a search of all states (crate `storage-search`) sees of a volume, beside its public functions. No program uses it.

use super::Volume;
use super::seats::Seat;
use super::trustees::is_used;
use crate::error::{BlkError, Result};
use std::fmt::Write as _;

impl Volume {
    /// Reads the snapshot with a name.
    ///
    /// # Errors
    /// As [`Volume::read`], or there is none.
    #[doc(hidden)]
    pub fn read_snapshot(&self, name: &str, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let layers = self.layers();
        let id = layers.and_then(|layers| Some(layers.all[layers.find(name)?].id));
        self.read_of(Some(id.unwrap_or(0)), offset, bytes)
    }

    /// Everything that the next request depends on, as text. Times are left out.
    #[doc(hidden)]
    #[must_use]
    pub fn searched(&self) -> String {
        let mut text = format!("{:?} {:?}", self.epoch, self.counter);
        // Cannot fail: memory.
        let _ = write!(text, "{:?} {:?}", self.blocks(), self.pending);
        let _ = write!(text, "{:?} {:?}", self.trust, self.released);
        let _ = write!(text, "{:?}", (self.layers(), &self.merging));
        self.seats.look(|seats| {
            for seat in seats {
                let _ = match seat {
                    Seat::Present(one) => write!(text, "{} {}", one.whole, one.arriving),
                    Seat::Absent(_) => write!(text, "absent"),
                };
            }
        });
        text
    }

    /// The targets that are trusted, as bits: what they hold counts.
    #[doc(hidden)]
    #[must_use]
    pub fn trusted(&self) -> u16 {
        match is_used(self.layout()) {
            true => self.trust.surely(),
            false => self.layout().all(),
        }
    }

    /// True if a request that fails now with this error would wait for a target, given a limit above zero.
    #[doc(hidden)]
    #[must_use]
    pub fn waits_for_return(&self, error: &BlkError) -> bool {
        self.seats.is_return_possible(error)
    }
}
