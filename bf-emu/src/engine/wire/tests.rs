//! Both sides of a connection, joined by a channel that loses, repeats, delays and damages packets, against a plain model.

mod rules;
mod services;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;

use super::arriving::{Arrived, Refusal, Target};
use super::icrc::Ends;
use super::packet::{Atomic, Body, Head, Nak, Packet, Range, Service};
use super::requester::{
    Broken, MESSAGES_MAX, Memory, NoAccess, Operation, Requester, Settings, WINDOW,
};
use super::responder::{self, ANSWERS_MAX, Responder};
use super::{Numbers, PSN_MASK};

const MTU: u32 = 256;
const TIMEOUT_NS: u64 = 300_000;
/// Longest way of a packet. Packets overtake each other.
const WAY_NS: u64 = 20_000;
/// Depth of the responder's reads and atomic operations.
const READS: u8 = 4;
/// Bytes of the responder's memory: the first half is written, the second half is read.
const MEMORY: usize = 32 * 1024;
const KEY: u32 = 0x1234;
const FIRST_PSN: u32 = PSN_MASK - 100;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn byte_of(message: usize, offset: usize) -> u8 {
    u8::try_from((message * 31 + offset * 7 + offset / 251) % 251).unwrap()
}

fn bytes_of(message: usize, length: u32) -> Vec<u8> {
    (0..length as usize)
        .map(|at| byte_of(message, at))
        .collect()
}

/// The requester's memory: each message has its own bytes, and a buffer for returned data.
#[derive(Default)]
struct Sender {
    returned: Vec<Vec<u8>>,
    /// Message whose data is not accessible.
    hole: Option<usize>,
}

impl Memory<usize> for Sender {
    fn gather(&mut self, tag: &usize, offset: u32, into: &mut [u8]) -> Result<(), NoAccess> {
        if self.hole == Some(*tag) {
            return Err(NoAccess);
        }
        for (at, byte) in (offset as usize..).zip(into) {
            *byte = byte_of(*tag, at);
        }
        Ok(())
    }

    fn scatter(&mut self, tag: &usize, offset: u32, bytes: &[u8]) -> Result<(), NoAccess> {
        let buffer = &mut self.returned[*tag];
        assert_eq!(buffer.len(), offset as usize, "returned data is in order");
        buffer.extend_from_slice(bytes);
        Ok(())
    }
}

/// The responder's queues and memory.
struct Receiver {
    memory: Vec<u8>,
    word: u64,
    entries: u64,
    open: Option<Vec<u8>>,
    arrived: Vec<(Vec<u8>, Arrived)>,
    is_invalid: bool,
    is_unknown: bool,
    /// The service of all requests.
    service: Service,
}

impl Receiver {
    fn new() -> Self {
        let memory = (0..MEMORY).map(|at| byte_of(7, at)).collect();
        Self {
            memory,
            word: 0,
            entries: 0,
            open: None,
            arrived: Vec::new(),
            is_invalid: false,
            is_unknown: false,
            service: Service::Reliable,
        }
    }

    fn range(&self, range: &Range) -> Result<std::ops::Range<usize>, Refusal> {
        let start = usize::try_from(range.address).unwrap_or(usize::MAX);
        let end = start.saturating_add(range.length as usize);
        match range.rkey == KEY && end <= self.memory.len() {
            true => Ok(start..end),
            false => Err(Refusal::Nak(Nak::RemoteAccess)),
        }
    }
}

impl Target for Receiver {
    fn invalid(&mut self) {
        self.is_invalid = true;
    }

    fn select(&mut self, service: Service) -> bool {
        assert_eq!(service, self.service);
        !self.is_unknown
    }

    fn open(&mut self) -> Result<(), Refusal> {
        if self.service == Service::Unreliable && self.open.is_some() {
            // The entry of a message whose rest was dropped.
            self.open = Some(Vec::new());
            return Ok(());
        }
        assert_eq!(self.open, None, "one message at a time");
        self.entries = self.entries.checked_sub(1).ok_or(Refusal::NotReady(1))?;
        self.open = Some(Vec::new());
        Ok(())
    }

