//! Unreliable connections over a bad channel, and the headers of unreliable and extended connections.

use super::*;
use crate::engine::wire::packet::{Aeth, BadPacket, Part, Verdict};
use crate::engine::wire::requester::WINDOW;
use crate::engine::wire::unreliable::Listener;

const UNRELIABLE: Service = Service::Unreliable;

fn heads(requester: &mut Requester<usize>, sender: &mut Sender) -> Vec<(Head, Vec<u8>)> {
    let mut data = Vec::new();
    std::iter::from_fn(|| {
        let head = requester.transmit(0, sender, &mut data)?;
        Some((head, data.clone()))
    })
    .collect()
}

fn receiver(entries: u64) -> Receiver {
    Receiver {
        entries,
        service: UNRELIABLE,
        ..Receiver::new()
    }
}

/// The messages that arrived: their numbers, which their immediate data says.
fn numbers(receiver: &Receiver) -> Vec<usize> {
    let arrived = receiver.arrived.iter();
    arrived.map(|(_, one)| one.imm.unwrap() as usize).collect()
}

/// Each message that arrives has its own bytes, and one with a missing packet does not arrive. Nobody answers.
#[test]
fn an_unreliable_connection_loses_whole_messages() {
    const MESSAGES: usize = 60;
    let (mut lost_messages, mut torn) = (0, 0);
    for seed in 0..seeds() {
        let mut random = Random(seed);
        let mut requester = Requester::new(settings());
        let mut sender = Sender::default();
        let (mut listener, mut receiver) = (Listener::new(MTU), receiver(1000));
        let mut lengths = Vec::new();
        let mut whole = Vec::new();
        for tag in 0..MESSAGES {
            let length = u32::try_from(random.below(u64::from(MTU) * 6)).unwrap();
            lengths.push(length);
            let imm = Some(u32::try_from(tag).unwrap());
            let invalidate = None;
            let send = Operation::Send { imm, invalidate };
            requester.push(tag, (UNRELIABLE, send), (length, false));
            let mut packets = heads(&mut requester, &mut sender);
            while let Some(until) = requester.deadline_ns() {
                requester.expire(until);
                packets.extend(heads(&mut requester, &mut sender));
            }
            let ended = requester.ended().unwrap();
            assert_eq!((ended.tag, ended.result), (tag, Ok(length)));
            let lost = seed != 0 && random.one_in(4);
            let hole = random.below(packets.len() as u64);
            torn += usize::from(lost && packets.len() > 1);
            for (at, (head, data)) in (0..).zip(&packets) {
                assert!(!head.ack);
                if !lost || at != hole {
                    listener.receive(head, data, &mut receiver);
                }
            }
            if !lost {
                whole.push(tag);
            }
        }
        assert_eq!(numbers(&receiver), whole, "seed {seed}");
        for (bytes, one) in &receiver.arrived {
            let tag = one.imm.unwrap() as usize;
            assert!(*bytes == bytes_of(tag, lengths[tag]), "seed {seed}: {tag}");
        }
        lost_messages += MESSAGES - whole.len();
        assert!((listener.missing() == 0) == (seed == 0), "seed {seed}");
    }
    assert!(lost_messages > 50 && torn > 50, "{lost_messages} {torn}");
}

fn part(number: u32, part: Part) -> (Head, Vec<u8>) {
    let imm = part.ends().then_some(number);
    let head = Head {
        service: UNRELIABLE,
        body: Body::Send {
            part,
            imm,
            invalidate: None,
        },
        queue: 0x22,
        psn: number,
        pkey: 0xffff,
        solicited: false,
        ack: false,
    };
    let bytes = if part.ends() { 3 } else { MTU as usize };
    (head, vec![7; bytes])
}

/// What is no next packet of a message is dropped until the next message begins, whatever its number.
#[test]
fn the_rest_of_an_incomplete_message_is_dropped() {
    use Part::{First, Last, Middle, Only};
    let psn = [PSN_MASK - 1, PSN_MASK, 0, 1, 2, 3, 9, 20];
    for (packets, arrive, dropped) in [
        // The numbers wrap around.
        (&[(0, First), (1, Middle), (2, Last)][..], &[0_u32][..], 0),
        (&[(0, First), (2, Last)], &[], 1),
        (&[(1, Middle), (2, Last), (3, Only)], &[1], 2),
        (&[(0, First), (2, Middle), (3, Last), (4, Only)], &[2], 2),
        // A first packet without the last one before it, and an unexpected number that begins a message.
        (&[(0, First), (1, First), (2, Last), (7, Only)], &[0, 20], 0),
        // A repeated message arrives twice; a repeated part ends its message.
        (&[(3, Only), (3, Only)], &[1, 1], 0),
        (&[(0, First), (1, Middle), (1, Middle), (2, Last)], &[], 2),
    ] {
        let (mut listener, mut receiver) = (Listener::new(MTU), receiver(10));
        for (at, place) in packets {
            let (head, data) = part(psn[*at], *place);
            listener.receive(&head, &data, &mut receiver);
        }
        let came: Vec<_> = receiver.arrived.iter().map(|one| one.1.imm).collect();
        let expect: Vec<_> = arrive.iter().map(|one| Some(*one)).collect();
        assert_eq!((came, listener.dropped()), (expect, dropped), "{packets:?}");
    }
}

