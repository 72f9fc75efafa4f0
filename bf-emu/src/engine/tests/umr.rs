//! Less common forms of UMR: lists by pointer, partial lists, and strided lists.

use super::*;
use crate::engine::access::REPEAT_BLOCK;

const PAGE: usize = 64;

/// Posts a UMR that gives `key` a list and the zero-based range of `len` bytes. `list` is the part
/// after the context. `entries` is the declared number of entries, from entry `first` on.
fn set_list(
    world: &World,
    queue: &mut Queue,
    key: u32,
    (flags, first, entries): (u8, u16, u16),
    list: &[u8],
    len: u64,
) -> Vec<Cqe> {
    let ctrl = UmrCtrl {
        flags,
        klm_octowords: entries,
        translation_offset: first,
        mkey_mask: mask::FREE | mask::LEN | mask::LOCAL_WRITE | mask::REMOTE_READ,
    };
    let context = UmrContext {
        access: ALL_RIGHTS,
        len,
        ..UmrContext::default()
    };
    let parts: [&[u8]; 3] = [&ctrl.to_bytes(), &context.to_bytes(), list];
    world.post(queue, opcode::UMR, key, &parts)
}

/// The `len` bytes of `key` that a peer reads, or the peer's syndrome.
fn behind(world: &World, key: u32, len: usize) -> Result<Vec<u8>, u8> {
    let (mut far, _host) = world.pair(FAR, HOST);
    let into = vec![0u8; len];
    let lkey = world.region(FAR, &into, ALL_RIGHTS);
    let cqes = world.read(&mut far, (lkey, &into), (key, 0));
    match cqes[0].opcode {
        cqe_opcode::REQ => Ok(into),
        _ => Err(cqes[0].syndrome),
    }
}

fn klms(region: u32, bytes: &[u8], pieces: &[(usize, usize)]) -> Vec<u8> {
    let klm = |&(from, length): &(usize, usize)| Klm {
        byte_count: u32::try_from(length).unwrap(),
        mkey: region,
        address: address(&bytes[from..]),
    };
    pieces
        .iter()
        .flat_map(|piece| klm(piece).to_bytes())
        .collect()
}

