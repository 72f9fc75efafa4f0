//! Messages of the connection manager, each in a datagram to queue pair 1 (C 12.6 and 13.4.2; Linux
//! `rdma/ibta_vol1_c12.h`). Fields without use in RoCE v2 are written as zeroes and not read: alternate paths, LIDs,
//! end-to-end contexts.

mod fields;

use fields::Fields;
pub use fields::MESSAGE_BYTES;

/// Number of the queue pair of all messages.
pub const QUEUE: u32 = 1;
/// Its queue key.
pub const QKEY: u32 = 0x8001_0000;
/// Private data of a request for a connection.
pub const REQUEST_DATA: usize = 92;
/// Private data of a reply.
pub const REPLY_DATA: usize = 196;
/// Private data of a rejection.
pub const REJECT_DATA: usize = 148;
/// Private data of a lookup of a datagram service.
pub const LOOKUP_DATA: usize = 216;
/// Private data of the answer to a lookup.
pub const FOUND_DATA: usize = 136;
/// Largest code of a time, 4.096 us << code.
pub const TIME_CODE_MAX: u8 = 31;

/// Service of the queue pairs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable.
    Reliable,
    /// Unreliable.
    Unreliable,
    /// Extended reliable.
    Extended,
    /// One that adapters no longer have.
    Other(u8),
}

/// The message that another one answers (C table 107, "message MRAed").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// A request.
    Request,
    /// A reply.
    Reply,
    /// Any other.
    Other,
}

/// Both sides' numbers of a connection: the sender's, and the receiver's if the sender knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The sender's.
    pub own: u32,
    /// The receiver's; 0 for none.
    pub other: u32,
}

/// The path of a connection, as the requester sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// GID of the requester.
    pub sgid: [u8; 16],
    /// GID of the other side.
    pub dgid: [u8; 16],
    /// `enum ib_rate`.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Code of the acknowledgement timeout.
    pub ack_timeout: u8,
}

/// REQ: a request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The requester's number of the connection.
    pub number: u32,
    /// The service that it wants.
    pub service: u64,
    /// The requester's adapter.
    pub guid: u64,
    /// Number of its queue pair.
    pub queue: u32,
    /// First packet sequence number that it accepts.
    pub psn: u32,
    /// Outstanding reads and atomics that it answers.
    pub responder_resources: u8,
    /// Outstanding reads and atomics that it sends.
    pub initiator_depth: u8,
    /// Code of the time in which it expects an answer.
    pub remote_timeout: u8,
    /// Code of the time in which it answers.
    pub local_timeout: u8,
    /// How often each side repeats a message.
    pub message_retries: u8,
    /// Service of its queue pair.
    pub transport: Transport,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Transport retries.
    pub retry_count: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Its queue pair has a shared receive queue.
    pub srq: bool,
    /// Partition key.
    pub pkey: u16,
    /// `enum ib_mtu`.
    pub mtu: u8,
    /// The path.
    pub path: Path,
    /// Options of enhanced connection establishment: vendor and attributes.
    pub ece: [u32; 2],
    /// Private data.
    pub data: [u8; REQUEST_DATA],
}

/// REP: the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Numbers of the connection.
    pub numbers: Numbers,
    /// The replier's adapter.
    pub guid: u64,
    /// Number of its queue pair.
    pub queue: u32,
    /// First packet sequence number that it accepts.
    pub psn: u32,
    /// Outstanding reads and atomics that it answers.
    pub responder_resources: u8,
    /// Outstanding reads and atomics that it sends.
    pub initiator_depth: u8,
    /// Code of its delay until an acknowledgement.
    pub ack_delay: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Its queue pair has a shared receive queue.
    pub srq: bool,
    /// Options of enhanced connection establishment: vendor and attributes.
    pub ece: [u32; 2],
    /// Private data.
    pub data: [u8; REPLY_DATA],
}

/// REJ: a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Numbers of the connection.
    pub numbers: Numbers,
    /// The rejected message.
    pub answered: Answered,
    /// Why (C table 109).
    pub reason: u16,
    /// The requester's adapter, if the requester has given up. It names the connection then.
    pub guid: Option<u64>,
    /// Private data.
    pub data: [u8; REJECT_DATA],
}

