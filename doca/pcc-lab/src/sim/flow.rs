//! A flow: sender and receiver of one queue pair.

use crate::packet::NONE;
use crate::scenario::FlowSpec;
use crate::units::NEVER;

/// Life of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// Before its start.
    #[default]
    New,
    /// It has packets to send, or waits for acknowledgements.
    Open,
    /// All is acknowledged.
    Done,
    /// Too many time-outs.
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) priority: u8,
    /// The internal algorithm controls it.
    pub(crate) is_internal: bool,
    /// A program posts its data.
    pub(crate) has_messages: bool,
    pub(crate) state: State,
    /// Start of its paths, in `Lab::paths`, and their lengths.
    pub(crate) forward: u32,
    pub(crate) reverse: u32,
    pub(crate) links: u32,
    /// Bytes; 0 without end.
    pub(crate) bytes: u64,
    /// Packets in all, and payload of the last one.
    pub(crate) total: u32,
    pub(crate) last_payload: u16,
    pub(crate) start_ps: u64,
    pub(crate) finish_ps: u64,
    /// Duration on an empty network.
    pub(crate) ideal_ps: u64,

    /// Sender: the next packet, the first without acknowledgement, and the first that was never sent.
    pub(crate) next: u32,
    pub(crate) unacked: u32,
    pub(crate) fresh: u32,
    pub(crate) rate: u32,
    /// When the next packet is due, and when the last one was, with its bytes.
    pub(crate) due_ps: u64,
    pub(crate) anchor_ps: u64,
    pub(crate) last_bytes: u16,
    /// The first packet after going back asks for an acknowledgement.
    pub(crate) asks_ack: bool,
    pub(crate) deadline_ps: u64,
    pub(crate) has_timer: bool,
    pub(crate) retries: u32,

    /// Probe: asked for, sent at, number.
    pub(crate) wants_probe: bool,
    pub(crate) probe_ps: u64,
    pub(crate) probe_sn: u32,
    pub(crate) probe_priority: u8,
    /// Since the last TX event: packets, bytes, time of the first.
    pub(crate) tx_packets: u16,
    pub(crate) tx_bytes: u32,
    pub(crate) tx_first_ns: u32,
    /// Events on their way, by type.
    pub(crate) queued: [u32; 5],

    /// Receiver: the packet that it expects, packets since its last acknowledgement, the gap is reported, next CNP.
    pub(crate) expected: u32,
    pub(crate) since_ack: u32,
    pub(crate) has_nacked: bool,
    pub(crate) cnp_ps: u64,
    /// Payload delivered in order, in all and before the measured part.
    pub(crate) delivered: u64,
    pub(crate) delivered_before: u64,
    /// The packet expected when flows were last watched.
    pub(crate) watched: u32,

    pub(crate) resent: u32,
    pub(crate) probes: u32,
    pub(crate) cnps: u32,
    pub(crate) timeouts: u32,
    pub(crate) handled: u64,
    pub(crate) rate_zero: u32,
    pub(crate) rate_above: u32,
    pub(crate) noted_no_probe: bool,
}

impl Flow {
    pub(crate) fn new(spec: &FlowSpec, mtu: u16, rate: u32) -> Self {
        let packets = match spec.bytes {
            _ if spec.has_messages => 0,
            0 => u64::from(u32::MAX),
            bytes => bytes.div_ceil(u64::from(mtu)),
        };
        let last = match spec.bytes % u64::from(mtu) {
            0 => u64::from(mtu),
            rest => rest,
        };
        Self {
            from: spec.from,
            to: spec.to,
            priority: spec.class.priority,
            probe_priority: spec.class.priority,
            is_internal: !spec.class.rdma_cm,
            has_messages: spec.has_messages,
            state: if spec.has_messages {
                State::Done
            } else {
                State::New
            },
            bytes: spec.bytes,
            total: u32::try_from(packets).unwrap_or(u32::MAX),
            last_payload: u16::try_from(last).unwrap_or(mtu),
            start_ps: spec.start_ps,
            finish_ps: NEVER,
            rate,
            due_ps: spec.start_ps,
            anchor_ps: spec.start_ps,
            deadline_ps: NEVER,
            probe_ps: NEVER,
            queued: [NONE; 5],
            ..Self::default()
        }
    }

    /// Payload of a packet.
    pub(crate) fn payload(&self, sn: u32, mtu: u16) -> u16 {
        if sn + 1 == self.total {
            self.last_payload
        } else {
            mtu
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Traffic;

    #[test]
    fn packets_cover_the_bytes_exactly() {
        for (bytes, packets, last) in [(1, 1, 1), (4096, 1, 4096), (4097, 2, 1), (12_288, 3, 4096)]
        {
            let text = format!("kind = 'pairs'\npairs = [[0, 1]]\nbytes = {bytes}");
            let traffic: Traffic = toml::from_str(&text).expect("traffic");
            let spec = FlowSpec {
                start_ps: 0,
                from: 0,
                to: 1,
                bytes,
                has_messages: false,
                class: *traffic.class(),
            };
            let flow = Flow::new(&spec, 4096, 1);
            assert_eq!(
                (flow.total, flow.payload(packets - 1, 4096)),
                (packets, last)
            );
            let all: u64 = (0..packets)
                .map(|sn| u64::from(flow.payload(sn, 4096)))
                .sum();
            assert_eq!(all, bytes);
        }
    }
}
