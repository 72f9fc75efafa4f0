//! Short reductions of many SPs: every byte at every rank, and the messages of an SP.

use super::targets::Part;
use super::*;
use fastrand::Rng;

/// Ranks of `services` SPs, one to three at each, in the order of the SPs or in any order.
fn places(draw: &mut Rng, services: u32) -> Vec<u32> {
    let each = |service| std::iter::repeat_n(service, draw.usize(1..4));
    let mut places: Vec<u32> = (0..services).flat_map(each).collect();
    if draw.bool() {
        draw.shuffle(&mut places);
    }
    places
}

/// The parts of the result, and who gets them.
fn parts(draw: &mut Rng, size: usize, elements: usize) -> (Target, Vec<Part>) {
    match draw.u8(0..3) {
        0 => (Target::All, vec![(0, elements); size]),
        1 => {
            let root = draw.usize(0..size);
            let part = |rank| (0, if rank == root { elements } else { 0 });
            let root = u32::try_from(root).expect("few");
            (Target::Root(root), (0..size).map(part).collect())
        }
        _ => {
            let mut ends: Vec<usize> = (1..size).map(|_| draw.usize(..=elements)).collect();
            ends.push(elements);
            ends.sort_unstable();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let parts: Vec<Part> = starts.zip(&ends).map(|(at, end)| (at, end - at)).collect();
            let ranges = (0..).zip(&parts).map(|(peer, (first, count))| Block {
                peer,
                offset: 4 * *first as u64,
                length: 4 * *count as u64,
            });
            let ranges = ranges.filter(|range| range.length > 0).collect();
            (Target::Ranges(ranges), parts)
        }
    }
}

#[test]
fn each_rank_gets_its_part_of_a_short_vector() {
    let mut draw = Rng::with_seed(7);
    for services in [7, 8, 9, 12, 16, 17, 31, 64] {
        for radix in [0, 2, 3, 8, 64] {
            let service_of = places(&mut draw, services);
            let mut job = Job::of_radix(&service_of, radix);
            for elements in [0, 1, 5, 127, 128] {
                let (target, parts) = parts(&mut draw, service_of.len(), elements);
                job.check_target(elements, &target, &parts);
            }
            nothing_is_left(&mut job);
        }
    }
}

/// Outstanding calls of two communicators, one of which has a part of the ranks. The members enter in any order.
#[test]
fn members_enter_in_any_order() {
    for seed in 0..40 {
        let mut draw = Rng::with_seed(seed);
        let services = draw.u32(8..20);
        let service_of = places(&mut draw, services);
        let mut job = Job::new(&service_of);
        let all: Vec<u32> = (0..).take(service_of.len()).collect();
        let some: Vec<u32> = all.iter().copied().filter(|_| draw.u8(..5) > 0).collect();
        let mut entries: Vec<(u32, u32, u32)> = Vec::new();
        for turn in 0..3 {
            entries.extend(all.iter().map(|rank| (*rank, 0, turn)));
            entries.extend(some.iter().map(|rank| (*rank, 1, turn)));
        }
        draw.shuffle(&mut entries);
        for (rank, communicator, turn) in &entries {
            let members = [&all, &some][*communicator as usize];
            let mut message = job.vector(*rank, members, 3, (*communicator, *turn));
            let sent = message.send_memory.take().expect("given").address;
            message.receive_memory = None;
            message.short = at(sent, 12).to_vec();
            job.enter(&message);
            if draw.u8(..4) == 0 {
                job.run();
            }
        }
        job.run();
        let answers = job.machine.answers.take();
        assert_eq!(answers.len(), entries.len());
        for (rank, fin) in answers {
            let call = fin.collective;
            let communicator = u32::try_from(call.communicator).expect("two");
            let members = [&all, &some][communicator as usize];
            let result = allocate(12);
            at(result, 12).copy_from_slice(&fin.bytes);
            job.check_sum(result, members, 3, communicator + call.sequence);
            assert!(entries.contains(&(rank, communicator, call.sequence)));
        }
        nothing_is_left(&mut job);
    }
}

#[test]
fn an_average_is_divided_once() {
    let service_of: Vec<u32> = (0..20).map(|rank| rank / 2).collect();
    let mut job = Job::new(&service_of);
    let members: Vec<u32> = (0..20).collect();
    for rank in 0..20_u16 {
        job.enter(&HostReduce {
            reduction: Reduction::new(Element::F32, Operation::Average).expect("defined"),
            send_memory: None,
            receive_memory: None,
            short: f32::from(rank).to_ne_bytes().to_vec(),
            ..job.vector(rank.into(), &members, 1, (0, 0))
        });
    }
    job.run();
    let answers = job.machine.answers.take();
    assert_eq!(answers.len(), 20);
    for (_, fin) in answers {
        assert_eq!(fin.bytes, 9.5_f32.to_ne_bytes());
    }
}

/// Messages of the SP with most of them: each level of the tree costs an offer and its answer on the way up, and on the way down.
#[test]
fn messages_grow_with_the_logarithm() {
    for (services, levels) in [(8_u32, 3), (64, 6), (512, 9)] {
        let service_of: Vec<u32> = (0..services).collect();
        let mut job = Job::new(&service_of);
        for rank in 0..services {
            let mut message = job.vector(rank, &service_of, 1, (0, 0));
            let sent = message.send_memory.take().expect("given").address;
            message.receive_memory = None;
            message.short = at(sent, 4).to_vec();
            job.enter(&message);
        }
        assert_eq!(job.most_messages(), 4 * levels, "{services}");
    }
}

/// One member gives another length than the others, of which some are short, in any order: an error says so, or all wait.
#[test]
fn short_and_long_vectors_do_not_meet() {
    let mut waiting = 0;
    for seed in 0..200 {
        let mut draw = Rng::with_seed(seed);
        let service_of = places(&mut draw, 9);
        let mut job = Job::new(&service_of);
        let members: Vec<u32> = (0..).take(service_of.len()).collect();
        let mut order = members.clone();
        draw.shuffle(&mut order);
        let odd = draw.choice(&members).copied().expect("some");
        let most_are_short = draw.bool();
        let mut outcome = Ok(());
        for rank in order {
            let is_short = (rank != odd) == most_are_short;
            let elements = if is_short { 3 } else { 1000 };
            let mut message = job.vector(rank, &members, elements, (0, 0));
            if is_short {
                message.send_memory = None;
                message.receive_memory = None;
                message.short = vec![1; 12];
            }
            let to = service_of[rank as usize] as usize;
            let entered = job.movers[to].receive(
                &job.machine,
                Kind::HostReduce,
                &token(rank).0,
                &message.to_bytes(),
            );
            outcome = outcome.and(entered);
            if outcome.is_ok() && draw.bool() {
                outcome = job.try_run();
            }
        }
        let outcome = outcome.and_then(|()| job.try_run());
        if outcome.is_ok() && !most_are_short {
            // The only short one may wait for the SPs below, which have sent theirs elsewhere.
            assert!(job.machine.answers.borrow().is_empty());
            waiting += 1;
            continue;
        }
        let error = outcome.expect_err("an error").to_string();
        let known = ["lengths", "which expects", "expects none"];
        assert!(
            known.iter().any(|text| error.contains(text)),
            "{seed}: {error}"
        );
    }
    assert!(waiting < 20, "{waiting} of 200");
}
