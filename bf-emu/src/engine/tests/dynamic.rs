//! Requests that name their destination: a DCI names the DCT, an XRC initiator the shared receive
//! queue.

use mlx5_prm::wqe::AddressVector;

use super::*;
use crate::fabric::NUMBER_BASE;
use crate::fabric::counters::PortCounter;
use crate::fabric::objects::{SERVICE_DCT, SERVICE_XRC_TARGET, Srq};

const KEY: u64 = 0x1234_5678_9abc_def0;

/// A DCT of `function` with a shared receive queue of one entry, at `entry`.
fn target(world: &World, function: usize, entry: &[u8], record: &[u64; 1]) -> Queue {
    let queue = world.queue(function);
    let srq = Srq {
        ring: Ring {
            base: address(entry),
            count: 1,
            log_stride: 6,
        },
        dbrec: record.as_ptr().expose_provenance() as u64,
        pd: PD,
        cyclic: true,
        ..Srq::default()
    };
    let mut locked = world.fabric.lock();
    let slot = locked.function(function).srqs.insert(world.owner, srq);
    drop(locked);
    world.change(&queue, |qp| {
        qp.service = SERVICE_DCT;
        qp.state = state::RTR;
        qp.dc_key = KEY;
        qp.srq = slot.unwrap() + 1;
    });
    queue
}

fn initiator(world: &World, function: usize) -> Queue {
    let queue = world.queue(function);
    world.change(&queue, |qp| qp.service = service::DCI);
    queue
}

/// A compact address vector.
fn vector(world: &World, to: &Queue, key: u64) -> Vec<u8> {
    let lid = world.fabric.identity(to.function).unwrap().lid(1);
    let mut bytes = vec![0; AddressVector::COMPACT_BYTES];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..12].copy_from_slice(&to.qpn.to_be_bytes());
    bytes[14..16].copy_from_slice(&lid.to_be_bytes());
    bytes
}

#[test]
fn one_initiator_serves_many_targets() {
    let world = World::new();
    let mut dci = initiator(&world, HOST);
    let ours = vec![7u8; 64];
    let lkey = world.region(HOST, &ours, access::LOCAL_READ);
    for function in [FAR, DPU, FAR] {
        let theirs = vec![0u8; 64];
        let rkey = world.region(function, &theirs, ALL_RIGHTS);
        let mut entry = vec![0u8; 64];
        entry[16..32].copy_from_slice(&segment(rkey, &theirs));
        entry[32..48].copy_from_slice(
            &Data::Memory {
                length: 0,
                lkey: INVALID_LKEY,
                address: 0,
            }
            .to_bytes(),
        );
        let record = Box::new([u64::from_ne_bytes([0, 0, 0, 1, 0, 0, 0, 0])]);
        let mut dct = target(&world, function, &entry, &record);
        let to = vector(&world, &dct, KEY);
        let from = segment(lkey, &ours[..32]);
        let remote = RemoteAddress {
            address: address(&theirs[32..]),
            rkey,
        };
        let write: [&[u8]; 3] = [&to, &remote.to_bytes(), &from];
        expect_success(&world.post(&mut dci, opcode::RDMA_WRITE, 0, &write), 32);
        assert_eq!(theirs[..32], [0; 32]);
        assert_eq!(theirs[32..], ours[32..]);
        expect_success(&world.post(&mut dci, opcode::SEND, 0, &[&to, &from]), 32);
        assert_eq!(theirs, ours);
        let got = dct.completions();
        assert_eq!(got.len(), 1);
        assert_eq!(
            (got[0].opcode, got[0].byte_count),
            (cqe_opcode::RESP_SEND, 32)
        );
        // The receiver uses the LID for its answer.
        let lid = world.fabric.identity(HOST).unwrap().lid(1);
        assert_eq!(got[0].slid, lid);
    }
    // Two requests to each target are one connection.
    let connects = |function: usize| {
        let counters = world.fabric.counters(function);
        counters.of_port(1, PortCounter::RxDctConnect)
    };
    assert_eq!([FAR, DPU, HOST].map(connects), [2, 1, 0]);
}

