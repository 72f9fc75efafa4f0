//! Broadcasts and barriers on the same transport.

use super::*;
use crate::wire::{DpuNote, HostTree};
use fastrand::Rng;

fn post(job: &mut Job, message: &HostTree) {
    let to = job.service_of[message.rank as usize] as usize;
    let header = token(message.rank).0;
    job.movers[to]
        .receive(&job.machine, Kind::HostTree, &header, &message.to_bytes())
        .expect("an entry");
}

fn entry(rank: u32, members: &[u32], is_barrier: bool) -> HostTree {
    HostTree {
        whole: 0,
        collective: CALL,
        rank,
        root: members[0],
        is_barrier,
        members: members.to_vec().into(),
        memory: None,
        length: 0,
        short: Vec::new(),
    }
}

/// A broadcast of the first member. The members enter in an order of the seed.
fn broadcast(service_of: &[u32], members: &[u32], length: usize, seed: u64) {
    let mut draw = Rng::with_seed(seed);
    let mut job = Job::of_radix(service_of, *draw.choice(&[0, 2, 3, 4, 8]).expect("some"));
    let buffers: Vec<u64> = members.iter().map(|_| allocate(length.max(1))).collect();
    let data: Vec<u8> = (0..length).map(|at| (at % 251).to_le_bytes()[0]).collect();
    at(buffers[0], length).copy_from_slice(&data);
    let mut order: Vec<usize> = (0..members.len()).collect();
    draw.shuffle(&mut order);
    for place in order {
        let mut message = entry(members[place], members, false);
        message.length = length as u64;
        if length as u64 >= DIRECT_MIN {
            message.memory = Some(Export {
                address: buffers[place],
                length: length as u64,
                packed: vec![1],
                name: None,
            });
        } else if place == 0 {
            message.short.clone_from(&data);
        }
        post(&mut job, &message);
        if draw.bool() {
            job.run();
        }
    }
    job.run();
    let answers = job.machine.answers.take();
    assert_eq!(answers.len(), members.len(), "each member completes once");
    let is_short = (length as u64) < DIRECT_MIN;
    for (place, rank) in members.iter().enumerate() {
        let (_, fin) = answers
            .iter()
            .find(|(of, _)| of == rank)
            .expect("an answer");
        assert_eq!(fin.collective, CALL);
        let found = match is_short && place > 0 {
            true => &fin.bytes[..],
            false => at(buffers[place], length),
        };
        assert!(found == data, "rank {rank} of {members:?}, {length} bytes");
    }
    nothing_is_left(&mut job);
}

#[test]
fn every_member_of_a_broadcast_gets_the_bytes_in_any_order() {
    let nodes: Vec<u32> = (0..24).map(|rank| rank / 3).collect();
    let dealt: Vec<u32> = (0..24).map(|rank| rank % 5).collect();
    let mixed = vec![2, 0, 1, 1, 0, 2, 2, 0];
    for (seed, length) in (0..).zip([0, 1, 511, 512, 5000]) {
        for service_of in [&nodes, &dealt, &mixed] {
            let size = u32::try_from(service_of.len()).expect("few");
            let all: Vec<u32> = (0..size).collect();
            broadcast(service_of, &all, length, seed);
            // The root is not the lowest member, and the others are in no order.
            let some = [5, 1, 7, 2, 0];
            broadcast(service_of, &some, length, seed + 10);
            broadcast(service_of, &[4], length, seed);
        }
    }
}

/// Messages that each SP sends and gets in a call, at most.
fn most_messages(job: &mut Job, ranks: u32, is_barrier: bool) -> usize {
    let all: Vec<u32> = (0..ranks).collect();
    for rank in 0..ranks {
        let mut message = entry(rank, &all, is_barrier);
        if !is_barrier {
            message.length = 4;
            message.short = if rank == 0 { vec![1; 4] } else { Vec::new() };
        }
        post(job, &message);
    }
    job.most_messages()
}

