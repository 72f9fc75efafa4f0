//! The responding side of a reliable connection (C 9.7.4, 9.7.5): executes each request once and in order, answers
//! repetitions without a second execution, and asks for missing packets.

use std::collections::VecDeque;

use super::packet::{Aeth, Atomic, Body, Head, Nak, Part, Range, Verdict};
use super::{Numbers, PSN_MASK, packets_of, part_of};

/// Answers that wait to be sent. A request beyond them counts as lost.
pub const ANSWERS_MAX: usize = 48;

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
    /// Atomic operations whose results are kept for repetitions: as many as the peer may have without an answer.
    pub reads: u8,
}

/// Reason why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No receive entry. The peer shall wait this long (a code).
    NotReady(u8),
    /// An error. It ends the connection.
    Nak(Nak),
    /// The request breaks a rule of the protocol. It ends the connection.
    Invalid,
    /// No answer.
    Silent,
}

/// A message whose last packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its bytes.
    pub length: u32,
    /// It is an RDMA write.
    pub is_write: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<u32>,
    /// The completion is solicited.
    pub solicited: bool,
}

/// The memory and the queues of the responder.
#[expect(clippy::missing_errors_doc, reason = "they are the same: see Refusal")]
pub trait Target {
    /// A request breaks a rule of the protocol: the connection ends.
    fn invalid(&mut self);
    /// Reserves the next receive entry for a message.
    fn open(&mut self) -> Result<(), Refusal>;
    /// Writes a part of the message into the reserved entry.
    fn deliver(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal>;
    /// Completes the reserved entry.
    fn close(&mut self, arrived: &Arrived) -> Result<(), Refusal>;
    /// Writes a part of an RDMA write. The part at offset 0 checks the whole range.
    fn write(&mut self, target: &Range, offset: u32, data: &[u8]) -> Result<(), Refusal>;
    /// Checks that a range is readable.
    fn check_read(&mut self, source: &Range) -> Result<(), Refusal>;
    /// Reads a part of a range.
    fn read(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Result<(), Refusal>;
    /// Reads a part of a range for a request that was executed before. None if the range is no longer readable, which breaks
    /// nothing: a requester that has its data may have given up the key.
    fn read_again(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Option<()>;
    /// Executes an atomic operation and returns the value before it.
    fn atomic(&mut self, address: u64, rkey: u32, atomic: Atomic) -> Result<u64, Refusal>;
}

/// A message of several packets that is arriving.
#[derive(Clone, Copy, Debug)]
enum Arriving {
    Send { offset: u32 },
    Write { target: Range, offset: u32 },
}

/// An answer that waits to be sent.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Ack {
        packet: u64,
        verdict: Verdict,
    },
    Atomic {
        packet: u64,
        before: u64,
    },
    Read {
        source: Range,
        first: u64,
        index: u64,
        /// The request was executed before.
        again: bool,
    },
}

/// The responding side of a connection.
#[derive(Debug)]
pub struct Responder {
    settings: Settings,
    numbers: Numbers,
    /// The next request packet.
    expected: u64,
    /// Completed messages.
    msn: u32,
    arriving: Option<Arriving>,
    answers: VecDeque<Answer>,
    /// The last atomic operations: their packets and results.
    atomics: VecDeque<(u64, u64)>,
    /// The peer knows which packet is expected.
    has_told: bool,
    has_failed: bool,
    repeated: u64,
    missing: u64,
}

impl Responder {
    /// A connection without requests.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            numbers: Numbers::from(settings.first_psn),
            expected: 0,
            msn: 0,
            arriving: None,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            has_told: false,
            has_failed: false,
            repeated: 0,
            missing: 0,
        }
    }

    /// Number of requests that came again.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Number of times that a packet was missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Number of answers that wait, and of results that are kept.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.answers.len(), self.atomics.len())
    }

    /// Takes a request of the peer.
    pub fn receive(&mut self, head: &Head, data: &[u8], target: &mut impl Target) {
        let Some(packet) = self.numbers.packet(head.psn, self.expected) else {
            return;
        };
        if self.has_failed || self.answers.len() >= ANSWERS_MAX {
            return;
        }
        if packet > self.expected {
            if !self.has_told {
                self.has_told = true;
                self.missing += 1;
                self.tell(self.expected, Verdict::Nak(Nak::Sequence));
            }
            return;
        }
        if packet < self.expected {
            self.repeated += 1;
            self.answer_again(packet, head);
            return;
        }
        self.has_told = false;
        match self.execute(head, data, target) {
            Ok(()) => {}
            Err(Refusal::NotReady(timer)) => {
                // The packets behind it are dropped without an answer.
                self.has_told = true;
                self.tell(packet, Verdict::NotReady(timer));
            }
            Err(Refusal::Nak(nak)) => self.refuse(packet, nak),
            Err(Refusal::Invalid) => {
                target.invalid();
                self.refuse(packet, Nak::InvalidRequest);
            }
            Err(Refusal::Silent) => {}
        }
    }

    /// The next answer to send. Its data is placed in `data`.
    pub fn transmit(&mut self, target: &mut impl Target, data: &mut Vec<u8>) -> Option<Head> {
        data.clear();
        let answer = self.answers.pop_front()?;
        let aeth = |verdict| Aeth {
            verdict,
            msn: self.msn & PSN_MASK,
        };
        let (packet, body) = match answer {
            Answer::Ack { packet, verdict } => (packet, Body::Ack(aeth(verdict))),
            Answer::Atomic { packet, before } => {
                let aeth = aeth(Verdict::Ack);
                (packet, Body::AtomicAck { aeth, before })
            }
            Answer::Read {
                source,
                first,
                index,
                again,
            } => {
                let packets = packets_of(source.length, self.settings.mtu);
                let (offset, bytes) = part_of(source.length, self.settings.mtu, index);
                data.resize(bytes, 0);
                let read = match again {
                    true => target
                        .read_again(&source, offset, data)
                        .ok_or(Refusal::Silent),
                    false => target.read(&source, offset, data),
                };
                if let Err(refusal) = read {
                    if let Refusal::Nak(nak) = refusal {
                        self.refuse(first + index, nak);
                    }
                    return self.transmit(target, data);
                }
                let part = Part::of(index, packets);
                if !part.ends() {
                    self.answers.push_front(Answer::Read {
                        source,
                        first,
                        index: index + 1,
                        again,
                    });
                }
                let aeth = (part != Part::Middle).then(|| aeth(Verdict::Ack));
                (first + index, Body::ReadResponse { part, aeth })
            }
        };
        Some(Head {
            body,
            queue: self.settings.queue,
            psn: self.numbers.psn(packet),
            pkey: self.settings.pkey,
            solicited: false,
            ack: false,
        })
    }

    /// Adds an acknowledgement. It replaces one that waits at the end of the answers.
    fn tell(&mut self, packet: u64, verdict: Verdict) {
        if let Some(Answer::Ack {
            verdict: Verdict::Ack,
            ..
        }) = self.answers.back()
        {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer::Ack { packet, verdict });
    }

    fn refuse(&mut self, packet: u64, nak: Nak) {
        self.has_failed = true;
        self.answers.clear();
        self.tell(packet, Verdict::Nak(nak));
    }

    /// Answers a request that was executed before.
    fn answer_again(&mut self, packet: u64, head: &Head) {
        match head.body {
            Body::Send { .. } | Body::Write { .. } => self.tell(self.expected - 1, Verdict::Ack),
            Body::ReadRequest { source } => {
                let end = packet + packets_of(source.length, self.settings.mtu);
                if end <= self.expected {
                    self.answers.push_back(Answer::Read {
                        source,
                        first: packet,
                        index: 0,
                        again: true,
                    });
                }
            }
            Body::Atomic { .. } => {
                let kept = self.atomics.iter().find(|(kept, _)| *kept == packet);
                if let Some(&(packet, before)) = kept {
                    self.answers.push_back(Answer::Atomic { packet, before });
                }
            }
            // The requester's, or of no connection.
            Body::ReadResponse { .. }
            | Body::Ack(_)
            | Body::AtomicAck { .. }
            | Body::Datagram { .. } => {}
        }
    }

    /// Executes the expected request.
    fn execute(
        &mut self,
        head: &Head,
        data: &[u8],
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let packet = self.expected;
        match head.body {
            Body::Send { part, .. } | Body::Write { part, .. }
                if self.arriving.is_some() == part.begins() || !self.fits(part, data.len()) =>
            {
                return Err(Refusal::Invalid);
            }
            Body::Send { .. } => self.execute_send(head, data, target)?,
            Body::Write { .. } => self.execute_write(head, data, target)?,
            _ if self.arriving.is_some() => return Err(Refusal::Invalid),
            Body::ReadRequest { source } => {
                target.check_read(&source)?;
                self.expected += packets_of(source.length, self.settings.mtu);
                self.msn = self.msn.wrapping_add(1);
                self.answers.push_back(Answer::Read {
                    source,
                    first: packet,
                    index: 0,
                    again: false,
                });
            }
            Body::Atomic {
                address,
                rkey,
                atomic,
            } => {
                let before = target.atomic(address, rkey, atomic)?;
                self.expected += 1;
                self.msn = self.msn.wrapping_add(1);
                while self.atomics.len() >= usize::from(self.settings.reads.max(1)) {
                    self.atomics.pop_front();
                }
                self.atomics.push_back((packet, before));
                self.answers.push_back(Answer::Atomic { packet, before });
            }
            // The requester's, or of no connection.
            Body::ReadResponse { .. }
            | Body::Ack(_)
            | Body::AtomicAck { .. }
            | Body::Datagram { .. } => {}
        }
        Ok(())
    }

    fn execute_send(
        &mut self,
        head: &Head,
        data: &[u8],
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let Body::Send {
            part,
            imm,
            invalidate,
        } = head.body
        else {
            return Ok(());
        };
        let offset = match self.arriving {
            None => {
                target.open()?;
                0
            }
            Some(Arriving::Send { offset }) => offset,
            Some(Arriving::Write { .. }) => return Err(Refusal::Invalid),
        };
        target.deliver(offset, data)?;
        let length = end_of(offset, data).ok_or(Refusal::Invalid)?;
        self.arriving = Some(Arriving::Send { offset: length });
        if part.ends() {
            target.close(&Arrived {
                length,
                is_write: false,
                imm,
                invalidate,
                solicited: head.solicited,
            })?;
        }
        self.took(part, head.ack);
        Ok(())
    }

    fn execute_write(
        &mut self,
        head: &Head,
        data: &[u8],
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let Body::Write {
            part,
            target: begins,
            imm,
        } = head.body
        else {
            return Ok(());
        };
        let (range, offset) = match (self.arriving, begins) {
            (None, Some(range)) => (range, 0),
            (Some(Arriving::Write { target, offset }), None) => (target, offset),
            _ => return Err(Refusal::Invalid),
        };
        let end = end_of(offset, data).ok_or(Refusal::Invalid)?;
        if end > range.length || part.ends() && end != range.length {
            return Err(Refusal::Invalid);
        }
        let notifies = part.ends() && imm.is_some();
        if notifies {
            target.open()?;
        }
        target.write(&range, offset, data)?;
        self.arriving = Some(Arriving::Write {
            target: range,
            offset: end,
        });
        if notifies {
            target.close(&Arrived {
                length: end,
                is_write: true,
                imm,
                invalidate: None,
                solicited: head.solicited,
            })?;
        }
        self.took(part, head.ack);
        Ok(())
    }

    /// The expected packet is executed.
    fn took(&mut self, part: Part, ack: bool) {
        let packet = self.expected;
        self.expected += 1;
        if part.ends() {
            self.arriving = None;
            self.msn = self.msn.wrapping_add(1);
        }
        if ack {
            self.tell(packet, Verdict::Ack);
        }
    }

    /// True if a packet at this place may have so much data.
    fn fits(&self, part: Part, bytes: usize) -> bool {
        let mtu = usize::try_from(self.settings.mtu).unwrap_or(0);
        match part {
            Part::First | Part::Middle => bytes == mtu,
            Part::Last => bytes != 0 && bytes <= mtu,
            Part::Only => bytes <= mtu,
        }
    }
}

/// End of data at an offset.
fn end_of(offset: u32, data: &[u8]) -> Option<u32> {
    offset.checked_add(u32::try_from(data.len()).ok()?)
}
