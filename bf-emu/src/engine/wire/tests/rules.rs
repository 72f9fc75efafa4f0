//! Single rules of the protocol, each on a new connection.

use super::*;
use crate::engine::wire::packet::{Aeth, BadPacket, Part, Verdict};

/// Without faults each packet is sent once, unless packets overtake each other; here they do not.
#[test]
fn a_good_channel_repeats_nothing() {
    let mut requester = Requester::new(settings());
    let mut sender = Sender {
        returned: vec![Vec::new(); 40],
        hole: None,
    };
    let (mut responder, mut receiver) = (responder(), Receiver::new());
    receiver.entries = 100;
    let mut data = Vec::new();
    let mut done = 0;
    for (tag, (operation, length, solicited)) in plan(&mut Random(5), 40).into_iter().enumerate() {
        requester.push(tag, (Service::Reliable, operation), (length, solicited));
        while !requester.is_idle() {
            while let Some(head) = requester.transmit(0, &mut sender, &mut data) {
                responder.receive(&head, &data, &mut receiver);
            }
            while let Some(head) = responder.transmit(&mut receiver, &mut data) {
                requester.receive(0, &head, &data, &mut sender);
            }
            while let Some(ended) = requester.ended() {
                assert_eq!((ended.tag, ended.result), (tag, Ok(length)));
                done += 1;
            }
        }
        assert_eq!(requester.deadline_ns(), None);
    }
    assert_eq!((done, requester.repetitions()), (40, 0));
    assert_eq!((responder.repeated(), responder.missing()), (0, 0));
}

const SEND: Operation = Operation::Send {
    imm: None,
    invalidate: None,
};

fn answer(packet: u64, verdict: Verdict) -> Head {
    Head {
        service: Service::Reliable,
        body: Body::Ack(Aeth { verdict, msn: 0 }),
        queue: 0x22,
        psn: Numbers::from(FIRST_PSN).psn(packet),
        pkey: 0xffff,
        solicited: false,
        ack: false,
    }
}

/// A requester with messages of one packet each, and all packets that it sends now.
fn sent(messages: usize) -> (Requester<usize>, Vec<Head>) {
    let mut requester = Requester::new(settings());
    for tag in 0..messages {
        assert!(requester.has_room());
        requester.push(tag, (Service::Reliable, SEND), (8, false));
    }
    let heads = all(&mut requester, 0);
    (requester, heads)
}

fn all(requester: &mut Requester<usize>, now_ns: u64) -> Vec<Head> {
    let (mut sender, mut data) = (Sender::default(), Vec::new());
    std::iter::from_fn(|| requester.transmit(now_ns, &mut sender, &mut data)).collect()
}

fn tell(requester: &mut Requester<usize>, now_ns: u64, head: &Head) {
    requester.receive(now_ns, head, &[], &mut Sender::default());
}

#[test]
fn a_silent_peer_ends_the_connection_after_its_retries() {
    let (mut requester, heads) = sent(2);
    assert_eq!(heads.len(), 2);
    for retry in 1..=7 {
        let due = requester.deadline_ns().unwrap();
        assert_eq!(due, retry * TIMEOUT_NS);
        requester.expire(due - 1);
        assert_eq!(all(&mut requester, due - 1), []);
        requester.expire(due);
        assert_eq!(all(&mut requester, due), heads);
    }
    requester.expire(8 * TIMEOUT_NS);
    let ended = requester.ended().unwrap();
    assert_eq!((ended.tag, ended.result), (0, Err(Broken::RetryExceeded)));
    assert!(requester.is_idle() && !requester.has_room());
    assert_eq!(requester.deadline_ns(), None);
    assert_eq!(all(&mut requester, u64::MAX), []);
}

#[test]
fn an_answer_renews_the_retries() {
    let (mut requester, _) = sent(2);
    for _ in 0..7 {
        requester.expire(requester.deadline_ns().unwrap());
        all(&mut requester, 0);
    }
    tell(&mut requester, 0, &answer(0, Verdict::Ack));
    assert_eq!(requester.ended().unwrap().result, Ok(8));
    requester.expire(TIMEOUT_NS);
    assert!(requester.ended().is_none());
    assert_eq!(all(&mut requester, TIMEOUT_NS).len(), 1);
}

#[test]
fn unanswered_packets_and_messages_are_bounded() {
    let (mut requester, heads) = sent(MESSAGES_MAX);
    assert!(!requester.has_room());
    assert_eq!(heads.len() as u64, WINDOW);
    assert!(heads.last().unwrap().ack);
    tell(&mut requester, 0, &answer(9, Verdict::Ack));
    assert_eq!(all(&mut requester, 0).len(), 10);
    // An answer to a packet that was never sent changes nothing.
    tell(&mut requester, 0, &answer(WINDOW + 10, Verdict::Ack));
    assert_eq!(std::iter::from_fn(|| requester.ended()).count(), 10);
}

