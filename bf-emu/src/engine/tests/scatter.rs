//! Data in completions, masked atomics of both widths, and receivers that are not ready.

use super::*;
use crate::engine::step::{Step, step};

/// Changes a queue to completions of 128 bytes. The ring keeps its length in bytes and holds half
/// as many entries.
fn widen(world: &World, queue: &Queue) {
    let mut locked = world.fabric.lock();
    let tables = locked.function(queue.function);
    let slot = tables.qps.get(queue.qpn - QPN_BASE).unwrap().send_cq;
    let cq = tables.cqs.get_mut(slot).unwrap();
    cq.ring.log_stride = 7;
    cq.ring.count /= 2;
}

/// All bytes of a queue's first completion.
fn first_entry(queue: &Queue, wide: bool) -> (Vec<u8>, Cqe) {
    let bytes = if wide { 2 * CQE_BYTES } else { CQE_BYTES };
    let entry = queue.cqes[..bytes].to_vec();
    let cqe = Cqe::parse(entry[bytes - CQE_BYTES..].first_chunk().unwrap());
    (entry, cqe)
}

/// Data goes into the entry if it fits, and otherwise to the buffers of its list.
#[test]
fn short_answers_lie_in_the_completion() {
    for (limit, length, form) in [
        (0, 8, 0),
        (32, 8, 1),
        (32, 32, 1),
        (32, 33, 0),
        (64, 8, 2),
        (64, 64, 2),
        (64, 65, 0),
    ] {
        let world = World::new();
        let (mut host, _far) = world.pair(HOST, FAR);
        let wide = limit == 64;
        if wide {
            widen(&world, &host);
        }
        world.change(&host, |qp| qp.cs_req = limit);
        let theirs: Vec<u8> = (1..=length).collect();
        let ours = vec![0u8; theirs.len()];
        let lkey = world.region(HOST, &ours, ALL_RIGHTS);
        let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
        world.read(&mut host, (lkey, &ours), (rkey, address(&theirs)));
        let (entry, cqe) = first_entry(&host, wide);
        assert_eq!(
            (cqe.opcode, cqe.inline_scatter, cqe.byte_count),
            (cqe_opcode::REQ, form, u32::from(length)),
            "{limit} {length}"
        );
        if form == 0 {
            assert_eq!(ours, theirs);
        } else {
            assert_eq!(entry[..theirs.len()], theirs, "{limit} {length}");
            assert!(ours.iter().all(|byte| *byte == 0), "it was moved twice");
        }
    }
}

#[test]
fn short_messages_lie_in_the_completion() {
    for (limit, length, form) in [(32, 32, 1), (32, 33, 0), (64, 40, 2)] {
        let world = World::new();
        let (mut host, mut far) = world.pair(HOST, FAR);
        let wide = limit == 64;
        if wide {
            widen(&world, &far);
        }
        world.change(&far, |qp| qp.cs_res = limit);
        let ours: Vec<u8> = (1..=length).collect();
        let theirs = vec![0u8; 80];
        let lkey = world.region(HOST, &ours, ALL_RIGHTS);
        let there = world.region(FAR, &theirs, ALL_RIGHTS);
        far.post_receive(there, &theirs);
        let cqes = world.post(&mut host, opcode::SEND, 0, &[&segment(lkey, &ours)]);
        expect_success(&cqes, ours.len());
        let (entry, cqe) = first_entry(&far, wide);
        assert_eq!(
            (cqe.opcode, cqe.inline_scatter),
            (cqe_opcode::RESP_SEND, form)
        );
        let found = if form == 0 { &theirs } else { &entry };
        assert_eq!(found[..ours.len()], ours);
    }
}

/// The requester receives a word of four bytes in wire order. Memory is in host order.
#[test]
fn masked_atomics_change_words_of_four_bytes_and_of_eight() {
    let world = World::new();
    let (mut host, _far) = world.pair(HOST, FAR);
    let result = vec![0u8; 8];
    let word = Box::new([0x10u64]);
    // SAFETY: eight bytes of a box, which outlives the slice.
    let bytes = unsafe { std::slice::from_raw_parts(word.as_ptr().cast::<u8>(), 8) };
    let lkey = world.region(HOST, &result, ALL_RIGHTS);
    let rkey = world.region(FAR, bytes, ALL_RIGHTS);
    let mut atomic = |opcode: u8, opmod: u8, words: &[u8], width: usize| {
        let remote = RemoteAddress {
            address: address(bytes),
            rkey,
        }
        .to_bytes();
        let into = segment(lkey, &result[..width]);
        let cqes = world.post_variant(&mut host, (opcode, opmod), &[&remote, words, &into]);
        expect_success(&cqes, width);
        word[0]
    };
    let four = |words: [u32; 4]| words.map(u32::to_be_bytes).concat();
    let eight = |words: [u64; 4]| words.map(u64::to_be_bytes).concat();
    // Compares no bits and swaps the lower four bits.
    let swap = four([0xff, 0, 0x0f, 0]);
    assert_eq!(atomic(opcode::ATOMIC_MASKED_CS, 8, &swap, 4), 0x1f);
    assert_eq!(result[..4], 0x10u32.to_be_bytes());
    let add = four([1, 0, 0, 0]);
    assert_eq!(atomic(opcode::ATOMIC_MASKED_FA, 8, &add, 4), 0x20);
    assert_eq!(result[..4], 0x1fu32.to_be_bytes());
    let swap = eight([7, 0x20, u64::MAX, u64::MAX]);
    assert_eq!(atomic(opcode::ATOMIC_MASKED_CS, 9, &swap, 8), 7);
    assert_eq!(result, 0x20u64.to_ne_bytes());
    let xor = [3u64.to_be_bytes(), u64::MAX.to_be_bytes()].concat();
    assert_eq!(atomic(opcode::ATOMIC_MASKED_FA, 9, &xor, 8), 4);
}

