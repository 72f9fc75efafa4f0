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
    whole: 0,
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
    let block = |peer: u32| Block {
        peer,
        offset: 1 << 60,
        length: 5 + u64::from(peer),
    };
    let arrive = HostArrive {
        collective: COLLECTIVE,
        rank: 9,
        together: 1,
        send_memory: Some(Export {
            address: 0x7f00_0000_1000,
            length: 1 << 30,
            packed: vec![1, 2, 3],
            name: None,
        }),
        receive_memory: None,
        sends: vec![block(0), block(1)].into(),
        receives: vec![block(2)].into(),
        short: b"hello".to_vec(),
        route: Route::Direct,
    };
    let bytes = arrive.to_bytes();
    let arrival = Arrival::parse(&bytes).expect("its own bytes");
    assert_eq!(BlockList::from(arrival.sends.to_vec()), arrive.sends);
    assert_eq!(BlockList::from(arrival.receives.to_vec()), arrive.receives);
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
        panic!("an offset of 60 bits")
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
    let (sources, bytes) = draft.finish(RtsHead {
        whole: 1 << 40,
        ..HEAD
    });
    assert_eq!(sources, [9, 10]);
    assert_eq!((draft.sources(), draft.blocks()), (0, 0));
    let rts = DpuRts::parse(&bytes).expect("its own bytes");
    let part = |source, base, blocks, rkey| RtsPart {
        source,
        base,
        blocks,
        rkey: PackedKey::whole(rkey),
    };
    let expect = DpuRts {
        collective: COLLECTIVE,
        from: 1,
        offer: 77,
        whole: 1 << 40,
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
}

#[test]
fn answers_survive_the_wire() {
    let fin = DpuFin {
        from: 2,
        offers: vec![77],
    };
    check(&fin, &fin.to_bytes(), DpuFin::parse);
    let several = DpuFin {
        from: 2,
        offers: vec![77, 1 << 40, 3],
    };
    assert_eq!(DpuFin::parse(&several.to_bytes()), Ok(several));
    for aliases in [None, Some((0, 0)), Some((5, 6))] {
        let fin = HostFin {
            collective: COLLECTIVE,
            short: vec![
                Delivered::one(3, 3),
                Delivered {
                    offset: 1 << 33,
                    stride: 16,
                    length: 2,
                    count: 4,
                },
            ],
            bytes: vec![8; 11],
            aliases,
            message: None,
        };
        check(&fin, &fin.to_bytes(), HostFin::parse);
        for message in [Some(0), Some(u64::MAX)] {
            let of_message = HostFin {
                message,
                ..fin.clone()
            };
            check(&of_message, &of_message.to_bytes(), HostFin::parse);
        }
        let empty = HostFin {
            short: Vec::new(),
            bytes: Vec::new(),
            ..fin.clone()
        };
        let made = HostFin::without_blocks(empty.collective, empty.aliases, vec![9]);
        check(&empty, &made, HostFin::parse);
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
        &[0; 13][..],
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        b"k",
    ]
    .concat();
    let rts = [&[0; 32][..], &1_u32.to_le_bytes(), &part, &[0; 8]].concat();
    let error = DpuRts::parse(&rts).unwrap_err().to_string();
    assert!(
        error.contains("without blocks of one of its sources"),
        "{error}"
    );
}