#[test]
fn reads_wait_for_earlier_answers() {
    let mut requester = Requester::new(settings());
    let read = Operation::Read {
        address: 0,
        rkey: KEY,
    };
    // 40 packets of answers: three requests.
    requester.push(0, (Service::Reliable, read), (40 * MTU, false));
    requester.push(1, (Service::Reliable, read), (1, false));
    requester.push(2, (Service::Reliable, read), (1, false));
    let heads = all(&mut requester, 0);
    let sources: Vec<_> = heads
        .iter()
        .map(|head| match head.body {
            Body::ReadRequest { source } => (source.address, source.length),
            other => panic!("{other:?}"),
        })
        .collect();
    let part = 16 * MTU;
    let expect = [
        (0, part),
        (u64::from(part), part),
        (2 * u64::from(part), 8 * MTU),
        (0, 1),
    ];
    assert_eq!(sources, expect);
}

#[test]
fn a_receiver_without_entries_is_tried_again_after_its_delay() {
    let mut requester = Requester::new(Settings {
        rnr_retries: 2,
        ..settings()
    });
    requester.push(0, (Service::Reliable, SEND), (8, false));
    requester.push(1, (Service::Reliable, SEND), (8, false));
    let heads = all(&mut requester, 0);
    for retry in 1..=2 {
        let now = retry * 1_000_000;
        tell(&mut requester, now, &answer(0, Verdict::NotReady(2)));
        assert_eq!(requester.deadline_ns(), Some(now + 20_000));
        requester.expire(now + 19_999);
        assert_eq!(all(&mut requester, now + 19_999), []);
        requester.expire(now + 20_000);
        assert_eq!(all(&mut requester, now + 20_000), heads);
    }
    tell(&mut requester, 0, &answer(0, Verdict::NotReady(2)));
    assert_eq!(requester.ended().unwrap().result, Err(Broken::NotReady));
}

#[test]
fn a_refusal_ends_the_message_and_those_before_it_succeed() {
    for nak in [Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation] {
        let (mut requester, _) = sent(3);
        tell(&mut requester, 0, &answer(1, Verdict::Nak(nak)));
        assert_eq!(requester.ended().unwrap().result, Ok(8));
        let ended = requester.ended().unwrap();
        assert_eq!((ended.tag, ended.result), (1, Err(Broken::Nak(nak))));
        assert!(requester.ended().is_none() && !requester.has_room());
    }
}

#[test]
fn data_that_is_not_accessible_ends_the_connection_in_order() {
    let mut requester = Requester::new(settings());
    let mut sender = Sender {
        hole: Some(1),
        ..Sender::default()
    };
    requester.push(0, (Service::Reliable, SEND), (8, false));
    requester.push(1, (Service::Reliable, SEND), (8, false));
    let mut data = Vec::new();
    assert!(requester.transmit(0, &mut sender, &mut data).is_some());
    assert!(requester.transmit(0, &mut sender, &mut data).is_none());
    assert!(requester.ended().is_none());
    tell(&mut requester, 0, &answer(0, Verdict::Ack));
    assert_eq!(requester.ended().unwrap().result, Ok(8));
    assert!(requester.transmit(0, &mut sender, &mut data).is_none());
    assert_eq!(requester.ended().unwrap().result, Err(Broken::Local));
}

fn request(packet: u64, body: Body) -> Head {
    Head {
        body,
        ..answer(packet, Verdict::Ack)
    }
}

fn answers(responder: &mut Responder, receiver: &mut Receiver) -> Vec<(u32, Body)> {
    let mut data = Vec::new();
    std::iter::from_fn(|| responder.transmit(receiver, &mut data))
        .map(|head| (head.psn, head.body))
        .collect()
}

fn refused(nak: Nak) -> Body {
    Body::Ack(Aeth {
        verdict: Verdict::Nak(nak),
        msn: 0,
    })
}

/// Requests that break a rule of the protocol, each on a new connection (C 9.7.4.1.2, 9.7.4.1.3).
#[test]
fn invalid_requests_are_refused_by_name() {
    let send = |part| Body::Send {
        part,
        imm: None,
        invalidate: None,
    };
    let write = |part, length| Body::Write {
        part,
        target: Some(Range {
            address: 0,
            rkey: KEY,
            length,
        }),
        imm: None,
    };
    let source = Range {
        address: 0,
        rkey: KEY + 1,
        length: 1,
    };
    let one = MTU as usize;
    for (body, bytes, nak) in [
        (send(Part::Middle), one, Nak::InvalidRequest),
        (send(Part::Last), one, Nak::InvalidRequest),
        (send(Part::First), one - 1, Nak::InvalidRequest),
        (send(Part::Only), one + 1, Nak::InvalidRequest),
        (write(Part::Only, 5), 4, Nak::InvalidRequest),
        (write(Part::Only, 3), 4, Nak::InvalidRequest),
        (Body::ReadRequest { source }, 0, Nak::RemoteAccess),
    ] {
        let (mut responder, mut receiver) = (responder(), Receiver::new());
        receiver.entries = 1;
        responder.receive(&request(0, body), &vec![0; bytes], &mut receiver);
        let expect = [(FIRST_PSN, refused(nak))];
        assert_eq!(answers(&mut responder, &mut receiver), expect, "{body:?}");
        assert_eq!(receiver.is_invalid, nak == Nak::InvalidRequest);
        // The connection has ended.
        responder.receive(&request(0, send(Part::Only)), &[], &mut receiver);
        assert_eq!(answers(&mut responder, &mut receiver), []);
        assert_eq!(receiver.arrived, []);
    }
}

