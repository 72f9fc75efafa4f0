//! Packets of connections, and datagrams, behind the UDP header: base transport header, extended headers, data and padding
//! (C 9.2 to 9.3; annex A14 for extended connections). The checksum behind them is in [`super::icrc`].

/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the longest headers of a packet: an atomic request of an extended connection.
pub const HEADER_BYTES_MAX: usize = BTH_BYTES + 4 + 28;
/// Largest data of a packet.
pub const DATA_BYTES_MAX: usize = 4096;

/// Service of the queue pairs of a packet, in the upper three bits of its operation (C table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Datagram.
    Datagram,
    /// Extended reliable connection.
    Extended {
        /// Number of the shared receive queue, in requests (XRCETH); 0 in answers.
        srq: u32,
    },
}

impl Service {
    fn code(self) -> u8 {
        match self {
            Self::Reliable => 0,
            Self::Unreliable => 1,
            Self::Datagram => 3,
            Self::Extended { .. } => 5,
        }
    }

    /// True if packets of this service may have an operation.
    fn has(self, operation: u8) -> bool {
        use opcode as o;
        match self {
            Self::Reliable | Self::Extended { .. } => true,
            Self::Unreliable => operation <= o::WRITE_ONLY_IMM,
            Self::Datagram => matches!(operation, o::SEND_ONLY | o::SEND_ONLY_IMM),
        }
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first of several.
    First,
    /// Between the first and the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Part {
    /// Place of packet `index` of `count` packets.
    #[must_use]
    pub fn of(index: u64, count: u64) -> Self {
        match (index == 0, index + 1 >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// True for a packet that begins its message.
    #[must_use]
    pub fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// True for a packet that ends its message.
    #[must_use]
    pub fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A range of the other side's memory (RETH).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Address in the key's address space.
    pub address: u64,
    /// The key.
    pub rkey: u32,
    /// Bytes.
    pub length: u32,
}

/// An operation on a word of eight bytes (AtomicETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Swaps if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// Reason of a negative acknowledgement (C 9.7.5.2.8, table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing.
    Sequence,
    /// The request is invalid.
    InvalidRequest,
    /// The key does not permit the access.
    RemoteAccess,
    /// The responder cannot complete the request.
    RemoteOperation,
}

impl Nak {
    fn code(self) -> u8 {
        match self {
            Self::Sequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperation => 3,
        }
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet and all before it have arrived.
    Ack,
    /// No receive entry: try again after this delay (a code).
    NotReady(u8),
    /// The packet is refused.
    Nak(Nak),
}

/// An acknowledgement (AETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub verdict: Verdict,
    /// Number of messages that the responder has completed, in 24 bits.
    pub msn: u32,
}

/// The kind of a packet with its extended headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A part of a message.
    Send {
        /// Its place.
        part: Part,
        /// Immediate data, in the last packet.
        imm: Option<u32>,
        /// Key to invalidate, in the last packet.
        invalidate: Option<u32>,
    },
    /// A part of an RDMA write.
    Write {
        /// Its place.
        part: Part,
        /// The target of the whole message, in the first packet.
        target: Option<Range>,
        /// Immediate data, in the last packet.
        imm: Option<u32>,
    },
    /// Request of an RDMA read.
    ReadRequest {
        /// The source.
        source: Range,
    },
    /// A part of a read's data.
    ReadResponse {
        /// Its place.
        part: Part,
        /// In all packets except those in the middle.
        aeth: Option<Aeth>,
    },
    /// An acknowledgement.
    Ack(Aeth),
    /// Result of an atomic operation.
    AtomicAck {
        /// The acknowledgement.
        aeth: Aeth,
        /// Value before the operation.
        before: u64,
    },
    /// A datagram (DETH).
    Datagram {
        /// Immediate data.
        imm: Option<u32>,
        /// The receiver's queue key.
        qkey: u32,
        /// Number of the sender's queue pair.
        source: u32,
    },
    /// An atomic operation.
    Atomic {
        /// Address of the word.
        address: u64,
        /// Its key.
        rkey: u32,
        /// The operation.
        atomic: Atomic,
    },
}

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its service.
    pub service: Service,
    /// Its kind.
    pub body: Body,
    /// Number of the destination queue pair.
    pub queue: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// Partition key.
    pub pkey: u16,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// The sender asks for an acknowledgement.
    pub ack: bool,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub head: Head,
    /// Its data, without padding.
    pub data: &'a [u8],
}

