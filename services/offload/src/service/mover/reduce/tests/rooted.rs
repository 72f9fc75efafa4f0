//! Gathers and scatters on the same transport, along a tree of the SPs.

use super::*;
use crate::wire::{Block, DpuRelay, DpuRelayed, HostArrive, Route};
use fastrand::Rng;

/// A gather or a scatter.
struct Rooted<'a> {
    members: &'a [u32],
    root: u32,
    is_scatter: bool,
    /// The length of each member's block.
    lengths: Vec<usize>,
    /// The memory of each member's block, and that of all blocks at the root.
    apart: Vec<u64>,
    all: u64,
}

impl<'a> Rooted<'a> {
    fn new(members: &'a [u32], root: u32, is_scatter: bool, lengths: Vec<usize>) -> Self {
        let apart: Vec<u64> = lengths.iter().map(|of| allocate((*of).max(1))).collect();
        let all = allocate(lengths.iter().sum::<usize>().max(1));
        let mut rooted = Self {
            members,
            root,
            is_scatter,
            lengths,
            apart,
            all,
        };
        for place in 0..members.len() {
            let bytes = rooted.bytes(place);
            let (from, _) = rooted.ends(place);
            at(from, bytes.len()).copy_from_slice(&bytes);
        }
        rooted.lengths.shrink_to_fit();
        rooted
    }

    fn bytes(&self, place: usize) -> Vec<u8> {
        let byte = |at: usize| (at * 7 + place + 1).to_le_bytes()[0];
        (0..self.lengths[place]).map(byte).collect()
    }

    fn offset(&self, place: usize) -> usize {
        self.lengths[..place].iter().sum()
    }

    /// Where a member's block is, and where it goes.
    fn ends(&self, place: usize) -> (u64, u64) {
        let of_root = self.all + self.offset(place) as u64;
        match self.is_scatter {
            true => (of_root, self.apart[place]),
            false => (self.apart[place], of_root),
        }
    }

    fn arrival(&self, place: usize, service_of: &[u32]) -> HostArrive {
        let rank = self.members[place];
        let export = |address: u64, length: usize| {
            (length > 0).then(|| Export {
                address,
                length: length as u64,
                packed: vec![1],
                name: None,
            })
        };
        let length: usize = self.lengths.iter().sum();
        let alone = Block {
            peer: self.root,
            offset: 0,
            length: self.lengths[place] as u64,
        };
        let all = (0..self.members.len()).map(|to| Block {
            peer: self.members[to],
            offset: self.offset(to) as u64,
            length: self.lengths[to] as u64,
        });
        let many = (rank == self.root).then_some(all).into_iter().flatten();
        let (alone, many) = ([alone].into_iter().collect(), many.collect());
        let at_root = export(self.all, length).filter(|_| rank == self.root);
        let own = export(self.apart[place], self.lengths[place]);
        let ((sends, send_memory), (receives, receive_memory)) = match self.is_scatter {
            true => ((many, at_root), (alone, own)),
            false => ((alone, own), (many, at_root)),
        };
        let sends: crate::wire::BlockList = sends;
        let mut short = Vec::new();
        for block in sends.iter().filter(|block| block.length < DIRECT_MIN) {
            let start = send_memory.as_ref().expect("memory").address;
            let length = usize::try_from(block.length).expect("short");
            short.extend_from_slice(at(start + block.offset, length));
        }
        let mine = service_of[rank as usize];
        let together = self.members.iter();
        let together = together.filter(|of| service_of[**of as usize] == mine);
        HostArrive {
            collective: CALL,
            rank,
            together: u32::try_from(together.count()).expect("few"),
            send_memory,
            receive_memory,
            sends,
            receives,
            short,
            route: match (self.is_scatter, rank == self.root) {
                (false, _) => Route::Gather {
                    root: self.root,
                    members: self.members.to_vec().into(),
                },
                (true, true) => Route::Scatter,
                (true, false) => Route::Direct,
            },
        }
    }

    /// Copies the short blocks of the answers, and compares all bytes.
    fn check(&self, answers: Vec<(u32, HostFin)>) {
        assert_eq!(answers.len(), self.members.len(), "each completes once");
        for (rank, fin) in answers {
            let place = self.members.iter().position(|of| *of == rank);
            let buffer = match self.is_scatter {
                true => self.apart[place.expect("a member")],
                false => self.all,
            };
            let mut rest = &fin.bytes[..];
            for of in fin.short {
                for offset in of.offsets() {
                    let length = usize::try_from(of.length).expect("short");
                    let (block, after) = rest.split_at(length);
                    at(buffer + offset, length).copy_from_slice(block);
                    rest = after;
                }
            }
        }
        for place in 0..self.members.len() {
            let (_, to) = self.ends(place);
            let found = at(to, self.lengths[place]);
            assert!(*found == self.bytes(place), "block {place}");
        }
    }
}

fn post(job: &mut Job, message: &HostArrive) -> Result<()> {
    let to = job.service_of[message.rank as usize] as usize;
    let header = token(message.rank).0;
    job.movers[to].receive(&job.machine, Kind::HostArrive, &header, &message.to_bytes())
}

