//! Events of the simulation, and the queue of those that are to come.
//!
//! Times only grow, so the queue is a radix heap (Ahuja et al., JACM 1990): an event lies in the bucket of the highest digit in
//! which its time differs from that of the last event, and moves to lower digits when its bucket is next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// In the order in which simultaneous events are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A rank continues its key work at `step`.
    Host,
    /// HOST_ARRIVE arrives at the SP.
    Arrive,
    /// DPU_RTS arrives at the receiving SP.
    Rts,
    /// The request of an RDMA READ arrives at the sending adapter.
    Request,
    /// The first byte of its response arrives at the receiving adapter.
    Response,
    /// The last byte is in the receiving host's memory.
    Read,
    /// DPU_ACK arrives at the sending SP.
    Ack,
    /// DPU_DONE arrives at the rank.
    Done,
}

/// Ordered by time first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    pub(super) at_ps: u64,
    pub(super) node: u32,
    pub(super) kind: Kind,
    /// The rank on that node that the block or call belongs to.
    pub(super) local: u32,
    /// Step of the block in the schedule, or of the rank's key work.
    pub(super) step: u32,
}

/// Bits of a digit, and digits of a time.
const BITS: u32 = 6;
const DIGITS: usize = u64::BITS.div_ceil(BITS) as usize;

/// Events of a bucket that are not worth further digits: all go to `near`.
const FEW: usize = 32;

/// Events that are to come, the first one first.
#[derive(Debug)]
pub(super) struct Events {
    /// Time up to which events lie in `near`, in their order. All others are later.
    until_ps: u64,
    near: BinaryHeap<Reverse<Event>>,
    /// By digit and its value; which of them are not empty.
    buckets: Vec<Vec<Event>>,
    filled: [u64; DIGITS],
}

impl Default for Events {
    fn default() -> Self {
        Self {
            until_ps: 0,
            near: BinaryHeap::new(),
            buckets: vec![Vec::new(); DIGITS << BITS],
            filled: [0; DIGITS],
        }
    }
}

impl Events {
    /// Adds one.
    pub(super) fn push(&mut self, event: Event) {
        if event.at_ps <= self.until_ps {
            self.near.push(Reverse(event));
            return;
        }
        let digit = (event.at_ps ^ self.until_ps).ilog2() / BITS;
        let value = event.at_ps >> (digit * BITS) & ((1 << BITS) - 1);
        self.filled[digit as usize] |= 1 << value;
        self.buckets[(digit as usize) << BITS | value as usize].push(event);
    }

    /// Time of the next one.
    pub(super) fn next_ps(&mut self) -> Option<u64> {
        self.fill_near();
        self.near.peek().map(|Reverse(event)| event.at_ps)
    }

    /// Takes the next one.
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.fill_near();
        self.near.pop().map(|Reverse(event)| event)
    }

    /// Moves the events of the next time to `near`, if none is there.
    fn fill_near(&mut self) {
        if !self.near.is_empty() {
            return;
        }
        let Some(digit) = self.filled.iter().position(|filled| *filled > 0) else {
            return;
        };
        let value = self.filled[digit].trailing_zeros();
        self.filled[digit] &= !(1 << value);
        let bucket = digit << BITS | value as usize;
        let mut events = std::mem::take(&mut self.buckets[bucket]);
        let first = events.iter().map(|event| event.at_ps).min();
        let first = first.unwrap_or(self.until_ps);
        self.until_ps = match events.len() <= FEW {
            true => first | ((1 << (digit * BITS as usize)) - 1),
            false => first,
        };
        for event in events.drain(..) {
            self.push(event);
        }
        // Its memory is for later events.
        self.buckets[bucket] = events;
    }

    /// All, in no order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        let near = self.near.iter().map(|Reverse(event)| event);
        near.chain(self.buckets.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same order as that of a binary heap, whatever the times of later events.
    #[test]
    fn events_come_in_their_order() {
        let mut state = 1_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (mut events, mut expect) = (Events::default(), BinaryHeap::new());
        let mut now_ps = 0;
        for round in 0..20_000 {
            let far = random() % 64;
            // One of sixteen is earlier than the last one.
            let early = if round % 16 == 0 { random() % 1000 } else { 0 };
            let event = Event {
                at_ps: now_ps + (random() >> 24 >> (far % 40)) - early.min(now_ps),
                node: 0,
                kind: Kind::Rts,
                local: 0,
                step: u32::try_from(random() % 4).expect("small"),
            };
            events.push(event);
            expect.push(Reverse(event));
            if random() % 2 == 0 {
                let found = events.pop();
                assert_eq!(found, expect.pop().map(|Reverse(event)| event));
                now_ps = found.map_or(now_ps, |event| event.at_ps.max(now_ps));
            }
        }
        assert_eq!(events.iter().count(), expect.len());
        while let Some(Reverse(event)) = expect.pop() {
            assert_eq!(events.next_ps(), Some(event.at_ps));
            assert_eq!(events.pop(), Some(event));
        }
        assert_eq!(events.pop(), None);
    }
}
