//! The queue of future events: a heap with four children per node, whose entries are one 128-bit number each.
//!
//! An entry is time (56 bits of picoseconds, 20 hours), sequence (40 bits) and payload (32 bits). Events of one time leave in
//! the order of their insertion, so a run depends on nothing but its input.

/// What is due. The index is a packet, port, host, flow or event, depending on the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// A packet has arrived, whole, at the next node.
    Arrive(u32),
    /// A port of a switch can transmit again.
    Port(u32),
    /// The port of a host can transmit again.
    HostPort(u32),
    /// The next packet of a paced flow of this host is due.
    Pace(u32),
    /// A host sends a packet that it delayed: a CNP or the response to a probe.
    Inject(u32),
    /// An event of congestion control reaches the algorithm.
    Handle(u32),
    /// The retransmission timer of a flow.
    Timeout(u32),
    /// A flow starts.
    Start(u32),
    /// A change of the network takes effect.
    Fault(u32),
    /// Rates and queues are recorded.
    Sample,
    /// Flows without progress are looked for.
    Watch,
    /// The measured part of the run begins.
    Warm,
}

const INDEX_BITS: u32 = 28;
/// Largest number of objects of one kind.
pub(crate) const INDEX_MAX: u32 = 1 << INDEX_BITS;

impl Due {
    fn pack(self) -> u32 {
        let (kind, index) = match self {
            Self::Arrive(packet) => (0, packet),
            Self::Port(port) => (1, port),
            Self::HostPort(host) => (2, host),
            Self::Pace(host) => (3, host),
            Self::Inject(packet) => (4, packet),
            Self::Handle(event) => (5, event),
            Self::Timeout(flow) => (6, flow),
            Self::Start(flow) => (7, flow),
            Self::Fault(fault) => (8, fault),
            Self::Sample => (9, 0),
            Self::Watch => (10, 0),
            Self::Warm => (11, 0),
        };
        debug_assert!(index < INDEX_MAX);
        kind << INDEX_BITS | index
    }

    fn unpack(packed: u32) -> Self {
        let index = packed & (INDEX_MAX - 1);
        match packed >> INDEX_BITS {
            0 => Self::Arrive(index),
            1 => Self::Port(index),
            2 => Self::HostPort(index),
            3 => Self::Pace(index),
            4 => Self::Inject(index),
            5 => Self::Handle(index),
            6 => Self::Timeout(index),
            7 => Self::Start(index),
            8 => Self::Fault(index),
            9 => Self::Sample,
            10 => Self::Watch,
            _ => Self::Warm,
        }
    }
}

const TIME_SHIFT: u32 = 72;
const SEQUENCE_MASK: u64 = (1 << 40) - 1;

/// Future events in the order of their time.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    heap: Vec<u128>,
    sequence: u64,
}

impl Calendar {
    pub(crate) fn push(&mut self, time_ps: u64, due: Due) {
        let sequence = self.sequence & SEQUENCE_MASK;
        self.sequence += 1;
        let key =
            u128::from(time_ps) << TIME_SHIFT | u128::from(sequence) << 32 | u128::from(due.pack());
        let mut at = self.heap.len();
        self.heap.push(key);
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    /// Time of the next event.
    pub(crate) fn next_ps(&self) -> Option<u64> {
        self.heap.first().map(|key| (key >> TIME_SHIFT) as u64)
    }

    /// The next event, its time, and its payload as a number.
    #[expect(clippy::cast_possible_truncation, reason = "the parts of the key")]
    pub(crate) fn pop(&mut self) -> Option<(u64, Due, u32)> {
        let first = *self.heap.first()?;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sink(last);
        }
        let packed = first as u32;
        Some(((first >> TIME_SHIFT) as u64, Due::unpack(packed), packed))
    }

    /// Places `key` below the root, which is free.
    fn sink(&mut self, key: u128) {
        let length = self.heap.len();
        let mut at = 0;
        loop {
            let first = at * 4 + 1;
            if first >= length {
                break;
            }
            let children = &self.heap[first..(first + 4).min(length)];
            let (mut least, mut child) = (children[0], first);
            for (offset, key) in children.iter().enumerate().skip(1) {
                if *key < least {
                    (least, child) = (*key, first + offset);
                }
            }
            if least >= key {
                break;
            }
            self.heap[at] = least;
            at = child;
        }
        self.heap[at] = key;
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.heap.capacity()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_leave_by_time_and_then_by_insertion() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut calendar = Calendar::default();
        let mut model = Vec::new();
        for number in 0..2_000_u32 {
            let time = random.u64(0..300);
            calendar.push(time, Due::Arrive(number));
            model.push((time, number));
            if number % 3 == 0 {
                model.sort_unstable();
                let (time, number) = model.remove(0);
                let (at, due, _) = calendar.pop().expect("an event is left");
                assert_eq!((at, due), (time, Due::Arrive(number)));
            }
        }
        model.sort_unstable();
        for (time, number) in model {
            assert_eq!(calendar.next_ps(), Some(time));
            let (at, due, _) = calendar.pop().expect("an event is left");
            assert_eq!((at, due), (time, Due::Arrive(number)));
        }
        assert_eq!((calendar.len(), calendar.pop()), (0, None));
    }

    #[test]
    fn kinds_and_indices_survive_the_packing() {
        let last = INDEX_MAX - 1;
        let all = [
            Due::Arrive(last),
            Due::Port(1),
            Due::HostPort(2),
            Due::Pace(3),
            Due::Inject(4),
            Due::Handle(5),
            Due::Timeout(6),
            Due::Start(7),
            Due::Fault(8),
            Due::Sample,
            Due::Watch,
            Due::Warm,
        ];
        for due in all {
            assert_eq!(Due::unpack(due.pack()), due);
        }
    }
}
