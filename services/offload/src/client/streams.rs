//! The numbers of a rank's messages.

use super::types::Numbered;
use crate::error::{OffloadError, Result};
use std::collections::HashMap;

/// Maximum number of messages of a rank that are not complete. It bounds what they take at the SPs.
const UNDER_WAY_MAX: u32 = 4096;

/// Maximum memory of these messages at an SP, about, in shares of a communicator. A share does not depend on their number, and one
/// message always fits.
const SHARES: usize = 8;

/// Maximum number of triples of sender, receiver and tag that a rank uses during a job.
const STREAMS_MAX: usize = 1 << 16;

/// The messages of a rank.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The number of the next message, by communicator.
    next: HashMap<u64, u32>,
    under_way: u32,
    cost: usize,
}

impl Messages {
    /// Numbers the next message, which takes `cost` bytes at an SP. A communicator's share there is `share` bytes.
    pub(super) fn number(
        &mut self,
        communicator: u64,
        cost: usize,
        share: usize,
    ) -> Result<Numbered> {
        let is_large = self.cost.saturating_add(cost) > share.saturating_mul(SHARES);
        if self.under_way >= UNDER_WAY_MAX || (is_large && self.under_way > 0) {
            return Err(OffloadError::Arguments(format!(
                "{} messages of this rank are not complete: wait for some of them first",
                self.under_way
            )));
        }
        if self.next.len() >= STREAMS_MAX && !self.next.contains_key(&communicator) {
            return Err(OffloadError::Arguments(format!(
                "more than {STREAMS_MAX} pairs of another rank and a tag in one job: use the same tags again"
            )));
        }
        let next = self.next.entry(communicator).or_default();
        let sequence = *next;
        *next = sequence.wrapping_add(1);
        self.under_way += 1;
        self.cost = self.cost.saturating_add(cost);
        Ok(Numbered {
            communicator,
            sequence,
            starts: 0,
            is_persistent: false,
        })
    }

    /// A message is complete.
    pub(super) fn over(&mut self, cost: usize) {
        self.under_way -= 1;
        self.cost = self.cost.saturating_sub(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message;

    #[test]
    fn messages_of_a_pair_and_tag_are_numbered_and_bounded() {
        let of = |from, to, tag| {
            let communicator = Message { from, to, tag }.communicator();
            communicator.expect("a tag in range")
        };
        let mut messages = Messages::default();
        let mut number = |communicator: u64| {
            let numbered = messages.number(communicator, 1, 1)?;
            messages.over(1);
            Ok::<_, OffloadError>(numbered.sequence)
        };
        for sequence in 0..3 {
            for stream in [of(1, 2, 5), of(2, 1, 5), of(1, 2, 6)] {
                assert_eq!(number(stream).expect("a message"), sequence);
            }
        }
        for tag in (10..).take(STREAMS_MAX - 3) {
            number(of(1, 2, tag)).expect("a message");
        }
        let error = number(of(1, 2, 9)).expect_err("the table is full");
        let error = error.to_string();
        assert!(error.contains("use the same tags again"), "{error}");
        assert_eq!(number(of(2, 1, 5)).expect("a known one"), 3);
    }

    #[test]
    fn messages_under_way_are_bounded_by_number_and_memory() {
        for (cost, share, most) in [
            (1, usize::MAX, UNDER_WAY_MAX as usize),
            (10, 100, 10 * SHARES),
            (1000, 1, 1),
        ] {
            let mut messages = Messages::default();
            for _ in 0..most {
                messages.number(7, cost, share).expect("a message");
            }
            let error = messages.number(7, cost, share).expect_err("full");
            let error = error.to_string();
            assert!(error.contains("wait for some of them"), "{error}");
            messages.over(cost);
            messages.number(7, cost, share).expect("room again");
        }
    }
}
