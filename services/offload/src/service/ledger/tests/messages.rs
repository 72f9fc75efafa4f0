//! Messages that are longer or shorter than their receives.

use super::*;
use crate::service::incoming::Source;
use crate::wire::Message;
use crate::wire::runs::Run;

/// How an offer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comes {
    Before,
    After,
    /// After the receive, and it is like an earlier one.
    Again,
}

const ALL: [Comes; 3] = [Comes::Before, Comes::After, Comes::Again];

#[test]
fn a_message_fills_as_much_of_its_receive_as_there_is() {
    for (sent, room) in [
        (600, 600),
        (600, 700),
        (700, 600),
        (10, 10),
        (10, 20),
        (20, 10),
        (10, 600),
        (600, 10),
        (1, 511),
        (512, 511),
        (511, 512),
    ] {
        for comes in ALL {
            if comes != Comes::Again || sent >= DIRECT_MIN {
                check(sent, room, comes);
            }
        }
    }
}

fn check(sent: u64, room: u64, comes: Comes) {
    let what = format!("{sent} for {room}, {comes:?}");
    let mut ledger = Ledger::new(0, vec![0, 1], DIRECT_MIN, 4);
    let message = Message {
        from: 1,
        to: 0,
        tag: 3,
    };
    let collective = Collective {
        communicator: message.communicator().expect("a tag"),
        ..CALL
    };
    let block = |peer, length| Block {
        peer,
        offset: 0,
        length,
    };
    let is_short = sent < DIRECT_MIN;
    let byte = |at| u8::try_from(at % 251 + 1).expect("a byte");
    let bytes: Vec<u8> = (0..sent).map(byte).collect();
    let offer = Sent {
        from: 1,
        to: 0,
        id: 9,
        collective,
        parts: vec![Part {
            source: 1,
            base: 0,
            blocks: vec![block(0, sent)],
            short: if is_short { bytes.clone() } else { Vec::new() },
        }],
    };
    if comes == Comes::Before {
        offer.offer_to(&mut ledger).expect("parked");
    }
    enter(&mut ledger, collective, 0, [&[], &[block(1, room)]], b"").expect("a receive");
    match comes {
        Comes::Before => {}
        Comes::After => offer.offer_to(&mut ledger).expect("a message"),
        Comes::Again => {
            let run = Run {
                peer: 0,
                step: 1,
                count: 1,
                offset: 0,
                stride: 0,
                length: sent,
            };
            let source = Source {
                rank: 1,
                base: 0,
                shared: 0,
                run: Some(run),
                short_at: 0,
                like: 1,
                apart: 1,
            };
            let again = ledger.offered_again((1, 9), collective, &[source], 1);
            again.expect("a message");
        }
    }
    let (mut read, mut ended, mut answers) = (None, None, 0);
    loop {
        match ledger.next() {
            Some(Action::Complete { short, .. }) => ended = Some(short),
            Some(Action::Finish { .. }) => answers += 1,
            Some(_) => {}
            None => match ledger.next_transfer() {
                Some(transfer) => {
                    assert_eq!((transfer.to, read), (0, None), "{what}");
                    read = Some(transfer.length);
                    ledger.transferred(transfer.batch, 1);
                }
                None => break,
            },
        }
    }
    let fits = sent.min(room);
    assert_eq!(read, (fits >= DIRECT_MIN).then_some(fits), "{what}");
    let short = ended.expect("complete");
    let told = short.as_ref().and_then(|short| short.message);
    assert_eq!(told, (sent != room).then_some(sent), "{what}");
    let (told, lengths) = short.map_or((Vec::new(), 0), |short| {
        let lengths = short.blocks.iter().filter_map(|of| of.bytes()).sum();
        (short.bytes, lengths)
    });
    let expect = if is_short {
        &bytes[..usize::try_from(fits).expect("few")]
    } else {
        &[]
    };
    assert_eq!(
        (&told[..], lengths),
        (expect, expect.len() as u64),
        "{what}"
    );
    assert_eq!((answers, ledger.lengths()), (1, [0; 3]), "{what}");
}
