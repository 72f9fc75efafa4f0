//! Unreliable and extended connections to another machine.

use super::*;
use crate::fabric::NUMBER_BASE;
use crate::fabric::objects::{SERVICE_DCT, SERVICE_XRC_TARGET, Srq};

fn unreliable(machines: &Machines, near: &Queue, far: &Queue) {
    machines.a.change(near, |qp| qp.service = service::UC);
    machines.b.change(far, |qp| qp.service = service::UC);
}

/// Over a good network each message arrives. Reads and invalidations have no packet.
#[test]
fn an_unreliable_connection_reaches_another_machine() {
    const BYTES: usize = 70_000;
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, mut far) = machines.pair();
    unreliable(&machines, &near, &far);
    // An unreliable connection accepts any first packet.
    b.change(&far, |qp| {
        qp.path.rq_psn = 7;
        qp.state = state::RTR;
    });
    let (ours, theirs) = (pattern(1, BYTES), vec![0_u8; BYTES]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    let written = [&remote(rkey, &theirs)[..], &segment(lkey, &ours)];
    let cqes = carriers.post(a, &mut near, opcode::RDMA_WRITE, &written);
    expect_success(&cqes, BYTES);
    assert!(theirs == ours);
    let established = b.fabric.lock().peek(B).qps.get(far.qpn - QPN_BASE).copied();
    assert!(established.unwrap().is_established);
    let inbox = vec![0_u8; 5000];
    let ikey = b.region(B, &inbox, ALL_RIGHTS);
    for (opcode, expect) in [
        (opcode::SEND, cqe_opcode::RESP_SEND),
        (opcode::SEND_IMM, cqe_opcode::RESP_SEND_IMM),
        (opcode::RDMA_WRITE_IMM, cqe_opcode::RESP_WR_IMM),
    ] {
        far.post_receive(ikey, &inbox);
        let target = remote(rkey, &theirs);
        let data = segment(lkey, &ours[..4999]);
        let segments: &[&[u8]] = match opcode {
            opcode::RDMA_WRITE_IMM => &[&target, &data],
            _ => &[&data],
        };
        let cqes = carriers.post(a, &mut near, opcode, segments);
        expect_success(&cqes, 4999);
        let got = far.completions();
        assert_eq!((got.len(), got[0].opcode), (1, expect));
        assert_eq!(got[0].byte_count, 4999);
    }
    assert!(inbox[..4999] == ours[..4999] && inbox[4999] == 0);
    // A receiver without an entry, and a key of nobody: the sender learns nothing.
    let lost = carriers.post(a, &mut near, opcode::SEND, &[&segment(lkey, &ours[..9])]);
    expect_success(&lost, 9);
    let stray = [&remote(rkey ^ 1, &theirs)[..], &segment(lkey, &ours)];
    let lost = carriers.post(a, &mut near, opcode::RDMA_WRITE, &stray);
    expect_success(&lost, BYTES);
    assert_eq!((a.state(&near), b.state(&far)), (state::RTS, state::RTR));
    assert_eq!(far.completions(), []);
    // What the standard has no packet for.
    let invalidation = carriers.post(
        a,
        &mut near,
        opcode::SEND_INVAL,
        &[&segment(lkey, &ours[..9])],
    );
    expect_error(&invalidation, syndrome::LOCAL_QP_OP_ERR);
    for join in &carriers.both {
        assert_eq!(join.seen(), Seen::default());
    }
}