/// Reason why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    /// It ends within its headers.
    #[error("a packet of {bytes} bytes ends within its headers")]
    Short {
        /// Its bytes.
        bytes: usize,
    },
    /// It is longer than any packet.
    #[error("a packet has {bytes} bytes of data; at most {DATA_BYTES_MAX} are possible")]
    Long {
        /// Bytes of its data.
        bytes: usize,
    },
    /// Its transport version is unknown.
    #[error("transport version {0}; only version 0 exists")]
    Version(u8),
    /// Its operation is unknown, or its service has no such operation.
    #[error("operation {0:#04x} is none of a connection and no datagram")]
    Opcode(u8),
    /// Its data does not end at a word, or has less bytes than padding.
    #[error("{bytes} bytes of data with {padding} bytes of padding")]
    Padding {
        /// Bytes behind the headers.
        bytes: usize,
        /// Bytes of padding.
        padding: usize,
    },
    /// It has data, and its operation has none.
    #[error("operation {opcode:#04x} with {bytes} bytes of data")]
    Data {
        /// Its operation.
        opcode: u8,
        /// Bytes of its data.
        bytes: usize,
    },
    /// The syndrome of its acknowledgement is reserved.
    #[error("reserved syndrome {0:#04x} in an acknowledgement")]
    Syndrome(u8),
}

/// Operations, in the lower five bits (C table 38).
mod opcode {
    pub(super) const SEND_FIRST: u8 = 0x00;
    pub(super) const SEND_MIDDLE: u8 = 0x01;
    pub(super) const SEND_LAST: u8 = 0x02;
    pub(super) const SEND_LAST_IMM: u8 = 0x03;
    pub(super) const SEND_ONLY: u8 = 0x04;
    pub(super) const SEND_ONLY_IMM: u8 = 0x05;
    pub(super) const WRITE_FIRST: u8 = 0x06;
    pub(super) const WRITE_MIDDLE: u8 = 0x07;
    pub(super) const WRITE_LAST: u8 = 0x08;
    pub(super) const WRITE_LAST_IMM: u8 = 0x09;
    pub(super) const WRITE_ONLY: u8 = 0x0a;
    pub(super) const WRITE_ONLY_IMM: u8 = 0x0b;
    pub(super) const READ_REQUEST: u8 = 0x0c;
    pub(super) const READ_FIRST: u8 = 0x0d;
    pub(super) const READ_MIDDLE: u8 = 0x0e;
    pub(super) const READ_LAST: u8 = 0x0f;
    pub(super) const READ_ONLY: u8 = 0x10;
    pub(super) const ACK: u8 = 0x11;
    pub(super) const ATOMIC_ACK: u8 = 0x12;
    pub(super) const COMPARE_SWAP: u8 = 0x13;
    pub(super) const FETCH_ADD: u8 = 0x14;
    pub(super) const SEND_LAST_INV: u8 = 0x16;
    pub(super) const SEND_ONLY_INV: u8 = 0x17;
}

/// The upper three bits of an acknowledgement's syndrome (C table 45).
mod syndrome {
    pub(super) const ACK: u8 = 0;
    pub(super) const NOT_READY: u8 = 1;
    pub(super) const NAK: u8 = 3;
    /// "No limit", in the field of the sender's credits.
    pub(super) const UNLIMITED: u8 = 0x1f;
}

/// Bits of the second byte: solicited event, path migrated, padding, version.
const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;

