//! Offers that wait until the blocks of earlier offers are read.
//!
//! A block takes 12 bytes in its message and several times as much when it is ready to be read, unless it is one of a
//! batch. Only a limited number of blocks is ready at once; the messages of the others wait here. They count as memory of calls, which the ranks bound: a rank's
//! outstanding calls have a window, and an offer takes less here than its blocks take when they are placed.

use std::collections::VecDeque;

/// Capacity that the empty queue keeps.
const KEPT: usize = 64;

/// The waiting offers of a job, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Late {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Late {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes of the offers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an offer.
    pub(super) fn push(&mut self, message: Vec<u8>) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }

    /// Takes the oldest offer.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        if self.messages.is_empty() {
            self.messages.shrink_to(KEPT);
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_leave_in_their_order_with_their_bytes() {
        let mut late = Late::default();
        for number in 0..3 {
            late.push(vec![number; 30]);
        }
        assert_eq!((late.pop(), late.bytes()), (Some(vec![0; 30]), 60));
        late.push(vec![3; 30]);
        for number in 1..4 {
            assert_eq!(late.pop(), Some(vec![number; 30]));
        }
        assert!(late.is_empty() && late.pop().is_none() && late.bytes() == 0);
    }
}
