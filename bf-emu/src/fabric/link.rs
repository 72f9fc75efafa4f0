//! Ports of the link model: the time at which each direction of a port becomes free.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two directions of a port. All zeroes means idle. Changes require the lock of its card.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Port {
    out: Line,
    into: Line,
}

/// One direction of a port.
#[derive(Debug, Default)]
#[repr(C)]
struct Line {
    free_at_ns: AtomicU64,
}

/// Occupies one port's outgoing and another's incoming direction for `transfer_ns`, not before
/// `from_ns`. Returns the end of the transfer.
pub(crate) fn pass((out, into): (&Port, &Port), transfer_ns: u64, from_ns: u64) -> u64 {
    let lines = [&out.out.free_at_ns, &into.into.free_at_ns];
    let free_at_ns = lines.map(|line| line.load(Ordering::Relaxed));
    let start_ns = free_at_ns.into_iter().fold(from_ns, u64::max);
    let left_at_ns = start_ns.saturating_add(transfer_ns);
    for line in lines {
        line.store(left_at_ns, Ordering::Relaxed);
    }
    left_at_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message: source and destination port, transfer time, earliest start, and end.
    type Message = ((usize, usize), u64, u64, u64);

    #[track_caller]
    fn check(messages: &[Message]) {
        let ports: [Port; 4] = std::array::from_fn(|_| Port::default());
        for (ways, transfer_ns, from_ns, expect) in messages {
            let way = (&ports[ways.0], &ports[ways.1]);
            assert_eq!(pass(way, *transfer_ns, *from_ns), *expect, "{messages:?}");
        }
    }

    #[test]
    fn two_queues_of_a_port_share_its_bandwidth() {
        // Two senders of 3 messages of 100 ns each, at the same time and to different ports: 600
        // ns.
        check(&[
            ((0, 1), 100, 1000, 1100),
            ((0, 2), 100, 1000, 1200),
            ((0, 1), 100, 1100, 1300),
            ((0, 2), 100, 1200, 1400),
            ((0, 1), 100, 1300, 1500),
            ((0, 2), 100, 1400, 1600),
        ]);
        // Two ports send to one port: the same.
        check(&[((0, 2), 100, 1000, 1100), ((1, 2), 100, 1000, 1200)]);
    }

    #[test]
    fn other_ports_and_the_other_direction_are_independent() {
        check(&[
            ((0, 1), 1000, 1000, 2000),
            ((2, 3), 1000, 1000, 2000),
            ((1, 0), 1000, 1000, 2000),
            ((3, 2), 1000, 1500, 2500),
        ]);
    }

    #[test]
    fn an_idle_port_takes_no_time_and_saves_none() {
        check(&[
            ((0, 1), 100, 1000, 1100),
            ((0, 1), 100, 5000, 5100),
            ((0, 1), 0, 5000, 5100),
            ((0, 1), u64::MAX, 5200, u64::MAX),
        ]);
    }
}