impl<'a> Packet<'a> {
    /// Reads a packet from the bytes behind the UDP header, without the checksum.
    ///
    /// # Errors
    /// Its first error.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadPacket> {
        let mut reader = Reader { bytes, at: 0 };
        let [code, flags] = reader.take()?;
        let pkey = u16::from_be_bytes(reader.take()?);
        let [_, queue @ ..] = reader.take::<4>()?;
        let [ack, psn @ ..] = reader.take::<4>()?;
        if flags & 0xf != 0 {
            return Err(BadPacket::Version(flags & 0xf));
        }
        let (service, body) = reader.body(code)?;
        let rest = bytes.get(reader.at..).unwrap_or(&[]);
        let padding = usize::from(flags >> 4 & 3);
        if !rest.len().is_multiple_of(4) || padding > rest.len() {
            let bytes = rest.len();
            return Err(BadPacket::Padding { bytes, padding });
        }
        let data = rest.get(..rest.len() - padding).unwrap_or(&[]);
        if data.len() > DATA_BYTES_MAX {
            return Err(BadPacket::Long { bytes: data.len() });
        }
        if !body.has_data() && !rest.is_empty() {
            return Err(BadPacket::Data {
                opcode: code,
                bytes: rest.len(),
            });
        }
        let head = Head {
            service,
            body,
            queue: word_of(queue),
            psn: word_of(psn),
            pkey,
            solicited: flags & SOLICITED != 0,
            ack: ack & ACK_REQUEST != 0,
        };
        Ok(Self { head, data })
    }

    /// Appends the packet to `out`, without the checksum.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Head {
            service,
            body,
            queue,
            psn,
            pkey,
            solicited,
            ack,
        } = self.head;
        let padding = self.data.len().next_multiple_of(4) - self.data.len();
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let padding_bits = u8::try_from(padding).unwrap_or(0) << 4;
        out.extend([
            service.code() << 5 | body.opcode(),
            flag(solicited, SOLICITED) | MIGRATED | padding_bits,
        ]);
        out.extend(pkey.to_be_bytes());
        out.push(0);
        out.extend(low_of(queue));
        out.push(flag(ack, ACK_REQUEST));
        out.extend(low_of(psn));
        if let Service::Extended { srq } = service
            && body.is_request()
        {
            out.push(0);
            out.extend(low_of(srq));
        }
        body.encode(out);
        out.extend_from_slice(self.data);
        out.extend(std::iter::repeat_n(0, padding));
    }
}

/// A number of 24 bits.
fn word_of([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

fn low_of(word: u32) -> [u8; 3] {
    let [_, low @ ..] = word.to_be_bytes();
    low
}

impl Body {
    /// True for a packet of the requester.
    #[must_use]
    pub fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::ReadResponse { .. } | Self::Ack(_) | Self::AtomicAck { .. }
        )
    }

    /// The place in its message of a part of a send or a write.
    #[must_use]
    pub fn part(&self) -> Option<Part> {
        match *self {
            Self::Send { part, .. } | Self::Write { part, .. } => Some(part),
            _ => None,
        }
    }

    /// True for a packet with data.
    fn has_data(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::Write { .. }
                | Self::ReadResponse { .. }
                | Self::Datagram { .. }
        )
    }

    fn opcode(&self) -> u8 {
        use opcode as o;
        match *self {
            Self::Send {
                part,
                imm,
                invalidate,
            } => match (part, imm, invalidate) {
                (Part::First, ..) => o::SEND_FIRST,
                (Part::Middle, ..) => o::SEND_MIDDLE,
                (Part::Last, _, Some(_)) => o::SEND_LAST_INV,
                (Part::Last, Some(_), None) => o::SEND_LAST_IMM,
                (Part::Last, None, None) => o::SEND_LAST,
                (Part::Only, _, Some(_)) => o::SEND_ONLY_INV,
                (Part::Only, Some(_), None) => o::SEND_ONLY_IMM,
                (Part::Only, None, None) => o::SEND_ONLY,
            },
            Self::Write { part, imm, .. } => match (part, imm) {
                (Part::First, _) => o::WRITE_FIRST,
                (Part::Middle, _) => o::WRITE_MIDDLE,
                (Part::Last, Some(_)) => o::WRITE_LAST_IMM,
                (Part::Last, None) => o::WRITE_LAST,
                (Part::Only, Some(_)) => o::WRITE_ONLY_IMM,
                (Part::Only, None) => o::WRITE_ONLY,
            },
            Self::ReadRequest { .. } => o::READ_REQUEST,
            Self::ReadResponse { part, .. } => match part {
                Part::First => o::READ_FIRST,
                Part::Middle => o::READ_MIDDLE,
                Part::Last => o::READ_LAST,
                Part::Only => o::READ_ONLY,
            },
            Self::Ack(_) => o::ACK,
            Self::AtomicAck { .. } => o::ATOMIC_ACK,
            Self::Datagram { imm: Some(_), .. } => o::SEND_ONLY_IMM,
            Self::Datagram { imm: None, .. } => o::SEND_ONLY,
            Self::Atomic { atomic, .. } => match atomic {
                Atomic::CompareSwap { .. } => o::COMPARE_SWAP,
                Atomic::FetchAdd { .. } => o::FETCH_ADD,
            },
        }
    }

    /// Appends the extended headers.
    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Send {
                part,
                imm,
                invalidate,
            } => {
                let last = invalidate.or(imm).filter(|_| part.ends());
                out.extend(last.into_iter().flat_map(u32::to_be_bytes));
            }
            Self::Write { part, target, imm } => {
                if let Some(target) = target.filter(|_| part.begins()) {
                    target.encode(out);
                }
                let imm = imm.filter(|_| part.ends());
                out.extend(imm.into_iter().flat_map(u32::to_be_bytes));
            }
            Self::ReadRequest { source } => source.encode(out),
            Self::ReadResponse { part, aeth } => {
                if let Some(aeth) = aeth.filter(|_| part != Part::Middle) {
                    aeth.encode(out);
                }
            }
            Self::Ack(aeth) => aeth.encode(out),
            Self::AtomicAck { aeth, before } => {
                aeth.encode(out);
                out.extend(before.to_be_bytes());
            }
            Self::Datagram { imm, qkey, source } => {
                out.extend(qkey.to_be_bytes());
                out.push(0);
                out.extend(low_of(source));
                out.extend(imm.into_iter().flat_map(u32::to_be_bytes));
            }
            Self::Atomic {
                address,
                rkey,
                atomic,
            } => {
                let (first, second) = match atomic {
                    Atomic::CompareSwap { compare, swap } => (swap, compare),
                    Atomic::FetchAdd { add } => (add, 0),
                };
                out.extend(address.to_be_bytes());
                out.extend(rkey.to_be_bytes());
                out.extend(first.to_be_bytes());
                out.extend(second.to_be_bytes());
            }
        }
    }
}