#[test]
fn a_target_refuses_one_request_and_serves_the_next() {
    let world = World::new();
    let (ours, theirs) = (vec![7u8; 64], vec![0u8; 64]);
    let lkey = world.region(HOST, &ours, access::LOCAL_READ);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    let (entry, record) = (vec![0u8; 64], Box::new([0u64; 1]));
    let dct = target(&world, FAR, &entry, &record);
    let write = |key: u64, rkey: u32| {
        let mut dci = initiator(&world, HOST);
        let to = vector(&world, &dct, key);
        let remote = RemoteAddress {
            address: address(&theirs),
            rkey,
        };
        let parts: [&[u8]; 3] = [&to, &remote.to_bytes(), &segment(lkey, &ours)];
        let mut cqes = world.post(&mut dci, opcode::RDMA_WRITE, 0, &parts);
        if cqes.is_empty() {
            world.change(&dci, |qp| qp.give_up_at_ns = 1);
            run(&world.fabric, HOST, dci.qpn);
            cqes = dci.completions();
        }
        assert_eq!(cqes.len(), 1);
        cqes[0].syndrome
    };
    assert_eq!(write(KEY, rkey + 1), syndrome::REMOTE_ACCESS_ERR);
    assert_eq!(write(KEY + 1, rkey), syndrome::TRANSPORT_RETRY_EXC_ERR);
    assert_eq!(theirs, [0; 64]);
    assert_eq!(write(KEY, rkey), 0);
    assert_eq!(theirs, ours);
    assert_eq!(world.state(&dct), state::RTR);
}

#[test]
fn the_shared_queue_of_an_xrc_request_gives_domain_and_completions() {
    const DOMAIN: u64 = 77;
    let world = World::new();
    let (ours, theirs) = (vec![7u8; 64], vec![0u8; 64]);
    let lkey = world.region(HOST, &ours, access::LOCAL_READ);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    let mut entry = vec![0u8; 64];
    entry[16..32].copy_from_slice(&segment(rkey, &theirs));
    entry[32..36].copy_from_slice(&0u32.to_be_bytes());
    entry[36..40].copy_from_slice(&INVALID_LKEY.to_be_bytes());
    let record = Box::new([u64::from_ne_bytes([0, 0, 0, 1, 0, 0, 0, 0])]);
    let mut receiver = world.queue(FAR);
    let send = |receiver: &Queue, queue_domain: u64| {
        let (mut from, to) = world.pair(HOST, FAR);
        world.change(&from, |qp| qp.service = service::XRC);
        world.change(&to, |qp| {
            qp.service = SERVICE_XRC_TARGET;
            qp.xrc_domain = DOMAIN;
            // The XRC target has no protection domain of its own.
            qp.pd = u32::MAX;
        });
        let mut locked = world.fabric.lock();
        let qps = &locked.peek(FAR).qps;
        let cq = qps.get(receiver.qpn - QPN_BASE).unwrap().recv_cq;
        let srq = Srq {
            ring: Ring {
                base: address(&entry),
                count: 1,
                log_stride: 6,
            },
            dbrec: record.as_ptr().expose_provenance() as u64,
            pd: PD,
            user_index: 5,
            xrc_domain: queue_domain,
            cq,
            ..Srq::default()
        };
        let slot = locked.function(FAR).srqs.insert(world.owner, srq).unwrap();
        drop(locked);
        let mut xrc = [0u8; 16];
        xrc[..4].copy_from_slice(&(slot + NUMBER_BASE).to_be_bytes());
        let parts: [&[u8]; 2] = [&xrc, &segment(lkey, &ours)];
        let cqes = world.post(&mut from, opcode::SEND, 0, &parts);
        assert_eq!(cqes.len(), 1);
        cqes[0].syndrome
    };
    assert_eq!(send(&receiver, DOMAIN + 1), syndrome::REMOTE_INVAL_REQ_ERR);
    assert_eq!(theirs, [0; 64]);
    assert_eq!(send(&receiver, DOMAIN), 0);
    assert_eq!(theirs, ours);
    let got = receiver.completions();
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].opcode, got[0].user_index),
        (cqe_opcode::RESP_SEND, 5)
    );
}
