//! Requests with injected faults.

use super::*;
use crate::model::faults::parse::parse;

impl World {
    fn fault(&self, text: &str) {
        let rules = parse(text, &self.fabric.names()).unwrap();
        assert!(self.fabric.lock().arm_faults(0, &rules));
    }

    /// The syndrome of each of several NOP requests; 0 for success.
    fn row(&self, queue: &mut Queue, count: usize) -> Vec<u8> {
        let mut found = Vec::new();
        for _ in 0..count {
            found.extend(self.post(queue, opcode::NOP, 0, &[]));
        }
        found.iter().map(|cqe| cqe.syndrome).collect()
    }
}

#[test]
fn the_request_that_is_named_fails_and_those_behind_it_are_flushed() {
    let world = World::new();
    let (mut a, _b) = world.pair(HOST, FAR);
    world.fault("node0.dpu request nop never; node0.host request nop nth 3 syndrome MW_BIND_ERR");
    let flushed = syndrome::WR_FLUSH_ERR;
    let expect = [0, 0, syndrome::MW_BIND_ERR, flushed, flushed];
    assert_eq!(world.row(&mut a, 5), expect);
    assert_eq!(world.state(&a), state::ERR);
}

#[test]
fn a_failed_binding_binds_nothing() {
    let world = World::new();
    let (mut a, _b) = world.pair(HOST, FAR);
    let memory = [0u8; 64];
    let key = world.umr_key(HOST, 4);
    let behind = world.region(HOST, &memory, ALL_RIGHTS);
    world.fault("any request umr_bind nth 1 syndrome MW_BIND_ERR");
    let klm = Klm {
        byte_count: 64,
        mkey: behind,
        address: address(&memory),
    };
    expect_error(
        &world.bind(&mut a, key, 7, &[klm], 0, 64),
        syndrome::MW_BIND_ERR,
    );
    let slot = slot_of(key).unwrap();
    let locked = world.fabric.lock();
    assert!(locked.peek(HOST).mkeys.get(slot).unwrap().free);
}

#[test]
fn a_late_completion_comes_when_it_is_due_and_in_order() {
    let world = World::new();
    let (mut a, _b) = world.pair(HOST, FAR);
    world.fault("any request nop nth 2 late 20ms");
    let start = sys::now_ns();
    assert_eq!(world.row(&mut a, 3), [0]);
    while a.completions().is_empty() {
        assert!(sys::now_ns() - start < 10_000_000_000, "it never came");
        run(&world.fabric, a.function, a.qpn);
    }
    assert!(sys::now_ns() - start >= 20_000_000);
    // The request behind it completed together with it.
    run(&world.fabric, a.function, a.qpn);
    assert_eq!(world.row(&mut a, 1), [0]);
    assert_eq!(a.read, 4);
}

#[test]
fn what_never_completes_is_flushed_at_last() {
    let world = World::new();
    let (mut a, _b) = world.pair(HOST, FAR);
    world.fault("any request nop nth 1 never");
    assert_eq!(world.row(&mut a, 3), [0; 0]);
    crate::engine::complete::enter_error(&mut world.fabric.lock(), a.function, a.qpn, None);
    let found = a.completions();
    let indices: Vec<_> = found.iter().map(|cqe| cqe.wqe_counter).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(
        found
            .iter()
            .all(|cqe| cqe.syndrome == syndrome::WR_FLUSH_ERR)
    );
}

#[test]
fn a_queue_goes_to_error_before_its_request_is_carried_out() {
    let world = World::new();
    let (mut a, b) = world.pair(HOST, FAR);
    let (from, to) = ([1u8; 16], [0u8; 16]);
    let (from_key, to_key) = (
        world.region(HOST, &from, ALL_RIGHTS),
        world.region(FAR, &to, ALL_RIGHTS),
    );
    world.fault("any request rdma_write qp_error");
    let found = world.write(&mut a, (from_key, &from), (to_key, address(&to)));
    expect_error(&found, syndrome::WR_FLUSH_ERR);
    assert_eq!((world.state(&a), world.state(&b)), (state::ERR, state::RTS));
    // SAFETY: the array belongs to this test. The device may have written it without the compiler's
    // knowledge.
    let bytes = unsafe { std::ptr::from_ref(&to).read_volatile() };
    assert_eq!(bytes, [0; 16]);
}

#[test]
fn rules_go_with_their_process() {
    let world = World::new();
    let rules = parse("any request any never", &world.fabric.names()).unwrap();
    let mut locked = world.fabric.lock();
    assert!(locked.arm_faults(world.owner.process, &rules));
    assert!(world.fabric.has_faults());
    let many = vec![rules[0]; crate::model::faults::RULES_MAX];
    assert!(!locked.arm_faults(0, &many));
    locked.release_process(world.owner.process);
    assert!(!world.fabric.has_faults());
    assert!(locked.arm_faults(0, &many));
    assert_eq!(locked.disarm_faults(|id| id != 3), many.len() - 1);
    assert!(world.fabric.has_faults());
}

#[test]
fn a_full_completion_queue_ends_with_all_its_queue_pairs() {
    let world = World::new();
    let (mut a, mut b) = world.pair(HOST, HOST);
    let mut elsewhere = world.queue(HOST);
    let bytes = vec![0u8; 8];
    let key = world.region(HOST, &bytes, ALL_RIGHTS);
    // The other end of the connection reports to the queue that becomes full.
    let locked = world.fabric.lock();
    let full = locked.peek(HOST).qps.get(a.qpn - QPN_BASE).unwrap().send_cq;
    drop(locked);
    world.change(&b, |qp| qp.recv_cq = full);
    b.post_receive(key, &bytes);
    let mut completed = 0;
    for _ in 0..=2 * RING {
        // The receive queue of the first one is empty, so that all entries are those of its requests.
        completed += world.post(&mut a, opcode::NOP, 0, &[]).len();
    }
    // The owner does not move for as long as the device waits for it.
    world
        .fabric
        .lock()
        .function(HOST)
        .cqs
        .get_mut(full)
        .unwrap()
        .room
        .since_ns = 1;
    run(&world.fabric, HOST, a.qpn);
    assert_eq!(completed, 2 * RING as usize);
    for queue in [&a, &b] {
        assert_eq!(world.state(queue), state::ERR);
    }
    assert_eq!(world.state(&elsewhere), state::RTS);
    expect_success(&world.post(&mut elsewhere, opcode::NOP, 0, &[]), 0);
    let locked = world.fabric.lock();
    let cq = locked.peek(HOST).cqs.get(full).unwrap();
    assert_eq!((cq.overrun, cq.produced), (true, 2 * RING));
}
