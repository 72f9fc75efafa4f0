//! Allreduces of movers on a transport that copies memory: every byte at every rank.

use super::*;
use crate::reduction::{Element, Operation, Reduction};
use crate::service::mover::{Destination, Limits, Peers};
use crate::service::transport::{Ended, Range, Sent};
use crate::token::Token;
use crate::wire::{Collective, Export, ExportRef, HostFin, HostReduce, Kind, Target};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

mod ahead;
mod climb;
mod rooted;
mod targets;
mod trees;
mod wholes;

const DIRECT_MIN: u64 = 512;

/// That of a tree's call.
const CALL: Collective = Collective {
    communicator: 5,
    sequence: 2,
    start: 0,
    step: 0,
};

/// A message: receiver, kind, token, data.
type Letter = (u32, Kind, Token, Vec<u8>);

/// Messages between SPs, answers to ranks, and reads under way.
#[derive(Debug, Default)]
struct Machine {
    messages: RefCell<Vec<Letter>>,
    /// All offers between SPs.
    offered: RefCell<Vec<Vec<u8>>>,
    answers: RefCell<Vec<(u32, HostFin)>>,
    reads: RefCell<Vec<Rc<Read>>>,
    imports: Cell<i64>,
    staged: Cell<usize>,
    staged_most: Cell<usize>,
    /// Most bytes of segments, if the device has room for some only.
    room: Cell<Option<usize>>,
}

#[derive(Debug)]
struct Read {
    from: u64,
    to: u64,
    length: usize,
    is_over: Cell<bool>,
}

impl Read {
    fn end(&self) {
        let data = at(self.from, self.length).to_vec();
        at(self.to, self.length).copy_from_slice(&data);
        self.is_over.set(true);
    }
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Rank(u32),
    Service(u32),
}

/// A buffer of a rank, or with a length memory of an SP.
#[derive(Debug)]
struct Area {
    address: u64,
    length: Option<usize>,
}

/// Memory that stays for the rest of the test, and its address.
fn allocate(length: usize) -> u64 {
    let bytes = Box::leak(vec![0_u8; length].into_boxed_slice());
    bytes.as_mut_ptr().expose_provenance() as u64
}

fn at<'a>(address: u64, length: usize) -> &'a mut [u8] {
    let start = usize::try_from(address).expect("an address");
    // SAFETY: memory of allocate(), of which the test uses one slice at a time.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), length) }
}

/// The bytes of `count` words. A loop over words costs a fourth of an iterator over bytes in a build without optimization.
fn words(count: usize, value: impl Fn(usize) -> u32) -> Vec<u8> {
    let mut bytes = vec![0; count * 4];
    for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&value(index).to_ne_bytes());
    }
    bytes
}

impl Transport for Machine {
    type Peer = Place;
    type Memory = Area;
    type Key = ();
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = Vec<(u64, Rc<Read>)>;

