//! The communicators of messages: each sender, receiver and tag have one, whose number says who they are.

/// The bits of these numbers that no other communicator has: the first bit is not set, and the second one is.
const BITS_AT: u32 = 62;
const BITS: u64 = 0b01;

/// Then the sender, the receiver, and the tag.
const FROM_AT: u32 = 46;
const TO_AT: u32 = 30;
const RANK: u64 = Message::RANKS as u64 - 1;

/// The messages from a rank to a rank with a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) tag: u32,
}

impl Message {
    /// Maximum number of ranks.
    pub(crate) const RANKS: u32 = 1 << (FROM_AT - TO_AT);
    /// Number of tags.
    pub(crate) const TAGS: u32 = 1 << TO_AT;

    /// The number of their communicator; `None` beyond the limits of ranks and tags.
    pub(crate) fn communicator(self) -> Option<u64> {
        let fits = self.from < Self::RANKS && self.to < Self::RANKS && self.tag < Self::TAGS;
        let (from, to) = (u64::from(self.from) << FROM_AT, u64::from(self.to) << TO_AT);
        fits.then_some(BITS << BITS_AT | from | to | u64::from(self.tag))
    }

    /// The messages that have this communicator, if it is one of messages.
    pub(crate) fn of(communicator: u64) -> Option<Self> {
        let rank = |at: u32| u32::try_from(communicator >> at & RANK).unwrap_or(0);
        (communicator >> BITS_AT == BITS).then(|| Self {
            from: rank(FROM_AT),
            to: rank(TO_AT),
            tag: u32::try_from(communicator & u64::from(Self::TAGS - 1)).unwrap_or(0),
        })
    }
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "with tag {} from rank {} to rank {}",
            self.tag, self.from, self.to
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_says_who_sends_to_whom() {
        let most = Message::RANKS - 1;
        for (from, to, tag) in [(0, 1, 0), (most, 0, 7), (3, most, Message::TAGS - 1)] {
            let message = Message { from, to, tag };
            let communicator = message.communicator().expect("within the limits");
            assert_eq!(Message::of(communicator), Some(message));
        }
        for (from, to, tag) in [
            (Message::RANKS, 0, 0),
            (0, Message::RANKS, 0),
            (0, 1, Message::TAGS),
        ] {
            assert_eq!(Message { from, to, tag }.communicator(), None);
        }
        for other in [0, 70_000, 1 << 61, 1 << 63, u64::MAX] {
            assert_eq!(Message::of(other), None, "{other:#x}");
        }
        let message = Message {
            from: 4,
            to: 2,
            tag: 9,
        };
        assert_eq!(message.to_string(), "with tag 9 from rank 4 to rank 2");
    }
}