/// Over a bad network messages are missing. Those that arrive are whole, and the sender's requests all succeed.
#[test]
fn a_bad_network_loses_messages_of_an_unreliable_connection_and_no_byte_of_others() {
    const MESSAGES: usize = RING as usize;
    const BYTES: usize = 10_000;
    let (mut missing, mut arrived, mut counted) = (0, 0, 0);
    for seed in 1..17 {
        let machines = Machines::new();
        let (a, b) = (&machines.a, &machines.b);
        let mut carriers = machines.carriers();
        carriers.network = Some(Disturbance::new(seed));
        let (mut near, mut far) = machines.pair();
        unreliable(&machines, &near, &far);
        let theirs = vec![0_u8; BYTES];
        let rkey = b.region(B, &theirs, ALL_RIGHTS);
        far.post_receive(rkey, &theirs);
        for message in 0..MESSAGES {
            let ours = pattern(message, BYTES);
            let lkey = a.region(A, &ours, ALL_RIGHTS);
            let cqes = carriers.post(a, &mut near, opcode::SEND, &[&segment(lkey, &ours)]);
            expect_success(&cqes, BYTES);
            let got = far.completions();
            // A packet that is overtaken or sent twice ends a message as a lost one does.
            assert!(got.len() <= 1, "{got:?}");
            if let [cqe] = &got[..] {
                assert_eq!(cqe.byte_count as usize, BYTES);
                assert!(theirs == ours, "seed {seed}: {message}");
                arrived += 1;
                far.post_receive(rkey, &theirs);
            } else {
                missing += 1;
            }
        }
        let counters = b.fabric.counters(B);
        counted += counters.of_port(1, PortCounter::OutOfSequence);
    }
    assert!(missing > 10 && arrived > missing, "{missing} {arrived}");
    assert!(counted > 10, "{counted}");
}

/// The far end of an extended connection: its target, the queue pair of its completions, and its shared queue.
struct Far {
    target: Queue,
    receiver: Queue,
    srq: u32,
    _ring: Vec<u8>,
    record: Box<[u64; 1]>,
}

const DOMAIN: u64 = 77;

/// A shared queue of one entry, whose memory is `bytes`.
fn extended(machines: &Machines, (near, far): (&Queue, Queue), bytes: &[u8], rkey: u32) -> Far {
    let (a, b) = (&machines.a, &machines.b);
    let receiver = b.queue(B);
    a.change(near, |qp| qp.service = service::XRC);
    b.change(&far, |qp| {
        qp.service = SERVICE_XRC_TARGET;
        qp.xrc_domain = DOMAIN;
        // The target has no protection domain of its own.
        qp.pd = u32::MAX;
    });
    let mut ring = vec![0_u8; 64];
    ring[16..32].copy_from_slice(&segment(rkey, bytes));
    ring[36..40].copy_from_slice(&INVALID_LKEY.to_be_bytes());
    let record = Box::new([u64::from_ne_bytes([0, 0, 0, 1, 0, 0, 0, 0])]);
    let mut locked = b.fabric.lock();
    let qps = &locked.peek(B).qps;
    let cq = qps.get(receiver.qpn - QPN_BASE).unwrap().recv_cq;
    let srq = Srq {
        ring: Ring {
            base: address(&ring),
            count: 1,
            log_stride: 6,
        },
        dbrec: record.as_ptr().expose_provenance() as u64,
        pd: PD,
        user_index: 5,
        xrc_domain: DOMAIN,
        cq,
        cyclic: true,
        ..Srq::default()
    };
    let slot = locked.function(B).srqs.insert(b.owner, srq).unwrap();
    drop(locked);
    Far {
        target: far,
        receiver,
        srq: slot + NUMBER_BASE,
        _ring: ring,
        record,
    }
}

fn named(srq: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&srq.to_be_bytes());
    segment
}

