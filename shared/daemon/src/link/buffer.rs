//! A byte queue that copies each byte a constant number of times on average.

use std::ops::Range;

/// Capacity that an empty buffer retains.
const KEPT: usize = 16 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Bytes before this index have been consumed.
    head: usize,
}

impl Buffer {
    /// The queued bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes `count` bytes from the front, and returns a `part` of them, up to the end of a vector: its bytes from the
    /// returned number on. A long part is not copied elsewhere, unless more bytes are queued behind it.
    pub(super) fn take(&mut self, count: usize, part: Range<usize>) -> (Vec<u8>, usize) {
        let behind = self.len() - count;
        if behind > count || count < KEPT {
            let taken = self.bytes()[part].to_vec();
            self.consume(count);
            return (taken, 0);
        }
        let behind = self.bytes()[count..].to_vec();
        let mut taken = std::mem::replace(&mut self.bytes, behind);
        let head = std::mem::take(&mut self.head);
        taken.truncate(head + part.end);
        (taken, head + part.start)
    }

    /// Place for at least `count` more bytes behind the others.
    pub(super) fn place(&mut self, count: usize) -> &mut Vec<u8> {
        match self.bytes.len() < count {
            // What comes behind them would be copied.
            true => self.bytes.reserve_exact(count),
            false => self.bytes.reserve(count),
        }
        &mut self.bytes
    }

    /// Removes `count` bytes from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.head += count;
        debug_assert!(self.head <= self.bytes.len());
        if self.head == self.bytes.len() {
            self.head = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
        } else if self.head > self.bytes.len() / 2 {
            // At least as many bytes have been consumed as are moved now. Each byte is therefore moved at most once on
            // average.
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_their_order_and_memory_with_them() {
        let mut buffer = Buffer::default();
        let all: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        let mut left = Vec::new();
        for piece in all.chunks(7001) {
            buffer.push(piece);
            let count = buffer.len().min(4999);
            left.extend_from_slice(&buffer.bytes()[..count]);
            buffer.consume(count);
            assert!(
                buffer.head <= buffer.bytes.len() / 2,
                "the front is given back"
            );
        }
        left.extend_from_slice(buffer.bytes());
        buffer.consume(buffer.len());
        assert!(left == all && buffer.is_empty());
        for (count, part) in [
            (7, 2..5),
            (90_000, 5..90_000),
            (100_000, 9..99_990),
            (9993, 13..9993),
        ] {
            let from = all.len() - 200_000;
            if buffer.is_empty() {
                buffer.push(&all[from..]);
            }
            let before = buffer.bytes()[part.clone()].to_vec();
            let address = buffer.bytes()[part.start..].as_ptr();
            let (taken, start) = buffer.take(count, part);
            assert!(taken[start..] == before);
            let is_copy = taken[start..].as_ptr() != address;
            // Fewer bytes than a short frame, or than follow, are copied.
            assert_eq!(is_copy, count < KEPT || buffer.len() > count);
        }
        assert!(buffer.is_empty());
        assert!(buffer.bytes.capacity() <= KEPT);
    }
}