/// SIDR_REQ: a lookup of a datagram service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The requester's number of the lookup.
    pub number: u32,
    /// Partition key.
    pub pkey: u16,
    /// The service that it wants.
    pub service: u64,
    /// Private data.
    pub data: [u8; LOOKUP_DATA],
}

/// SIDR_REP: the answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The requester's number of the lookup.
    pub number: u32,
    /// 0 if the service exists.
    pub status: u8,
    /// Number of its queue pair.
    pub queue: u32,
    /// The service.
    pub service: u64,
    /// Its queue key.
    pub qkey: u32,
    /// Private data.
    pub data: [u8; FOUND_DATA],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ.
    Request(Request),
    /// MRA: the answer to a message comes later.
    Wait {
        /// Numbers of the connection.
        numbers: Numbers,
        /// The message.
        answered: Answered,
        /// Code of the time until the answer.
        timeout: u8,
    },
    /// REJ.
    Reject(Reject),
    /// REP.
    Reply(Reply),
    /// RTU: the requester is ready to use the connection.
    Ready(Numbers),
    /// DREQ: a request to end a connection.
    Disconnect {
        /// Numbers of the connection.
        numbers: Numbers,
        /// The receiver's queue pair.
        queue: u32,
    },
    /// DREP: the answer to it.
    Disconnected(Numbers),
    /// SIDR_REQ.
    Lookup(Lookup),
    /// SIDR_REP.
    Found(Found),
}

/// A message with the number of its exchange. The answer to a message has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Number of the exchange.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// Why a datagram to queue pair 1 is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// All have the same length.
    #[error("a management datagram of {0} bytes; all have {MESSAGE_BYTES}")]
    Length(usize),
    /// Another version, class or method.
    #[error(
        "a management datagram with the header {0:02x?}; only messages of the connection manager are known"
    )]
    Header([u8; 4]),
    /// A message that does not exist, or whose function RoCE does not have.
    #[error("message {0:#06x} of the connection manager is unknown")]
    Attribute(u16),
    /// It answers a message that has no such answer.
    #[error("an answer to message {0}; the largest number is 2")]
    Answered(u8),
}

/// Base version, class, class version and method of all messages.
const HEADER: [u8; 4] = [1, 7, 2, 3];

/// Numbers of the messages (Linux `rdma/ib_cm.h`).
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
    pub(super) const SIDR_REQ: u16 = 0x17;
    pub(super) const SIDR_REP: u16 = 0x18;
}

/// Reason of a rejection: the sender has given up.
const REASON_TIMEOUT: u16 = 4;
/// A LID that says nothing.
const LID_PERMISSIVE: u16 = 0xffff;
/// Extended transport: XRC.
const EXTENDED_XRC: u8 = 1;

impl Answered {
    fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::Other => 2,
        }
    }

    fn of(code: u8) -> Result<Self, BadMessage> {
        match code {
            0 => Ok(Self::Request),
            1 => Ok(Self::Reply),
            2 => Ok(Self::Other),
            code => Err(BadMessage::Answered(code)),
        }
    }
}

impl Transport {
    /// The type, and the extended type.
    fn codes(self) -> (u8, u8) {
        match self {
            Self::Reliable => (0, 0),
            Self::Unreliable => (1, 0),
            Self::Extended => (3, EXTENDED_XRC),
            Self::Other(code) => (code & 3, code >> 2),
        }
    }

    fn of(code: u8, extended: u8) -> Self {
        match (code, extended) {
            (0, 0) => Self::Reliable,
            (1, 0) => Self::Unreliable,
            (3, EXTENDED_XRC) => Self::Extended,
            (code, extended) => Self::Other(code | extended << 2),
        }
    }
}

