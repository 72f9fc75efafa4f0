//! Members that give different lengths to a call whose parts are in several lanes. Their parts in this lane may be equally long.

use super::*;
use crate::wire::HostTree;

/// Runs a call of two members, with what each gives as the whole length.
#[track_caller]
fn check(service_of: &[u32], wholes: [u64; 2], mut letter: impl FnMut(&Job, u32, u64) -> Letter) {
    let mut job = Job::new(service_of);
    let mut outcome = Ok(());
    for (rank, whole) in (0..).zip(wholes) {
        let (kind, data) = letter(&job, rank, whole);
        let to = service_of[rank as usize] as usize;
        let entered = job.movers[to].receive(&job.machine, kind, &token(rank).0, &data);
        outcome = outcome.and(entered);
    }
    let outcome = outcome.and_then(|()| job.try_run());
    match wholes[0] == wholes[1] {
        true => {
            outcome.expect("equal lengths");
            assert_eq!(job.machine.answers.take().len(), 2);
        }
        false => {
            let error = outcome.expect_err("different lengths").to_string();
            assert!(error.contains("lengths"), "{error}");
            assert!(
                error.contains("66560") && error.contains("200000"),
                "{error}"
            );
        }
    }
}

type Letter = (Kind, Vec<u8>);

const WHOLES: [[u64; 2]; 4] = [
    [66_560, 200_000],
    [200_000, 66_560],
    [200_000, 200_000],
    [0, 0],
];

#[test]
fn members_of_a_reduction_that_give_different_lengths_are_told() {
    for (service_of, wholes) in [[0, 1], [0, 0]].iter().zip([WHOLES, WHOLES]) {
        for wholes in wholes {
            check(service_of, wholes, |job, rank, whole| {
                let mut message = job.vector(rank, &[0, 1], 66_560 / 4, (0, 0));
                message.whole = whole;
                (Kind::HostReduce, message.to_bytes())
            });
        }
    }
}

#[test]
fn members_of_a_broadcast_that_give_different_lengths_are_told() {
    for (service_of, wholes) in [[0, 1], [0, 0]].iter().zip([WHOLES, WHOLES]) {
        for wholes in wholes {
            check(service_of, wholes, |_, rank, whole| {
                let message = HostTree {
                    collective: Collective {
                        communicator: 0,
                        sequence: 0,
                        start: 0,
                        step: 0,
                    },
                    rank,
                    root: 0,
                    is_barrier: false,
                    members: vec![0, 1].into(),
                    memory: Some(Export {
                        address: allocate(66_560),
                        length: 66_560,
                        packed: vec![1],
                        name: None,
                    }),
                    length: 66_560,
                    whole,
                    short: Vec::new(),
                };
                (Kind::HostTree, message.to_bytes())
            });
        }
    }
}
