//! Ranks that are far ahead of others: their calls wait at the rank, so an SP keeps no more than the window.

use super::*;
use crate::client::Window;
use crate::control::{ServiceAddress, Table};
use crate::wire::{HostArrive, Route};

/// Bytes that the calls of a communicator may keep at an SP.
const CALL_BYTES: usize = 256 << 10;

/// A rank with the calls that it has entered and that wait.
struct Rank {
    entered: usize,
    started: usize,
    complete: usize,
}

/// The ranks of a job, which repeat a call.
struct Ahead<'a> {
    job: Job,
    ranks: Vec<Rank>,
    cost: usize,
    message: &'a dyn Fn(u32, u32) -> (Kind, Vec<u8>),
    /// The most that an SP has kept.
    most: usize,
}

fn window(service_of: &[u32]) -> Window {
    let services = service_of.iter().max().expect("ranks") + 1;
    let table = Table {
        services: (0..services)
            .map(|unique| ServiceAddress {
                unique: unique.into(),
                tcp: "dpu0:7700".to_owned(),
                worker: vec![1],
            })
            .collect(),
        service_of: service_of.to_vec(),
    };
    Window::new(&table, crate::radix::Radix::default())
}

impl Ahead<'_> {
    /// Starts what the windows of the ranks permit, until nothing moves.
    fn run(&mut self) {
        loop {
            let mut started = false;
            for (number, rank) in (0..).zip(&mut self.ranks) {
                // As client::waiting does.
                while rank.started < rank.entered
                    && (rank.started == rank.complete
                        || (rank.started + 1 - rank.complete) * self.cost <= CALL_BYTES)
                {
                    let turn = u32::try_from(rank.started).expect("small");
                    let (kind, data) = (self.message)(number, turn);
                    let to = self.job.service_of[number as usize] as usize;
                    let machine = &self.job.machine;
                    self.job.movers[to]
                        .receive(machine, kind, &token(number).0, &data)
                        .expect("taken");
                    rank.started += 1;
                    started = true;
                }
            }
            self.job.run();
            for mover in &self.job.movers {
                self.most = self
                    .most
                    .max(mover.bytes() - mover.reducing.segments.bytes());
            }
            for (rank, _) in self.job.machine.answers.take() {
                self.ranks[rank as usize].complete += 1;
            }
            if !started {
                return;
            }
        }
    }
}

/// `calls` calls of each rank; one takes `cost` bytes at an SP, and the one that has its turn `of_turn`. The ranks of SP 1 come when all others have entered all of theirs.
fn check(
    service_of: &[u32],
    calls: usize,
    (cost, of_turn): (usize, usize),
    message: &dyn Fn(u32, u32) -> (Kind, Vec<u8>),
) {
    let rank = |_: &u32| Rank {
        entered: 0,
        started: 0,
        complete: 0,
    };
    let mut ahead = Ahead {
        job: Job::new(service_of),
        ranks: service_of.iter().map(rank).collect(),
        cost,
        message,
        most: 0,
    };
    for late in [1, 0] {
        for (rank, of) in ahead.ranks.iter_mut().zip(service_of) {
            if *of != late {
                rank.entered = calls;
            }
        }
        ahead.run();
        // Rank 0 needs the late ranks in every call.
        if late == 1 {
            assert_eq!(ahead.ranks[0].complete, 0);
            continue;
        }
        let complete = ahead.ranks.iter().map(|rank| rank.complete);
        assert_eq!(complete.sum::<usize>(), calls * service_of.len());
    }
    let most = ahead.most;
    assert!(
        most > cost && most <= CALL_BYTES + of_turn,
        "{most} of {CALL_BYTES}, {cost} a call"
    );
    for mover in &ahead.job.movers {
        assert_eq!(mover.bytes(), 0);
    }
}

#[test]
fn two_thousand_broadcasts_ahead_of_a_late_node_keep_the_window() {
    const CALLS: usize = 2000;
    const LENGTH: u64 = 1024;
    let service_of = [0, 0, 0, 0, 1, 1, 1, 1];
    let members = 0..8;
    let buffers: Vec<u64> = members.clone().map(|_| allocate(1024)).collect();
    let message = |rank: u32, turn: u32| {
        let block = |peer: u32, is_root: bool| Block {
            peer,
            offset: 0,
            length: if is_root { LENGTH } else { 0 },
        };
        let buffer = Export {
            address: buffers[rank as usize],
            length: LENGTH,
            packed: vec![1],
            name: None,
        };
        let arrive = HostArrive {
            collective: Collective {
                communicator: 0,
                sequence: turn,
                start: 0,
                step: 0,
            },
            rank,
            together: 1,
            send_memory: (rank == 0).then(|| buffer.clone()),
            receive_memory: Some(buffer),
            sends: members.clone().map(|to| block(to, rank == 0)).collect(),
            receives: members.clone().map(|from| block(from, from == 0)).collect(),
            short: Vec::new(),
            route: Route::Direct,
        };
        (Kind::HostArrive, arrive.to_bytes())
    };
    let cost = window(&service_of).exchange(8, 0);
    check(&service_of, CALLS, (cost, 0), &message);
}

#[test]
fn allreduces_ahead_of_a_late_node_keep_the_window() {
    let service_of = [0, 0, 0, 1, 1];
    let members: Vec<u32> = (0..5).collect();
    let buffers: Vec<u64> = members.iter().map(|_| allocate(8192)).collect();
    let message = |rank: u32, turn: u32| {
        let message = HostReduce {
            whole: 0,
            collective: Collective {
                communicator: 0,
                sequence: turn,
                start: 0,
                step: 0,
            },
            rank,
            reduction: Reduction::new(Element::U32, Operation::Max).expect("defined"),
            turn: Some(turn),
            open: 0,
            length: 8192,
            members: members.clone().into(),
            target: Target::All,
            send_memory: None,
            receive_memory: Some(Export {
                address: buffers[rank as usize],
                length: 8192,
                packed: vec![1],
                name: None,
            }),
            short: Vec::new(),
        };
        (Kind::HostReduce, message.to_bytes())
    };
    let window = window(&service_of);
    let costs = (window.allreduce(5, 0), 4 * window.exchange(5, 0));
    check(&service_of, 200, costs, &message);
}
