//! The numbers of a rank's messages.

use super::types::Numbered;
use crate::error::{OffloadError, Result};
use std::collections::HashMap;

/// Maximum number of messages of a rank that are not complete. It bounds what they take at the SPs.
const UNDER_WAY_MAX: u32 = 4096;

/// Maximum number of triples of sender, receiver and tag that a rank uses during a job.
const STREAMS_MAX: usize = 1 << 16;

/// The messages of a rank.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The number of the next message, by communicator.
    next: HashMap<u64, u32>,
    pub(super) under_way: u32,
}

impl Messages {
    /// Numbers the next message.
    pub(super) fn number(&mut self, communicator: u64) -> Result<Numbered> {
        if self.under_way >= UNDER_WAY_MAX {
            return Err(OffloadError::Arguments(format!(
                "{UNDER_WAY_MAX} messages of this rank are not complete: wait for some of them first"
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
        Ok(Numbered {
            communicator,
            sequence,
            starts: 0,
            is_persistent: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message;

    #[test]
    fn messages_of_a_pair_and_tag_are_numbered_and_bounded() {
        let of = |from, to, tag| Message { from, to, tag }.communicator();
        let mut messages = Messages::default();
        let mut number = |communicator: Option<u64>| {
            let numbered = messages.number(communicator.expect("a tag in range"));
            messages.under_way -= u32::from(numbered.is_ok());
            numbered.map(|numbered| numbered.sequence)
        };
        for sequence in 0..3 {
            assert_eq!(number(of(1, 2, 5)).expect("a message"), sequence);
            assert_eq!(number(of(2, 1, 5)).expect("a message"), sequence);
            assert_eq!(number(of(1, 2, 6)).expect("a message"), sequence);
        }
        for tag in 10..STREAMS_MAX as u32 + 7 {
            number(of(1, 2, tag)).expect("a message");
        }
        let error = number(of(1, 2, 9)).expect_err("the table is full");
        assert!(
            error.to_string().contains("use the same tags again"),
            "{error}"
        );
        assert_eq!(number(of(2, 1, 5)).expect("a known one"), 3);
        messages.under_way = UNDER_WAY_MAX;
        let error = messages
            .number(of(2, 1, 5).expect("a tag"))
            .expect_err("full");
        assert!(
            error.to_string().contains("wait for some of them"),
            "{error}"
        );
    }
}
