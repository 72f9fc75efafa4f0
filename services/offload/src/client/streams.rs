//! The numbers of a rank's messages.

use super::types::Numbered;
use crate::error::{OffloadError, Result};
use std::collections::HashMap;

/// Maximum number of triples of sender, receiver and tag that a rank uses during a job.
const STREAMS_MAX: usize = 1 << 16;

/// The messages of a rank.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The number of the next message, by communicator.
    next: HashMap<u64, u32>,
}

impl Messages {
    /// Numbers the next message.
    pub(super) fn number(&mut self, communicator: u64) -> Result<Numbered> {
        if self.next.len() >= STREAMS_MAX && !self.next.contains_key(&communicator) {
            return Err(OffloadError::Arguments(format!(
                "more than {STREAMS_MAX} pairs of another rank and a tag in one job: use the same tags again"
            )));
        }
        let next = self.next.entry(communicator).or_default();
        let sequence = *next;
        *next = sequence.wrapping_add(1);
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
        let of = |from, to, tag| {
            let communicator = Message { from, to, tag }.communicator();
            communicator.expect("a tag in range")
        };
        let mut messages = Messages::default();
        let mut number = |communicator: u64| {
            let numbered = messages.number(communicator)?;
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
}
