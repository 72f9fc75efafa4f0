//! Messages survive a round trip, and damaged ones are refused.

use super::*;
use crate::draft::{RtsDraft, RtsHead};

const COLLECTIVE: Collective = Collective {
    communicator: 3,
    sequence: u32::MAX,
    start: 7,
    step: 0,
};

const HEAD: RtsHead = RtsHead {
    collective: COLLECTIVE,
    from: 1,
    offer: 77,
};

/// Checks that a message survives a round trip and that every shorter form is refused.
fn check<T: PartialEq + std::fmt::Debug>(
    message: &T,
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, BadMessage>,
) {
    assert_eq!(parse(bytes).as_ref(), Ok(message));
    for length in 0..bytes.len() {
        assert!(parse(&bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn messages_survive_the_wire() {
    for from in [From::Rank(7), From::Service(0)] {
        for address in [None, Some(1 << 47)] {
            let greeting = address.map(|address| Greeting {
                rkey: vec![9; 40],
                address,
            });
            let hello = Hello { from, greeting };
            check(&hello, &hello.to_bytes(), Hello::parse);
        }
    }
    let block = |peer| Block {
        peer,
        offset: 1 << 40,
        length: 5,
    };
    let arrive = HostArrive {
        collective: COLLECTIVE,
        rank: 9,
        send_memory: Some(Export {
            address: 0x7f00_0000_1000,
            length: 1 << 30,
            packed: vec![1, 2, 3],
        }),
        receive_memory: None,
        sends: vec![block(0), block(1)],
        receives: vec![block(2)],
        short: b"hello".to_vec(),
    };
    let bytes = arrive.to_bytes();
    let arrival = Arrival::parse(&bytes).expect("its own bytes");
    assert_eq!(arrival.sends.to_vec(), arrive.sends);
    assert_eq!(arrival.receives.to_vec(), arrive.receives);
    assert!(matches!(arrival.sends, Blocks::Wide(_)));
    assert_eq!(
        arrival.send_memory,
        arrive.send_memory.as_ref().map(Export::view)
    );
    assert_eq!((arrival.rank, arrival.short), (9, &b"hello"[..]));
    for length in 0..bytes.len() {
        assert!(Arrival::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    let mut draft = RtsDraft::default();
    draft.begin::<Wide>(9, 0x1000);
    let Blocks::Wide(records) = arrival.sends else {
        panic!("an offset of 40 bits")
    };
    for record in records {
        draft.block(record, None);
    }
    draft.end(&[9; 40]);
    draft.begin::<Narrow>(10, 0);
    let short = [[4, 0, 0, 0, 16, 0, 0, 0, 5, 0, 0, 0]];
    draft.block(&short[0], Some(b"hello"));
    draft.end(&[9; 40]);
    assert_eq!((draft.blocks(), draft.short_bytes()), (3, 5));
    let (sources, bytes) = draft.finish(HEAD);
    assert_eq!(sources, [9, 10]);
    assert_eq!((draft.parts(), draft.blocks()), (0, 0));
    let rts = DpuRts::parse(&bytes).expect("its own bytes");
    let part = |source, base, blocks, rkey| RtsPart {
        source,
        base,
        blocks,
        rkey,
    };
    let expect = DpuRts {
        collective: COLLECTIVE,
        from: 1,
        offer: 77,
        parts: vec![
            part(9, 0x1000, arrival.sends, &[9; 40]),
            part(10, 0, Blocks::Narrow(&short), &[]),
        ],
        short: b"hello",
    };
    assert_eq!(rts, expect);
    for length in 0..bytes.len() {
        assert!(DpuRts::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    let sent = Block {
        peer: 4,
        offset: 16,
        length: 5,
    };
    assert_eq!(rts.parts[1].blocks.to_vec(), [sent]);
    let fin = DpuFin { from: 2, offer: 77 };
    check(&fin, &fin.to_bytes(), DpuFin::parse);
    for aliases in [None, Some((0, 0)), Some((5, 6))] {
        let fin = HostFin {
            collective: COLLECTIVE,
            short: vec![Delivered {
                offset: 3,
                length: 3,
            }],
            bytes: vec![8; 3],
            aliases,
        };
        check(&fin, &fin.to_bytes(), HostFin::parse);
    }
}

#[test]
fn identifiers_name_their_kinds() {
    for id in 0..Kind::COUNT {
        assert_eq!(Kind::from_id(id).map(|kind| kind as u16), Some(id));
    }
    assert_eq!(Kind::from_id(Kind::COUNT), None);
}

#[test]
fn keys_that_ucx_never_packs_are_refused() {
    let hello = |bytes: usize| {
        let greeting = Greeting {
            rkey: vec![1; bytes],
            address: 1,
        };
        let hello = Hello {
            from: From::Service(1),
            greeting: Some(greeting),
        };
        Hello::parse(&hello.to_bytes())
    };
    assert!(hello(PACKED_MAX).is_ok());
    let error = hello(PACKED_MAX + 1).unwrap_err().to_string();
    assert!(error.contains("too long in a packed key"), "{error}");
    // A key without blocks would cost memory, and an offer has no limit of its own for such parts.
    let part = [
        &[0; 16][..],
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        b"k",
    ]
    .concat();
    let rts = [&[0; 32][..], &1_u64.to_le_bytes(), &part, &[0; 8]].concat();
    let error = DpuRts::parse(&rts).unwrap_err().to_string();
    assert!(
        error.contains("without blocks of one of its sources"),
        "{error}"
    );
}
