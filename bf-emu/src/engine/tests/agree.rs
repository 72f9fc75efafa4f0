//! Attributes on which both ends of a connection must agree.

use super::*;

/// The result of a request of `length` bytes between queue pairs with changed attributes.
fn result(opcode: u8, length: usize, change: [fn(&mut Qp); 2]) -> u8 {
    results(opcode, (length, 1), change)[0]
}

/// The same for several requests that one doorbell posts.
fn results(opcode: u8, (length, count): (usize, usize), change: [fn(&mut Qp); 2]) -> Vec<u8> {
    let world = World::new();
    let (mut host, mut far) = world.pair(HOST, FAR);
    let (ours, theirs) = (vec![1u8; length], vec![2u8; length]);
    let lkey = world.region(HOST, &ours, ALL_RIGHTS);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    far.post_receive(rkey, &theirs);
    world.change(&host, change[0]);
    world.change(&far, change[1]);
    let remote = RemoteAddress {
        address: address(&theirs),
        rkey,
    };
    let body = match opcode {
        opcode::SEND => segment(lkey, &ours).to_vec(),
        _ => [remote.to_bytes(), segment(lkey, &ours)].concat(),
    };
    for _ in 0..count {
        host.lay(
            Ctrl {
                opcode,
                ..Ctrl::default()
            },
            &body,
        );
    }
    host.ring_doorbell();
    run(&world.fabric, HOST, host.qpn);
    // A request without an answer fails at the end of its retries.
    world.change(&host, |qp| {
        if qp.give_up_at_ns != 0 {
            qp.give_up_at_ns = 1;
        }
    });
    run(&world.fabric, HOST, host.qpn);
    let syndrome = |cqe: &Cqe| match cqe.opcode {
        cqe_opcode::REQ => 0,
        _ => cqe.syndrome,
    };
    host.completions().iter().map(syndrome).collect()
}

const SAME: fn(&mut Qp) = |_| {};
const OPCODES: [u8; 3] = [opcode::SEND, opcode::RDMA_WRITE, opcode::RDMA_READ];

#[test]
fn a_peer_that_expects_another_packet_number_does_not_answer() {
    let timeout: fn(&mut Qp) = |qp| {
        qp.path.timeout = 1;
        qp.path.sq_psn = 0x12_3456;
    };
    for opcode in OPCODES {
        let wrong = result(opcode, 8, [timeout, |qp| qp.path.rq_psn = 0x12_3457]);
        assert_eq!(wrong, syndrome::TRANSPORT_RETRY_EXC_ERR, "{opcode}");
        let right = result(opcode, 8, [timeout, |qp| qp.path.rq_psn = 0x12_3456]);
        assert_eq!(right, 0, "{opcode}");
    }
}

#[test]
fn packets_have_the_length_that_both_sides_expect() {
    // `enum ibv_mtu`: 1024 and 512 bytes.
    let large: fn(&mut Qp) = |qp| qp.path.path_mtu = 3;
    let small: fn(&mut Qp) = |qp| qp.path.path_mtu = 2;
    for [ours, theirs] in [[large, small], [small, large]] {
        for opcode in OPCODES {
            let refused = match opcode {
                opcode::RDMA_READ => syndrome::BAD_RESP_ERR,
                _ => syndrome::REMOTE_INVAL_REQ_ERR,
            };
            assert_eq!(result(opcode, 512, [ours, theirs]), 0, "{opcode}");
            assert_eq!(result(opcode, 513, [ours, theirs]), refused, "{opcode}");
            assert_eq!(result(opcode, 4096, [ours, ours]), 0, "{opcode}");
        }
    }
}

#[test]
fn one_read_more_than_the_peer_answers_is_invalid() {
    let of_peer: fn(&mut Qp) = |qp| qp.path.max_dest_rd_atomic = 2;
    let none: fn(&mut Qp) = |qp| qp.path.max_dest_rd_atomic = 0;
    let two: fn(&mut Qp) = |qp| qp.path.max_rd_atomic = 2;
    let invalid = syndrome::REMOTE_INVAL_REQ_ERR;
    let of = |count, change| results(opcode::RDMA_READ, (8, count), change);
    assert_eq!(of(2, [SAME, of_peer]), [0, 0]);
    assert_eq!(of(3, [SAME, of_peer])[0], invalid);
    assert_eq!(of(3, [two, of_peer]), [0, 0, 0]);
    assert_eq!(of(1, [SAME, none])[0], invalid);
    assert_eq!(result(opcode::RDMA_WRITE, 8, [SAME, none]), 0);
}

#[test]
fn a_peer_in_another_partition_does_not_answer() {
    // The second entry of the table is empty.
    let other: fn(&mut Qp) = |qp| {
        qp.path.timeout = 1;
        qp.path.pkey_index = 1;
    };
    let timeout: fn(&mut Qp) = |qp| qp.path.timeout = 1;
    for opcode in OPCODES {
        for change in [[other, SAME], [timeout, other], [other, other]] {
            let wrong = result(opcode, 8, change);
            assert_eq!(wrong, syndrome::TRANSPORT_RETRY_EXC_ERR, "{opcode}");
        }
    }
}
