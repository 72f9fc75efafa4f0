//! Adversary mode: what an adapter may do happens under some seed, and what a standard promises holds
//! under each.

use std::cell::Cell;

use mlx5_prm::wqe::flag as wqe_flag;

use super::*;
use crate::engine::adversary::MODE;
use crate::engine::arrival::tests::look_with;

const SEEDS: u64 = 40;
const OLD: u8 = 0x11;
const NEW: u8 = 0x22;

/// Runs a check under each seed in turn, with one request in `fails_one_in` failing. Returns how often it
/// was true.
fn under_seeds(fails_one_in: u32, check: impl Fn(&World) -> bool) -> u64 {
    let world = World::new();
    let mut found = 0;
    for seed in 0..SEEDS {
        MODE.set(Some((seed, fails_one_in)));
        found += u64::from(check(&world));
        MODE.set(None);
    }
    found
}

fn remote(rkey: u32, bytes: &[u8]) -> [u8; 16] {
    RemoteAddress {
        address: address(bytes),
        rkey,
    }
    .to_bytes()
}

fn ctrl(opcode: u8, flags: u8) -> Ctrl {
    Ctrl {
        opcode,
        flags,
        ..Ctrl::default()
    }
}

/// A read, and behind it a request that sends the data on. True if the old data was sent.
fn old_data_is_sent_on(world: &World, (first, second): (u8, u8), fence: u8) -> bool {
    let (mut host, mut far) = world.pair(HOST, FAR);
    let (theirs, ours, target) = (vec![NEW; 8], vec![OLD; 8], vec![0u8; 8]);
    let lkey = world.region(HOST, &ours, ALL_RIGHTS);
    let source = world.region(FAR, &theirs, ALL_RIGHTS);
    let sink = world.region(FAR, &target, ALL_RIGHTS);
    far.post_receive(sink, &target);
    let read = [remote(source, &theirs), [0; 16], segment(lkey, &ours)];
    let read = match first {
        opcode::ATOMIC_FA => read.concat(),
        _ => [read[0], read[2]].concat(),
    };
    host.lay(ctrl(first, 0), &read);
    let on = match second {
        opcode::SEND => segment(lkey, &ours).to_vec(),
        _ => [remote(sink, &target), segment(lkey, &ours)].concat(),
    };
    host.lay(ctrl(second, fence), &on);
    host.ring_doorbell();
    run(&world.fabric, HOST, host.qpn);
    let found = host.completions();
    assert!(
        found.iter().all(|cqe| cqe.opcode == cqe_opcode::REQ),
        "{found:?}"
    );
    let order: Vec<u16> = found.iter().map(|cqe| cqe.wqe_counter).collect();
    assert_eq!(order, [0, 1]);
    assert_eq!(ours, [NEW; 8], "the read is complete");
    target == [OLD; 8]
}

#[test]
fn a_request_behind_a_read_waits_for_its_data_by_a_fence_only() {
    for first in [opcode::RDMA_READ, opcode::ATOMIC_FA] {
        for second in [opcode::SEND, opcode::RDMA_WRITE] {
            let stale = |fence| {
                under_seeds(0, |world| {
                    old_data_is_sent_on(world, (first, second), fence)
                })
            };
            for fence in [0, wqe_flag::FENCE_INITIATOR_SMALL] {
                let found = stale(fence);
                assert!((1..SEEDS).contains(&found), "{first} {second}: {found}");
            }
            for fence in [
                wqe_flag::FENCE_FULL,
                wqe_flag::FENCE_STRONG_ORDERING,
                wqe_flag::FENCE_SMALL_AND_FULL,
            ] {
                assert_eq!(stale(fence), 0, "{first} {second}");
            }
        }
    }
}

