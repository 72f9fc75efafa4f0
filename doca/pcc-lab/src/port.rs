//! A port: one direction of a link, its queues by priority, and what the port keeps about packets that arrived through it.

use crate::histogram::OverTime;
use crate::packet::{NONE, Packets};
use crate::scheduler::Turn;

/// The queue of pause frames, above all priorities.
pub(crate) const CONTROL: u8 = 8;

/// Packets in the order of their arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Port {
    /// The node that transmits, and the one that receives.
    pub(crate) node: u32,
    pub(crate) to_node: u32,
    pub(crate) mbps: u64,
    /// From the last bit's departure to the place in the next queue.
    pub(crate) delay_ps: u64,
    pub(crate) is_up: bool,
    /// How often the link has been down. Packets that were on it are lost.
    pub(crate) downs: u8,
    pub(crate) busy_until_ps: u64,
    /// An event at the end of the transmission is due.
    pub(crate) is_woken: bool,
    /// Priorities that the neighbour pauses.
    pub(crate) paused: u8,
    /// Queues that are not empty.
    pub(crate) waiting: u16,
    pub(crate) fifos: [Fifo; 9],
    /// Bytes in all queues.
    pub(crate) bytes: u64,
    /// Size of the queues over time.
    pub(crate) queue: OverTime,
    pub(crate) sent_bytes: u64,
    /// Average utilisation, for IFA probes.
    pub(crate) utilisation: f64,
    pub(crate) averaged_ps: u64,
    /// Of packets that arrived through this port and are still in the switch: bytes in the shared buffer and in the headroom.
    pub(crate) shared: [u64; 8],
    pub(crate) headroom: [u64; 8],
    pub(crate) headroom_limit: u64,
    /// Priorities that this port pauses at its neighbour.
    pub(crate) pausing: u8,
    /// Of the weighted queues.
    pub(crate) turn: Turn,
}

impl Port {
    pub(crate) fn new(
        (node, to_node): (u32, u32),
        mbps: u64,
        delay_ps: u64,
        is_switch: bool,
    ) -> Self {
        let empty = Fifo {
            head: NONE,
            tail: NONE,
            bytes: 0,
        };
        Self {
            node,
            to_node,
            mbps,
            delay_ps,
            is_up: true,
            downs: 0,
            busy_until_ps: 0,
            is_woken: false,
            paused: 0,
            waiting: 0,
            fifos: [empty; 9],
            bytes: 0,
            queue: OverTime::new(is_switch),
            sent_bytes: 0,
            utilisation: 0.0,
            averaged_ps: 0,
            shared: [0; 8],
            headroom: [0; 8],
            headroom_limit: 0,
            pausing: 0,
            turn: Turn::default(),
        }
    }

    /// Queues whose first packet may leave.
    pub(crate) fn ready(&self) -> u16 {
        self.waiting & !u16::from(self.paused)
    }

    pub(crate) fn push(&mut self, packets: &mut Packets, packet: u32, queue: u8, now_ps: u64) {
        self.queue.add(now_ps, self.bytes);
        let size = u64::from(packets[packet].wire);
        packets[packet].next = NONE;
        let fifo = &mut self.fifos[usize::from(queue)];
        if fifo.tail == NONE {
            fifo.head = packet;
        } else {
            packets[fifo.tail].next = packet;
        }
        fifo.tail = packet;
        fifo.bytes += size;
        self.bytes += size;
        self.waiting |= 1 << queue;
    }

    pub(crate) fn pop(&mut self, packets: &Packets, queue: u8, now_ps: u64) -> Option<u32> {
        let fifo = &mut self.fifos[usize::from(queue)];
        let packet = fifo.head;
        if packet == NONE {
            return None;
        }
        self.queue.add(now_ps, self.bytes);
        let size = u64::from(packets[packet].wire);
        fifo.head = packets[packet].next;
        if fifo.head == NONE {
            fifo.tail = NONE;
            self.waiting &= !(1 << queue);
        }
        fifo.bytes -= size;
        self.bytes -= size;
        Some(packet)
    }

    /// The queue that transmits next, with weights.
    pub(crate) fn choose(&mut self, packets: &Packets, weights: &[u8; 8]) -> Option<u8> {
        let (ready, fifos) = (self.ready(), &self.fifos);
        let first = |queue: u8| u64::from(packets[fifos[usize::from(queue)].head].wire);
        self.turn.choose(ready, weights, first)
    }

    /// The highest of these queues.
    #[expect(clippy::cast_possible_truncation, reason = "a bit's number")]
    pub(crate) fn highest(queues: u16) -> Option<u8> {
        queues.checked_ilog2().map(|bit| bit as u8)
    }

    /// Bytes between the start of a pause and the last packet before it: both directions of the link, a packet that has just
    /// begun in each, and the frame itself.
    pub(crate) fn headroom_needed(&self, largest: u64, frame: u64, back_ps: u64) -> u64 {
        let on_the_way = (self.delay_ps + back_ps) * self.mbps / 8_000_000;
        on_the_way + 3 * largest + frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Kind, Packet};

    #[test]
    fn packets_leave_a_queue_in_order_and_the_higher_priority_first() {
        let mut packets = Packets::new(8);
        let mut port = Port::new((0, 1), 100_000, 0, true);
        for (sn, priority) in [(0, 3), (1, 3), (2, 6)] {
            let packet = Packet::new(Kind::Data, 0, sn, 100, priority);
            let packet = packets.insert(packet).expect("free");
            port.push(&mut packets, packet, priority, u64::from(sn));
        }
        assert_eq!((port.bytes, port.waiting), (300, 1 << 3 | 1 << 6));
        port.paused = 1 << 6;
        assert_eq!(Port::highest(port.ready()), Some(3), "6 is paused");
        port.paused = 0;
        let mut order = Vec::new();
        while let Some(queue) = Port::highest(port.ready()) {
            let packet = port.pop(&packets, queue, 10).expect("waiting");
            order.push(packets[packet].sn);
        }
        assert_eq!(order, [2, 0, 1]);
        assert_eq!(
            (port.bytes, port.waiting, port.pop(&packets, 3, 11)),
            (0, 0, None)
        );
    }
}