#[test]
fn messages_of_a_service_grow_with_the_logarithm_of_the_services() {
    // With a radix of 4 or 8 an SP passes a broadcast on to 3 or 7 others on each level.
    for (services, rounds, radix) in [
        (2, 1, 0),
        (16, 4, 2),
        (64, 6, 0),
        (100, 7, 0),
        (64, 9, 4),
        (64, 14, 8),
    ] {
        let ranks = 2 * services;
        for is_barrier in [true, false] {
            let service_of: Vec<u32> = (0..ranks).map(|rank| rank / 2).collect();
            let mut job = Job::of_radix(&service_of, radix);
            let most = most_messages(&mut job, ranks, is_barrier);
            // An offer and its answer for each SP below and the one above; a note in both directions in each round.
            let limit = 2 * rounds + if is_barrier { 0 } else { 2 };
            assert!(most <= limit, "{most} of {limit} for {services} services");
            assert_eq!(job.machine.answers.borrow().len(), ranks as usize);
            nothing_is_left(&mut job);
        }
    }
}

#[test]
fn a_barrier_ends_when_the_last_member_has_entered() {
    let service_of: Vec<u32> = (0..21).map(|rank| rank % 7).collect();
    for seed in 0..40 {
        let mut draw = Rng::with_seed(seed);
        let mut members: Vec<u32> = (0..21).filter(|_| draw.bool()).collect();
        draw.shuffle(&mut members);
        let mut job = Job::new(&service_of);
        for (entered, rank) in members.iter().enumerate() {
            post(&mut job, &entry(*rank, &members, true));
            job.run();
            let complete = job.machine.answers.borrow().len();
            let last = entered + 1 == members.len();
            assert_eq!(
                complete,
                if last { members.len() } else { 0 },
                "seed {seed}"
            );
        }
        nothing_is_left(&mut job);
    }
}

#[test]
fn an_entry_or_a_note_that_makes_no_sense_is_refused() {
    let refused = |change: &dyn Fn(&mut HostTree), expect: &str| {
        let mut job = Job::new(&[0, 0, 1]);
        let mut message = entry(0, &[0, 1, 2], false);
        message.length = 4;
        message.short = vec![1; 4];
        change(&mut message);
        let bytes = message.to_bytes();
        let error = job.movers[0]
            .receive(&job.machine, Kind::HostTree, &token(0).0, &bytes)
            .expect_err("refused");
        assert!(error.to_string().contains(expect), "{error}");
    };
    refused(
        &|message| message.members = vec![1, 2].into(),
        "it is not a member",
    );
    refused(
        &|message| message.members = vec![0, 7].into(),
        "a rank that is not there",
    );
    refused(
        &|message| message.members = vec![0, 0].into(),
        "not in ascending order",
    );
    refused(
        &|message| (message.root, message.short) = (9, Vec::new()),
        "its root is not a member",
    );
    refused(&|message| message.short.push(1), "another number of bytes");
    refused(
        &|message| (message.length, message.short) = (4096, Vec::new()),
        "shorter than its data",
    );
    refused(&|message| message.collective.step = 1, "a rank enters");
    let noted = |notes: &[(u32, u32)], expect: &str| {
        let mut job = Job::new(&[0, 1, 2]);
        post(&mut job, &entry(0, &[0, 1, 2], true));
        let mut errors = notes.iter().filter_map(|(from, round)| {
            let note = DpuNote {
                collective: Collective {
                    step: *round,
                    ..CALL
                },
                from: *from,
            };
            let bytes = note.to_bytes_in(Vec::new());
            let header = token(100 + *from).0;
            let answer = job.movers[0].receive(&job.machine, Kind::DpuNote, &header, &bytes);
            answer.err()
        });
        let error = errors.next().expect("refused").to_string();
        assert!(error.contains(expect), "{error}");
    };
    noted(&[(1, 0)], "a note of round 0, which service 2 sends");
    noted(&[(2, 1), (2, 1)], "a second note of round 1");
    noted(&[(2, 16)], "a round that does not exist");
    noted(&[(1, 5), (2, 0), (1, 1)], "a round that it does not have");
}