/// A bind of a key, and behind it a read from that key. True if the read does not find the bind.
fn bind_is_not_seen(world: &World, fence: u8) -> bool {
    let (mut host, _far) = world.pair(HOST, HOST);
    let (bytes, into) = (vec![NEW; 64], vec![OLD; 64]);
    let region = world.region(HOST, &bytes, ALL_RIGHTS);
    let lkey = world.region(HOST, &into, ALL_RIGHTS);
    let key = world.umr_key(HOST, 4);
    let klm = Klm {
        byte_count: 64,
        mkey: region,
        address: address(&bytes),
    };
    let umr = UmrCtrl {
        flags: flag::INLINE,
        klm_octowords: 4,
        mkey_mask: mask::FREE | mask::LEN | mask::LOCAL_WRITE | mask::REMOTE_READ,
        ..UmrCtrl::default()
    };
    let context = UmrContext {
        access: ALL_RIGHTS,
        len: 64,
        ..UmrContext::default()
    };
    let mut list = [0; 64];
    list[..16].copy_from_slice(&klm.to_bytes());
    let parts: [&[u8]; 3] = [&umr.to_bytes(), &context.to_bytes(), &list];
    let bind = Ctrl {
        imm: key,
        ..ctrl(opcode::UMR, 0)
    };
    host.lay(bind, &parts.concat());
    let from = RemoteAddress {
        address: 0,
        rkey: key,
    };
    let read = [from.to_bytes(), segment(lkey, &into)].concat();
    host.lay(ctrl(opcode::RDMA_READ, fence), &read);
    host.ring_doorbell();
    run(&world.fabric, HOST, host.qpn);
    let found = host.completions();
    assert_eq!(found[0].opcode, cqe_opcode::REQ, "the bind: {found:?}");
    found[1].opcode != cqe_opcode::REQ
}

#[test]
fn a_request_behind_a_umr_sees_the_key_by_a_fence_only() {
    for fence in [0, wqe_flag::FENCE_FULL] {
        let unseen = under_seeds(0, |world| bind_is_not_seen(world, fence));
        assert!((1..SEEDS).contains(&unseen), "{unseen}");
    }
    for fence in [
        wqe_flag::FENCE_INITIATOR_SMALL,
        wqe_flag::FENCE_STRONG_ORDERING,
        wqe_flag::FENCE_SMALL_AND_FULL,
    ] {
        assert_eq!(under_seeds(0, |world| bind_is_not_seen(world, fence)), 0);
    }
}

/// Two writes to one place. True if the first one arrives last.
fn first_write_arrives_last(world: &World, relaxed: bool) -> bool {
    let (mut host, _far) = world.pair(HOST, FAR);
    let (first, second, target) = (vec![1u8; 64], vec![2u8; 64], vec![0u8; 64]);
    let keys = [&first, &second].map(|bytes| world.region(HOST, bytes, ALL_RIGHTS));
    let rkey = world.region(FAR, &target, ALL_RIGHTS);
    let slot = slot_of(rkey).unwrap();
    let mut locked = world.fabric.lock();
    locked.function(FAR).mkeys.get_mut(slot).unwrap().relaxed = relaxed;
    drop(locked);
    for (key, source) in keys.into_iter().zip([&first, &second]) {
        let write = [remote(rkey, &target), segment(key, source)].concat();
        host.lay(ctrl(opcode::RDMA_WRITE, 0), &write);
    }
    host.ring_doorbell();
    run(&world.fabric, HOST, host.qpn);
    assert_eq!(host.completions().len(), 2);
    assert!(target == first || target == second);
    target == first
}

#[test]
fn writes_pass_each_other_on_keys_with_relaxed_ordering_only() {
    let found = under_seeds(0, |world| first_write_arrives_last(world, true));
    assert!((1..SEEDS).contains(&found), "{found}");
    assert_eq!(
        under_seeds(0, |world| first_write_arrives_last(world, false)),
        0
    );
}

#[test]
fn a_request_fails_although_its_data_has_arrived() {
    let lost = |fails_one_in| {
        under_seeds(fails_one_in, |world| {
            let (mut host, _far) = world.pair(HOST, FAR);
            let (source, target) = (vec![NEW; 100], vec![OLD; 100]);
            let lkey = world.region(HOST, &source, ALL_RIGHTS);
            let rkey = world.region(FAR, &target, ALL_RIGHTS);
            let found = world.write(&mut host, (lkey, &source), (rkey, address(&target)));
            assert_eq!(target, source);
            let failed = found[0].opcode == cqe_opcode::REQ_ERR;
            if failed {
                expect_error(&found, syndrome::TRANSPORT_RETRY_EXC_ERR);
            }
            failed
        })
    };
    assert_eq!(lost(0), 0);
    assert_eq!(lost(1), SEEDS);
    assert!((1..SEEDS).contains(&lost(4)));
}