#[test]
fn every_block_arrives_whatever_the_order_of_the_members() {
    let layouts: [Vec<u32>; 3] = [
        (0..60).map(|rank| rank / 3).collect(),
        (0..60).map(|rank| rank % 13).collect(),
        (0..8).map(|rank| rank % 4).collect(),
    ];
    for seed in 0..60 {
        let mut draw = Rng::with_seed(seed);
        let service_of = &layouts[draw.usize(0..layouts.len())];
        let mut members: Vec<u32> = (0..).take(service_of.len()).collect();
        members.retain(|_| draw.u8(0..4) > 0);
        draw.shuffle(&mut members);
        let lengths = [0, 1, 500, 512, 3000];
        let one = draw.bool();
        let same = *draw.choice(&lengths[1..]).expect("some");
        let mut length = || if one { same } else { lengths[draw.usize(0..5)] };
        let lengths = members.iter().map(|_| length()).collect();
        let root = members[draw.usize(0..members.len())];
        let rooted = Rooted::new(&members, root, draw.bool(), lengths);
        let mut job = Job::of_radix(service_of, *draw.choice(&[0, 2, 4, 8]).expect("some"));
        let mut order: Vec<usize> = (0..members.len()).collect();
        draw.shuffle(&mut order);
        for place in order {
            post(&mut job, &rooted.arrival(place, service_of)).expect("an arrival");
            if draw.bool() {
                job.run();
            }
        }
        job.run();
        rooted.check(job.machine.answers.take());
        nothing_is_left(&mut job);
    }
}

#[test]
fn an_sp_of_a_rooted_call_has_as_many_messages_as_its_tree_has_branches() {
    for (services, radix) in [(2_u32, 0), (16, 0), (100, 2), (100, 8), (512, 0)] {
        for is_scatter in [false, true] {
            let service_of: Vec<u32> = (0..2 * services).map(|rank| rank / 2).collect();
            let members: Vec<u32> = (0..2 * services).collect();
            let rooted = Rooted::new(&members, 7 % services, is_scatter, vec![8; members.len()]);
            let mut job = Job::of_radix(&service_of, radix);
            for place in 0..members.len() {
                post(&mut job, &rooted.arrival(place, &service_of)).expect("an arrival");
            }
            let most = job.most_messages();
            // One with the SP above and one with each below, and their answers.
            let branches = crate::radix::Radix(radix).of_relay();
            assert!(most <= 2 * (branches + 1), "{most} of {services} services");
            rooted.check(job.machine.answers.take());
            nothing_is_left(&mut job);
        }
    }
}

#[test]
fn what_is_not_of_the_tree_is_refused() {
    const SERVICES: u32 = 20;
    let service_of: Vec<u32> = (0..SERVICES).collect();
    let members: Vec<u32> = (0..SERVICES).collect();
    let refused = |entries: &[&dyn Fn(&mut HostArrive)], relays: &[DpuRelay<'_>], expect: &str| {
        let mut job = Job::new(&service_of);
        let rooted = Rooted::new(&members, 0, false, vec![8; members.len()]);
        let mut error = None;
        for change in entries {
            let mut message = rooted.arrival(1, &service_of);
            change(&mut message);
            error = post(&mut job, &message).err().or(error);
        }
        for relay in relays {
            let header = token(100 + relay.from).0;
            let data = relay.to_bytes();
            let mover = &mut job.movers[1];
            let answer = mover.receive(&job.machine, Kind::DpuRelay, &header, &data);
            error = answer.err().or(error);
        }
        let error = error.expect("refused").to_string();
        assert!(error.contains(expect), "{error}");
    };
    let route = |root: u32, members: &[u32]| {
        let members = members.to_vec();
        move |message: &mut HostArrive| {
            message.route = Route::Gather {
                root,
                members: members.clone().into(),
            };
        }
    };
    refused(&[&route(0, &[0, 2, 3])], &[], "it is not a member");
    refused(&[&route(99, &members)], &[], "its root is not a member");
    refused(&[&route(0, &[0, 1, 99])], &[], "a rank that is not there");
    refused(&[&|_: &mut _| {}, &route(2, &members)], &[], "disagree");
    let relay = |from: u32, root: Option<u32>| DpuRelay {
        collective: CALL,
        from,
        id: 1,
        root,
        offers: Vec::new(),
    };
    let entered: &dyn Fn(&mut HostArrive) = &|_| {};
    // SP 2 is below SP 1, and SP 19 is not; it has come before or after the rank.
    let what = "a gather that it does not have";
    refused(&[entered], &[relay(19, Some(0))], what);
    refused(&[entered], &[relay(2, Some(0)), relay(2, Some(0))], what);
    refused(&[], &[relay(2, None)], "not for this service");
    let mut other = relay(2, None);
    other.offers = vec![(3, &[])];
    refused(&[], &[other], "not for this service");
    let mut broken = relay(2, None);
    broken.offers = vec![(1, &[])];
    refused(&[], &[broken], "DPU_RTS");
    let mut job = Job::new(&service_of);
    let answer = DpuRelayed { from: 2, id: 3 }.to_bytes_in(Vec::new());
    let header = token(102).0;
    let error = job.movers[1].receive(&job.machine, Kind::DpuRelayed, &header, &answer);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("that it did not get"), "{error}");
}
