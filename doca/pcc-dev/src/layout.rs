//! Layouts of events, blocks and probes: the words of an event are big-endian, all others are little-endian.

/// Bytes of an event.
pub const EVENT_BYTES: usize = 44;
/// Words of a flow's context.
pub const CONTEXT_WORDS: usize = 12;
/// Bytes of a block, and where its parts begin.
pub const BLOCK_BYTES: usize = 120;
/// See [`BLOCK_BYTES`]. The context is at 0.
pub const BLOCK_EVENT: usize = 48;
/// See [`BLOCK_BYTES`].
pub const BLOCK_ATTR: usize = 92;
/// See [`BLOCK_BYTES`].
pub const BLOCK_RESULTS: usize = 96;
/// Bytes of a probe's description, and of the answer to it.
pub const PROBE_BYTES: usize = 40;
/// See [`PROBE_BYTES`].
pub const RESPONSE_BYTES: usize = 12;
/// Where the answer begins in a probe's description.
const PROBE_RESPONSE: usize = 24;

/// The processor whose layout an event has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// BlueField-3 and ConnectX-7.
    Bf3,
    /// ConnectX-8 and later.
    Cx8,
}

impl Model {
    /// Value of the macro `__NV_DPA`.
    #[must_use]
    pub const fn macro_value(self) -> u32 {
        match self {
            Self::Bf3 => 1,
            Self::Cx8 => 2,
        }
    }

    /// Ports of the device.
    #[must_use]
    pub const fn ports(self) -> u8 {
        match self {
            Self::Bf3 => 4,
            Self::Cx8 => 8,
        }
    }
}

/// Types of events.
pub mod event_type {
    /// Of the firmware.
    pub const FW: u8 = 1;
    /// A congestion notification packet arrived.
    pub const CNP: u8 = 2;
    /// Packets were sent.
    pub const TX: u8 = 3;
    /// An acknowledgement arrived.
    pub const ACK: u8 = 4;
    /// A negative acknowledgement arrived.
    pub const NACK: u8 = 5;
    /// The response to a probe arrived.
    pub const RTT: u8 = 6;
    /// ACK and NACK packets were sent.
    pub const TX_FOR_ACK_NACK: u8 = 31;
}

/// Flag of a TX event: one of its packets asks for an acknowledgement.
pub const TX_ACK_EXPECTED: u8 = 1;
/// Flag of a TX event: the port is overloaded.
pub const TX_OVERLOADED: u8 = 2;
/// Flag of a TX event: a probe was sent with its packets.
pub const TX_PROBE_SENT: u8 = 4;

/// The words of an event that depend on its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Of TX events.
    Tx {
        /// Time of the first packet, in ns.
        first_timestamp: u32,
        /// Bytes, in units of 32.
        sent_32bytes: u16,
        /// Packets.
        sent_packets: u16,
    },
    /// Of ACK, NACK and CNP events.
    Ack {
        /// Time of the first one, in ns.
        first_timestamp: u32,
        /// Its sequence number.
        first_sn: u32,
        /// How many the event stands for.
        coalesced: u16,
    },
    /// Of RTT events, in ns.
    Rtt {
        /// The request left.
        request_sent: u32,
        /// It arrived.
        request_received: u32,
        /// The response left.
        response_sent: u32,
        /// ConnectX-8 only: version of the response, and bytes that the receiver's port had received, in units of 256.
        received: (u8, u32),
    },
    /// Of RTT events with an answer of the user's code at the receiver: its bytes, unchanged.
    Raw([u8; RESPONSE_BYTES]),
    /// Of FW events.
    Fw([u32; 3]),
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// See [`event_type`].
    pub kind: u8,
    /// Subtype of NACK events.
    pub subtype: u8,
    /// Port.
    pub port: u8,
    /// Plane of the port, ConnectX-8 only.
    pub plane: u8,
    /// Flags of TX events.
    pub flags: u8,
    /// Number of the flow.
    pub flow_tag: u32,
    /// Queue pair of the flow. BlueField-3 states it in TX events only.
    pub qpn: u32,
    /// Hop limit of the packet that arrived, ConnectX-8 only.
    pub hop_limit: u8,
    /// Sequence number.
    pub sn: u32,
    /// Time, in ns.
    pub timestamp: u32,
    /// By type.
    pub detail: Detail,
}

