//! Memory of blocks that wait for a flush, which is used again: a flush frees all of it at once, and the system would take the pages
//! back and zero them for the next blocks.

use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is shorter is left to the allocator.
pub(super) const SHORTEST: usize = 64 << 10;
/// The part of its memory that data may leave unused.
const UNUSED: usize = 8;

/// Memory without use.
#[derive(Debug, Default)]
struct Free {
    pieces: Vec<Vec<u8>>,
    bytes: usize,
}

/// Memory of a volume.
#[derive(Debug)]
pub(super) struct Memory {
    /// Most bytes without use.
    most: usize,
    free: Arc<Mutex<Free>>,
}

/// A piece in use. The last of its owners gives it back.
struct Piece {
    bytes: Vec<u8>,
    most: usize,
    free: Arc<Mutex<Free>>,
}

fn locked(free: &Mutex<Free>) -> MutexGuard<'_, Free> {
    // No holder panics between the changes.
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Memory of which so many bytes may be without use.
    pub(super) fn new(most: usize) -> Self {
        let free = Arc::default();
        Self { most, free }
    }

    /// Memory for so many bytes, if there is some.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut piece = self.take_full(bytes);
        piece.clear();
        piece
    }

    /// As [`Memory::take`], with the bytes that were there last.
    pub(super) fn take_full(&self, bytes: usize) -> Vec<u8> {
        if bytes < SHORTEST {
            return Vec::new();
        }
        let mut free = locked(&self.free);
        let piece = free.pieces.pop().unwrap_or_default();
        free.bytes -= piece.capacity();
        drop(free);
        // One of another length goes back to the system: the next ones have the length of this one.
        match (bytes..=bytes + bytes / UNUSED).contains(&piece.capacity()) {
            true => piece,
            false => Vec::new(),
        }
    }

    /// The bytes of blocks, in memory that comes back when nobody has any of them. Bytes that would leave much of it unused get
    /// other memory.
    pub(super) fn share(&self, mut bytes: Vec<u8>) -> Bytes {
        let length = bytes.len();
        let is_spare = bytes.capacity() - length > length / UNUSED;
        if bytes.capacity() < SHORTEST {
            if is_spare {
                bytes.shrink_to_fit();
            }
            return Bytes::from(bytes);
        }
        let piece = Piece {
            bytes,
            most: self.most,
            free: Arc::clone(&self.free),
        };
        match is_spare {
            true => Bytes::copy_from_slice(&piece.bytes),
            false => Bytes::from_owner(piece),
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let piece = std::mem::take(&mut self.bytes);
        let mut free = locked(&self.free);
        if free.bytes + piece.capacity() <= self.most {
            free.bytes += piece.capacity();
            free.pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a piece are those of the next one, when its last owner has gone, and not before.
    #[test]
    fn memory_is_used_again_up_to_a_limit() {
        let memory = Memory::new(2 * SHORTEST);
        let piece = || memory.share(vec![7; SHORTEST]);
        let (first, second, third) = (piece(), piece(), piece());
        let place = first.as_ptr();
        let part = first.slice(9..20);
        drop(first);
        assert_eq!(memory.take(SHORTEST).capacity(), 0, "a part is in use");
        assert_eq!(part[..], [7; 11]);
        drop(part);
        let again = memory.take(SHORTEST);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert_eq!(memory.take(SHORTEST).capacity(), 0);
        drop((piece(), second, third));
        assert_eq!(locked(&memory.free).bytes, 2 * SHORTEST, "the most");
        assert_eq!(memory.take(2 * SHORTEST).capacity(), 0, "too short");
        assert_eq!(locked(&memory.free).bytes, SHORTEST, "it has gone");
        assert_eq!(memory.take(9).capacity(), 0, "few bytes");
    }

    /// A piece that is hardly used does not stay with the few bytes in it.
    #[test]
    fn few_bytes_do_not_keep_much_memory() {
        let memory = Memory::new(1 << 20);
        for capacity in [SHORTEST, SHORTEST - 1] {
            let mut bytes = Vec::with_capacity(capacity);
            bytes.extend_from_slice(b"few");
            let few = Vec::from(memory.share(bytes));
            assert_eq!(few[..], *b"few");
            assert!(few.capacity() < 100, "{}", few.capacity());
        }
        assert_eq!(memory.take(SHORTEST).capacity(), SHORTEST);
    }
}
