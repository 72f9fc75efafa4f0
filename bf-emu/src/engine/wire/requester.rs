//! The requesting side of a connection (C 9.7.3): cuts messages into packets, keeps a window of packets without an
//! acknowledgement, repeats what is lost, and reports messages in their order. On an unreliable connection (C 9.8.2) a
//! message has ended when its last packet is sent.

use std::collections::VecDeque;

use super::packet::{Atomic, Body, Head, Nak, Part, Range, Service, Verdict};
use super::{Numbers, packets_of, part_of};

/// Packets without an acknowledgement. They fit into the receive buffer that Linux gives to a socket by default.
pub const WINDOW: u64 = 48;
/// Packets after which the sender asks for an acknowledgement.
const ACK_EVERY: u64 = 16;
/// Time between two windows of packets that nobody acknowledges: a receiver's time for them.
const PAUSE_NS: u64 = 250_000;
/// Most packets that answer one read request. A longer read has several requests, so that its answer keeps to the window.
const READ_PACKETS: u64 = 16;
/// Messages of a connection that are not complete. The queue pair holds the others.
pub const MESSAGES_MAX: usize = 64;
/// The value of `rnr_retry` for retries without end.
const FOREVER: u8 = 7;

/// Attributes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of the peer's queue pair.
    pub queue: u32,
    /// Partition key.
    pub pkey: u16,
    /// Bytes of a packet's data.
    pub mtu: u32,
    /// Number of the first packet.
    pub first_psn: u32,
    /// Time without an answer after which packets are repeated; None for no limit.
    pub timeout_ns: Option<u64>,
    /// Repetitions without an answer before the connection fails.
    pub retries: u8,
    /// Repetitions for a receiver without an entry; 7 for no limit.
    pub rnr_retries: u8,
    /// Reads and atomic operations without an answer.
    pub reads: u8,
}

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message to a receive entry.
    Send {
        /// Immediate data.
        imm: Option<u32>,
        /// Key to invalidate.
        invalidate: Option<u32>,
    },
    /// RDMA write.
    Write {
        /// Address in the peer's memory.
        address: u64,
        /// The peer's key.
        rkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA read.
    Read {
        /// Address in the peer's memory.
        address: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// An atomic operation on a word of eight bytes.
    Atomic {
        /// Address in the peer's memory.
        address: u64,
        /// The peer's key.
        rkey: u32,
        /// The operation.
        atomic: Atomic,
    },
}

impl Operation {
    /// True if the peer answers with data.
    fn has_answer(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}

/// Reason why a connection failed, at its oldest message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// No answer.
    RetryExceeded,
    /// The receiver had no entry for too long.
    NotReady,
    /// The peer refused the message.
    Nak(Nak),
    /// The answer has the wrong length, or belongs to another operation.
    BadResponse,
    /// The own data is not accessible.
    Local,
}

/// A message that has ended. A failure ends the connection.
#[derive(Debug)]
pub struct Ended<T> {
    /// The caller's description of it.
    pub tag: T,
    /// Its bytes.
    pub result: Result<u32, Broken>,
}

/// A range of own memory is not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAccess;

/// The memory of the requester's messages.
pub trait Memory<T> {
    /// Reads the data of a message at `offset`.
    ///
    /// # Errors
    /// It is not accessible.
    fn gather(&mut self, tag: &T, offset: u32, into: &mut [u8]) -> Result<(), NoAccess>;

    /// Writes returned data of a message at `offset`. The result of an atomic operation is in the order of the wire.
    ///
    /// # Errors
    /// It is not accessible.
    fn scatter(&mut self, tag: &T, offset: u32, bytes: &[u8]) -> Result<(), NoAccess>;
}

/// What the requester has seen of a bad network and of receivers that were not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times without an answer.
    pub timeouts: u64,
    /// Answers that a packet is missing.
    pub sequence_naks: u64,
    /// Answers behind a read's or an atomic operation's that is missing.
    pub implied_naks: u64,
    /// Answers that the receiver is not ready.
    pub not_ready: u64,
}

#[derive(Debug)]
struct Message<T> {
    tag: T,
    service: Service,
    operation: Operation,
    solicited: bool,
    length: u32,
    /// Its first packet. A read counts the packets of its answer.
    first: u64,
    packets: u64,
}

impl<T> Message<T> {
    fn end(&self) -> u64 {
        self.first + self.packets
    }
}

