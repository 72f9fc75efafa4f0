//! The interface between the lab and an algorithm: events in, rates and probes out.
//!
//! It has the shape of the device's own: one call per event, twelve words of context per flow, a rate as a 20-bit fraction of
//! the port's speed. Times are in nanoseconds of the sender's clock, in 32 bits that wrap.

use std::fmt::Debug;

/// Words of context of each flow. They are zero when the flow starts, and after a change of the active process.
pub const CONTEXT_WORDS: usize = 12;

/// What an algorithm keeps about one flow.
pub type Context = [u32; CONTEXT_WORDS];

/// Types of events, with the device's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventType {
    /// A congestion notification packet arrived.
    Cnp = 2,
    /// Packets were sent.
    Tx = 3,
    /// An acknowledgement arrived.
    Ack = 4,
    /// The receiver reported a gap.
    Nack = 5,
    /// The response to a probe arrived.
    Rtt = 6,
}

/// All types, in the order of the counters.
pub const EVENT_TYPES: [EventType; 5] = [
    EventType::Cnp,
    EventType::Tx,
    EventType::Ack,
    EventType::Nack,
    EventType::Rtt,
];

impl EventType {
    /// Position in [`EVENT_TYPES`].
    pub(crate) fn index(self) -> usize {
        usize::from(self as u8) - 2
    }

    /// The bit of the type in a mask of disabled events.
    #[must_use]
    pub const fn mask(self) -> u32 {
        1 << self as u8
    }
}

/// Subtype of a NACK: out of sequence.
pub const NACK_OUT_OF_SEQUENCE: u8 = 2;
/// Flag of a TX event: a probe was sent with its packets.
pub const TX_PROBE_SENT: u8 = 4;

/// The fields of an event that depend on its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Of a TX event.
    Tx {
        /// Time of the first packet.
        first_timestamp: u32,
        /// Bytes sent, in units of 32.
        sent_32bytes: u16,
        /// Packets sent.
        sent_packets: u16,
    },
    /// Of ACK, NACK and CNP events.
    Ack {
        /// Time of the first of the coalesced events.
        first_timestamp: u32,
        /// Sequence number of the first.
        first_sn: u32,
        /// Number of coalesced events.
        coalesced: u16,
    },
    /// Of an RTT event.
    Rtt {
        /// The request left the sender, by the sender's clock.
        request_sent: u32,
        /// The request arrived, by the receiver's clock.
        request_received: u32,
        /// The response left, by the receiver's clock.
        response_sent: u32,
        /// Twelve bytes of the response. With IFA probes: utilisation of the busiest link on the path (16 bits of
        /// fraction), bytes in its queue, and its place on the path.
        raw: [u32; 3],
    },
}

/// One event of congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its type.
    pub kind: EventType,
    /// Subtype, for NACK events.
    pub subtype: u8,
    /// Flags, for TX events.
    pub flags: u8,
    /// Number of the flow.
    pub flow_tag: u32,
    /// Sequence number of the packet.
    pub sn: u32,
    /// Time of the event, or of the last of the coalesced ones.
    pub timestamp: u32,
    /// Fields by type.
    pub detail: Detail,
}

impl Event {
    /// An event of one packet of flow 0, whose probe or packet was sent at the same time.
    #[must_use]
    pub fn of_one_packet(kind: EventType, timestamp: u32) -> Self {
        let detail = match kind {
            EventType::Tx => Detail::Tx {
                first_timestamp: timestamp,
                sent_32bytes: 0,
                sent_packets: 1,
            },
            EventType::Rtt => Detail::Rtt {
                request_sent: timestamp,
                request_received: 0,
                response_sent: 0,
                raw: [0; 3],
            },
            _ => Detail::Ack {
                first_timestamp: timestamp,
                first_sn: 0,
                coalesced: 1,
            },
        };
        Self {
            kind,
            subtype: 0,
            flags: 0,
            flow_tag: 0,
            sn: 0,
            timestamp,
            detail,
        }
    }
}

/// What the port is, at the time of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Slot to which the flow is bound.
    pub slot: u8,
    /// More events arrive than the handlers sustain.
    pub overload: bool,
    /// Speed in Mb/s.
    pub mbps: u64,
    /// Payload of a full packet.
    pub mtu: u32,
    /// Time of the run.
    pub time_ps: u64,
    /// Bytes that the port has sent and received, headers and gaps included.
    pub sent_bytes: u64,
    /// See before.
    pub received_bytes: u64,
}

/// Priority of a flow's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbePriority {
    /// That of the flow.
    Flow,
    /// This one.
    Own(u8),
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// The flow's rate as a fraction of [`RATE_MAX`](crate::RATE_MAX). None: unchanged.
    pub rate: Option<u32>,
    /// Send a probe with the next packet.
    pub probe: bool,
    /// A new priority of the flow's next probes. None: unchanged.
    pub probe_priority: Option<ProbePriority>,
    /// Instructions that the handler executed, if it counts them. They determine how long it occupied its thread.
    pub instructions: u32,
}

impl Decision {
    /// A new rate.
    #[must_use]
    pub fn rate(rate: u32) -> Self {
        Self {
            rate: Some(rate),
            ..Self::default()
        }
    }

    /// The same, and a probe with the next packet.
    #[must_use]
    pub fn and_probe(self) -> Self {
        Self {
            probe: true,
            ..self
        }
    }
}

/// The process that runs the algorithm has failed: it crashed, or exceeded the limit of instructions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("algorithm failed: {0}")]
pub struct Failure(pub String);

/// A congestion-control algorithm. One instance serves all flows of one host.
pub trait Algorithm: Debug {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Types of events that the algorithm never gets: bits of [`EventType::mask`].
    fn disabled_events(&self) -> u32 {
        0
    }

    /// Handles one event of one flow.
    ///
    /// # Errors
    /// The process failed. The lab ends it and activates the next one.
    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure>;

    /// The speed of the port has changed.
    fn port_changed(&mut self, mbps: u64) {
        let _ = mbps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_numbers_of_the_device_and_counters_without_gaps() {
        let numbers = EVENT_TYPES.map(|kind| kind as u8);
        assert_eq!(numbers, [2, 3, 4, 5, 6]);
        for (at, kind) in EVENT_TYPES.iter().enumerate() {
            assert_eq!(kind.index(), at);
        }
        assert_eq!(EventType::Rtt.mask(), 64);
    }
}
