//! Packets in flight, in a slab that never grows beyond its limit.

/// End of a list of packets.
pub(crate) const NONE: u32 = u32::MAX;

/// Number of kinds of packets.
pub(crate) const KINDS: usize = 7;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Payload of a flow.
    Data,
    /// Acknowledgement of all packets before its sequence number.
    Ack,
    /// Report of a gap: go back to its sequence number.
    Nack,
    /// Congestion notification packet of a receiver.
    Cnp,
    /// Probe of the round-trip time.
    Probe,
    /// Response to a probe.
    Response,
    /// PFC frame between two neighbours.
    Pause,
}

impl Kind {
    /// Whether it travels from the receiver to the sender.
    pub(crate) fn is_reverse(self) -> bool {
        matches!(self, Self::Ack | Self::Nack | Self::Cnp | Self::Response)
    }
}

/// Congestion was experienced: a switch has marked the packet.
pub(crate) const MARKED: u8 = 1;
/// The receiver acknowledges at once.
pub(crate) const ACK_REQUEST: u8 = 2;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    /// The next packet of the same queue.
    pub(crate) next: u32,
    pub(crate) flow: u32,
    /// Sequence number; of a pause frame: 1 for a pause, 0 for its end.
    pub(crate) sn: u32,
    /// The port that has transmitted the packet, or will.
    pub(crate) port: u32,
    /// The switch's port at which the packet arrived.
    pub(crate) ingress: u32,
    /// Bytes on the wire.
    pub(crate) wire: u16,
    pub(crate) payload: u16,
    pub(crate) kind: Kind,
    pub(crate) priority: u8,
    /// Links that are behind it.
    pub(crate) hop: u8,
    pub(crate) flags: u8,
    /// How often the link had been down when the packet left.
    pub(crate) downs: u8,
    /// Of probes: request sent, request received, response sent, in ns of the respective clock.
    pub(crate) stamps: [u32; 3],
    /// Of probes: what the switches wrote.
    pub(crate) telemetry: [u32; 3],
}

impl Packet {
    pub(crate) fn new(kind: Kind, flow: u32, sn: u32, wire: u16, priority: u8) -> Self {
        Self {
            next: NONE,
            flow,
            sn,
            port: NONE,
            ingress: NONE,
            wire,
            payload: 0,
            kind,
            priority,
            hop: 0,
            flags: 0,
            downs: 0,
            stamps: [0; 3],
            telemetry: [0; 3],
        }
    }
}

/// All packets in flight.
#[derive(Debug)]
pub(crate) struct Packets {
    slots: Vec<Packet>,
    free: u32,
    live: u32,
    limit: u32,
    peak: u32,
}

impl Packets {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            live: 0,
            limit,
            peak: 0,
        }
    }

    /// Stores a packet. None if the limit is reached. Pause frames are beyond it: a lost one could stop a link for ever, and
    /// a port has few at a time.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the limit, which has 32 bits"
    )]
    pub(crate) fn insert(&mut self, packet: Packet) -> Option<u32> {
        if self.live >= self.limit && packet.kind != Kind::Pause {
            return None;
        }
        self.live += 1;
        self.peak = self.peak.max(self.live);
        if self.free == NONE {
            self.slots.push(packet);
            return Some(self.slots.len() as u32 - 1);
        }
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        *slot = packet;
        Some(index)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.slots[index as usize].next = self.free;
        self.free = index;
        self.live -= 1;
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    pub(crate) fn peak(&self) -> u32 {
        self.peak
    }
}

impl std::ops::Index<u32> for Packets {
    type Output = Packet;
    fn index(&self, index: u32) -> &Packet {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Packets {
    fn index_mut(&mut self, index: u32) -> &mut Packet {
        &mut self.slots[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_the_limit_holds() {
        let mut packets = Packets::new(2);
        let packet = Packet::new(Kind::Data, 1, 2, 3, 4);
        let first = packets.insert(packet).expect("free");
        let second = packets.insert(packet).expect("free");
        assert_eq!(packets.insert(packet), None);
        packets.remove(first);
        assert_eq!(packets.insert(packet), Some(first));
        packets.remove(second);
        packets.remove(first);
        assert_eq!((packets.live(), packets.peak()), (0, 2));
    }

    #[test]
    fn a_packet_fits_a_cache_line() {
        assert!(size_of::<Packet>() <= 64);
    }
}