    fn deliver(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        let open = self.open.as_mut().unwrap();
        assert_eq!(open.len(), offset as usize);
        open.extend_from_slice(data);
        Ok(())
    }

    fn close(&mut self, arrived: &Arrived) -> Result<(), Refusal> {
        self.arrived.push((self.open.take().unwrap(), *arrived));
        Ok(())
    }

    fn write(&mut self, target: &Range, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        let range = self.range(target)?;
        let start = range.start + offset as usize;
        self.memory[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn check_read(&mut self, source: &Range) -> Result<(), Refusal> {
        self.range(source).map(drop)
    }

    fn read(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Result<(), Refusal> {
        let start = self.range(source)?.start + offset as usize;
        into.copy_from_slice(&self.memory[start..start + into.len()]);
        Ok(())
    }

    fn read_again(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Option<()> {
        self.read(source, offset, into).ok()
    }

    fn atomic(&mut self, _: u64, _: u32, atomic: Atomic) -> Result<u64, Refusal> {
        let before = self.word;
        self.word = after(before, atomic);
        Ok(before)
    }
}

fn after(word: u64, atomic: Atomic) -> u64 {
    match atomic {
        Atomic::CompareSwap { compare, swap } if word == compare => swap,
        Atomic::CompareSwap { .. } => word,
        Atomic::FetchAdd { add } => word.wrapping_add(add),
    }
}

fn settings() -> Settings {
    Settings {
        queue: 0x11,
        pkey: 0xffff,
        mtu: MTU,
        first_psn: FIRST_PSN,
        timeout_ns: Some(TIMEOUT_NS),
        retries: 7,
        rnr_retries: 7,
        reads: READS,
    }
}

fn responder() -> Responder {
    responder_of(false)
}

fn responder_of(is_extended: bool) -> Responder {
    Responder::new(responder::Settings {
        is_extended,
        queue: 0x22,
        pkey: 0xffff,
        mtu: MTU,
        first_psn: FIRST_PSN,
        reads: READS,
    })
}

/// A message of the plan: its operation, its length, and whether it is solicited.
type Planned = (Operation, u32, bool);

fn plan(random: &mut Random, messages: usize) -> Vec<Planned> {
    let one = |random: &mut Random| {
        let length = match random.below(4) {
            0 => random.below(4),
            1 => u64::from(MTU) * random.below(8),
            _ => random.below(6000),
        };
        let length = u32::try_from(length).unwrap();
        let imm = random.one_in(3).then_some(0x7777_0000 | length);
        let within = random.below(MEMORY as u64 / 2 - 6000);
        match random.below(6) {
            0 | 1 => {
                let invalidate = (imm.is_none() && random.one_in(4)).then_some(KEY);
                let operation = Operation::Send { imm, invalidate };
                (operation, length, random.one_in(2))
            }
            2 | 3 => {
                let operation = Operation::Write {
                    address: within,
                    rkey: KEY,
                    imm,
                };
                (operation, length, false)
            }
            4 => {
                let address = MEMORY as u64 / 2 + within;
                let operation = Operation::Read { address, rkey: KEY };
                (operation, length, false)
            }
            _ => {
                let atomic = match random.below(2) {
                    0 => Atomic::FetchAdd {
                        add: random.below(3),
                    },
                    _ => Atomic::CompareSwap {
                        compare: random.below(8),
                        swap: random.below(8),
                    },
                };
                let operation = Operation::Atomic {
                    address: 0,
                    rkey: KEY,
                    atomic,
                };
                (operation, 8, false)
            }
        }
    };
    (0..messages).map(|_| one(random)).collect()
}

/// How bad the channel is: one packet in so many is lost, repeated, damaged. 0 means none.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u64,
    twice: u64,
    damaged: u64,
}

/// A packet on the way: its time of arrival, its number, whether it is a request, and its bytes.
type OnTheWay = (u64, u64, bool, Vec<u8>);

/// The channel: packets by their time of arrival.
struct Channel {
    faults: Faults,
    on_the_way: BinaryHeap<Reverse<OnTheWay>>,
    sent: u64,
    lost: u64,
    damaged: u64,
    ends: [SocketAddr; 2],
}

impl Channel {
    fn new(faults: Faults) -> Self {
        Self {
            faults,
            on_the_way: BinaryHeap::new(),
            sent: 0,
            lost: 0,
            damaged: 0,
            ends: ["10.0.0.1:4791", "10.0.0.2:4791"].map(|end| end.parse().unwrap()),
        }
    }

    fn ends(&self, is_request: bool) -> Ends {
        let [a, b] = self.ends;
        let (from, to) = if is_request { (a, b) } else { (b, a) };
        Ends {
            from,
            to,
            identification: 0,
        }
    }

    fn send(&mut self, random: &mut Random, now: u64, is_request: bool, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        let icrc = self.ends(is_request).icrc(&bytes).unwrap();
        bytes.extend(icrc);
        let happens = |random: &mut Random, n: u64| n != 0 && random.one_in(n);
        let copies = match happens(random, self.faults.twice) {
            true => 2,
            false => 1,
        };
        for _ in 0..copies {
            self.sent += 1;
            if happens(random, self.faults.lost) {
                self.lost += 1;
                continue;
            }
            let mut bytes = bytes.clone();
            if happens(random, self.faults.damaged) {
                let bit = random.below(bytes.len() as u64 * 8);
                // A router may change the byte of congestion marks.
                if bit / 8 != 4 {
                    bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
                    self.damaged += 1;
                }
            }
            let at = now + 1 + random.below(WAY_NS);
            self.on_the_way
                .push(Reverse((at, self.sent, is_request, bytes)));
        }
    }
}

/// Runs a plan over a channel and compares all effects with the model's.
fn joined(service: Service, seed: u64, faults: Faults, messages: usize) -> (u64, u64) {
    let mut random = Random(seed);
    let plan = plan(&mut random, messages);
    let mut channel = Channel::new(faults);
    let mut requester = Requester::new(settings());
    let mut sender = Sender {
        returned: vec![Vec::new(); messages],
        hole: None,
    };
    let mut responder = responder_of(service != Service::Reliable);
    let mut receiver = Receiver {
        service,
        ..Receiver::new()
    };
    let mut ended = Vec::new();
    let (mut now, mut pushed, mut entry_at) = (0, 0, 0);
    let mut refused = 0;
    let mut data = Vec::new();
    for _ in 0..2_000_000 {
        while pushed < messages && requester.has_room() {
            let (operation, length, solicited) = plan[pushed];
            requester.push(pushed, (service, operation), (length, solicited));
            pushed += 1;
        }
        while let Some(head) = requester.transmit(now, &mut sender, &mut data) {
            let packet = Packet { head, data: &data };
            channel.send(&mut random, now, true, &packet);
        }
        while let Some(head) = responder.transmit(&mut receiver, &mut data) {
            let packet = Packet { head, data: &data };
            channel.send(&mut random, now, false, &packet);
        }
        while let Some(one) = requester.ended() {
            ended.push((one.tag, one.result));
        }
        if ended.len() == messages {
            break;
        }
        let (answers, atomics) = responder.kept();
        assert!(
            answers <= ANSWERS_MAX && atomics <= READS.into(),
            "seed {seed}"
        );
        let arrival = channel.on_the_way.peek().map(|Reverse((at, ..))| *at);
        let times = [arrival, requester.deadline_ns(), Some(entry_at)];
        now = now.max(times.into_iter().flatten().min().unwrap());
        if now >= entry_at {
            receiver.entries += random.below(3);
            entry_at = now + 1 + random.below(4 * WAY_NS);
        }
        requester.expire(now);
        if arrival.is_none_or(|at| at > now) {
            continue;
        }
        let Some(Reverse((_, _, is_request, bytes))) = channel.on_the_way.pop() else {
            continue;
        };
        let Some(packet) = channel.ends(is_request).checked(&bytes) else {
            refused += 1;
            continue;
        };
        let packet = Packet::decode(packet).unwrap();
        match is_request {
            true => responder.receive(&packet.head, packet.data, &mut receiver),
            false => requester.receive(now, &packet.head, packet.data, &mut sender),
        }
    }
    compare(seed, &plan, &ended, (&sender, &receiver));
    assert!(requester.is_idle(), "seed {seed}");
    assert!(refused <= channel.damaged, "seed {seed}");
    (channel.lost + channel.damaged, responder.repeated())
}

/// Executes the plan once and in order, and compares.
fn compare(
    seed: u64,
    plan: &[Planned],
    ended: &[(usize, Result<u32, Broken>)],
    (sender, receiver): (&Sender, &Receiver),
) {
    let mut model = Receiver::new();
    let mut arrived = VecDeque::from(receiver.arrived.clone());
    for (tag, (operation, length, solicited)) in plan.iter().enumerate() {
        assert_eq!(ended.get(tag), Some(&(tag, Ok(*length))), "seed {seed}");
        let bytes = bytes_of(tag, *length);
        let mut entry = None;
        let mut returned = Vec::new();
        match *operation {
            Operation::Send { imm, invalidate } => {
                entry = Some((bytes, (false, imm, invalidate)));
            }
            Operation::Write { address, imm, .. } => {
                let start = usize::try_from(address).unwrap();
                model.memory[start..start + bytes.len()].copy_from_slice(&bytes);
                entry = imm.map(|imm| (Vec::new(), (true, Some(imm), None)));
            }
            Operation::Read { address, .. } => {
                let start = usize::try_from(address).unwrap();
                returned = model.memory[start..start + *length as usize].to_vec();
            }
            Operation::Atomic { atomic, .. } => {
                returned = model.word.to_be_bytes().to_vec();
                model.word = after(model.word, atomic);
            }
        }
        assert_eq!(sender.returned[tag], returned, "seed {seed}, message {tag}");
        if let Some((bytes, (is_write, imm, invalidate))) = entry {
            let expect = Arrived {
                length: *length,
                is_write,
                imm,
                invalidate,
                solicited: *solicited,
            };
            assert_eq!(arrived.pop_front(), Some((bytes, expect)), "seed {seed}");
        }
    }
    assert_eq!(arrived, [], "seed {seed}: messages that were never sent");
    assert_eq!(receiver.word, model.word, "seed {seed}");
    assert!(receiver.memory == model.memory, "seed {seed}: memory");
}

/// A longer run sets the variable.
fn seeds() -> u64 {
    let asked = std::env::var("BFEMU_WIRE_SEEDS").ok();
    asked.map_or(16, |count| count.parse().unwrap())
}

#[test]
fn each_message_arrives_once_and_in_order_over_a_bad_channel() {
    let (mut bad, mut repeated) = (0, 0);
    for seed in 1..=seeds() {
        let faults = Faults {
            lost: [0, 100, 20, 8][(seed % 4) as usize],
            twice: [0, 20, 10, 5][(seed / 4 % 4) as usize],
            damaged: [0, 50][(seed / 16 % 2) as usize],
        };
        let service = match seed % 3 {
            0 => Service::Extended { srq: 0x12_3456 },
            _ => Service::Reliable,
        };
        let (lost, again) = joined(service, seed, faults, 60);
        bad += lost;
        repeated += again;
    }
    assert!(bad > 200 && repeated > 200, "{bad} {repeated}");
}
