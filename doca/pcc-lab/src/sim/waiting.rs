//! Events on their way to an algorithm, and how two of them become one.

use crate::algorithm::{Detail, Event};
use crate::packet::NONE;

/// Events on their way to an algorithm.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) slots: Vec<Event>,
    pub(crate) free: Vec<u32>,
}

impl Waiting {
    /// The number of events is limited by the queues of the hosts.
    pub(crate) fn insert(&mut self, event: Event) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = event;
            return index;
        }
        self.slots.push(event);
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }
}

/// Merges a later event of the same flow and type into one that waits. False if it stands for enough already.
pub(crate) fn merge(waiting: &mut Event, later: &Event, most: u16) -> bool {
    match (&mut waiting.detail, later.detail) {
        (
            Detail::Ack { coalesced, .. },
            Detail::Ack {
                coalesced: more, ..
            },
        ) if *coalesced < most => *coalesced += more,
        (
            Detail::Tx {
                sent_32bytes,
                sent_packets,
                ..
            },
            Detail::Tx {
                sent_32bytes: bytes,
                sent_packets: packets,
                ..
            },
        ) if *sent_packets < u16::MAX / 2
            && *sent_32bytes < u16::MAX / 2
            && bytes < u16::MAX / 2 =>
        {
            *sent_32bytes += bytes;
            *sent_packets += packets;
        }
        _ => return false,
    }
    waiting.sn = later.sn;
    waiting.timestamp = later.timestamp;
    waiting.flags |= later.flags;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::EventType;

    fn event(detail: Detail, sn: u32) -> Event {
        Event {
            kind: EventType::Cnp,
            subtype: 0,
            flags: 0,
            flow_tag: 0,
            sn,
            timestamp: sn * 10,
            detail,
        }
    }

    #[test]
    fn merged_events_keep_the_first_time_and_the_last_number() {
        let detail = |sn| Detail::Ack {
            first_timestamp: sn * 10,
            first_sn: sn,
            coalesced: 1,
        };
        let mut waiting = event(detail(1), 1);
        assert!(merge(&mut waiting, &event(detail(2), 2), 3));
        assert!(merge(&mut waiting, &event(detail(3), 3), 3));
        assert!(
            !merge(&mut waiting, &event(detail(4), 4), 3),
            "stands for three already"
        );
        let expect = Detail::Ack {
            first_timestamp: 10,
            first_sn: 1,
            coalesced: 3,
        };
        assert_eq!(
            (waiting.sn, waiting.timestamp, waiting.detail),
            (3, 30, expect)
        );
    }

    #[test]
    fn merged_tx_events_add_up() {
        let detail = |bytes| Detail::Tx {
            first_timestamp: 5,
            sent_32bytes: bytes,
            sent_packets: 2,
        };
        let mut waiting = event(detail(100), 1);
        assert!(merge(&mut waiting, &event(detail(50), 2), 1));
        let expect = Detail::Tx {
            first_timestamp: 5,
            sent_32bytes: 150,
            sent_packets: 4,
        };
        assert_eq!(waiting.detail, expect);
        let full = event(detail(u16::MAX), 3);
        assert!(!merge(&mut waiting, &full, 1), "would overflow");
    }
}
