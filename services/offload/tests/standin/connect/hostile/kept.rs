//! Imports that jobs keep between calls, in a device that is full.

use super::super::*;
use super::harness::{Member, Served, arrival};
use crate::service::options::ServiceOptions;
use crate::wire::{Block, Name};

const BLOCK: u64 = 8192;

/// An alltoallv of long blocks in buffers that stay from call to call: each rank has two imports.
fn exchange(served: &Served, members: &[Member], sequence: u32) {
    let size = u32::try_from(members.len()).expect("few");
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * BLOCK,
        length: BLOCK,
    };
    for (rank, member) in (0..).zip(members) {
        let memory = |slot: u32| {
            Some(Export {
                address: u64::from(slot + 1) << 40,
                length: u64::from(size) * BLOCK,
                packed: if sequence == 0 {
                    vec![1; KEY_BYTES]
                } else {
                    Vec::new()
                },
                name: Some(Name {
                    slot,
                    generation: 1,
                }),
            })
        };
        let mut message = arrival(rank, size);
        message.collective.sequence = sequence;
        (message.send_memory, message.receive_memory) = (memory(0), memory(1));
        message.sends = (0..size).map(block).collect();
        message.receives = message.sends.clone();
        message.short = Vec::new();
        let posted = member.post(served, Kind::HostArrive, message.to_bytes());
        posted.expect("posted");
    }
    let end = Instant::now() + LIMIT;
    for member in members {
        while member.rank.mailbox.take().is_none() {
            assert!(Instant::now() < end, "call {sequence} stands still");
            thread::yield_now();
        }
    }
}

fn full_at(served: &Served, imports: u64) {
    served.mailboxes.imports_max.store(imports, Relaxed);
}

fn imports(served: &Served) -> u64 {
    served.mailboxes.imports.load(Relaxed)
}

#[test]
fn a_full_device_takes_back_what_other_jobs_keep() {
    let served = Served::start(|_| ());
    // A job has a greeting per rank, and keeps two buffers of each.
    let first = served.ready(JobId(1), 2).expect("ready");
    exchange(&served, &first, 0);
    assert_eq!(imports(&served), 6);
    full_at(&served, 8);
    let second = served.ready(JobId(2), 2).expect("ready");
    // Calls of both in turn: the other's imports make room.
    for sequence in 0..3 {
        exchange(&served, &second, sequence);
        exchange(&served, &first, sequence + 1);
    }
    // And for a new job.
    let third = served.ready(JobId(3), 2).expect("there is room");
    full_at(&served, 10);
    exchange(&served, &third, 0);
    exchange(&served, &second, 3);
    for member in [first, second, third].iter_mut().flatten() {
        member.tell(&Frame::Bye).expect("the job goes on");
    }
}

#[test]
fn a_device_that_stays_full_ends_the_call_that_needs_room() {
    let served = Served::start(|_| ());
    let first = served.ready(JobId(1), 2).expect("ready");
    full_at(&served, 2);
    let mut message = arrival(0, 2);
    message.receive_memory = super::harness::export(1 << 20);
    let posted = first[0].post(&served, Kind::HostArrive, message.to_bytes());
    posted.expect("posted");
    let mut members = first;
    let reason = super::harness::reason(&mut members[0].rank.link);
    assert!(reason.contains("the device is full"), "{reason}");
}

/// Kept imports count as memory of calls: beyond the limit, those that no call uses go.
#[test]
fn kept_imports_count_and_end_no_job() {
    let served = Served::start(|options: &mut ServiceOptions| options.call_bytes_max = 16 << 10);
    let mut jobs: Vec<Vec<Member>> = (1..8)
        .map(|job| {
            let members = served.ready(JobId(job), 2).expect("ready");
            exchange(&served, &members, 0);
            members
        })
        .collect();
    // A greeting per rank, and two kept imports of each would be 42.
    assert!(imports(&served) <= 14 + 16, "{}", imports(&served));
    for members in &jobs {
        exchange(&served, members, 1);
    }
    for member in jobs.iter_mut().flatten() {
        member.tell(&Frame::Bye).expect("the job goes on");
    }
}

/// The segments of an allreduce need memory of the service in the device.
#[test]
fn a_full_device_has_room_for_segments_when_other_jobs_keep_imports() {
    for beyond in 0..3 {
        let served = Served::start(|_| ());
        let first = served.ready(JobId(1), 2).expect("ready");
        exchange(&served, &first, 0);
        let second = served.ready(JobId(2), 2).expect("ready");
        // Two buffers of the second job fit; the first job keeps four imports.
        full_at(&served, imports(&served) + 2 + beyond);
        for turn in 0..3 {
            super::harness::allreduce(&served, &second, turn);
            exchange(&served, &first, turn + 1);
        }
        for member in [first, second].iter_mut().flatten() {
            member.tell(&Frame::Bye).expect("the job goes on");
        }
    }
}

#[test]
fn a_device_that_stays_full_ends_the_allreduce_that_needs_room() {
    let served = Served::start(|_| ());
    let mut members = served.ready(JobId(1), 2).expect("ready");
    full_at(&served, imports(&served) + 2);
    for (rank, member) in (0..).zip(&members) {
        let message = super::harness::sum(rank, 2, 0);
        let posted = member.post(&served, Kind::HostReduce, message.to_bytes());
        posted.expect("posted");
    }
    let reason = super::harness::reason(&mut members[0].rank.link);
    assert!(reason.contains("the device is full"), "{reason}");
}
