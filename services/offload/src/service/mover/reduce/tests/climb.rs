//! Reductions along a tree of SPs: every byte at every rank, and the messages of an SP.

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

/// The same vector in the message.
fn short(mut message: HostReduce) -> HostReduce {
    let sent = message.send_memory.take().expect("given").address;
    message.receive_memory = None;
    let length = usize::try_from(message.length).expect("short");
    message.short = at(sent, length).to_vec();
    message
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
fn each_rank_gets_its_part() {
    let mut draw = Rng::with_seed(7);
    for services in [7, 8, 9, 12, 16, 17, 31, 64] {
        for radix in [0, 3, 64] {
            let service_of = places(&mut draw, services);
            let mut job = Job::of_radix(&service_of, radix);
            // Up to 127 elements travel in messages. The tree has up to 128 elements for each service.
            for elements in [0, 1, 5, 127, 128, 1024, 1025, 4096] {
                let (target, parts) = parts(&mut draw, service_of.len(), elements);
                job.check_target(elements, &target, &parts);
            }
            nothing_is_left(&mut job);
        }
    }
}

/// Steps wait until all vectors are on offer, and then for memory.
#[test]
fn vectors_climb_with_little_memory() {
    for (early_max, all_max) in [(0, 0), (0, 32 << 10), (16 << 10, 16 << 10)] {
        let service_of = places(&mut Rng::with_seed(3), 40);
        let mut job = Job::new(&service_of);
        limit(&mut job, early_max, all_max);
        for elements in [200, 1000, 5120] {
            let parts = vec![(0, elements); service_of.len()];
            job.check_target(elements, &Target::All, &parts);
        }
        nothing_is_left(&mut job);
    }
}

/// The send buffer is the receive buffer.
#[test]
fn vectors_climb_in_place() {
    let service_of = places(&mut Rng::with_seed(4), 50);
    let members: Vec<u32> = (0..).take(service_of.len()).collect();
    let mut job = Job::new(&service_of);
    for elements in [200, 6400, 6401] {
        job.check(&members, elements, true);
    }
    nothing_is_left(&mut job);
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
        let elements = *draw.choice(&[3, 200]).expect("some");
        let mut receives = Vec::new();
        for (rank, communicator, turn) in &entries {
            let members = [&all, &some][*communicator as usize];
            let message = job.vector(*rank, members, elements, (*communicator, *turn));
            let receive = message.receive_memory.as_ref().expect("given").address;
            receives.push(((*rank, *communicator, *turn), receive));
            job.enter(&if elements == 3 {
                short(message)
            } else {
                message
            });
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
            let entry = (rank, communicator, call.sequence);
            let of = receives.iter().find(|(of, _)| *of == entry);
            let (_, result) = *of.expect("an entry");
            if elements == 3 {
                at(result, 12).copy_from_slice(&fin.bytes);
            }
            job.check_sum(result, members, elements, communicator + call.sequence);
        }
        nothing_is_left(&mut job);
    }
}

#[test]
fn an_average_is_divided_once() {
    let service_of: Vec<u32> = (0..20).map(|rank| rank / 2).collect();
    let members: Vec<u32> = (0..20).collect();
    for elements in [1, 130] {
        let mut job = Job::new(&service_of);
        let mut receives = Vec::new();
        for rank in 0..20_u16 {
            let message = HostReduce {
                reduction: Reduction::new(Element::F32, Operation::Average).expect("defined"),
                ..job.vector(rank.into(), &members, elements, (0, 0))
            };
            let memory = message.send_memory.as_ref().expect("given");
            at(memory.address, elements * 4)
                .copy_from_slice(&f32::from(rank).to_ne_bytes().repeat(elements));
            receives.push(message.receive_memory.as_ref().expect("given").address);
            job.enter(&if elements == 1 {
                short(message)
            } else {
                message
            });
        }
        job.run();
        let answers = job.machine.answers.take();
        assert_eq!(answers.len(), 20);
        for (rank, fin) in answers {
            let result = at(receives[rank as usize], elements * 4);
            if elements == 1 {
                result.copy_from_slice(&fin.bytes);
            }
            assert_eq!(result, 9.5_f32.to_ne_bytes().repeat(elements));
        }
    }
}

/// Messages of the SP with most of them: each level of the tree costs an offer and its answer on the way up, and on the way down.
#[test]
fn messages_grow_with_the_logarithm() {
    for (services, levels) in [(8_u32, 3), (64, 6), (512, 9)] {
        let service_of: Vec<u32> = (0..services).collect();
        let mut job = Job::new(&service_of);
        for rank in 0..services {
            job.enter(&short(job.vector(rank, &service_of, 1, (0, 0))));
        }
        assert_eq!(job.most_messages(), 4 * levels, "{services}");
    }
}

/// The same with vectors that are read.
#[test]
fn messages_of_longer_vectors_do_too() {
    for (services, elements, levels) in [(8_u32, 1024, 3), (64, 8192, 6), (512, 20_000, 9)] {
        let service_of: Vec<u32> = (0..services).collect();
        let mut job = Job::new(&service_of);
        for rank in 0..services {
            job.enter(&job.vector(rank, &service_of, elements, (0, 0)));
        }
        assert_eq!(job.most_messages(), 4 * levels, "{services}");
    }
}

/// One member gives another length than the others, of which some are short, in any order: an error says so, or all wait.
#[test]
fn short_and_long_vectors_do_not_meet() {
    let mut waiting = 0;
    for seed in 0..300 {
        let mut draw = Rng::with_seed(seed);
        // In messages, by reads along the tree, and to owners.
        let lengths = *draw
            .choice(&[(3, 2000), (3, 1000), (1000, 2000)])
            .expect("some");
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
            let elements = if is_short { lengths.0 } else { lengths.1 };
            let mut message = job.vector(rank, &members, elements, (0, 0));
            if elements == 3 {
                message = short(message);
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
    assert!(waiting < 30, "{waiting} of 300");
}