/// Several sources with the same run share a part of the offer, in any order of their arrivals.
#[test]
fn sources_with_the_same_run_take_a_byte_each() {
    let run = |offset| runs::Run {
        peer: 64,
        step: 1,
        count: 32,
        offset,
        stride: 8,
        length: 8,
    };
    let mut draft = RtsDraft::default();
    let sources: Vec<u32> = (0..32).map(|at| 16_000 + at * 7 % 32).collect();
    for source in &sources {
        let short = [source.to_le_bytes()[0]; 256];
        draft.runs(*source, 1 << 40, &[run((*source).into())], &short, &[9; 40]);
    }
    assert_eq!((draft.sources(), draft.blocks()), (32, 1024));
    // A source with a block for the device ends the group.
    let long = runs::Run {
        length: 4096,
        stride: 4096,
        ..run(5)
    };
    draft.runs(15_999, 1 << 41, &[long], &[], &[9; 40]);
    let (found, bytes) = draft.finish(HEAD);
    assert_eq!((found.len(), &found[..32]), (33, &sources[..]));
    assert!(bytes.len() - 32 * 256 < 160, "{} bytes", bytes.len());
    let rts = DpuRts::parse(&bytes).expect("its own bytes");
    let expect: Vec<Block> = (0..32).map(|at| run(0).block(at)).collect();
    for (part, source) in rts.parts.iter().zip(&sources) {
        assert_eq!(part.source, *source);
        assert_eq!(part.rkey, PackedKey::default());
        let blocks = part.blocks.to_vec();
        assert!(
            blocks
                .iter()
                .zip(&expect)
                .all(|(a, b)| (a.peer, a.length) == (b.peer, b.length))
        );
    }
    let last = rts.parts.last().expect("a part");
    assert_eq!(
        (last.source, last.base, last.rkey),
        (15_999, 1 << 41, PackedKey::whole(&[9; 40]))
    );
    assert_eq!(last.blocks.to_vec()[31], long.block(31));
    for length in 0..bytes.len() {
        assert!(DpuRts::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
}

/// The share of a rank in the offers for 511 other services, and in their answers, is below 2 KiB.
#[test]
fn an_offer_of_equally_spaced_ranks_takes_few_bytes() {
    let mut draft = RtsDraft::default();
    let run = runs::Run {
        peer: 12_000,
        step: 1,
        count: 32,
        offset: 96_000,
        stride: 8,
        length: 8,
    };
    for source in 16_000..16_032 {
        draft.runs(source, 1 << 40, &[run], &[1; 256], &[]);
    }
    let (_, bytes) = draft.finish(HEAD);
    let offer = bytes.len() - 32 * 256 + 16;
    let fin = DpuFin {
        from: 2,
        offers: vec![77],
    };
    let all = 511 * (offer + fin.to_bytes().len() + 16) / 32;
    assert!(all <= 2048, "{all} bytes");
    let rts = DpuRts::parse(&bytes).expect("its own bytes");
    let sources: Vec<u32> = rts.parts.iter().map(|part| part.source).collect();
    assert_eq!(sources, (16_000..16_032).collect::<Vec<u32>>());
}

/// Sources with the same run for the device share its description and what their keys have in common.
#[test]
fn the_key_of_a_buffer_takes_what_differs() {
    let run = runs::Run {
        peer: 64,
        step: 1,
        count: 32,
        offset: 64 << 12,
        stride: 4096,
        length: 4096,
    };
    let mut draft = RtsDraft::default();
    let key = |source: u8| {
        let mut key = [7; 40];
        key[12] = source;
        key
    };
    for source in 0..32_u8 {
        let base = u64::from(source) << 40;
        draft.runs(source.into(), base, &[run], &[], &key(source));
    }
    let (_, bytes) = draft.finish(HEAD);
    assert!(bytes.len() <= 120 + 32 * 16, "{} bytes", bytes.len());
    let rts = DpuRts::parse(&bytes).expect("its own bytes");
    assert_eq!(rts.parts.len(), 32);
    for (source, part) in (0..).zip(&rts.parts) {
        assert_eq!(
            (part.source, part.base),
            (source.into(), u64::from(source) << 40)
        );
        assert_eq!(part.rkey, PackedKey::whole(&key(source)));
        assert_eq!(part.blocks.to_vec()[3], run.block(3));
    }
    for length in 0..bytes.len() {
        assert!(DpuRts::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
}

/// A group names many blocks in a few bytes, so each has bytes in the message.
#[test]
fn a_group_of_empty_blocks_or_of_too_many_sources_is_refused() {
    for (length, sources, expect) in [
        (0, 1, "with empty blocks of several sources"),
        (8, 65_537, "with more sources than a job has ranks"),
    ] {
        let mut writer = Writer::default();
        put_collective(&mut writer, COLLECTIVE);
        writer.u32(1).u64(2).u32(1).u8(GROUP).varint(sources);
        for number in [0, 1, u64::from(u32::MAX), 0, 0, length] {
            writer.varint(number);
        }
        let mut bytes = writer.finish();
        bytes.resize(bytes.len() + 70_000, 0);
        let error = DpuRts::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
}

/// An even alltoall takes the same bytes in a job of any size.
#[test]
fn the_entry_of_an_even_call_does_not_grow_with_its_members() {
    for members in [64, 16_384, 65_536] {
        let blocks: Vec<Block> = (0..members)
            .map(|peer| Block {
                peer,
                offset: u64::from(peer) * 8,
                length: 8,
            })
            .collect();
        let arrive = HostArrive {
            collective: COLLECTIVE,
            rank: members - 1,
            together: 32,
            send_memory: None,
            receive_memory: None,
            sends: blocks.iter().copied().collect(),
            receives: blocks.iter().copied().collect(),
            short: vec![5; 8 * members as usize],
            route: Route::Direct,
        };
        let bytes = arrive.to_bytes();
        let own = bytes.len() - arrive.short.len();
        assert!(own + 16 <= 64, "{own} bytes and a token");
        let arrival = Arrival::parse(&bytes).expect("its own bytes");
        assert_eq!(arrival.sends.to_vec(), blocks);
    }
}
