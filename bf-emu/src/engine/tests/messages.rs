//! Messages and their receive entries, and what ends a queue: errors, a peer that is gone, an unknown request.

use super::*;

#[test]
fn a_message_takes_a_receive_entry() {
    let world = World::new();
    let (mut host, mut far) = world.pair(HOST, FAR);
    let (ours, theirs) = (vec![9u8; 100], vec![0u8; 100]);
    let lkey = world.region(HOST, &ours, ALL_RIGHTS);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    // The receiver is not ready: nothing completes, and the request waits.
    world.change(&host, |qp| qp.path.rnr_retry = 7);
    let cqes = world.post(
        &mut host,
        opcode::SEND_IMM,
        0x1234,
        &[&segment(lkey, &ours)],
    );
    assert!(cqes.is_empty());
    far.post_receive(rkey, &theirs);
    // The retry is due.
    world.change(&host, |qp| qp.retry_at_ns = 0);
    run(&world.fabric, HOST, host.qpn);
    expect_success(&host.completions(), 100);
    assert_eq!(theirs, ours);
    let got = far.completions();
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].opcode, got[0].imm),
        (cqe_opcode::RESP_SEND_IMM, 0x1234)
    );
    assert_eq!(
        (got[0].byte_count, got[0].qpn, got[0].wqe_counter),
        (100, far.qpn, 0)
    );
}

#[test]
fn a_message_too_long_ends_both_sides() {
    let world = World::new();
    let (mut host, mut far) = world.pair(HOST, FAR);
    let (ours, theirs) = (vec![9u8; 100], vec![0u8; 99]);
    let lkey = world.region(HOST, &ours, ALL_RIGHTS);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    far.post_receive(rkey, &theirs);
    far.post_receive(rkey, &theirs);
    let cqes = world.post(&mut host, opcode::SEND, 0, &[&segment(lkey, &ours)]);
    expect_error(&cqes, syndrome::REMOTE_INVAL_REQ_ERR);
    let got: Vec<_> = far
        .completions()
        .iter()
        .map(|cqe| (cqe.opcode, cqe.syndrome))
        .collect();
    let flushed = (cqe_opcode::RESP_ERR, syndrome::WR_FLUSH_ERR);
    assert_eq!(
        got,
        [(cqe_opcode::RESP_ERR, syndrome::LOCAL_LENGTH_ERR), flushed]
    );
    assert_eq!(theirs, [0; 99]);
}

#[test]
fn what_is_behind_an_error_is_flushed() {
    let world = World::new();
    let (mut host, _far) = world.pair(HOST, FAR);
    let bytes = vec![0u8; 8];
    let lkey = world.region(HOST, &bytes, ALL_RIGHTS);
    expect_error(
        &world.write(&mut host, (lkey, &bytes), (0, 0)),
        syndrome::REMOTE_ACCESS_ERR,
    );
    let cqes = world.post(&mut host, opcode::NOP, 0, &[]);
    expect_error(&cqes, syndrome::WR_FLUSH_ERR);
}

#[test]
fn a_peer_that_is_gone_does_not_answer() {
    let world = World::new();
    let (mut host, far) = world.pair(HOST, FAR);
    world
        .fabric
        .lock()
        .function(FAR)
        .qps
        .remove(far.qpn - QPN_BASE);
    let bytes = vec![0u8; 8];
    let lkey = world.region(HOST, &bytes, ALL_RIGHTS);
    let cqes = world.write(&mut host, (lkey, &bytes), (lkey, address(&bytes)));
    // The request waits for its peer, and fails at the end of the wait.
    assert!(cqes.is_empty());
    world.change(&host, |qp| qp.give_up_at_ns = 1);
    run(&world.fabric, HOST, host.qpn);
    expect_error(&host.completions(), syndrome::TRANSPORT_RETRY_EXC_ERR);
}

#[test]
fn an_unknown_opcode_and_a_foreign_entry_are_local_errors() {
    for (opcode, damage) in [(0x3e, 0u32), (opcode::NOP, 1)] {
        let world = World::new();
        let (mut host, _far) = world.pair(HOST, FAR);
        host.qpn += damage;
        let qpn = host.qpn - damage;
        world.post(&mut host, opcode, 0, &[]);
        run(&world.fabric, HOST, qpn);
        expect_or_read(&mut host, syndrome::LOCAL_QP_OP_ERR);
    }
}

#[track_caller]
fn expect_or_read(queue: &mut Queue, syndrome: u8) {
    queue.read = 0;
    expect_error(&queue.completions(), syndrome);
}
