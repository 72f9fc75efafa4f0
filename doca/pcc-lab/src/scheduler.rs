//! Which queue of a switch's port may transmit next: by priority, and by weights among those that have one (IEEE 802.1Qaz,
//! enhanced transmission selection), as deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).

use crate::packet::Packets;
use crate::port::{CONTROL, Port};

/// Bytes per round and unit of weight.
const QUANTUM: u64 = 1_024;

/// State of the weighted queues of a port.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// The queue that transmits, and the bytes that each one may still transmit in its turn.
    queue: u8,
    deficits: [u64; 8],
}

impl Port {
    /// The queue that transmits next. Queues without a weight come first, the higher one before the lower one.
    pub(crate) fn choose(&mut self, packets: &Packets, weights: &[u8; 8]) -> Option<u8> {
        let ready = self.ready();
        let shared = (0..8).filter(|queue| weights[*queue] > 0);
        let shared = shared.fold(0_u16, |all, queue| all | 1 << queue);
        let strict = Self::highest(ready & !shared);
        if strict.is_some() || ready == 0 {
            return strict;
        }
        // A queue without packets keeps nothing for later.
        for queue in 0..CONTROL {
            if ready & 1 << queue == 0 {
                self.turn.deficits[usize::from(queue)] = 0;
            }
        }
        loop {
            let queue = self.turn.queue;
            let at = usize::from(queue);
            if ready & 1 << queue != 0 {
                let bytes = u64::from(packets[self.fifos[at].head].wire);
                if let Some(rest) = self.turn.deficits[at].checked_sub(bytes) {
                    self.turn.deficits[at] = rest;
                    return Some(queue);
                }
            }
            let next = (queue + 1) % CONTROL;
            self.turn.queue = next;
            if ready & 1 << next != 0 {
                let weight = u64::from(weights[usize::from(next)]);
                self.turn.deficits[usize::from(next)] += weight * QUANTUM;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Kind, Packet};

    fn port(packets: &mut Packets, each: u32) -> Port {
        let mut port = Port::new((0, 1), 100_000, 0, true);
        for (sn, priority) in (0..each).flat_map(|sn| [(sn, 2), (sn, 4), (sn, 6)]) {
            let bytes = if priority == 2 { 4_000 } else { 1_000 };
            let packet = Packet::new(Kind::Data, 0, sn, bytes, priority);
            let packet = packets.insert(packet).expect("free");
            port.push(packets, packet, priority, 0);
        }
        port
    }

    #[test]
    fn bytes_are_shared_by_weight_after_the_queues_without_one() {
        let mut packets = Packets::new(10_000);
        let mut port = port(&mut packets, 1_000);
        let weights = [0, 0, 3, 0, 1, 0, 0, 0];
        let mut bytes = [0_u64; 8];
        for number in 0..2_000 {
            let queue = port.choose(&packets, &weights).expect("packets wait");
            let packet = port.pop(&packets, queue, 0).expect("a packet");
            bytes[usize::from(queue)] += u64::from(packets[packet].wire);
            assert_eq!(queue == 6, number < 1_000, "without a weight first");
        }
        let ratio = 100 * bytes[2] / bytes[4];
        assert!((295..=305).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn a_queue_alone_gets_all_and_a_paused_one_nothing() {
        let mut packets = Packets::new(100);
        let mut port = port(&mut packets, 4);
        port.paused = 1 << 6 | 1 << 2;
        let weights = [1; 8];
        for _ in 0..4 {
            assert_eq!(port.choose(&packets, &weights), Some(4));
            port.pop(&packets, 4, 0).expect("a packet");
        }
        assert_eq!(port.choose(&packets, &weights), None);
    }
}