/// All operations of an extended connection, each over a network that loses, repeats and reorders packets in another way.
#[test]
fn an_extended_connection_loses_nothing_over_a_bad_network() {
    const BYTES: usize = 30_000;
    let mut repaired = 0;
    for seed in 0..4 {
        let machines = Machines::new();
        let (a, b) = (&machines.a, &machines.b);
        let mut carriers = machines.carriers();
        carriers.network = (seed != 0).then(|| Disturbance::new(seed));
        let (mut near, far) = machines.pair();
        let (ours, theirs) = (pattern(1, BYTES), vec![0_u8; BYTES]);
        let (lkey, rkey) = (
            a.region(A, &ours, ALL_RIGHTS),
            b.region(B, &theirs, ALL_RIGHTS),
        );
        let inbox = vec![0_u8; 5000];
        let ikey = b.region(B, &inbox, ALL_RIGHTS);
        let mut far = extended(&machines, (&near, far), &inbox, ikey);
        let xrc = named(far.srq);
        let (target, data) = (remote(rkey, &theirs), segment(lkey, &ours));
        let cqes = carriers.post(a, &mut near, opcode::RDMA_WRITE, &[&xrc, &target, &data]);
        expect_success(&cqes, BYTES);
        assert!(theirs == ours, "seed {seed}");
        let back = vec![0_u8; BYTES];
        let into = segment(a.region(A, &back, ALL_RIGHTS), &back);
        let cqes = carriers.post(a, &mut near, opcode::RDMA_READ, &[&xrc, &target, &into]);
        expect_success(&cqes, BYTES);
        assert!(back == ours, "seed {seed}");
        let message = segment(lkey, &ours[..4999]);
        let cqes = carriers.post(a, &mut near, opcode::SEND_IMM, &[&xrc, &message]);
        expect_success(&cqes, 4999);
        let got = far.receiver.completions();
        assert_eq!(got.len(), 1, "seed {seed}");
        assert_eq!(
            (got[0].opcode, got[0].user_index, got[0].qpn),
            (cqe_opcode::RESP_SEND_IMM, 5, far.target.qpn)
        );
        assert!(inbox[..4999] == ours[..4999], "seed {seed}");
        let (word, before) = (vec![0_u8; 8], vec![0_u8; 8]);
        let (wkey, bkey) = (
            b.region(B, &word, ALL_RIGHTS),
            a.region(A, &before, ALL_RIGHTS),
        );
        for count in 1..=5_u64 {
            let operands = [3_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
            let (to, into) = (remote(wkey, &word), segment(bkey, &before));
            let add: [&[u8]; 4] = [&xrc, &to, &operands, &into];
            let cqes = carriers.post(a, &mut near, opcode::ATOMIC_FA, &add);
            expect_success(&cqes, 8);
            let value = u64::from_ne_bytes(word.as_slice().try_into().unwrap());
            assert_eq!(value, 3 * count, "seed {seed}");
        }
        // The entry is taken: the next message waits for another one, and fails.
        let cqes = carriers.post(a, &mut near, opcode::SEND, &[&xrc, &message]);
        expect_error(&cqes, syndrome::RNR_RETRY_EXC_ERR);
        assert_eq!(far.record[0].to_ne_bytes()[3], 1);
        for join in &carriers.both {
            assert_eq!(join.seen(), Seen::default(), "seed {seed}");
        }
        let counters = [a.fabric.counters(A), b.fabric.counters(B)];
        assert!(counters[0].of_port(1, PortCounter::RnrNakRetryErr) > 0);
        for counter in [
            PortCounter::OutOfSequence,
            PortCounter::PacketSeqErr,
            PortCounter::LocalAckTimeoutErr,
        ] {
            let count: u64 = counters.iter().map(|own| own.of_port(1, counter)).sum();
            repaired += count;
            assert!(seed != 0 || count == 0, "{counter:?}");
        }
    }
    assert!(repaired > 5, "{repaired}");
}

/// A request that names a queue of another domain, or none, is invalid.
#[test]
fn a_shared_queue_of_another_domain_refuses() {
    for wrong in [0, 1] {
        let machines = Machines::new();
        let (a, b) = (&machines.a, &machines.b);
        let mut carriers = machines.carriers();
        let (mut near, far) = machines.pair();
        let ours = vec![7_u8; 64];
        let lkey = a.region(A, &ours, ALL_RIGHTS);
        let inbox = vec![0_u8; 64];
        let ikey = b.region(B, &inbox, ALL_RIGHTS);
        let far = extended(&machines, (&near, far), &inbox, ikey);
        if wrong == 0 {
            b.change(&far.target, |qp| qp.xrc_domain += 1);
        }
        let xrc = named(far.srq + wrong);
        let cqes = carriers.post(a, &mut near, opcode::SEND, &[&xrc, &segment(lkey, &ours)]);
        expect_error(&cqes, syndrome::REMOTE_INVAL_REQ_ERR);
        assert_eq!(b.state(&far.target), state::ERR);
        assert_eq!(inbox, [0; 64]);
    }
}

/// A queue pair gets packets of its own service only.
#[test]
fn packets_of_another_service_are_for_nobody() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, far) = machines.pair();
    a.change(&near, |qp| qp.service = service::UC);
    let (ours, theirs) = (vec![7_u8; 64], vec![0_u8; 64]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    let target = remote(rkey, &theirs);
    let segments: [&[u8]; 2] = [&target, &segment(lkey, &ours)];
    let cqes = carriers.post(a, &mut near, opcode::RDMA_WRITE, &segments);
    expect_success(&cqes, 64);
    assert_eq!(
        (carriers.both[1].seen().stray, &theirs[..]),
        (1, &[0; 64][..])
    );
    assert_eq!(b.state(&far), state::RTS);
}

