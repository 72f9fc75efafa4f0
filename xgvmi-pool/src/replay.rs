//! Which messages are news: each exporter numbers its messages, and none that a later one has
//! overtaken is taken in again.

use std::collections::HashMap;

use crate::key::OwnerUuid;

/// Exporters whose last message is remembered: 64 nodes of 1024 ranks.
pub(crate) const OWNERS_MAX: usize = 1 << 16;

/// Number of the last message of each exporter.
#[derive(Debug, Default)]
pub struct ReplayFilter {
    seen: HashMap<u64, u64>,
}

/// What a message is beside those that were taken in before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Later than all others of its exporter.
    New,
    /// The last one once more, as when a process has several connections.
    Repeated,
    /// Overtaken by the message of this number.
    Old(u64),
    /// The first of an exporter for which there is no room.
    NoRoom,
}

impl ReplayFilter {
    /// Judges a message, and remembers its number if it is new.
    pub fn judge(&mut self, owner: OwnerUuid, sequence: u64) -> News {
        let has_room = self.seen.len() < OWNERS_MAX;
        match self.seen.get_mut(&owner.get()) {
            Some(seen) if sequence > *seen => {
                *seen = sequence;
                News::New
            }
            Some(seen) if sequence == *seen => News::Repeated,
            Some(seen) => News::Old(*seen),
            None if !has_room => News::NoRoom,
            None => {
                self.seen.insert(owner.get(), sequence);
                News::New
            }
        }
    }

    /// Forgets an exporter that is known to be dead.
    pub fn forget(&mut self, owner: OwnerUuid) {
        self.seen.remove(&owner.get());
    }

    /// Forgets all exporters.
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
        assert_eq!(filter.judge(another, 1), News::NoRoom);
        assert_eq!(filter.judge(OwnerUuid::new(3), 2), News::New);
        filter.clear();
        assert_eq!(filter.judge(another, 1), News::New);
    }
}