fn counting(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

#[test]
fn a_list_by_pointer_is_read_from_memory() {
    let world = World::new();
    let (mut umr, _other) = world.pair(HOST, FAR);
    let bytes = counting(PAGE * 40);
    let region = world.region(HOST, &bytes, ALL_RIGHTS);
    // More entries than the device reads in one step, each of one byte, in reverse order.
    let pieces: Vec<_> = (0..40).rev().map(|page| (page * PAGE, 1)).collect();
    let list = klms(region, &bytes, &pieces);
    let list_key = world.region(HOST, &list, access::LOCAL_READ);
    let key = world.umr_key(HOST, 40);
    let pointer = segment(list_key, &list);
    expect_success(
        &set_list(&world, &mut umr, key, (0, 0, 40), &pointer, 40),
        0,
    );
    let expect: Vec<_> = pieces.iter().map(|&(from, _)| bytes[from]).collect();
    assert_eq!(behind(&world, key, 40), Ok(expect));
    // The device reads the list with the poster's own key.
    let cqes = set_list(
        &world,
        &mut umr,
        key,
        (0, 0, 40),
        &segment(0x1234, &list),
        40,
    );
    expect_error(&cqes, syndrome::LOCAL_PROT_ERR);
}

#[test]
fn a_part_of_a_list_changes_alone() {
    let world = World::new();
    let (mut umr, _other) = world.pair(HOST, FAR);
    let bytes = counting(PAGE * 8);
    let region = world.region(HOST, &bytes, ALL_RIGHTS);
    let key = world.umr_key(HOST, 8);
    let first: Vec<_> = (0..8).map(|page| (page * PAGE, 2)).collect();
    let list = klms(region, &bytes, &first);
    let inline = flag::INLINE;
    expect_success(
        &set_list(&world, &mut umr, key, (inline, 0, 8), &list, 16),
        0,
    );
    let swap = klms(region, &bytes, &[(7, 2), (9, 2), (11, 2), (13, 2)]);
    let part = (inline | flag::TRANSLATION_OFFSET, 4, 4);
    expect_success(&set_list(&world, &mut umr, key, part, &swap, 16), 0);
    let expect = [
        0, 1, 64, 65, 128, 129, 192, 193, 7, 8, 9, 10, 11, 12, 13, 14,
    ];
    assert_eq!(behind(&world, key, 16), Ok(expect.to_vec()));
    let beyond = (inline | flag::TRANSLATION_OFFSET, 8, 4);
    let cqes = set_list(&world, &mut umr, key, beyond, &swap, 16);
    expect_error(&cqes, syndrome::LOCAL_QP_OP_ERR);
}

/// The head of a strided list and its ranges as (from, bytes, stride).
fn strided(region: u32, bytes: &[u8], rounds: u32, ranges: &[(usize, u16, u16)]) -> Vec<u8> {
    let round: u32 = ranges.iter().map(|&(_, length, _)| u32::from(length)).sum();
    let mut list = [
        round,
        REPEAT_BLOCK,
        rounds,
        u32::try_from(ranges.len()).unwrap(),
    ]
    .map(u32::to_be_bytes)
    .concat();
    for &(from, length, stride) in ranges {
        list.extend(stride.to_be_bytes());
        list.extend(length.to_be_bytes());
        list.extend(region.to_be_bytes());
        list.extend(address(&bytes[from..]).to_be_bytes());
    }
    list.resize(list.len().next_multiple_of(64), 0);
    list
}

#[test]
fn a_strided_list_repeats_its_ranges() {
    let world = World::new();
    let (mut umr, _other) = world.pair(HOST, FAR);
    let bytes = counting(200);
    let region = world.region(HOST, &bytes, ALL_RIGHTS);
    let key = world.umr_key(HOST, 4);
    let list = strided(region, &bytes, 3, &[(0, 3, 5), (100, 2, 10)]);
    let inline = (flag::INLINE, 0, 4);
    expect_success(&set_list(&world, &mut umr, key, inline, &list, 15), 0);
    let expect = [0, 1, 2, 100, 101, 5, 6, 7, 110, 111, 10, 11, 12, 120, 121];
    assert_eq!(behind(&world, key, 15), Ok(expect.to_vec()));
    // A key that is longer than its rounds gives no access beyond them.
    expect_success(&set_list(&world, &mut umr, key, inline, &list, 16), 0);
    assert_eq!(behind(&world, key, 16), Err(syndrome::REMOTE_ACCESS_ERR));
    // Rounds of zero bytes must not cause a division by zero.
    let (mut umr, _other) = world.pair(HOST, FAR);
    let nothing = strided(region, &bytes, 3, &[(0, 0, 5)]);
    expect_success(&set_list(&world, &mut umr, key, inline, &nothing, 15), 0);
    assert_eq!(behind(&world, key, 15), Err(syndrome::REMOTE_ACCESS_ERR));
}

#[test]
fn a_resized_completion_queue_goes_on_in_its_new_ring() {
    let world = World::new();
    let (mut host, _far) = world.pair(HOST, FAR);
    let nop = |world: &World, host: &mut Queue| world.post(host, opcode::NOP, 0, &[]);
    expect_success(&nop(&world, &mut host), 0);
    let larger = vec![0xffu8; 4 * RING as usize * CQE_BYTES];
    let record = Box::new([0u64; 1]);
    let ring = Ring {
        base: address(&larger),
        count: 4 * RING,
        log_stride: 6,
    };
    let resize = |ring: Ring| {
        let mut locked = world.fabric.lock();
        let qps = &locked.peek(HOST).qps;
        let slot = qps.get(host.qpn - QPN_BASE).unwrap().send_cq;
        let cq = locked.function(HOST).cqs.get_mut(slot).unwrap();
        cq.dbrec = record.as_ptr().expose_provenance() as u64;
        crate::engine::complete::resize(&mut locked, HOST, slot, ring)
    };
    // The unread entries must fit.
    assert!(!resize(Ring { count: 1, ..ring }));
    assert!(resize(ring));
    let cqes = nop(&world, &mut host);
    assert_eq!(cqes.len(), 1);
    assert_eq!(cqes[0].opcode, cqe_opcode::RESIZE_CQ);
    // One entry was read, and one reported the resize. The third entry is at its own index in the
    // new ring.
    let third = larger[2 * CQE_BYTES..].first_chunk().unwrap();
    assert_eq!(Cqe::parse(third).opcode, cqe_opcode::REQ);
}