/// Writes 4 KiB of [`NEW`] to memory of [`OLD`] under each seed. Calls `look` with the address of the
/// target at each pause. Returns the target after each completion.
fn looked_at(look: fn(&[Cell<u8>])) -> Vec<Vec<u8>> {
    let world = World::new();
    let source = vec![NEW; 4096];
    let lkey = world.region(HOST, &source, ALL_RIGHTS);
    let mut found = Vec::new();
    for seed in 0..SEEDS {
        let target = vec![OLD; 4096];
        let rkey = world.region(FAR, &target, ALL_RIGHTS);
        let at = (target.as_ptr().expose_provenance(), target.len());
        look_with(Some(Box::new(move || {
            let first = std::ptr::with_exposed_provenance::<Cell<u8>>(at.0);
            // SAFETY: the vector lives until this function is removed below, and is not used meanwhile.
            look(unsafe { std::slice::from_raw_parts(first, at.1) });
        })));
        let (mut host, _far) = world.pair(HOST, FAR);
        MODE.set(Some((seed, 0)));
        expect_success(
            &world.write(&mut host, (lkey, &source), (rkey, address(&target))),
            4096,
        );
        MODE.set(None);
        look_with(None);
        found.push(target);
    }
    found
}

thread_local! {
    static SEEN: Cell<u32> = const { Cell::new(0) };
}

#[test]
fn the_last_byte_may_come_before_the_first() {
    let found = looked_at(|bytes| {
        let ahead = bytes[4095].get() == NEW && bytes[0].get() == OLD;
        SEEN.set(SEEN.get() + u32::from(ahead));
    });
    assert!(SEEN.get() > 0);
    assert!(found.iter().all(|target| *target == [NEW; 4096]));
}

#[test]
fn a_change_of_the_target_before_the_completion_may_be_overwritten() {
    /// The value of a reader that has seen the data and does not wait for the completion.
    const MARK: u8 = 0x33;
    let found = looked_at(|bytes| {
        if bytes.iter().all(|byte| byte.get() == NEW) {
            bytes[0].set(MARK);
            SEEN.set(SEEN.get() + 1);
        }
    });
    let kept = found.iter().filter(|target| target[0] == MARK).count();
    assert!(SEEN.get() as usize > kept, "{kept} of {}", SEEN.get());
}

/// Writes a word to a region under each seed. Returns how often another queue pair could have run before it arrived.
fn absent_pages(on_demand: bool) -> u32 {
    let world = World::new();
    let source = vec![NEW; 8];
    let lkey = world.region(HOST, &source, ALL_RIGHTS);
    SEEN.set(0);
    for seed in 0..SEEDS {
        let target = vec![OLD; 8];
        let rkey = world.region(FAR, &target, ALL_RIGHTS);
        let slot = slot_of(rkey).unwrap();
        let mut locked = world.fabric.lock();
        locked.function(FAR).mkeys.get_mut(slot).unwrap().on_demand = on_demand;
        drop(locked);
        let at = target.as_ptr().expose_provenance();
        look_with(Some(Box::new(move || {
            let first = std::ptr::with_exposed_provenance::<Cell<u8>>(at);
            // SAFETY: the vector lives until this function is removed below, and is not used meanwhile.
            let first = unsafe { (*first).get() };
            SEEN.set(SEEN.get() + u32::from(first == OLD));
        })));
        let (mut host, _far) = world.pair(HOST, FAR);
        MODE.set(Some((seed, 0)));
        let to = (rkey, address(&target));
        expect_success(&world.write(&mut host, (lkey, &source), to), 8);
        MODE.set(None);
        look_with(None);
        assert_eq!(target, source);
    }
    SEEN.get()
}

#[test]
fn a_message_to_a_region_on_demand_waits_for_its_page() {
    assert_eq!(absent_pages(false), 0);
    let found = absent_pages(true);
    assert!(found > 0 && u64::from(found) < SEEDS, "{found}");
}