impl Datagram {
    /// Reads a message.
    ///
    /// # Errors
    /// Its first error.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let fields = Fields::of(bytes).ok_or(BadMessage::Length(bytes.len()))?;
        if fields.header() != HEADER {
            return Err(BadMessage::Header(fields.header()));
        }
        let numbers = Numbers {
            own: fields.word(0),
            other: fields.word(4),
        };
        let message = match fields.attribute() {
            attribute::REQ => Message::Request(request(&fields)),
            attribute::MRA => Message::Wait {
                numbers,
                answered: Answered::of(fields.part(8, 0, 2))?,
                timeout: fields.part(9, 0, 5),
            },
            attribute::REJ => Message::Reject(reject(&fields, numbers)?),
            attribute::REP => Message::Reply(reply(&fields, numbers)),
            attribute::RTU => Message::Ready(numbers),
            attribute::DREQ => Message::Disconnect {
                numbers,
                queue: fields.low(8),
            },
            attribute::DREP => Message::Disconnected(numbers),
            attribute::SIDR_REQ => Message::Lookup(Lookup {
                number: numbers.own,
                pkey: fields.half(4),
                service: fields.long(8),
                data: fields.get(16),
            }),
            attribute::SIDR_REP => Message::Found(Found {
                number: numbers.own,
                status: fields.byte(4),
                queue: fields.low(8),
                service: fields.long(12),
                qkey: fields.word(20),
                data: fields.get(96),
            }),
            unknown => return Err(BadMessage::Attribute(unknown)),
        };
        Ok(Self {
            transaction: fields.transaction(),
            message,
        })
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut fields = Fields::new(HEADER, self.transaction);
        let attribute = match &self.message {
            Message::Request(request) => {
                put_request(&mut fields, request);
                attribute::REQ
            }
            Message::Wait {
                numbers,
                answered,
                timeout,
            } => {
                put_numbers(&mut fields, *numbers);
                fields.put_part(8, 0, 2, answered.code());
                fields.put_part(9, 0, 5, *timeout);
                attribute::MRA
            }
            Message::Reject(reject) => {
                put_reject(&mut fields, reject);
                attribute::REJ
            }
            Message::Reply(reply) => {
                put_reply(&mut fields, reply);
                attribute::REP
            }
            Message::Ready(numbers) => {
                put_numbers(&mut fields, *numbers);
                attribute::RTU
            }
            Message::Disconnect { numbers, queue } => {
                put_numbers(&mut fields, *numbers);
                fields.put_low(8, *queue);
                attribute::DREQ
            }
            Message::Disconnected(numbers) => {
                put_numbers(&mut fields, *numbers);
                attribute::DREP
            }
            Message::Lookup(lookup) => {
                fields.put(0, &lookup.number.to_be_bytes());
                fields.put(4, &lookup.pkey.to_be_bytes());
                fields.put(8, &lookup.service.to_be_bytes());
                fields.put(16, &lookup.data);
                attribute::SIDR_REQ
            }
            Message::Found(found) => {
                fields.put(0, &found.number.to_be_bytes());
                fields.put(4, &[found.status]);
                fields.put_low(8, found.queue);
                fields.put(12, &found.service.to_be_bytes());
                fields.put(20, &found.qkey.to_be_bytes());
                fields.put(96, &found.data);
                attribute::SIDR_REP
            }
        };
        fields.put_attribute(attribute);
        fields.bytes()
    }
}

fn put_numbers(fields: &mut Fields, numbers: Numbers) {
    fields.put(0, &numbers.own.to_be_bytes());
    fields.put(4, &numbers.other.to_be_bytes());
}

fn request(fields: &Fields) -> Request {
    Request {
        number: fields.word(0),
        service: fields.long(8),
        guid: fields.long(16),
        queue: fields.low(32),
        psn: fields.low(44),
        responder_resources: fields.byte(35),
        initiator_depth: fields.byte(39),
        remote_timeout: fields.part(43, 0, 5),
        local_timeout: fields.part(47, 0, 5),
        message_retries: fields.part(51, 0, 4),
        transport: Transport::of(fields.part(43, 5, 2), fields.part(51, 5, 3)),
        flow_control: fields.part(43, 7, 1) == 1,
        retry_count: fields.part(47, 5, 3),
        rnr_retry_count: fields.part(50, 5, 3),
        srq: fields.part(51, 4, 1) == 1,
        pkey: fields.half(48),
        mtu: fields.part(50, 0, 4),
        path: Path {
            sgid: fields.get(56),
            dgid: fields.get(72),
            rate: fields.part(91, 2, 6),
            traffic_class: fields.byte(92),
            hop_limit: fields.byte(93),
            sl: fields.part(94, 0, 4),
            ack_timeout: fields.part(95, 0, 5),
        },
        ece: [fields.low(5), fields.modifier()],
        data: fields.get(140),
    }
}

