//! Scatter to CQE: data inside a completion entry instead of the buffers in its list, if the queue pair requests it. It
//! saves reader and device an access to memory for short messages. The driver copies the data to its buffers.

use mlx5_prm::cqe::{CQE_BYTES, Cqe};

use super::list::{Failure, List, transfer};
use crate::fabric::Locked;

/// Most bytes that an entry holds: the first half of one of 128 bytes.
const BYTES_MAX: usize = 64;
/// What an entry of 64 bytes holds: its first half.
const SMALL_BYTES: usize = 32;

/// The data of one completion; none by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scattered {
    bytes: [u8; BYTES_MAX],
    /// How much room its queue pair has it put into: 0 for none.
    room: usize,
}

impl Scattered {
    /// No data: it lies where its list says.
    pub(crate) const NONE: Self = Self {
        bytes: [0; BYTES_MAX],
        room: 0,
    };

    /// True if `length` bytes go into an entry, of a queue pair that puts up to `limit` there.
    pub(crate) fn fits(limit: u8, length: u64) -> bool {
        length != 0 && length <= u64::from(limit)
    }

    /// Takes the first `length` bytes of a list, which fit.
    pub(crate) fn take(
        locked: &mut Locked<'_>,
        from: &List,
        (limit, length): (u8, u64),
    ) -> Result<Self, Failure> {
        let mut scattered = Self {
            room: usize::from(limit).min(BYTES_MAX),
            ..Self::NONE
        };
        // Written through its address: the list knows no lifetimes.
        let to = List::into_bytes(from.side(), &mut scattered.bytes);
        transfer(locked, from, (&to, 0), length)?;
        Ok(scattered)
    }

    /// Puts the data into an entry that is about to be written. Returns what is to lie in front of
    /// the entry, in the first half of one of 128 bytes.
    pub(crate) fn put(
        &self,
        cqe: &mut Cqe,
        entry: &mut [u8; CQE_BYTES],
    ) -> Option<[u8; BYTES_MAX]> {
        match self.room {
            0 => None,
            1..=SMALL_BYTES => {
                cqe.inline_scatter = 1;
                *entry = cqe.to_bytes();
                entry[..SMALL_BYTES].copy_from_slice(&self.bytes[..SMALL_BYTES]);
                None
            }
            _ => {
                cqe.inline_scatter = 2;
                *entry = cqe.to_bytes();
                Some(self.bytes)
            }
        }
    }
}