impl Event {
    /// The bytes of the event as a model has them.
    #[must_use]
    pub fn encode(&self, model: Model) -> [u8; EVENT_BYTES] {
        let mut words = [0_u32; EVENT_BYTES / 4];
        let flow = self.qpn & 0xff_ffff;
        let port = match model {
            Model::Bf3 => self.port,
            Model::Cx8 => self.port & 0xf | (self.plane & 0xf) << 4,
        };
        if model == Model::Cx8 {
            words[2] = flow | u32::from(self.hop_limit) << 24;
        }
        words[3] = u32::from_le_bytes([self.kind, self.subtype, port, self.flags]);
        words[4..7].copy_from_slice(&[self.flow_tag, self.sn, self.timestamp]);
        let (first, second, third, fourth) = self.words(model, flow);
        words[7..].copy_from_slice(&[first, second, third, fourth]);
        let mut bytes = [0; EVENT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        if let Detail::Raw(raw) = self.detail {
            bytes[28..40].copy_from_slice(&raw);
        }
        bytes
    }

    /// The last four words.
    fn words(&self, model: Model, flow: u32) -> (u32, u32, u32, u32) {
        match self.detail {
            Detail::Tx {
                first_timestamp,
                sent_32bytes,
                sent_packets,
            } => {
                let counts = u32::from(sent_32bytes) | u32::from(sent_packets) << 16;
                let extra = if model == Model::Bf3 { flow } else { 0 };
                (first_timestamp, counts, extra, 0)
            }
            Detail::Ack {
                first_timestamp,
                first_sn,
                coalesced,
            } => (first_timestamp, first_sn, u32::from(coalesced), 0),
            Detail::Rtt {
                request_sent,
                request_received,
                response_sent,
                received: (version, units),
            } => match model {
                Model::Bf3 => (request_sent, request_received, response_sent, 0),
                // Times have 28 bits there.
                Model::Cx8 => {
                    let plane = u32::from(self.plane & 3) << 2;
                    let last = u32::from(version & 0xf) | units << 4;
                    let time = |ns: u32| ns & !0xf;
                    let (sent, arrived) = (time(request_sent) | plane, time(request_received));
                    (sent, arrived, time(response_sent), last)
                }
            },
            Detail::Raw(_) => (0, 0, 0, 0),
            Detail::Fw([a, b, c]) => (a, b, c, 0),
        }
    }
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Results {
    /// Rate, a fraction of 2^20 of the port's speed.
    pub rate: u32,
    /// Whether a probe is to be sent; any number but 0.
    pub probe: u32,
    /// Slot of the probe's format.
    pub probe_slot: u32,
    /// Credits of the flow.
    pub credits: u32,
    /// Whether the credits are to be loaded again.
    pub reload_credits: u32,
}

/// One event, its flow's context and the answer, as the library has them in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Block(
    /// The bytes.
    pub [u8; BLOCK_BYTES],
);

impl Block {
    /// A block for an event. The answer is empty.
    #[must_use]
    pub fn new(
        context: &[u32; CONTEXT_WORDS],
        event: &[u8; EVENT_BYTES],
        slot: u8,
        overload: bool,
    ) -> Self {
        let mut block = Self([0; BLOCK_BYTES]);
        for (place, word) in block.0.chunks_exact_mut(4).zip(context) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        block.0[BLOCK_EVENT..BLOCK_ATTR].copy_from_slice(event);
        block.0[BLOCK_ATTR] = slot & 0xf | u8::from(overload) << 4;
        block
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// The flow's context.
    #[must_use]
    pub fn context(&self) -> [u32; CONTEXT_WORDS] {
        std::array::from_fn(|number| self.word(number * 4))
    }

    /// The answer.
    #[must_use]
    pub fn results(&self) -> Results {
        let [rate, probe, probe_slot, credits, reload_credits] =
            std::array::from_fn(|number| self.word(BLOCK_RESULTS + number * 4));
        Results {
            rate,
            probe,
            probe_slot,
            credits,
            reload_credits,
        }
    }
}

/// A probe that arrived, as the library has it in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Probe(
    /// The bytes.
    pub [u8; PROBE_BYTES],
);

impl Probe {
    /// A probe of `size` bytes at `address`, whose UDP header and payload begin at these offsets.
    #[must_use]
    pub fn new(address: u64, size: u32, l4: u32, payload: u32, port: u8) -> Self {
        let mut probe = Self([0; PROBE_BYTES]);
        probe.0[..8].copy_from_slice(&address.to_le_bytes());
        for (place, word) in probe.0[8..20].chunks_exact_mut(4).zip([size, l4, payload]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        probe.0[20] = port;
        probe
    }

    /// The answer.
    #[must_use]
    pub fn response(&self) -> [u8; RESPONSE_BYTES] {
        let bytes = self.0[PROBE_RESPONSE..].first_chunk();
        bytes.copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(detail: Detail) -> Event {
        Event {
            kind: event_type::TX,
            subtype: 2,
            port: 3,
            plane: 1,
            flags: TX_PROBE_SENT,
            flow_tag: 0x0102_0304,
            qpn: 0xaa_bbcc,
            hop_limit: 64,
            sn: 0x1122_3344,
            timestamp: 0x5566_7788,
            detail,
        }
    }

    #[test]
    fn an_event_has_the_bytes_of_its_model() {
        let tx = event(Detail::Tx {
            first_timestamp: 0x99aa_bbcc,
            sent_32bytes: 0x0102,
            sent_packets: 0x0304,
        });
        let mut expect = vec![0; 12];
        expect.extend([4, 3, 2, 3]);
        expect.extend([1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        expect.extend([
            0x99, 0xaa, 0xbb, 0xcc, 3, 4, 1, 2, 0, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0,
        ]);
        assert_eq!(tx.encode(Model::Bf3).to_vec(), expect);
        // ConnectX-8: the queue pair and the hop limit before the attributes, port and plane in one byte.
        expect[8..14].copy_from_slice(&[64, 0xaa, 0xbb, 0xcc, 4, 0x13]);
        expect[36..40].fill(0);
        assert_eq!(tx.encode(Model::Cx8).to_vec(), expect);
    }

    #[test]
    fn raw_data_is_not_swapped_and_times_of_connectx_8_have_28_bits() {
        let raw: [u8; 12] = std::array::from_fn(|at| u8::try_from(at).unwrap_or(0));
        assert_eq!(event(Detail::Raw(raw)).encode(Model::Bf3)[28..40], raw);
        let rtt = event(Detail::Rtt {
            request_sent: 0x1234_567f,
            request_received: 0x0000_001f,
            response_sent: 0xffff_ffff,
            received: (1, 0x123),
        });
        let expect = [
            0x12, 0x34, 0x56, 0x74, 0, 0, 0, 0x10, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0x12, 0x31,
        ];
        assert_eq!(rtt.encode(Model::Cx8)[28..], expect);
        assert_eq!(rtt.encode(Model::Bf3)[28..32], [0x12, 0x34, 0x56, 0x7f]);
    }

    #[test]
    fn a_block_keeps_the_context_and_begins_without_an_answer() {
        let context = std::array::from_fn(|number| 0x1000 + u32::try_from(number).unwrap_or(0));
        let mut block = Block::new(&context, &[7; EVENT_BYTES], 15, true);
        assert_eq!((block.context(), block.0[BLOCK_ATTR]), (context, 0x1f));
        assert_eq!(block.results(), Results::default());
        block.0[BLOCK_RESULTS..][..4].copy_from_slice(&77_u32.to_le_bytes());
        assert_eq!(block.results().rate, 77);
    }
}