/// The requesting side of a connection. `T` describes a message to the caller.
#[derive(Debug)]
pub struct Requester<T> {
    settings: Settings,
    numbers: Numbers,
    /// Messages that are not complete, the oldest first.
    messages: VecDeque<Message<T>>,
    ended: VecDeque<Ended<T>>,
    /// The oldest packet without an answer.
    acked: u64,
    /// The next packet.
    next: u64,
    /// Behind the last packet that was ever sent.
    sent: u64,
    /// Behind the last packet of all messages.
    end: u64,
    retries: u8,
    rnr_retries: u8,
    /// Packets without acknowledgement since the last pause.
    unheard: u64,
    /// Time at which packets are repeated.
    due_ns: Option<u64>,
    /// No packet before this time: the receiver was not ready, or needs time.
    quiet_until_ns: Option<u64>,
    /// The oldest packet without an answer when packets were last repeated on the peer's request.
    repeated: Option<u64>,
    repetitions: u64,
    counts: Counts,
    has_failed: bool,
}

impl<T> Requester<T> {
    /// A connection without messages.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            numbers: Numbers::from(settings.first_psn),
            messages: VecDeque::new(),
            ended: VecDeque::new(),
            acked: 0,
            next: 0,
            sent: 0,
            end: 0,
            retries: settings.retries,
            rnr_retries: settings.rnr_retries,
            unheard: 0,
            due_ns: None,
            quiet_until_ns: None,
            repeated: None,
            repetitions: 0,
            counts: Counts::default(),
            has_failed: false,
        }
    }

    /// True if no message is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty() && self.ended.is_empty()
    }

    /// True if another message fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.messages.len() < MESSAGES_MAX && !self.has_failed
    }

    /// Number of times that packets were repeated.
    #[must_use]
    pub fn repetitions(&self) -> u64 {
        self.repetitions
    }

    /// What was counted since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Adds a message of `length` bytes. The caller has asked [`Requester::has_room`].
    pub fn push(
        &mut self,
        tag: T,
        (service, operation): (Service, Operation),
        (length, solicited): (u32, bool),
    ) {
        let packets = match operation {
            Operation::Atomic { .. } => 1,
            _ => packets_of(length, self.settings.mtu),
        };
        self.messages.push_back(Message {
            tag,
            service,
            operation,
            solicited,
            length,
            first: self.end,
            packets,
        });
        self.end += packets;
    }

    /// The next message that has ended.
    pub fn ended(&mut self) -> Option<Ended<T>> {
        self.ended.pop_front()
    }

    /// Earliest time at which [`Requester::expire`] has an effect.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        match (self.quiet_until_ns, self.due_ns) {
            (Some(quiet), Some(due)) => Some(quiet.min(due)),
            (quiet, due) => quiet.or(due),
        }
    }

    /// The next packet to send, if one may be sent now. Its data is placed in `data`.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        memory: &mut impl Memory<T>,
        data: &mut Vec<u8>,
    ) -> Option<Head> {
        data.clear();
        let waits = self.quiet_until_ns.is_some_and(|until| now_ns < until);
        if self.has_failed || waits || self.next >= self.end || self.next - self.acked >= WINDOW {
            return None;
        }
        let message = self.messages.get(self.position(self.next)?)?;
        if message.operation.has_answer()
            && self.answers_awaited() >= usize::from(self.settings.reads.max(1))
        {
            return None;
        }
        let index = self.next - message.first;
        let (offset, bytes) = part_of(message.length, self.settings.mtu, index);
        let part = Part::of(index, message.packets);
        let mut packets = 1;
        let body = match message.operation {
            Operation::Send { imm, invalidate } => Body::Send {
                part,
                imm: imm.filter(|_| part.ends()),
                invalidate: invalidate.filter(|_| part.ends()),
            },
            Operation::Write { address, rkey, imm } => Body::Write {
                part,
                target: part.begins().then_some(Range {
                    address,
                    rkey,
                    length: message.length,
                }),
                imm: imm.filter(|_| part.ends()),
            },
            Operation::Read { address, rkey } => {
                packets = (READ_PACKETS - index % READ_PACKETS).min(message.packets - index);
                let (end, _) = part_of(message.length, self.settings.mtu, index + packets);
                let source = Range {
                    address: address.wrapping_add(offset.into()),
                    rkey,
                    length: end - offset,
                };
                Body::ReadRequest { source }
            }
            Operation::Atomic {
                address,
                rkey,
                atomic,
            } => Body::Atomic {
                address,
                rkey,
                atomic,
            },
        };
        if !message.operation.has_answer() {
            data.resize(bytes, 0);
            if memory.gather(&message.tag, offset, data).is_err() {
                data.clear();
                // The packets before it end first.
                if self.acked == self.next {
                    self.fail(Broken::Local);
                }
                return None;
            }
        }
        let last_of_window = self.next + 1 - self.acked >= WINDOW;
        let asks = part.ends() || index % ACK_EVERY == ACK_EVERY - 1 || last_of_window;
        let service = message.service;
        let head = Head {
            service,
            body,
            queue: self.settings.queue,
            psn: self.numbers.psn(self.next),
            pkey: self.settings.pkey,
            solicited: message.solicited && part.ends(),
            ack: asks && service != Service::Unreliable,
        };
        self.next += packets;
        self.sent = self.sent.max(self.next);
        if service == Service::Unreliable {
            self.forget(now_ns, part);
        } else if self.due_ns.is_none() {
            self.due_ns = self.after_timeout(now_ns);
        }
        Some(head)
    }

    /// A packet that nobody acknowledges is sent.
    fn forget(&mut self, now_ns: u64, part: Part) {
        self.acked = self.next;
        if part.ends() {
            self.complete();
        }
        self.unheard += 1;
        if self.unheard >= WINDOW {
            self.unheard = 0;
            self.quiet_until_ns = Some(now_ns.saturating_add(PAUSE_NS));
        }
    }

    /// Takes an answer of the peer.
    pub fn receive(&mut self, now_ns: u64, head: &Head, data: &[u8], memory: &mut impl Memory<T>) {
        let Some(packet) = self.numbers.packet(head.psn, self.acked) else {
            return;
        };
        // Answers to packets that are answered already, and to packets that were never sent.
        if self.has_failed || packet < self.acked || packet >= self.sent {
            return;
        }
        match head.body {
            Body::Ack(aeth) => match aeth.verdict {
                Verdict::Ack => self.advance(now_ns, packet + 1),
                Verdict::NotReady(timer) => self.not_ready(now_ns, packet, timer),
                Verdict::Nak(Nak::Sequence) => {
                    self.counts.sequence_naks += 1;
                    self.advance(now_ns, packet);
                    self.repeat(now_ns);
                }
                Verdict::Nak(nak) => {
                    self.advance(now_ns, packet);
                    if self.acked == packet {
                        self.fail(Broken::Nak(nak));
                    }
                }
            },
            Body::ReadResponse { .. } => self.answer(now_ns, packet, data, memory),
            Body::AtomicAck { before, .. } => {
                self.answer(now_ns, packet, &before.to_be_bytes(), memory);
            }
            // The responder's.
            Body::Send { .. }
            | Body::Write { .. }
            | Body::ReadRequest { .. }
            | Body::Atomic { .. }
            | Body::Datagram { .. } => {}
        }
    }

    /// Repeats packets whose time has passed.
    pub fn expire(&mut self, now_ns: u64) {
        if self.quiet_until_ns.is_some_and(|until| now_ns >= until) {
            self.quiet_until_ns = None;
        }
        if self.due_ns.is_none_or(|due| now_ns < due) {
            return;
        }
        self.due_ns = None;
        if self.acked == self.sent || self.has_failed {
            return;
        }
        self.counts.timeouts += 1;
        let Some(left) = self.retries.checked_sub(1) else {
            self.fail(Broken::RetryExceeded);
            return;
        };
        self.retries = left;
        self.repetitions += 1;
        self.next = self.acked;
        self.repeated = None;
        self.due_ns = self.after_timeout(now_ns);
    }

    fn after_timeout(&self, now_ns: u64) -> Option<u64> {
        let timeout = self.settings.timeout_ns?;
        Some(now_ns.saturating_add(timeout))
    }

    /// Position of the message with this packet.
    fn position(&self, packet: u64) -> Option<usize> {
        let at = self
            .messages
            .partition_point(|message| message.end() <= packet);
        (at < self.messages.len()).then_some(at)
    }

    /// Number of sent reads and atomic operations without an answer.
    fn answers_awaited(&self) -> usize {
        let mut count = 0;
        for message in &self.messages {
            let (start, end) = (message.first.max(self.acked), message.end().min(self.next));
            if start >= end {
                if message.first >= self.next {
                    break;
                }
                continue;
            }
            count += match message.operation {
                Operation::Read { .. } => {
                    let request = |packet: u64| (packet - message.first) / READ_PACKETS;
                    request(end - 1) - request(start) + 1
                }
                Operation::Atomic { .. } => 1,
                _ => 0,
            };
        }
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// All packets before `to` have arrived. Stops at a read or atomic operation whose answer is missing: the answer is
    /// lost (C 9.7.5.1.1).
    fn advance(&mut self, now_ns: u64, to: u64) {
        let before = self.acked;
        while self.acked < to {
            let Some(message) = self.messages.front() else {
                break;
            };
            if message.operation.has_answer() {
                break;
            }
            self.acked = message.end().min(to);
            if self.acked == message.end() {
                self.complete();
            }
        }
        if self.acked != before {
            self.progress(now_ns);
        }
        if self.acked < to {
            self.counts.implied_naks += 1;
            self.repeat(now_ns);
        }
    }

    /// Takes the data of an answer.
    fn answer(&mut self, now_ns: u64, packet: u64, data: &[u8], memory: &mut impl Memory<T>) {
        self.advance(now_ns, packet);
        if self.acked != packet {
            return;
        }
        let Some(message) = self.messages.front() else {
            return;
        };
        let index = packet - message.first;
        let (offset, bytes) = match message.operation {
            Operation::Read { .. } => part_of(message.length, self.settings.mtu, index),
            Operation::Atomic { .. } => (0, size_of::<u64>()),
            _ => return self.fail(Broken::BadResponse),
        };
        if data.len() != bytes {
            return self.fail(Broken::BadResponse);
        }
        if memory.scatter(&message.tag, offset, data).is_err() {
            return self.fail(Broken::Local);
        }
        self.acked += 1;
        if self.acked == message.end() {
            self.complete();
        }
        self.progress(now_ns);
    }

    /// The receiver of a packet has no entry.
    fn not_ready(&mut self, now_ns: u64, packet: u64, timer: u8) {
        self.advance(now_ns, packet);
        if self.acked != packet {
            return;
        }
        self.counts.not_ready += 1;
        if self.settings.rnr_retries != FOREVER {
            let Some(left) = self.rnr_retries.checked_sub(1) else {
                return self.fail(Broken::NotReady);
            };
            self.rnr_retries = left;
        }
        self.repetitions += 1;
        self.next = packet;
        self.due_ns = None;
        self.quiet_until_ns = Some(now_ns.saturating_add(rnr_delay_ns(timer)));
    }

    /// An answer has come.
    fn progress(&mut self, now_ns: u64) {
        self.next = self.next.max(self.acked);
        self.retries = self.settings.retries;
        self.rnr_retries = self.settings.rnr_retries;
        self.repeated = None;
        self.due_ns = match self.acked < self.sent {
            true => self.after_timeout(now_ns),
            false => None,
        };
    }

    /// Sends all packets without an answer again, once for each oldest one: several packets behind a lost one have the
    /// same cause.
    fn repeat(&mut self, now_ns: u64) {
        if self.repeated == Some(self.acked) || self.acked >= self.sent {
            return;
        }
        self.repeated = Some(self.acked);
        self.repetitions += 1;
        self.next = self.acked;
        self.due_ns = self.after_timeout(now_ns);
    }

    fn complete(&mut self) {
        if let Some(message) = self.messages.pop_front() {
            self.ended.push_back(Ended {
                tag: message.tag,
                result: Ok(message.length),
            });
        }
    }

    fn fail(&mut self, why: Broken) {
        self.has_failed = true;
        self.due_ns = None;
        self.quiet_until_ns = None;
        if let Some(message) = self.messages.pop_front() {
            self.ended.push_back(Ended {
                tag: message.tag,
                result: Err(why),
            });
        }
        self.messages.clear();
    }
}

/// Delay that a receiver without entries requests, by the code of its `min_rnr_timer`.
#[must_use]
pub fn rnr_delay_ns(timer: u8) -> u64 {
    RNR_DELAYS_10US[usize::from(timer & 31)] * 10_000
}

/// These delays in units of 10 us (Linux `ib_verbs.h`, `enum ib_rnr_timeout`).
const RNR_DELAYS_10US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];
