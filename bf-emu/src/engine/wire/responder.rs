//! The responding side of a reliable connection (C 9.7.4, 9.7.5): executes each request once and in order, answers
//! repetitions without a second execution, and asks for missing packets.

use std::collections::VecDeque;

use super::arriving::{Arriving, Refusal, Target};
use super::packet::{Aeth, Body, Head, Nak, Part, Range, Service, Verdict};
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
    /// The queue pair is the target of an extended connection.
    pub is_extended: bool,
    /// Atomic operations whose results are kept for repetitions: as many as the peer may have without an answer.
    pub reads: u8,
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
        /// The shared receive queue of the request, on an extended connection.
        service: Service,
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
    arriving: Arriving,
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
            arriving: Arriving::new(settings.mtu),
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
                service,
                first,
                index,
                again,
            } => {
                let packets = packets_of(source.length, self.settings.mtu);
                let (offset, bytes) = part_of(source.length, self.settings.mtu, index);
                data.resize(bytes, 0);
                let read = match (target.select(service), again) {
                    (true, false) => target.read(&source, offset, data),
                    (false, false) => Err(Refusal::Invalid),
                    (true, true) => target
                        .read_again(&source, offset, data)
                        .ok_or(Refusal::Silent),
                    (false, true) => Err(Refusal::Silent),
                };
                if let Err(refusal) = read {
                    let nak = match refusal {
                        Refusal::Nak(nak) => Some(nak),
                        Refusal::Invalid => {
                            target.invalid();
                            Some(Nak::InvalidRequest)
                        }
                        Refusal::NotReady(_) | Refusal::Silent => None,
                    };
                    if let Some(nak) = nak {
                        self.refuse(first + index, nak);
                    }
                    return self.transmit(target, data);
                }
                let part = Part::of(index, packets);
                if !part.ends() {
                    self.answers.push_front(Answer::Read {
                        source,
                        service,
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
            service: match self.settings.is_extended {
                true => Service::Extended { srq: 0 },
                false => Service::Reliable,
            },
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
                        service: head.service,
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
        if !target.select(head.service) {
            return Err(Refusal::Invalid);
        }
        match head.body {
            Body::Send { part, .. } | Body::Write { part, .. } => {
                self.arriving.take(head, data, target)?;
                self.took(part, head.ack);
            }
            _ if self.arriving.is_open() => return Err(Refusal::Invalid),
            Body::ReadRequest { source } => {
                target.check_read(&source)?;
                self.expected += packets_of(source.length, self.settings.mtu);
                self.msn = self.msn.wrapping_add(1);
                self.answers.push_back(Answer::Read {
                    source,
                    service: head.service,
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

    /// The expected packet is executed.
    fn took(&mut self, part: Part, ack: bool) {
        let packet = self.expected;
        self.expected += 1;
        if part.ends() {
            self.msn = self.msn.wrapping_add(1);
        }
        if ack {
            self.tell(packet, Verdict::Ack);
        }
    }
}
