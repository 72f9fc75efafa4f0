//! Partitions: both ends of a message must be in the same one.

use crate::fabric::Locked;
use crate::fabric::counters::PortCounter;
use crate::fabric::objects::Qp;

/// Bit of a partition key: full member. Limited members do not talk to each other.
const FULL: u16 = 0x8000;

/// True if the receiver accepts the partition key of a sender's packets. Otherwise it drops them and
/// counts them (Linux `rxe_recv.c`, `check_keys`). The sender gets no answer.
///
/// Each end is a queue pair and its function.
pub(super) fn accepts(locked: &Locked<'_>, sender: (usize, &Qp), receiver: (usize, &Qp)) -> bool {
    let key = |(function, qp): (usize, &Qp)| {
        let identity = locked.fabric().identity(function);
        identity.map_or(0, |own| own.pkey(qp.port(), qp.path.pkey_index))
    };
    let matches = are_same(key(sender), key(receiver));
    if !matches {
        let counters = locked.fabric().counters(receiver.0);
        counters.count_port(receiver.1.port(), PortCounter::BadPkey);
    }
    matches
}

/// True if two partition keys name the same partition, one of them as full member.
pub(super) fn are_same(ours: u16, theirs: u16) -> bool {
    (ours ^ theirs) & !FULL == 0 && ours & !FULL != 0 && (ours | theirs) & FULL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_end_is_a_full_member() {
        for (ours, theirs, expect) in [
            (0xffff, 0xffff, true),
            (0x8001, 0x8001, true),
            (0x8001, 0x0001, true),
            (0x0001, 0x8001, true),
            (0x0001, 0x0001, false),
            (0x8001, 0x8002, false),
            (0x8000, 0x8000, false),
            (0, 0xffff, false),
        ] {
            assert_eq!(are_same(ours, theirs), expect, "{ours:#x} {theirs:#x}");
        }
    }
}
