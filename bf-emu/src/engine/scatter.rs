//! Scatter to CQE: data inside a completion entry instead of the buffers in its list, if the queue
//! pair requests it. It saves reader and device an access to memory for short messages. The driver
//! copies the data to its buffers.

use mlx5_prm::cqe::{CQE_BYTES, Cqe};

use super::list::{Failure, List, transfer};
use crate::fabric::Locked;

/// Largest number of bytes in an entry: the first half of an entry of 128 bytes.
const BYTES_MAX: usize = 64;
/// Data bytes in an entry of 64 bytes: its first half.
const SMALL_BYTES: usize = 32;

/// The data of one completion; none by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scattered {
    bytes: [u8; BYTES_MAX],
    /// Scatter limit of the queue pair in bytes; 0 for none.
    capacity: usize,
}

impl Scattered {
    /// No data in the completion.
    pub(crate) const NONE: Self = Self {
        bytes: [0; BYTES_MAX],
        capacity: 0,
    };

    /// True if `length` bytes fit into an entry of a queue pair with this scatter limit.
    pub(crate) fn fits(limit: u8, length: u64) -> bool {
        length != 0 && length <= u64::from(limit)
    }

    /// Takes the first `length` bytes of a list. They must fit.
    pub(crate) fn take(
        locked: &mut Locked<'_>,
        from: &List,
        (limit, length): (u8, u64),
    ) -> Result<Self, Failure> {
        let mut scattered = Self {
            capacity: usize::from(limit).min(BYTES_MAX),
            ..Self::NONE
        };
        // The list refers to the array by address and has no lifetime.
        let to = List::into_bytes(from.side(), &mut scattered.bytes);
        transfer(locked, from, (&to, 0), length)?;
        Ok(scattered)
    }

    /// Stores the data in an entry that is about to be written. Data of more than 32 bytes is
    /// returned instead, for the first half of an entry of 128 bytes.
    pub(crate) fn put(
        &self,
        cqe: &mut Cqe,
        entry: &mut [u8; CQE_BYTES],
    ) -> Option<[u8; BYTES_MAX]> {
        match self.capacity {
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
