//! The heap: allocations that the embedder makes for a program, each a range of its own.

use std::collections::BTreeMap;

/// Allocations begin at multiples of this, and are at least this far apart.
pub const GRANULE: u64 = 64;

/// Most allocations at a time.
pub const ALLOCATIONS_MAX: usize = 1 << 16;

/// Why the heap refuses an allocation or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// An allocation of no bytes.
    #[error("an allocation of 0 bytes")]
    Empty,
    /// No free place is large enough.
    #[error("{wanted} bytes do not fit: the largest free place of the heap has {largest}")]
    Full {
        /// Bytes.
        wanted: u64,
        /// Bytes.
        largest: u64,
    },
    /// [`ALLOCATIONS_MAX`] allocations exist.
    #[error("the heap has {ALLOCATIONS_MAX} allocations, the maximum")]
    TooMany,
    /// No allocation begins at the address; it may have been freed before.
    #[error("no allocation begins at {0:#x}")]
    Unknown(u64),
}

/// Free and used places, by their first address.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    free: BTreeMap<u64, u64>,
    /// Bytes as requested.
    used: BTreeMap<u64, u64>,
}

impl Heap {
    pub(crate) fn new(start: u64, length: u64) -> Self {
        let free = (length >= GRANULE).then_some((start, length));
        Self {
            free: free.into_iter().collect(),
            used: BTreeMap::new(),
        }
    }

    /// Takes the first free place that is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64, HeapError> {
        if bytes == 0 {
            return Err(HeapError::Empty);
        }
        if self.used.len() >= ALLOCATIONS_MAX {
            return Err(HeapError::TooMany);
        }
        let place = place(bytes);
        let found = self.free.iter().find(|(_, length)| Some(**length) >= place);
        let Some((start, length, place)) =
            found.and_then(|(start, length)| Some((*start, *length, place?)))
        else {
            let largest = self
                .free
                .values()
                .max()
                .map_or(0, |length| length.saturating_sub(GRANULE));
            return Err(HeapError::Full {
                wanted: bytes,
                largest,
            });
        };
        self.free.remove(&start);
        if length > place {
            self.free.insert(start + place, length - place);
        }
        self.used.insert(start, bytes);
        Ok(start)
    }

    /// Returns a place.
    pub(crate) fn free(&mut self, start: u64) -> Result<(), HeapError> {
        let bytes = self.used.remove(&start).ok_or(HeapError::Unknown(start))?;
        let (mut start, mut length) = (start, place(bytes).unwrap_or_default());
        if let Some(behind) = self.free.remove(&(start + length)) {
            length += behind;
        }
        let before = self.free.range(..start).next_back();
        let touching = before.filter(|(before, bytes)| *before + *bytes == start);
        if let Some((before, bytes)) = touching.map(|(before, bytes)| (*before, *bytes)) {
            self.free.remove(&before);
            (start, length) = (before, length + bytes);
        }
        self.free.insert(start, length);
        Ok(())
    }

    /// Start and length of the allocation that contains an address.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, u64)> {
        let (start, bytes) = self.used.range(..=address).next_back()?;
        (address - start < *bytes).then_some((*start, *bytes))
    }
}

/// Bytes that an allocation takes: its own, rounded up, and a gap behind it.
fn place(bytes: u64) -> Option<u64> {
    bytes
        .checked_next_multiple_of(GRANULE)?
        .checked_add(GRANULE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_return() {
        let mut heap = Heap::new(0x1000, 512);
        assert_eq!(heap.allocate(1), Ok(0x1000));
        assert_eq!(heap.allocate(64), Ok(0x1080));
        assert_eq!(heap.allocate(65), Ok(0x1100));
        assert_eq!(
            heap.allocate(1),
            Err(HeapError::Full {
                wanted: 1,
                largest: 0
            })
        );
        assert_eq!(heap.allocation(0x1040), None);
        assert_eq!(heap.allocation(0x1140), Some((0x1100, 65)));
        assert_eq!(heap.allocation(0x1141), None);
        assert_eq!(heap.free(0x1081), Err(HeapError::Unknown(0x1081)));
        for start in [0x1000, 0x1100, 0x1080] {
            assert_eq!(heap.free(start), Ok(()));
            assert_eq!(heap.free(start), Err(HeapError::Unknown(start)));
        }
        assert_eq!(heap.allocate(448), Ok(0x1000), "the places are one again");
        assert_eq!(heap.allocate(0), Err(HeapError::Empty));
        assert_eq!(
            heap.allocate(u64::MAX)
                .unwrap_err()
                .to_string()
                .split(':')
                .next(),
            Some("18446744073709551615 bytes do not fit")
        );
    }
}