/// A dynamic connection has no packets that others know: a request to a target of another machine gets no answer.
#[test]
fn a_dynamic_connection_does_not_leave_its_machine() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, far) = machines.pair();
    a.change(&near, |qp| {
        qp.service = service::DCI;
        qp.set_remote(None);
    });
    b.change(&far, |qp| qp.service = SERVICE_DCT);
    let ours = vec![7_u8; 64];
    let lkey = a.region(A, &ours, ALL_RIGHTS);
    let mut vector = [0; 48];
    vector[8..12].copy_from_slice(&(1 << 31 | far.qpn).to_be_bytes());
    vector[20..26].copy_from_slice(&a.fabric.mac_of(place(B)).unwrap().0);
    vector[29] = GID << 4;
    vector[32..].copy_from_slice(&a.fabric.gid_entry(place(B), GID).unwrap().gid);
    let mut cqes = carriers.post(
        a,
        &mut near,
        opcode::SEND,
        &[&vector, &segment(lkey, &ours)],
    );
    while cqes.is_empty() {
        // The thread of a real program looks again.
        run(&a.fabric, A, near.qpn);
        cqes = near.completions();
    }
    expect_error(&cqes, syndrome::TRANSPORT_RETRY_EXC_ERR);
    assert_eq!(
        a.fabric
            .counters(A)
            .of_port(1, PortCounter::PortXmitPackets),
        0
    );
}

/// A queue pair that was reset keeps no part of a message of its former connection, nor its place.
#[test]
fn a_new_connection_knows_nothing_of_an_incomplete_message() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, mut far) = machines.pair();
    unreliable(&machines, &near, &far);
    let (ours, theirs) = (pattern(4, 5000), vec![0_u8; 5000]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    far.post_receive(rkey, &theirs);
    // The last packet is lost.
    let mut packets = 0;
    carriers.copies = Some(Box::new(move |_| {
        packets += 1;
        usize::from(packets != 5)
    }));
    let cqes = carriers.post(a, &mut near, opcode::SEND, &[&segment(lkey, &ours)]);
    expect_success(&cqes, 5000);
    assert_eq!(far.completions(), []);
    assert!(theirs[..4096] == ours[..4096] && theirs[4096..] == [0; 904]);
    for (world, queue) in [(a, &near), (b, &far)] {
        world.change(queue, |qp| qp.carried = 0);
    }
    // The entry is still the next one.
    let cqes = carriers.post(a, &mut near, opcode::SEND, &[&segment(lkey, &ours[..10])]);
    expect_success(&cqes, 10);
    let got = far.completions();
    assert_eq!(
        (got.len(), got[0].byte_count, got[0].wqe_counter),
        (1, 10, 0)
    );
}

/// A key that ends between two packets of a write: the rest is dropped, and the connection lives.
#[test]
fn a_key_that_ends_within_a_write_ends_no_unreliable_connection() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, far) = machines.pair();
    unreliable(&machines, &near, &far);
    // More than a window, so that the sender pauses.
    let bytes = 80 * 1024;
    let (ours, theirs) = (pattern(6, bytes), vec![0_u8; bytes]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    let written = [&remote(rkey, &theirs)[..], &segment(lkey, &ours)];
    a.post(&mut near, opcode::RDMA_WRITE, 0, &written);
    carriers.settle_until(|| theirs[0] == ours[0]);
    let slot = slot_of(rkey).unwrap();
    b.fabric
        .lock()
        .function(B)
        .mkeys
        .get_mut(slot)
        .unwrap()
        .variant ^= 1;
    carriers.settle();
    expect_success(&near.completions(), bytes);
    assert_eq!((a.state(&near), b.state(&far)), (state::RTS, state::RTS));
    assert!(theirs[..1024] == ours[..1024] && theirs[bytes - 1024..] == [0; 1024]);
}