#[test]
fn a_missing_packet_is_asked_for_once() {
    let (mut responder, mut receiver) = (responder(), Receiver::new());
    receiver.entries = 9;
    let send = Body::Send {
        part: Part::Only,
        imm: None,
        invalidate: None,
    };
    for packet in [2, 1, 3] {
        responder.receive(&request(packet, send), &[], &mut receiver);
    }
    let expect = [(FIRST_PSN, refused(Nak::Sequence))];
    assert_eq!(answers(&mut responder, &mut receiver), expect);
    responder.receive(&request(0, send), &[], &mut receiver);
    responder.receive(&request(2, send), &[], &mut receiver);
    let told = answers(&mut responder, &mut receiver);
    assert_eq!((told.len(), told[0].0), (1, FIRST_PSN + 1));
    assert_eq!((receiver.arrived.len(), responder.missing()), (1, 2));
}

#[test]
fn numbers_wrap_around() {
    let numbers = Numbers::from(FIRST_PSN);
    for near in [0_u64, 50, 101, 1 << 24, (1 << 40) + 3] {
        for away in [0_u64, 1, 200, (1 << 23) - 1] {
            let ahead = near + away;
            assert_eq!(numbers.packet(numbers.psn(ahead), near), Some(ahead));
            let behind = near.checked_sub(away);
            assert_eq!(
                behind.and_then(|at| numbers.packet(numbers.psn(at), near)),
                behind
            );
        }
    }
    assert_eq!(numbers.packet(FIRST_PSN - 1, 0), None);
}

#[test]
fn each_malformed_packet_is_refused_by_name() {
    let mut good = Vec::new();
    let head = request(
        0,
        Body::Send {
            part: Part::Only,
            imm: Some(7),
            invalidate: None,
        },
    );
    Packet {
        head,
        data: b"12345",
    }
    .encode(&mut good);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let longer = |bytes: usize| [&good[..], &vec![0; bytes]].concat();
    assert_eq!(good.len(), 12 + 4 + 8);
    let decoded = Packet::decode(&good).unwrap();
    assert_eq!((decoded.head, decoded.data), (head, &b"12345"[..]));
    for (bytes, error) in [
        (good[..15].to_vec(), BadPacket::Short { bytes: 15 }),
        (vec![], BadPacket::Short { bytes: 0 }),
        (with(1, 1), BadPacket::Version(1)),
        (with(0, 0x15), BadPacket::Opcode(0x15)),
        (with(0, 0x66), BadPacket::Opcode(0x66)),
        (
            good[..17].to_vec(),
            BadPacket::Padding {
                bytes: 1,
                padding: 3,
            },
        ),
        (
            good[..16].to_vec(),
            BadPacket::Padding {
                bytes: 0,
                padding: 3,
            },
        ),
        (longer(4096), BadPacket::Long { bytes: 4101 }),
        (
            with(0, 0x11),
            BadPacket::Data {
                opcode: 0x11,
                bytes: 8,
            },
        ),
        (
            [&[0x11][..], &good[1..12], &[0x40, 0, 0, 0]].concat(),
            BadPacket::Syndrome(0x40),
        ),
    ] {
        assert_eq!(Packet::decode(&bytes), Err(error), "{bytes:x?}");
    }
}

/// A copy of a read request that comes late, after the requester has its data and the key is gone, breaks no connection.
#[test]
fn a_late_copy_of_a_read_breaks_nothing() {
    let (mut responder, mut receiver) = (responder(), Receiver::new());
    let length = 3 * MTU;
    let source = Range {
        address: 0,
        rkey: KEY,
        length,
    };
    let mut data = Vec::new();
    let mut request = answer(0, Verdict::Ack);
    request.body = Body::ReadRequest { source };
    responder.receive(&request, &[], &mut receiver);
    let answers = std::iter::from_fn(|| responder.transmit(&mut receiver, &mut data));
    assert_eq!(answers.count(), 3);
    receiver.memory.clear();
    responder.receive(&request, &[], &mut receiver);
    assert_eq!(responder.transmit(&mut receiver, &mut data), None);
    assert_eq!(responder.repeated(), 1);
    // The next request is served.
    let mut next = answer(3, Verdict::Ack);
    next.body = Body::Atomic {
        address: 0,
        rkey: KEY,
        atomic: Atomic::FetchAdd { add: 1 },
    };
    responder.receive(&next, &[], &mut receiver);
    assert!(responder.transmit(&mut receiver, &mut data).is_some());
    // A key that is gone before the first answer does break it.
    let mut fresh = super::responder();
    fresh.receive(&request, &[], &mut receiver);
    let refused = fresh.transmit(&mut receiver, &mut data);
    let refused = refused.map(|head| head.body);
    let nak = Verdict::Nak(Nak::RemoteAccess);
    assert!(matches!(refused, Some(Body::Ack(aeth)) if aeth.verdict == nak));
}