/// Without an entry, without a right and with a wrong length: dropped in silence, and the next message arrives.
#[test]
fn refused_messages_of_an_unreliable_connection_are_dropped() {
    let (mut listener, mut receiver) = (Listener::new(MTU), receiver(0));
    let (head, data) = part(5, Part::Only);
    listener.receive(&head, &data, &mut receiver);
    let target = Some(Range {
        address: 0,
        rkey: KEY + 1,
        length: 3,
    });
    let write = |psn: u32, bytes: usize, rkey: u32| {
        let target = target.map(|range| Range { rkey, ..range });
        let body = Body::Write {
            part: Part::Only,
            target,
            imm: None,
        };
        let (head, _) = part(psn, Part::Only);
        (Head { body, ..head }, vec![9; bytes])
    };
    let before = receiver.memory.clone();
    for (head, data) in [write(6, 3, KEY + 1), write(7, 4, KEY), write(8, 2, KEY)] {
        listener.receive(&head, &data, &mut receiver);
    }
    assert_eq!((listener.dropped(), receiver.is_invalid), (4, false));
    assert!(receiver.memory == before && receiver.arrived.is_empty());
    receiver.entries = 1;
    let (head, data) = write(9, 3, KEY);
    listener.receive(&head, &data, &mut receiver);
    let (head, data) = part(10, Part::Only);
    listener.receive(&head, &data, &mut receiver);
    assert_eq!(receiver.memory[..4], [9, 9, 9, before[3]]);
    assert_eq!((numbers(&receiver), listener.dropped()), (vec![10], 4));
}

/// A sender without answers makes pauses, so that a receiver can keep up.
#[test]
fn an_unreliable_sender_pauses_after_each_window() {
    let mut requester = Requester::new(settings());
    let mut sender = Sender::default();
    let send = Operation::Send {
        imm: None,
        invalidate: None,
    };
    let packets = 3 * u32::try_from(WINDOW).unwrap();
    requester.push(0, (UNRELIABLE, send), (packets * MTU, false));
    for turn in 1..=3 {
        assert_eq!(heads(&mut requester, &mut sender).len() as u64, WINDOW);
        assert_eq!(requester.ended().is_some(), turn == 3);
        let until = requester.deadline_ns().unwrap();
        assert!(until > 0);
        assert_eq!(heads(&mut requester, &mut sender), []);
        requester.expire(until);
    }
    assert!(requester.is_idle() && requester.deadline_ns().is_none());
}

/// The operation's upper bits, and the header of an extended connection between the base header and the others.
#[test]
fn each_service_has_its_packets() {
    let body = Body::Write {
        part: Part::Only,
        target: Some(Range {
            address: 0x0102_0304_0506_0708,
            rkey: 0x0a0b_0c0d,
            length: 4,
        }),
        imm: None,
    };
    let encoded = |service: Service, body: Body, data: &[u8]| {
        let head = Head {
            service,
            body,
            ..part(7, Part::Only).0
        };
        let mut bytes = Vec::new();
        Packet { head, data }.encode(&mut bytes);
        assert_eq!(Packet::decode(&bytes), Ok(Packet { head, data }));
        bytes
    };
    let srq = 0x12_3456;
    let plain = encoded(Service::Reliable, body, b"data");
    let unreliable = encoded(UNRELIABLE, body, b"data");
    let extended = encoded(Service::Extended { srq }, body, b"data");
    assert_eq!((plain[0], unreliable[0], extended[0]), (0x0a, 0x2a, 0xaa));
    assert_eq!(plain[1..], unreliable[1..]);
    assert_eq!(plain[1..12], extended[1..12]);
    assert_eq!(extended[12..16], [0, 0x12, 0x34, 0x56]);
    assert_eq!(plain[12..], extended[16..]);
    // Answers have no such header.
    let ack = Body::Ack(Aeth {
        verdict: Verdict::Ack,
        msn: 1,
    });
    assert_eq!(encoded(Service::Extended { srq: 0 }, ack, &[])[0], 0xb1);
    assert_eq!(encoded(Service::Extended { srq: 0 }, ack, &[]).len(), 16);
    // What a service does not have.
    let mut wrong = plain.clone();
    for code in [
        0x2c, 0x31, 0x36, 0x37, 0x33, 0x4a, 0x60, 0x6a, 0x81, 0xb5, 0xb8, 0xea,
    ] {
        wrong[0] = code;
        assert_eq!(Packet::decode(&wrong), Err(BadPacket::Opcode(code)));
    }
}

/// A request of an extended connection to a queue that is none of it.
#[test]
fn an_unknown_shared_queue_is_an_invalid_request() {
    let (mut responder, mut receiver) = (responder_of(true), Receiver::new());
    receiver.service = Service::Extended { srq: 3 };
    receiver.is_unknown = true;
    let head = Head {
        service: receiver.service,
        psn: FIRST_PSN,
        ..part(0, Part::Only).0
    };
    responder.receive(&head, &[], &mut receiver);
    let answer = responder.transmit(&mut receiver, &mut Vec::new()).unwrap();
    let Body::Ack(aeth) = answer.body else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (aeth.verdict, answer.service),
        (
            Verdict::Nak(Nak::InvalidRequest),
            Service::Extended { srq: 0 }
        )
    );
    assert!(receiver.is_invalid);
}

/// Whatever is accepted is written as it was read, for each operation.
#[test]
fn each_operation_is_written_as_it_was_read() {
    let mut accepted = 0;
    for code in 0..=0xff {
        for bytes in [0, 12, 16, 20, 28, 32, 40, 44, 48, 64] {
            let mut packet = vec![0x5a; 12 + bytes];
            packet[..4].copy_from_slice(&[code, 0x40, 0xff, 0xff]);
            // A syndrome that is not reserved.
            packet.iter_mut().skip(12).for_each(|byte| *byte = 0x1f);
            crate::fuzzing::packet(&packet);
            accepted += u32::from(Packet::decode(&packet).is_ok());
        }
    }
    assert!(accepted > 200, "{accepted}");
}
