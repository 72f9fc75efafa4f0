//! Messages and their bytes.

use super::super::pieces::tests::{line, piece};
use super::*;
use crate::geometry::Role;

pub(in crate::remote) fn half() -> Half {
    Half {
        generation: 9,
        kind: Kind::Lz4,
        stored: 7,
        data: vec![1, 2, 3, 4].into(),
    }
}

fn calls() -> Vec<Call> {
    let fetch = Call::Fetch {
        block: 3,
        generation: 4,
    };
    vec![
        Call::Join(Box::new(line())),
        Call::Into(9, vec![fetch]),
        Call::Pull(None, piece()),
        Call::Pull(Some(0), piece()),
        Call::Hello,
        Call::Held { from: 5, to: 9 },
        Call::Changed { from: 7 },
        Call::Grow { blocks: 99 },
        Call::Steps(vec![
            Call::Prepare {
                block: 1,
                keep: 2,
                half: half(),
            },
            Call::Fetch {
                block: 3,
                generation: 4,
            },
        ]),
        Call::Prepare {
            block: 1,
            keep: 2,
            half: half(),
        },
        Call::Commit {
            block: 1,
            generation: 2,
        },
        Call::Fetch {
            block: u64::MAX,
            generation: 2,
        },
        Call::Flush,
        Call::Release {
            generation: 1 << 50,
        },
        Call::Mark {
            epoch: 4,
            mark: Box::new(Mark::Trusted(Trusted {
                epoch: 4,
                revision: 2,
                roles: 5,
            })),
            owner: [7; 16],
            take_over: false,
        },
        Call::Mark {
            epoch: 3,
            mark: Box::new(Mark::Agreed),
            owner: [7; 16],
            take_over: true,
        },
        Call::Mark {
            epoch: 3,
            mark: Box::new(Mark::Members(
                Members::default().with(Role::SECOND, Id([8; 16])),
            )),
            owner: [7; 16],
            take_over: false,
        },
        Call::Mark {
            epoch: 3,
            mark: Box::new(Mark::Trusted(Trusted {
                epoch: 1 << 30,
                revision: 4,
                roles: 0b110,
            })),
            owner: [6; 16],
            take_over: true,
        },
        Call::Mark {
            epoch: 5,
            mark: Box::new(Mark::Wrapping(wrapping())),
            owner: [7; 16],
            take_over: false,
        },
        Call::Confirm,
    ]
}

fn wrapping() -> Wrapping {
    Wrapping {
        revision: 2,
        wrapped: [3; 72],
        check: [4; 16],
    }
}

pub(in crate::remote) fn answers() -> Vec<Answer> {
    let identity = Identity {
        geometry: Geometry::new(4096, 5).unwrap(),
        role: Role::PARITY,
        volume: Id([1; 16]),
        target: Id([2; 16]),
        epoch: 3,
        standing: Standing::Returned,
        agreed: 2,
        equal: 1,
        room: 9,
        members: Members::default().with(Role::FIRST, Id([3; 16])),
        wrapping: None,
        trusted: Trusted {
            epoch: 5,
            revision: 7,
            roles: 0b101,
        },
    };
    let encrypted = Identity {
        wrapping: Some(wrapping()),
        ..identity
    };
    let usage = Usage {
        used: 4,
        damaged: 1,
    };
    let held = Held {
        block: 1,
        generation: 2,
        kind: Kind::Zero,
        settled: true,
        damaged: false,
    };
    let damaged = Held {
        settled: false,
        damaged: true,
        ..held
    };
    vec![
        Answer::Joined(line()),
        Answer::Pull(piece()),
        Answer::Hello(Box::new(identity), usage, 8, true),
        Answer::Hello(Box::new(encrypted), usage, 8, false),
        Answer::Held(vec![held, damaged, held], 4),
        Answer::Half(half()),
        Answer::Changed(vec![(1, 2), (1 << 40, 1 << 41)], 1 << 42),
        Answer::Steps(vec![
            Answer::Half(half()),
            Answer::Absent,
            Answer::Done(usage),
        ]),
        Answer::All(3, usage),
        Answer::Done(usage),
        Answer::Absent,
        Answer::Corrupt("why".to_owned()),
        Answer::Full {
            wanted: 1,
            free: 2,
            capacity: 3,
        },
        Answer::Failed("why".to_owned()),
        Answer::Owned,
        Answer::Superseded,
    ]
}

#[test]
fn messages_survive_the_wire_and_no_other_length_does() {
    for call in calls() {
        let bytes = call.to_bytes();
        for end in 0..bytes.len() {
            assert!(
                Call::parse(&bytes[..end].to_vec().into()).is_err(),
                "{call:?}, {end} bytes"
            );
        }
        assert!(Call::parse(&[&bytes[..], &[0]].concat().into()).is_err());
        assert_eq!(Call::parse(&bytes.into()), Ok(call));
    }
    for answer in answers() {
        let bytes = answer.to_bytes(7);
        for end in 0..bytes.len() {
            assert!(
                Answer::parse(&bytes[..end].to_vec().into()).is_err(),
                "{answer:?}, {end} bytes"
            );
        }
        assert_eq!(Answer::parse(&bytes.into()), Ok(answer));
    }
    for number in [0, 17, 255] {
        assert!(Call::parse(&vec![number].into()).is_err());
    }
    // A slot is for steps only, and once.
    for other in [&[6][..], &[15, 0, 0, 6]] {
        assert!(Call::parse(&[&[15, 0, 0], other].concat().into()).is_err());
    }
    // A step is no call with steps, and no flush.
    for step in [Call::Steps(vec![Call::Flush]), Call::Steps(Vec::new())] {
        assert!(Call::parse(&step.to_bytes().into()).is_err(), "{step:?}");
    }
}

/// Half blocks of calls and answers stay in the frame that has arrived.
#[test]
fn half_blocks_of_a_message_are_not_copied() {
    let half = || Half {
        data: vec![7; 2048].into(),
        ..half()
    };
    let prepare = || Call::Prepare {
        block: 1,
        keep: 2,
        half: half(),
    };
    let call: Bytes = Call::Steps(vec![prepare(), prepare()]).to_bytes().into();
    let answers = Answer::Steps(vec![Answer::Half(half()), Answer::Half(half())]);
    let answer: Bytes = answers.to_bytes(1).into();
    let of_call = match Call::parse(&call) {
        Ok(Call::Steps(steps)) => steps.into_iter().map(|step| match step {
            Call::Prepare { half, .. } => half,
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    };
    let of_answer = match Answer::parse(&answer) {
        Ok(Answer::Steps(answers)) => answers.into_iter().map(|answer| match answer {
            Answer::Half(half) => half,
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    };
    for (message, parsed) in [
        (&call, of_call.collect::<Vec<_>>()),
        (&answer, of_answer.collect()),
    ] {
        assert_eq!(parsed, [half(), half()]);
        for half in parsed {
            assert!(message.as_ptr_range().contains(&half.data.as_ptr()));
        }
    }
}