impl Range {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.address.to_be_bytes());
        out.extend(self.rkey.to_be_bytes());
        out.extend(self.length.to_be_bytes());
    }
}

impl Aeth {
    fn encode(self, out: &mut Vec<u8>) {
        let (kind, value) = match self.verdict {
            Verdict::Ack => (syndrome::ACK, syndrome::UNLIMITED),
            Verdict::NotReady(timer) => (syndrome::NOT_READY, timer & 0x1f),
            Verdict::Nak(nak) => (syndrome::NAK, nak.code()),
        };
        out.push(kind << 5 | value);
        out.extend(low_of(self.msn));
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadPacket> {
        let rest = self.bytes.get(self.at..);
        let part = rest.and_then(<[u8]>::first_chunk::<N>);
        let part = part.ok_or(BadPacket::Short {
            bytes: self.bytes.len(),
        })?;
        self.at += N;
        Ok(*part)
    }

    fn word(&mut self) -> Result<u32, BadPacket> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn long(&mut self) -> Result<u64, BadPacket> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    fn range(&mut self) -> Result<Range, BadPacket> {
        Ok(Range {
            address: self.long()?,
            rkey: self.word()?,
            length: self.word()?,
        })
    }

    fn aeth(&mut self) -> Result<Aeth, BadPacket> {
        let [code, msn @ ..] = self.take::<4>()?;
        let value = code & 0x1f;
        // The highest bit is reserved.
        let verdict = match (code >> 5 & 3, value) {
            (syndrome::ACK, _) => Verdict::Ack,
            (syndrome::NOT_READY, timer) => Verdict::NotReady(timer),
            (syndrome::NAK, 0) => Verdict::Nak(Nak::Sequence),
            (syndrome::NAK, 1) => Verdict::Nak(Nak::InvalidRequest),
            (syndrome::NAK, 2) => Verdict::Nak(Nak::RemoteAccess),
            (syndrome::NAK, 3) => Verdict::Nak(Nak::RemoteOperation),
            _ => return Err(BadPacket::Syndrome(code)),
        };
        Ok(Aeth {
            verdict,
            msn: word_of(msn),
        })
    }

    fn send(&mut self, part: Part, imm: bool, invalidate: bool) -> Result<Body, BadPacket> {
        Ok(Body::Send {
            part,
            imm: imm.then(|| self.word()).transpose()?,
            invalidate: invalidate.then(|| self.word()).transpose()?,
        })
    }

    fn write(&mut self, part: Part, imm: bool) -> Result<Body, BadPacket> {
        Ok(Body::Write {
            part,
            target: part.begins().then(|| self.range()).transpose()?,
            imm: imm.then(|| self.word()).transpose()?,
        })
    }

    fn response(&mut self, part: Part) -> Result<Body, BadPacket> {
        let has = part != Part::Middle;
        let aeth = has.then(|| self.aeth()).transpose()?;
        Ok(Body::ReadResponse { part, aeth })
    }

    fn datagram(&mut self, imm: bool) -> Result<Body, BadPacket> {
        let qkey = self.word()?;
        let [_, source @ ..] = self.take::<4>()?;
        Ok(Body::Datagram {
            qkey,
            source: word_of(source),
            imm: imm.then(|| self.word()).transpose()?,
        })
    }

    /// The service of an operation, and its extended headers.
    fn body(&mut self, code: u8) -> Result<(Service, Body), BadPacket> {
        use opcode as o;
        let operation = code & 0x1f;
        let service = match code >> 5 {
            0 => Service::Reliable,
            1 => Service::Unreliable,
            3 => Service::Datagram,
            5 => Service::Extended { srq: 0 },
            _ => return Err(BadPacket::Opcode(code)),
        };
        if !service.has(operation) {
            return Err(BadPacket::Opcode(code));
        }
        if service == Service::Datagram {
            return Ok((service, self.datagram(operation == o::SEND_ONLY_IMM)?));
        }
        let is_answer = matches!(operation, o::READ_FIRST..=o::ATOMIC_ACK);
        let service = match service {
            Service::Extended { .. } if !is_answer => {
                let [_, srq @ ..] = self.take::<4>()?;
                Service::Extended { srq: word_of(srq) }
            }
            same => same,
        };
        let body = self.connected(operation);
        let named = |error| match error {
            BadPacket::Opcode(_) => BadPacket::Opcode(code),
            other => other,
        };
        Ok((service, body.map_err(named)?))
    }

    fn connected(&mut self, operation: u8) -> Result<Body, BadPacket> {
        use opcode as o;
        match operation {
            o::SEND_FIRST => self.send(Part::First, false, false),
            o::SEND_MIDDLE => self.send(Part::Middle, false, false),
            o::SEND_LAST => self.send(Part::Last, false, false),
            o::SEND_LAST_IMM => self.send(Part::Last, true, false),
            o::SEND_LAST_INV => self.send(Part::Last, false, true),
            o::SEND_ONLY => self.send(Part::Only, false, false),
            o::SEND_ONLY_IMM => self.send(Part::Only, true, false),
            o::SEND_ONLY_INV => self.send(Part::Only, false, true),
            o::WRITE_FIRST => self.write(Part::First, false),
            o::WRITE_MIDDLE => self.write(Part::Middle, false),
            o::WRITE_LAST => self.write(Part::Last, false),
            o::WRITE_LAST_IMM => self.write(Part::Last, true),
            o::WRITE_ONLY => self.write(Part::Only, false),
            o::WRITE_ONLY_IMM => self.write(Part::Only, true),
            o::READ_REQUEST => Ok(Body::ReadRequest {
                source: self.range()?,
            }),
            o::READ_FIRST => self.response(Part::First),
            o::READ_MIDDLE => self.response(Part::Middle),
            o::READ_LAST => self.response(Part::Last),
            o::READ_ONLY => self.response(Part::Only),
            o::ACK => Ok(Body::Ack(self.aeth()?)),
            o::ATOMIC_ACK => Ok(Body::AtomicAck {
                aeth: self.aeth()?,
                before: self.long()?,
            }),
            o::COMPARE_SWAP | o::FETCH_ADD => {
                let (address, rkey) = (self.long()?, self.word()?);
                let (first, second) = (self.long()?, self.long()?);
                let atomic = match operation {
                    o::COMPARE_SWAP => Atomic::CompareSwap {
                        compare: second,
                        swap: first,
                    },
                    _ => Atomic::FetchAdd { add: first },
                };
                Ok(Body::Atomic {
                    address,
                    rkey,
                    atomic,
                })
            }
            _ => Err(BadPacket::Opcode(operation)),
        }
    }
}
