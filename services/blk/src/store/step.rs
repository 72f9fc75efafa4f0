//! Steps of a target: calls about one block.

use crate::error::Result;
use crate::record::Half;

/// A call of a target that may still be under way when the next one begins.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// [`Target::prepare`](super::Target::prepare).
    Prepare {
        /// The block.
        block: u64,
        /// Its part.
        half: &'a Half,
        /// The generation that stays beside it, or [`KEEP_ALL`](super::KEEP_ALL).
        keep: u64,
    },
    /// [`Target::commit`](super::Target::commit).
    Commit {
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
    /// [`Target::fetch`](super::Target::fetch).
    Fetch {
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
}

impl Step<'_> {
    /// Its block and generation.
    pub(crate) fn of(&self) -> (u64, u64) {
        match *self {
            Self::Prepare { block, half, .. } => (block, half.generation),
            Self::Commit { block, generation } | Self::Fetch { block, generation } => {
                (block, generation)
            }
        }
    }

    /// Bytes of half blocks that travel with it, or with its answer.
    pub(crate) fn bytes(&self, fetched: usize) -> usize {
        match self {
            Self::Prepare { half, .. } => half.data.len(),
            Self::Commit { .. } => 0,
            Self::Fetch { .. } => fetched,
        }
    }
}

/// A step that has begun.
#[derive(Debug)]
#[must_use = "its end is unknown until it is given to finish"]
pub enum Begun {
    /// It has ended. A fetch has a half block.
    Ended(Result<Option<Half>>),
    /// It is under way.
    Sent {
        /// Number of the call on its connection.
        call: u64,
        /// Number of the step in its call.
        nth: usize,
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
}
