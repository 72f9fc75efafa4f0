//! A shared receive queue whose list is damaged.

use super::crash::{async_channel, events};
use super::*;
use crate::fabric::objects::Srq;

const NAME: u64 = 0x51;

/// A queue pair of `FAR` with a shared queue of four entries, of which two are posted, and its sender. Returns the
/// channel of the shared queue's events, and the memory of its list.
fn with_shared(world: &World, head: u32) -> (Queue, Queue, i32, Box<[u8]>) {
    let (host, far) = world.pair(HOST, FAR);
    let (read_end, channel) = async_channel(world, FAR);
    let mut list = vec![0_u8; 4 * 64].into_boxed_slice();
    // The last word is the doorbell record.
    list[3 * 64 + 60..].copy_from_slice(&2_u32.to_be_bytes());
    let srq = Srq {
        ring: Ring {
            base: address(&list),
            count: 4,
            log_stride: 6,
        },
        dbrec: address(&list) + 3 * 64 + 60,
        head,
        pd: PD,
        event_channel: channel,
        user_handle: NAME,
        ..Srq::default()
    };
    let slot = world
        .fabric
        .lock()
        .function(FAR)
        .srqs
        .insert(world.owner, srq);
    world.change(&far, |qp| qp.srq = slot.unwrap() + 1);
    (host, far, read_end, list)
}

fn send(world: &World, queue: &mut Queue) -> Vec<Cqe> {
    world.post(queue, opcode::SEND, 0, &[])
}

#[test]
fn a_list_that_leads_out_of_its_ring_ends_the_queue_with_one_event() {
    let world = World::new();
    let (mut host, far, read_end, _list) = with_shared(&world, 4);
    expect_error(&send(&world, &mut host), syndrome::REMOTE_OP_ERR);
    assert_eq!(world.state(&far), state::ERR);
    assert_eq!(events(read_end), [(NAME, 14)]);
    // Another queue pair of it fails too, without a second event.
    let (mut other, beside) = world.pair(HOST, FAR);
    world.change(&beside, |qp| qp.srq = 1);
    expect_error(&send(&world, &mut other), syndrome::REMOTE_OP_ERR);
    assert_eq!(world.state(&beside), state::ERR);
    assert_eq!(events(read_end), []);
}

#[test]
fn the_last_entry_of_the_ring_is_none_of_these() {
    let world = World::new();
    let (mut host, far, read_end, _list) = with_shared(&world, 3);
    expect_success(&send(&world, &mut host), 0);
    assert_eq!(world.state(&far), state::RTS);
    assert_eq!(events(read_end), []);
}
