//! Replay filter for messages. Each exporter numbers its messages, and the filter rejects a message
//! with a lower number than an earlier one.

use std::collections::HashMap;

use crate::key::OwnerUuid;

/// Maximum number of exporters in the filter: 64 nodes of 1024 ranks.
pub(crate) const OWNERS_MAX: usize = 1 << 16;

/// Number of the last message of each exporter.
#[derive(Debug, Default)]
pub struct ReplayFilter {
    seen: HashMap<u64, u64>,
}

/// Relation of a message to the earlier messages of its exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Newer than all earlier messages.
    New,
    /// A repetition of the last message, for example on a second connection of the same process.
    Repeated,
    /// Older than the message with this number.
    Old(u64),
    /// The first message of an exporter, while the filter is full.
    TooManyOwners,
}

impl ReplayFilter {
    /// Classifies a message and records its number if it is new.
    pub fn judge(&mut self, owner: OwnerUuid, sequence: u64) -> News {
        let has_space = self.seen.len() < OWNERS_MAX;
        match self.seen.get_mut(&owner.get()) {
            Some(seen) if sequence > *seen => {
                *seen = sequence;
                News::New
            }
            Some(seen) if sequence == *seen => News::Repeated,
            Some(seen) => News::Old(*seen),
            None if !has_space => News::TooManyOwners,
            None => {
                self.seen.insert(owner.get(), sequence);
                News::New
            }
        }
    }

    /// Removes an exporter that is known to be dead.
    pub fn forget(&mut self, owner: OwnerUuid) {
        self.seen.remove(&owner.get());
    }

    /// Removes all exporters.
    pub fn clear(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_overtaken_is_no_news() {
        let mut filter = ReplayFilter::default();
        let owner = OwnerUuid::new(7);
        for (sequence, expect) in [
            (5, News::New),
            (5, News::Repeated),
            (4, News::Old(5)),
            (6, News::New),
            (5, News::Old(6)),
        ] {
            assert_eq!(filter.judge(owner, sequence), expect, "{sequence}");
        }
        filter.forget(owner);
        assert_eq!(filter.judge(owner, 1), News::New);
    }

    #[test]
    fn it_is_bounded() {
        let mut filter = ReplayFilter::default();
        for owner in 0..OWNERS_MAX as u64 {
            assert_eq!(filter.judge(OwnerUuid::new(owner), 1), News::New);
        }
        let another = OwnerUuid::new(u64::MAX);
        assert_eq!(filter.judge(another, 1), News::TooManyOwners);
        assert_eq!(filter.judge(OwnerUuid::new(3), 2), News::New);
        filter.clear();
        assert_eq!(filter.judge(another, 1), News::New);
    }
}