fn put_request(fields: &mut Fields, request: &Request) {
    let path = &request.path;
    let (transport, extended) = request.transport.codes();
    let [vendor, options] = request.ece;
    fields.put(0, &request.number.to_be_bytes());
    fields.put_low(5, vendor);
    fields.put_modifier(options);
    fields.put(8, &request.service.to_be_bytes());
    fields.put(16, &request.guid.to_be_bytes());
    fields.put_low(32, request.queue);
    fields.put(35, &[request.responder_resources]);
    fields.put(39, &[request.initiator_depth]);
    fields.put_part(43, 0, 5, request.remote_timeout);
    fields.put_part(43, 5, 2, transport);
    fields.put_part(43, 7, 1, request.flow_control.into());
    fields.put_low(44, request.psn);
    fields.put_part(47, 0, 5, request.local_timeout);
    fields.put_part(47, 5, 3, request.retry_count);
    fields.put(48, &request.pkey.to_be_bytes());
    fields.put_part(50, 0, 4, request.mtu);
    fields.put_part(50, 5, 3, request.rnr_retry_count);
    fields.put_part(51, 0, 4, request.message_retries);
    fields.put_part(51, 4, 1, request.srq.into());
    fields.put_part(51, 5, 3, extended);
    // A routed path has no LIDs.
    fields.put(52, &LID_PERMISSIVE.to_be_bytes());
    fields.put(54, &LID_PERMISSIVE.to_be_bytes());
    fields.put(56, &path.sgid);
    fields.put(72, &path.dgid);
    fields.put_part(91, 2, 6, path.rate);
    fields.put(92, &[path.traffic_class, path.hop_limit]);
    fields.put_part(94, 0, 4, path.sl);
    fields.put_part(95, 0, 5, path.ack_timeout);
    fields.put(140, &request.data);
}

fn reply(fields: &Fields, numbers: Numbers) -> Reply {
    let vendor = [0, fields.byte(15), fields.byte(19), fields.byte(23)];
    Reply {
        numbers,
        guid: fields.long(28),
        queue: fields.low(12),
        psn: fields.low(20),
        responder_resources: fields.byte(24),
        initiator_depth: fields.byte(25),
        ack_delay: fields.part(26, 0, 5),
        flow_control: fields.part(26, 7, 1) == 1,
        rnr_retry_count: fields.part(27, 0, 3),
        srq: fields.part(27, 3, 1) == 1,
        ece: [u32::from_be_bytes(vendor), fields.modifier()],
        data: fields.get(36),
    }
}

fn put_reply(fields: &mut Fields, reply: &Reply) {
    let [vendor, options] = reply.ece;
    let [_, high, middle, low] = vendor.to_be_bytes();
    put_numbers(fields, reply.numbers);
    fields.put_modifier(options);
    fields.put_low(12, reply.queue);
    fields.put(15, &[high]);
    fields.put(19, &[middle]);
    fields.put_low(20, reply.psn);
    fields.put(23, &[low]);
    fields.put(24, &[reply.responder_resources, reply.initiator_depth]);
    fields.put_part(26, 0, 5, reply.ack_delay);
    fields.put_part(26, 7, 1, reply.flow_control.into());
    fields.put_part(27, 0, 3, reply.rnr_retry_count);
    fields.put_part(27, 3, 1, reply.srq.into());
    fields.put(28, &reply.guid.to_be_bytes());
    fields.put(36, &reply.data);
}

fn reject(fields: &Fields, numbers: Numbers) -> Result<Reject, BadMessage> {
    let reason = fields.half(10);
    Ok(Reject {
        numbers,
        answered: Answered::of(fields.part(8, 0, 2))?,
        reason,
        guid: (reason == REASON_TIMEOUT).then(|| fields.long(12)),
        data: fields.get(84),
    })
}

fn put_reject(fields: &mut Fields, reject: &Reject) {
    put_numbers(fields, reject.numbers);
    fields.put_part(8, 0, 2, reject.answered.code());
    fields.put(10, &reject.reason.to_be_bytes());
    if let Some(guid) = reject.guid {
        fields.put_part(9, 0, 7, 8);
        fields.put(12, &guid.to_be_bytes());
    }
    fields.put(84, &reject.data);
}

#[cfg(test)]
mod tests;