    fn send(&self, to: &Place, kind: Kind, token: Token, data: Vec<u8>) -> Result<Sent<()>> {
        match to {
            Place::Rank(rank) => {
                let fin = HostFin::parse(&data).expect("an answer");
                self.answers.borrow_mut().push((*rank, fin));
            }
            Place::Service(to) => {
                if kind == Kind::DpuRts {
                    self.offered.borrow_mut().push(data.clone());
                }
                self.messages.borrow_mut().push((*to, kind, token, data));
            }
        }
        Ok(Sent::AtOnce(Vec::new()))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Area> {
        self.imports.set(self.imports.get() + 1);
        Ok(Area {
            address: export.address,
            length: None,
        })
    }

    fn address(&self, memory: &Area) -> u64 {
        memory.address
    }

    fn pack(&self, _: &Area) -> Result<Vec<u8>> {
        Ok(vec![1])
    }

    fn stage(&self, length: usize) -> Result<Area> {
        let staged = self.staged.get() + length;
        if self.room.get().is_some_and(|room| staged > room) {
            return Err(failed("the device is full"));
        }
        self.staged.set(staged);
        let most = self.staged_most.get().max(self.staged.get());
        self.staged_most.set(most);
        Ok(Area {
            address: allocate(length),
            length: Some(length),
        })
    }

    fn bytes<'a>(&self, memory: &'a mut Area) -> Option<&'a mut [u8]> {
        memory.length.map(|length| at(memory.address, length))
    }

    fn unmap(&self, memory: Area) -> Result<()> {
        match memory.length {
            None => self.imports.set(self.imports.get() - 1),
            Some(length) => self.staged.set(self.staged.get() - length),
        }
        Ok(())
    }

    fn unpack(&self, _: &Place, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, reads: &mut Self::Reads, range: Range<'_, Self>, tag: u64) -> Result<bool> {
        let read = Rc::new(Read {
            from: range.address,
            to: range.into.address + range.to,
            length: range.length,
            is_over: Cell::new(false),
        });
        self.reads.borrow_mut().push(Rc::clone(&read));
        reads.push((tag, read));
        Ok(true)
    }

    fn reads_len(reads: &Self::Reads) -> usize {
        reads.len()
    }

    fn next_read(&self, reads: &mut Self::Reads) -> Option<(u64, Ended)> {
        let at = reads.iter().position(|(_, read)| read.is_over.get())?;
        Some((reads.remove(at).0, Ok(())))
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

/// A job whose ranks have the given SPs.
struct Job {
    machine: Machine,
    movers: Vec<Mover<Machine>>,
    service_of: Vec<u32>,
    calls: u32,
    /// Number of allreduces on each communicator.
    turns: [u32; 2],
}

/// After all calls.
fn nothing_is_left(job: &mut Job) {
    assert_eq!(job.machine.imports.get(), 0);
    for mover in &mut job.movers {
        assert_eq!((mover.bytes(), mover.queues().calls), (0, 0));
        assert!(mover.shut(&job.machine));
    }
}

impl Job {
    /// Runs to the end. The most messages that an SP sends and gets meanwhile.
    fn most_messages(&mut self) -> usize {
        let mut count = vec![0; self.movers.len()];
        loop {
            for (at, mover) in self.movers.iter_mut().enumerate() {
                let before = self.machine.messages.borrow().len();
                mover.act(&self.machine).expect("acts");
                mover.settle(&self.machine).expect("settles");
                count[at] += self.machine.messages.borrow().len() - before;
            }
            let messages = self.machine.messages.take();
            let reads = self.machine.reads.take();
            if messages.is_empty() && reads.is_empty() {
                return count.into_iter().max().expect("services");
            }
            for read in reads {
                read.end();
            }
            for (to, kind, token, data) in messages {
                count[to as usize] += 1;
                let before = self.machine.messages.borrow().len();
                self.movers[to as usize]
                    .receive(&self.machine, kind, &token.0, &data)
                    .expect("a message");
                count[to as usize] += self.machine.messages.borrow().len() - before;
            }
        }
    }

    fn new(service_of: &[u32]) -> Self {
        let services = service_of.iter().max().expect("ranks") + 1;
        Self {
            machine: Machine::default(),
            movers: (0..services)
                .map(|me| mover(me, services, service_of))
                .collect(),
            service_of: service_of.to_vec(),
            calls: 0,
            turns: [0; 2],
        }
    }

    /// A job whose trees have this radix.
    fn of_radix(service_of: &[u32], radix: u32) -> Self {
        let mut job = Self::new(service_of);
        for mover in &mut job.movers {
            mover.limits.radix = crate::radix::Radix(radix);
        }
        job
    }

    fn enter(&mut self, message: &HostReduce) {
        let to = self.service_of[message.rank as usize] as usize;
        let header = token(message.rank).0;
        self.movers[to]
            .receive(
                &self.machine,
                Kind::HostReduce,
                &header,
                &message.to_bytes(),
            )
            .expect("an arrival");
    }

    /// Carries out everything. Of the reads under way, the last one completes first.
    fn run(&mut self) {
        self.try_run().expect("carried out");
    }

    fn try_run(&mut self) -> Result<()> {
        loop {
            for mover in &mut self.movers {
                mover.act(&self.machine)?;
                mover.settle(&self.machine)?;
            }
            for (to, kind, token, data) in self.machine.messages.take() {
                self.movers[to as usize].receive(&self.machine, kind, &token.0, &data)?;
            }
            let read = self.machine.reads.borrow_mut().pop();
            if let Some(read) = read {
                read.end();
            } else if self.machine.messages.borrow().is_empty() {
                let mut moved = false;
                for mover in &mut self.movers {
                    moved |= mover.settle(&self.machine)?;
                }
                if !moved && self.machine.reads.borrow().is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// A rank's part in an allreduce of 32-bit sums; its elements depend on communicator and turn.
    fn vector(
        &self,
        rank: u32,
        members: &[u32],
        elements: usize,
        (communicator, turn): (u32, u32),
    ) -> HostReduce {
        let length = elements * 4;
        let (send, receive) = (allocate(length), allocate(length));
        let vector = words(elements, |index| {
            value(rank, index).wrapping_add(communicator + turn)
        });
        at(send, length).copy_from_slice(&vector);
        let export = |address| Export {
            address,
            length: length as u64,
            packed: vec![1],
            name: None,
        };
        HostReduce {
            whole: 0,
            collective: Collective {
                communicator: u64::from(communicator),
                sequence: turn,
                start: 0,
                step: 0,
            },
            rank,
            reduction: Reduction::new(Element::U32, Operation::Sum).expect("defined"),
            turn: Some(turn),
            open: turn,
            length: length as u64,
            members: members.to_vec().into(),
            target: Target::All,
            send_memory: Some(export(send)),
            receive_memory: Some(export(receive)),
            short: Vec::new(),
        }
    }

    /// Checks the result of [`Job::vector`].
    #[track_caller]
    fn check_sum(&self, receive: u64, members: &[u32], elements: usize, added: u32) {
        let expect = words(elements, |index| {
            let value = |rank: &u32| value(*rank, index).wrapping_add(added);
            members.iter().map(value).fold(0, u32::wrapping_add)
        });
        assert!(at(receive, elements * 4) == expect, "added {added}");
    }

    /// An allreduce of 32-bit sums over `members`; checks each result.
    fn check(&mut self, members: &[u32], elements: usize, in_place: bool) {
        let length = elements * 4;
        let communicator = u32::from(members.len() != self.service_of.len());
        let mut results = Vec::new();
        for rank in members {
            let vector = words(elements, |index| value(*rank, index));
            let (send, receive) = (allocate(length), allocate(length));
            let send = if in_place { receive } else { send };
            at(send, length).copy_from_slice(&vector);
            let export = |address| Export {
                address,
                length: length as u64,
                packed: vec![1],
                name: None,
            };
            let is_short = (length as u64) < DIRECT_MIN;
            let message = HostReduce {
                whole: 0,
                collective: Collective {
                    communicator: u64::from(communicator),
                    sequence: self.calls,
                    start: 0,
                    step: 0,
                },
                rank: *rank,
                reduction: Reduction::new(Element::U32, Operation::Sum).expect("defined"),
                turn: Some(self.turns[communicator as usize]),
                open: 0,
                length: length as u64,
                members: members.to_vec().into(),
                target: Target::All,
                send_memory: (!is_short && !in_place).then(|| export(send)),
                receive_memory: (!is_short).then(|| export(receive)),
                short: if is_short { vector } else { Vec::new() },
            };
            self.enter(&message);
            results.push((*rank, receive));
        }
        self.run();
        let expect = words(elements, |index| {
            let values = members.iter().map(|rank| value(*rank, index));
            values.fold(0, u32::wrapping_add)
        });
        let answers = self.machine.answers.take();
        assert_eq!(answers.len(), members.len(), "each rank completes once");
        for (rank, fin) in answers {
            assert_eq!(
                (fin.collective.sequence, fin.collective.step),
                (self.calls, 0)
            );
            let (_, receive) = results
                .iter()
                .find(|(of, _)| *of == rank)
                .expect("a member");
            let short = fin.short.iter().map(|block| block.length).sum::<u64>();
            if (length as u64) < DIRECT_MIN {
                assert_eq!(short, length as u64);
                at(*receive, length).copy_from_slice(&fin.bytes);
            }
            assert!(
                at(*receive, length) == expect,
                "rank {rank} of {members:?}, {elements} elements, in place {in_place}"
            );
        }
        assert_eq!(self.machine.imports.get(), 0, "all buffers are released");
        self.calls += 1;
        self.turns[communicator as usize] += 1;
    }
}

/// An element of a rank's vector.
fn value(rank: u32, index: usize) -> u32 {
    let index = u32::try_from(index).expect("small");
    index.wrapping_mul(0x9e37_79b1).rotate_left(rank) ^ rank
}

fn mover(me: u32, services: u32, service_of: &[u32]) -> Mover<Machine> {
    let ranks = (0..).zip(service_of);
    let ours: Vec<u32> = ranks
        .filter(|(_, of)| **of == me)
        .map(|(rank, _)| rank)
        .collect();
    let peers = Peers {
        me,
        service_of: service_of.to_vec(),
        ranks: ours
            .iter()
            .map(|rank| Destination {
                peer: Place::Rank(*rank),
                token: token(*rank),
            })
            .collect(),
        from_ranks: ours.iter().map(|rank| token(*rank)).collect(),
        services: (0..services)
            .map(|to| {
                Some(Destination {
                    peer: Place::Service(to),
                    token: token(100 + me),
                })
            })
            .collect(),
    };
    let limits = Limits {
        sends: 2,
        receives: 3,
        direct_min: DIRECT_MIN,
        imports: 4,
        radix: crate::radix::Radix::default(),
    };
    let mut mover = Mover::new(peers, limits);
    for from in 0..services {
        mover.expect_service(from, token(100 + from));
    }
    mover
}

fn token(of: u32) -> Token {
    Token(u128::from(of).to_le_bytes())
}

#[test]
fn every_rank_gets_the_sum() {
    for service_of in [&[0, 0][..], &[0, 1], &[0, 1, 1], &[0, 0, 1, 1, 2]] {
        let mut job = Job::new(service_of);
        let all: Vec<u32> = (0..).take(service_of.len()).collect();
        for elements in [0, 1, 127, 128, 129, 1024, 2048, 5000, 70_000] {
            for in_place in [false, true] {
                job.check(&all, elements, in_place);
            }
        }
        // Several windows.
        job.check(&all, 200_000, false);
        let reversed: Vec<u32> = all.iter().rev().copied().take(2).collect();
        job.check(&reversed, 3000, false);
    }
}

/// Rank 0 starts call 0 and then call 1, rank 1 the other way round, and each starts every call several times.
#[test]
fn persistent_calls_start_in_different_orders() {
    for elements in [8, 5000, 200_000] {
        let mut job = Job::new(&[0, 1]);
        let length = elements * 4;
        let is_short = (length as u64) < DIRECT_MIN;
        let value = |rank: u32, call: u32, start: u32| 1000 * call + 10 * start + rank;
        for start in 0..3 {
            let mut receives = BTreeMap::new();
            for (rank, calls) in [(0, [0, 1]), (1, [1, 0])] {
                for call in calls {
                    let vector = words(elements, |_| value(rank, call, start));
                    let (send, receive) = (allocate(length), allocate(length));
                    at(send, length).copy_from_slice(&vector);
                    receives.insert((rank, call), receive);
                    let export = |address| {
                        (!is_short).then(|| Export {
                            address,
                            length: length as u64,
                            packed: vec![1],
                            name: None,
                        })
                    };
                    job.enter(&HostReduce {
                        whole: 0,
                        collective: Collective {
                            communicator: 0,
                            sequence: call,
                            start,
                            step: 0,
                        },
                        rank,
                        reduction: Reduction::new(Element::U32, Operation::Sum).expect("defined"),
                        turn: None,
                        open: 0,
                        length: length as u64,
                        members: vec![0, 1].into(),
                        target: Target::All,
                        send_memory: export(send),
                        receive_memory: export(receive),
                        short: if is_short { vector } else { Vec::new() },
                    });
                }
            }
            job.run();
            let answers = job.machine.answers.take();
            assert_eq!(answers.len(), 4, "both calls complete at both ranks");
            for (rank, fin) in answers {
                let call = fin.collective.sequence;
                let receive = receives.remove(&(rank, call)).expect("once");
                if is_short {
                    at(receive, length).copy_from_slice(&fin.bytes);
                }
                let sum = value(0, call, start) + value(1, call, start);
                assert!(
                    at(receive, length) == words(elements, |_| sum),
                    "rank {rank}, call {call}, start {start}"
                );
            }
        }
        assert_eq!(job.machine.imports.get(), 0, "all buffers are released");
    }
}

/// Messages may overtake each other on their way to the SP: those of rank 1 arrive in the reverse order.
#[test]
fn allreduces_that_overtake_each_other_run_in_their_turns() {
    const TURNS: u32 = 5;
    let members = [0, 1];
    for elements in [200, 200_000] {
        let mut job = Job::new(&members);
        let mut results = Vec::new();
        for rank in members {
            for turn in 0..TURNS {
                let turn = if rank == 0 { turn } else { TURNS - 1 - turn };
                let message = job.vector(rank, &members, elements, (0, turn));
                let receive = message.receive_memory.as_ref().expect("long").address;
                results.push((receive, turn));
                job.enter(&message);
                job.run();
            }
        }
        assert_eq!(job.machine.answers.take().len(), 2 * TURNS as usize);
        for (receive, turn) in results {
            job.check_sum(receive, &members, elements, turn);
        }
    }
}

#[test]
fn a_turn_occurs_once() {
    let mut job = Job::new(&[0, 1]);
    for turn in [1, 0] {
        let message = job.vector(0, &[0, 1], 200, (0, turn));
        job.enter(&message);
    }
    for turn in [0, 1] {
        let mut again = job.vector(0, &[0, 1], 200, (0, turn));
        again.collective.sequence = 7;
        let header = token(0).0;
        let error = job.movers[0]
            .receive(&job.machine, Kind::HostReduce, &header, &again.to_bytes())
            .expect_err("refused")
            .to_string();
        assert!(error.contains("two allreduces as the same one"), "{error}");
    }
}

#[test]
fn memory_for_segments_is_used_again() {
    let mut job = Job::new(&[0, 1]);
    job.check(&[0, 1], 300_000, false);
    let staged = job.machine.staged.get();
    // Two windows of two segments at each of the two ranks.
    assert!((1 << 18..=1 << 21).contains(&staged), "{staged}");
    for _ in 0..3 {
        job.check(&[0, 1], 300_000, false);
    }
    assert_eq!(job.machine.staged.get(), staged);
}

/// The limits of the memory for segments at all SPs.
fn limit(job: &mut Job, early_max: usize, all_max: usize) {
    for mover in &mut job.movers {
        mover.reducing.segments.early_max = early_max;
        mover.reducing.segments.all_max = all_max;
    }
}

/// With the memory of one window, an SP that has begun one allreduce meets another SP that has begun a different one.
#[test]
fn allreduces_that_need_more_memory_than_there_is_wait() {
    let members = [0, 1, 2, 3];
    // The second form has two windows.
    for (calls, elements, window) in [(40, 10_000, 64 << 10), (4, 70_000, 256 << 10)] {
        for early_max in [0, window] {
            check_under(&members, early_max, 2 * window, (calls, elements));
        }
    }
}

fn check_under(members: &[u32], early_max: usize, all_max: usize, (calls, elements): (u32, usize)) {
    let mut job = Job::new(&[0, 0, 1, 1]);
    limit(&mut job, early_max, all_max);
    let mut results = Vec::new();
    for (rank, call) in members.iter().flat_map(|rank| {
        let order: Vec<u32> = match rank % 2 {
            0 => (0..calls).collect(),
            _ => (0..calls).rev().collect(),
        };
        order.into_iter().map(move |call| (*rank, call))
    }) {
        let message = job.vector(rank, members, elements, (call, 0));
        let receive = message.receive_memory.as_ref().expect("long").address;
        results.push((call, receive));
        job.enter(&message);
        // Each SP begins what it can before the next rank comes.
        job.run();
    }
    assert_eq!(job.machine.answers.take().len(), 4 * calls as usize);
    for (call, receive) in results {
        job.check_sum(receive, members, elements, call);
    }
    assert_eq!(job.machine.imports.get(), 0, "all buffers are released");
    for mover in &job.movers {
        assert_eq!(mover.reducing.bytes(), 0);
    }
    let most = job.machine.staged_most.get();
    // Both SPs: the windows, and the results of two windows of each allreduce of each rank.
    let results = calls as usize * 4 * 2 * all_max / 2;
    assert!(most <= 2 * all_max + results, "{most}");
}

/// The device has room for two windows at each SP, and for none of the results.
#[test]
fn results_in_a_full_device_stay_in_their_windows() {
    let mut job = Job::new(&[0, 1]);
    job.machine.room.set(Some(1 << 20));
    for elements in [1024, 70_000, 200_000] {
        job.check(&[0, 1], elements, false);
        job.check(&[0, 1], elements, true);
    }
    for mover in &mut job.movers {
        assert_eq!(mover.reducing.bytes(), 0);
    }
}

/// More SPs than credits, and no memory before all members have come.
#[test]
fn a_window_that_waits_for_all_members_needs_no_credit() {
    let service_of: Vec<u32> = (0..9).collect();
    let mut job = Job::new(&service_of);
    limit(&mut job, 0, 0);
    for elements in [2048, 100_000, 200_000] {
        job.check(&service_of, elements, false);
    }
}

/// A job with cached buffers, and one that has none.
#[test]
fn free_memory_for_segments_does_not_count_and_can_be_returned() {
    let mut job = Job::new(&[0, 1]);
    job.check(&[0, 1], 300_000, false);
    let machine = &job.machine;
    assert!(machine.staged.get() > 0);
    for mover in &mut job.movers {
        assert_eq!(mover.bytes(), 0);
        assert!(mover.free_bytes() > 0);
        mover.drop_free(machine).expect("returned");
        assert_eq!(mover.free_bytes(), 0);
    }
    assert_eq!(machine.staged.get(), 0);
}

#[test]
fn what_no_rank_sends_fails_the_job() {
    let message = || HostReduce {
        whole: 0,
        collective: Collective {
            communicator: 0,
            sequence: 0,
            start: 0,
            step: 0,
        },
        rank: 0,
        reduction: Reduction::new(Element::U32, Operation::Sum).expect("defined"),
        turn: Some(0),
        open: 0,
        length: 4,
        members: vec![0, 1].into(),
        target: Target::All,
        send_memory: None,
        receive_memory: None,
        short: vec![1; 4],
    };
    let refused = |change: &dyn Fn(&mut HostReduce), expect: &str| {
        let mut job = Job::new(&[0, 1]);
        let mut message = message();
        change(&mut message);
        let error = job.movers[0]
            .receive(
                &job.machine,
                Kind::HostReduce,
                &token(0).0,
                &message.to_bytes(),
            )
            .expect_err("refused");
        assert!(error.to_string().contains(expect), "{error}");
    };
    refused(
        &|message| message.members = vec![1].into(),
        "it is not a member",
    );
    refused(
        &|message| message.members = vec![0, 7].into(),
        "a rank that is not there",
    );
    refused(
        &|message| message.members = vec![0, 0].into(),
        "its members are not in ascending order",
    );
    refused(
        &|message| message.members = vec![0, 1, 1].into(),
        "its members are not in ascending order",
    );
    refused(&|message| message.short.push(1), "another number of bytes");
    refused(
        &|message| message.length = 1 << 20,
        "another number of bytes",
    );
    refused(
        &|message| {
            message.length = 1 << 20;
            message.short.clear();
        },
        "shorter than its vector",
    );
    refused(&|message| message.length = 1 << 60, "too long");
    refused(&|message| message.collective.step = 1, "a rank enters");
}