/// The receiver sets the delay between tries. The sender sets the number of tries.
#[test]
fn a_receiver_that_is_not_ready_is_left_alone_as_it_asks() {
    /// 655.36 ms.
    const LONGEST: u8 = 0;
    /// 10 us.
    const SHORTEST: u8 = 1;
    for (timer, own_timer) in [(LONGEST, SHORTEST), (SHORTEST, LONGEST)] {
        let world = World::new();
        let (mut host, mut far) = world.pair(HOST, FAR);
        world.change(&far, |qp| qp.path.min_rnr_timer = timer);
        world.change(&host, |qp| {
            qp.path.min_rnr_timer = own_timer;
            qp.path.rnr_retry = 7;
        });
        let bytes = vec![0u8; 8];
        let lkey = world.region(HOST, &bytes, ALL_RIGHTS);
        let there = world.region(FAR, &bytes, ALL_RIGHTS);
        let cqes = world.post(&mut host, opcode::SEND, 0, &[&segment(lkey, &bytes)]);
        assert!(cqes.is_empty());
        let mut waits = 0;
        world.change(&host, |qp| {
            waits = qp.retry_at_ns - sys::now_ns().min(qp.retry_at_ns)
        });
        assert_eq!(waits > 100_000_000, timer == LONGEST, "{waits} ns");
        // The receiver is ready now, but the retry is not due.
        far.post_receive(there, &bytes);
        if timer == LONGEST {
            let mut locked = world.fabric.lock();
            assert_eq!(step(&mut locked, HOST, host.qpn), Step::Wait);
        }
        world.change(&host, |qp| qp.retry_at_ns = 1);
        run(&world.fabric, HOST, host.qpn);
        expect_success(&host.completions(), 8);
    }
}

/// Without retries, the first refusal is final.
#[test]
fn a_sender_without_retries_gives_up_at_once() {
    let world = World::new();
    let (mut host, far) = world.pair(HOST, FAR);
    world.change(&far, |qp| qp.path.min_rnr_timer = 0);
    let bytes = vec![0u8; 8];
    let lkey = world.region(HOST, &bytes, ALL_RIGHTS);
    let cqes = world.post(&mut host, opcode::SEND, 0, &[&segment(lkey, &bytes)]);
    expect_error(&cqes, syndrome::RNR_RETRY_EXC_ERR);
    assert_eq!(world.state(&host), state::ERR);
}

#[test]
fn atomics_give_back_what_was_there() {
    let world = World::new();
    let (mut host, _far) = world.pair(HOST, FAR);
    let result = vec![0u8; 8];
    let word = Box::new([40u64]);
    // SAFETY: eight bytes of a box, which outlives the slice.
    let bytes = unsafe { std::slice::from_raw_parts(word.as_ptr().cast::<u8>(), 8) };
    let lkey = world.region(HOST, &result, ALL_RIGHTS);
    let rkey = world.region(FAR, bytes, ALL_RIGHTS);
    let remote = RemoteAddress {
        address: address(bytes),
        rkey,
    }
    .to_bytes();
    let mut atomic = |opcode: u8, first: u64, second: u64| {
        let words = [first.to_be_bytes(), second.to_be_bytes()].concat();
        let into = segment(lkey, &result);
        expect_success(
            &world.post(&mut host, opcode, 0, &[&remote, &words, &into]),
            8,
        );
        (
            u64::from_ne_bytes(result.as_slice().try_into().unwrap()),
            word[0],
        )
    };
    assert_eq!(atomic(opcode::ATOMIC_FA, 2, 0), (40, 42));
    assert_eq!(atomic(opcode::ATOMIC_CS, 7, 41), (42, 42));
    assert_eq!(atomic(opcode::ATOMIC_CS, 7, 42), (42, 7));
}
