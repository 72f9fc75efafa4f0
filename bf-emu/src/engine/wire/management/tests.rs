//! Bytes of messages: at the offsets of the standard's tables, and back.

use super::*;

fn request() -> Request {
    Request {
        number: 0x0102_0304,
        service: 0x0000_0000_0106_1d2f,
        guid: 0x1122_3344_5566_7788,
        queue: 0x0a_0b0c,
        psn: 0x0d_0e0f,
        responder_resources: 4,
        initiator_depth: 5,
        remote_timeout: 20,
        local_timeout: 19,
        message_retries: 15,
        transport: Transport::Reliable,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: true,
        pkey: 0xffff,
        mtu: 3,
        path: Path {
            sgid: [0x11; 16],
            dgid: [0x22; 16],
            rate: 21,
            traffic_class: 0x60,
            hop_limit: 64,
            sl: 3,
            ack_timeout: 19,
        },
        ece: [0x15_b300, 0x1234_5678],
        data: [0x77; REQUEST_DATA],
    }
}

fn bytes_of(message: Message) -> [u8; MESSAGE_BYTES] {
    let datagram = Datagram {
        transaction: 0x0807_0605_0403_0201,
        message,
    };
    let bytes = datagram.encode();
    assert_eq!(Datagram::decode(&bytes), Ok(datagram));
    bytes
}

/// The offsets and bits are those of the standard's table 106.
#[test]
fn a_request_has_its_fields_at_the_places_of_the_standard() {
    let bytes = bytes_of(Message::Request(request()));
    assert_eq!(bytes[..4], [1, 7, 2, 3]);
    assert_eq!(bytes[8..16], 0x0807_0605_0403_0201_u64.to_be_bytes());
    assert_eq!(bytes[16..24], [0, 0x10, 0, 0, 0x12, 0x34, 0x56, 0x78]);
    let body = &bytes[24..];
    let expect: &[(usize, &[u8])] = &[
        (0, &[1, 2, 3, 4]),
        (5, &[0x15, 0xb3, 0]),
        (8, &[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]),
        (16, &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]),
        (32, &[0x0a, 0x0b, 0x0c, 4]),
        (36, &[0, 0, 0, 5]),
        (40, &[0, 0, 0, 20 << 3 | 1]),
        (44, &[0x0d, 0x0e, 0x0f, 19 << 3 | 7]),
        (48, &[0xff, 0xff, 3 << 4 | 6, 15 << 4 | 1 << 3]),
        (52, &[0xff, 0xff, 0xff, 0xff]),
        (56, &[0x11; 16]),
        (72, &[0x22; 16]),
        (88, &[0, 0, 0, 21, 0x60, 64, 3 << 4, 19 << 3]),
        (96, &[0; 44]),
        (140, &[0x77; REQUEST_DATA]),
    ];
    for (at, value) in expect {
        assert_eq!(body[*at..at + value.len()], **value, "at {at}");
    }
}

/// A message, its number, and its bytes behind the header.
type Case = (Message, u8, Vec<u8>);

fn of_connections() -> Vec<Case> {
    let numbers = Numbers {
        own: 0x0102_0304,
        other: 0x0506_0708,
    };
    let ids = [1, 2, 3, 4, 5, 6, 7, 8];
    vec![
        (
            Message::Wait {
                numbers,
                answered: Answered::Reply,
                timeout: 24,
            },
            0x11,
            [&ids[..], &[1 << 6, 24 << 3]].concat(),
        ),
        (
            Message::Reject(Reject {
                numbers,
                answered: Answered::Other,
                reason: 4,
                guid: Some(9),
                data: [3; REJECT_DATA],
            }),
            0x12,
            [
                &ids[..],
                &[2 << 6, 8 << 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9],
                &[0; 64],
                &[3; REJECT_DATA],
            ]
            .concat(),
        ),
        (
            Message::Reply(Reply {
                numbers,
                guid: 9,
                queue: 0x0a_0b0c,
                psn: 0x0d_0e0f,
                responder_resources: 2,
                initiator_depth: 3,
                ack_delay: 15,
                flow_control: true,
                rnr_retry_count: 7,
                srq: true,
                ece: [0x15_b3aa, 5],
                data: [4; REPLY_DATA],
            }),
            0x13,
            [
                &ids[..],
                &[
                    0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x15, 0, 0, 0, 0xb3, 0x0d, 0x0e, 0x0f, 0xaa,
                ],
                &[2, 3, 15 << 3 | 1, 7 << 5 | 1 << 4, 0, 0, 0, 0, 0, 0, 0, 9],
                &[4; REPLY_DATA],
            ]
            .concat(),
        ),
        (Message::Ready(numbers), 0x14, ids.to_vec()),
        (
            Message::Disconnect {
                numbers,
                queue: 0x0a_0b0c,
            },
            0x15,
            [&ids[..], &[0x0a, 0x0b, 0x0c, 0]].concat(),
        ),
        (Message::Disconnected(numbers), 0x16, ids.to_vec()),
    ]
}

fn of_services() -> Vec<Case> {
    vec![
        (
            Message::Lookup(Lookup {
                number: 7,
                pkey: 0xffff,
                service: 0x0111_0001,
                data: [5; LOOKUP_DATA],
            }),
            0x17,
            [
                &[0, 0, 0, 7, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0x11, 0, 1][..],
                &[5; LOOKUP_DATA],
            ]
            .concat(),
        ),
        (
            Message::Found(Found {
                number: 7,
                status: 1,
                queue: 0x0a_0b0c,
                service: 0x0111_0001,
                qkey: 0x0123_4567,
                data: [6; FOUND_DATA],
            }),
            0x18,
            [
                &[
                    0, 0, 0, 7, 1, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0, 0, 0, 0, 0, 1, 0x11, 0, 1,
                ][..],
                &[1, 0x23, 0x45, 0x67],
                &[0; 72],
                &[6; FOUND_DATA],
            ]
            .concat(),
        ),
    ]
}

#[test]
fn the_other_messages_have_their_fields_at_the_places_of_the_standard() {
    for (message, attribute, body) in [of_connections(), of_services()].concat() {
        let bytes = bytes_of(message);
        assert_eq!(bytes[16..18], [0, attribute], "{message:?}");
        assert_eq!(bytes[24..24 + body.len()], body, "{message:?}");
        assert!(
            bytes[24 + body.len()..].iter().all(|byte| *byte == 0),
            "{message:?}"
        );
    }
}

#[test]
fn a_transport_keeps_its_type() {
    for code in 0..32 {
        let transport = Transport::of(code & 3, code >> 2);
        assert_eq!(transport.codes(), (code & 3, code >> 2));
    }
    assert_eq!(Transport::of(3, 1), Transport::Extended);
}

#[test]
fn other_datagrams_are_refused() {
    let good = bytes_of(Message::Request(request()));
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Datagram::decode(&bytes).unwrap_err()
    };
    assert_eq!(Datagram::decode(&good[1..]), Err(BadMessage::Length(255)));
    for at in 0..4 {
        assert!(matches!(with(at, 0x81), BadMessage::Header(_)), "{at}");
    }
    // An alternate path, which RoCE does not have.
    assert_eq!(with(17, 0x19), BadMessage::Attribute(0x19));
    let mut wait = bytes_of(Message::Wait {
        numbers: Numbers::default(),
        answered: Answered::Other,
        timeout: 0,
    });
    wait[32] = 0xff;
    assert_eq!(Datagram::decode(&wait), Err(BadMessage::Answered(3)));
}
