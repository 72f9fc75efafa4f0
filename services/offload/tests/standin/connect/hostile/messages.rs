//! UCP messages of admitted ranks and services that break the protocol.

use super::super::*;
use super::harness::*;
use crate::reduction::Reduction;
use crate::wire::{DpuFin, HostArrive, HostReduce, Target};

/// A rank that posts a message in a job of two ranks.
fn posted(served: &Served, job: JobId, kind: Kind, data: Vec<u8>) -> Result<Link> {
    let mut members = served.ready(job, 2)?;
    members[0].post(served, kind, data)?;
    let first = members.remove(0);
    // The other rank stays.
    std::mem::forget(members);
    Ok(first.rank.link)
}

/// Rank 0 of two enters a call.
fn entered(served: &Served, job: JobId, vary: impl FnOnce(&mut HostArrive)) -> Result<Link> {
    let mut message = arrival(0, 2);
    vary(&mut message);
    posted(served, job, Kind::HostArrive, message.to_bytes())
}

/// Rank 0 of two enters an allreduce.
fn reduced(served: &Served, job: JobId, vary: impl FnOnce(&mut HostReduce)) -> Result<Link> {
    let mut message = HostReduce {
        whole: 0,
        collective: arrival(0, 2).collective,
        rank: 0,
        reduction: Reduction::from_codes(2, 0).expect("a sum"),
        turn: Some(0),
        open: 0,
        length: 4096,
        members: vec![0, 1].into(),
        target: Target::All,
        send_memory: None,
        receive_memory: export(4096),
        short: Vec::new(),
    };
    vary(&mut message);
    posted(served, job, Kind::HostReduce, message.to_bytes())
}

/// Service 1 of a job posts a message.
fn offered(served: &Served, job: JobId, kind: Kind, data: Vec<u8>) -> Result<Link> {
    let (member, impostor) = served.ready_beside_impostor(job, 3)?;
    impostor.post(served, kind, data)?;
    std::mem::forget(impostor);
    Ok(member.rank.link)
}

/// DPU_RTS of service 1: parts with source, blocks, and length of the key.
fn rts(parts: &[(u32, &[[u32; 3]], usize)], short: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&5_u64.to_le_bytes());
    let count = u32::try_from(parts.len()).expect("few");
    bytes.extend_from_slice(&count.to_le_bytes());
    for (source, blocks, key) in parts {
        bytes.push(0);
        bytes.extend_from_slice(&source.to_le_bytes());
        bytes.extend_from_slice(&(1_u64 << 40).to_le_bytes());
        bytes.extend_from_slice(&(blocks.len() as u64).to_le_bytes());
        for word in blocks.as_flattened() {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&(*key as u64).to_le_bytes());
        bytes.resize(bytes.len() + key, 0);
    }
    bytes.extend_from_slice(&(short.len() as u64).to_le_bytes());
    bytes.extend_from_slice(short);
    bytes
}

pub(super) const WRONG_MESSAGES: &[Way] = &[
    (
        "token_of_another_rank",
        |s, job| entered(s, job, |message| message.rank = 1),
        "claims to come from rank 1, and does not bear its token",
    ),
    (
        "rank_that_is_not_there",
        |s, job| entered(s, job, |message| message.rank = u32::MAX),
        "claims to come from rank 4294967295",
    ),
    (
        "step_of_a_rank",
        |s, job| entered(s, job, |message| message.collective.step = 1),
        "a rank enters call 0 on communicator 0, step 1",
    ),
    (
        "more_blocks_than_ranks",
        |s, job| {
            entered(s, job, |message| {
                message.receives.vary(|of| of.resize(3, of[0]))
            })
        },
        "more blocks than the job has ranks",
    ),
    (
        "two_blocks_to_one_rank",
        |s, job| entered(s, job, |message| message.sends.vary(|of| of[1] = of[0])),
        "it sends two blocks to one rank",
    ),
    (
        "two_blocks_from_one_rank",
        |s, job| entered(s, job, |message| message.receives.vary(|of| of[1] = of[0])),
        "it expects two blocks from one rank",
    ),
    (
        "block_to_nobody",
        |s, job| entered(s, job, |message| message.sends.vary(|of| of[1].peer = 9)),
        "it sends to a rank that is not there",
    ),
    (
        "short_bytes_are_missing",
        |s, job| entered(s, job, |message| message.short.truncate(9)),
        "bytes of a short block are missing",
    ),
    (
        "short_bytes_are_too_many",
        |s, job| entered(s, job, |message| message.short.push(0)),
        "there are more bytes than short blocks",
    ),
    (
        "block_outside_its_export",
        |s, job| {
            entered(s, job, |message| {
                message.receive_memory = export(4096);
                message
                    .receives
                    .vary(|of| (of[1].offset, of[1].length) = (8192, 4096));
            })
        },
        "of a buffer of which 4096 were exported",
    ),
    (
        "run_that_ends_outside_its_export",
        |s, job| {
            entered(s, job, |message| {
                message.receive_memory = export(4096);
                message.receives.vary(|of| {
                    for (receive, at) in of.iter_mut().zip(0..) {
                        (receive.offset, receive.length) = (at * 4096, 4096);
                    }
                });
            })
        },
        "4096 bytes at 4096 of a buffer of which 4096 were exported",
    ),
    (
        "block_beyond_all_addresses",
        |s, job| {
            entered(s, job, |message| {
                message
                    .receives
                    .vary(|of| (of[1].offset, of[1].length) = (u64::MAX, 4096));
            })
        },
        "with a run of blocks that does not exist",
    ),
    (
        "block_without_an_export",
        |s, job| {
            entered(s, job, |message| {
                message.sends.vary(|of| of[0].length = 1 << 40)
            })
        },
        "of a buffer of which 0 were exported",
    ),
    (
        "the_same_call_twice",
        |s, job| {
            let mut message = arrival(0, 2);
            message.receives.vary(|of| of.truncate(1));
            let mut members = s.ready(job, 2)?;
            for _ in 0..2 {
                members[0].post(s, Kind::HostArrive, message.to_bytes())?;
            }
            let first = members.remove(0);
            std::mem::forget(members);
            Ok(first.rank.link)
        },
        "it entered the call twice",
    ),
    (
        "host_fin_to_a_service",
        |s, job| posted(s, job, Kind::HostFin, vec![0; 64]),
        "an SP was sent a message of kind 4",
    ),
    (
        "dpu_fin_of_a_rank",
        |s, job| {
            posted(
                s,
                job,
                Kind::DpuFin,
                DpuFin {
                    from: 0,
                    offers: vec![0],
                }
                .to_bytes(),
            )
        },
        "claims to come from service 0, and does not bear its token",
    ),
    (
        "dpu_rts_of_a_rank",
        |s, job| posted(s, job, Kind::DpuRts, rts(&[(0, &[[0, 0, 0]], 0)], b"")),
        "claims to come from service 1",
    ),
    (
        "hello_of_another_rank",
        |s, job| {
            let hello = HelloMessage {
                from: From::Rank(1),
                greeting: None,
            };
            posted(s, job, Kind::Hello, hello.to_bytes())
        },
        "claims to come from rank 1",
    ),
    (
        "message_of_nothing",
        |s, job| posted(s, job, Kind::HostArrive, Vec::new()),
        "a HOST_ARRIVE of 0 bytes is too short",
    ),
    (
        "message_before_the_table",
        |s, job| {
            let member = s.admitted(job, 0, 2)?;
            member.post(s, Kind::HostArrive, arrival(0, 2).to_bytes())?;
            Ok(member.rank.link)
        },
        "a collective before the table of services",
    ),
    (
        "unknown_kind",
        |s, job| {
            let mut members = s.ready(job, 2)?;
            let service = find(s.mailboxes, &members[0].welcome.service.worker)?;
            let header = members[0].welcome.token.0.as_slice().into();
            service.queue().push_back(Message {
                id: 77,
                header,
                data: Vec::new(),
            });
            members[0].post(s, Kind::HostFin, Vec::new())?;
            let first = members.remove(0);
            std::mem::forget(members);
            Ok(first.rank.link)
        },
        "an SP was sent a message of kind 77",
    ),
    (
        "allreduce_of_others",
        |s, job| reduced(s, job, |message| message.members = vec![1].into()),
        "it is not a member",
    ),
    (
        "allreduce_of_too_many",
        |s, job| reduced(s, job, |message| message.members = vec![0; 100_000].into()),
        "its members are not in ascending order",
    ),
    (
        "allreduce_with_a_rank_that_is_not_there",
        |s, job| {
            reduced(s, job, |message| {
                message.members = vec![0, 9].into();
                message.length = 4;
                message.receive_memory = None;
                message.short = vec![1; 4];
            })
        },
        "it names a rank that is not there",
    ),
    (
        "allreduce_beyond_all_memory",
        |s, job| {
            reduced(s, job, |message| {
                message.length = 1 << 62;
                message.receive_memory = export(u64::MAX);
            })
        },
        "its vector is too long",
    ),
    (
        "allreduce_beyond_its_export",
        |s, job| reduced(s, job, |message| message.length = 8192),
        "its buffer is shorter than its vector",
    ),
    (
        "allreduce_with_a_part_of_an_element",
        |s, job| reduced(s, job, |message| message.length = 4097),
        "a part of an element",
    ),
    (
        "defect_of_the_service",
        |s, job| {
            entered(s, job, |message| {
                message.receive_memory = Some(Export {
                    packed: PANICS.to_vec(),
                    ..export(4096).expect("one")
                });
            })
        },
        "an internal error of the service",
    ),
];

pub(super) const WRONG_OFFERS: &[Way] = &[
    (
        "offer_of_another's_rank",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(0, &[[0, 0, 0]], 0)], b"")),
        "service 1 offers blocks of rank 0, which is not its own",
    ),
    (
        "offer_for_another's_rank",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[2, 0, 0]], 0)], b"")),
        "a block is for a rank of another service",
    ),
    (
        "offer_for_nobody",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuRts,
                rts(&[(1, &[[u32::MAX, 0, 0]], 0)], b""),
            )
        },
        "a block is for a rank of another service",
    ),
    (
        "offer_of_nothing",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[], b"")),
        "nothing is on offer",
    ),
    (
        "offer_of_a_part_of_nothing",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[], 40)], b"")),
        "without blocks of one of its sources",
    ),
    (
        "offer_with_a_long_key",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuRts,
                rts(&[(1, &[[0, 0, 4096]], 4097)], b""),
            )
        },
        "too long in a packed key",
    ),
    (
        "offer_with_a_short_key",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[0, 0, 4096]], 1)], b"")),
        "a short key",
    ),
    (
        "offer_without_its_short_bytes",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[0, 0, 5]], 0)], b"abcd")),
        "are not as many as their lengths say",
    ),
    (
        "answer_to_no_offer",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuFin,
                DpuFin {
                    from: 1,
                    offers: vec![u64::MAX],
                }
                .to_bytes(),
            )
        },
        "it was not on offer",
    ),
    (
        "answer_of_another_service",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuFin,
                DpuFin {
                    from: 0,
                    offers: vec![0],
                }
                .to_bytes(),
            )
        },
        "claims to come from service 0",
    ),
    (
        "arrival_at_a_service_from_a_service",
        |s, job| offered(s, job, Kind::HostArrive, arrival(0, 3).to_bytes()),
        "claims to come from rank 0",
    ),
    (
        "block_that_nobody_expects",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            let mut message = arrival(0, 3);
            message.receives.vary(|of| of.truncate(1));
            member.post(s, Kind::HostArrive, message.to_bytes())?;
            impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 0]], 0)], b""))?;
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "expects nothing from it",
    ),
    (
        "block_of_another_length",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            member.post(s, Kind::HostArrive, arrival(0, 3).to_bytes())?;
            impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 4]], 0)], b"abcd"))?;
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "rank 1 sends 4 bytes to rank 0, which expects 5",
    ),
    (
        "block_twice",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            member.post(s, Kind::HostArrive, arrival(0, 3).to_bytes())?;
            for _ in 0..2 {
                impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 5]], 0)], b"abcde"))?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "the block was there already",
    ),
];

/// A member that makes the service keep more and more.
pub(super) const HOARDS: &[Way] = &[
    (
        "calls_far_ahead",
        |s, job| {
            let size = 1 << 16;
            let (member, impostor) = s.ready_beside_impostor(job, size)?;
            let mut message = arrival(0, size);
            message.sends.vary(Vec::clear);
            message.short.clear();
            // No two neighbours have equal lengths, so these are no runs.
            message.receives.vary(|of| {
                for (block, at) in of.iter_mut().zip(0..) {
                    block.length = 5 + at % 2;
                }
            });
            for call in 0..60 {
                message.collective.sequence = u32::MAX - call;
                message.collective.communicator = u64::from(call);
                member.post(s, Kind::HostArrive, message.to_bytes())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
    (
        "runs_far_ahead",
        |s, job| {
            let size = 1 << 16;
            let (member, impostor) = s.ready_beside_impostor(job, size)?;
            let mut message = arrival(0, size);
            message.sends.vary(Vec::clear);
            message.short.clear();
            message.receives.vary(|of| {
                for block in of {
                    (block.offset, block.length) = (u64::from(block.peer) * 511, 511);
                }
            });
            for call in 0..30 {
                message.collective.sequence = call;
                let message = message.to_bytes();
                assert!(message.len() < 64, "{} bytes", message.len());
                member.post(s, Kind::HostArrive, message)?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
    (
        "offers_for_calls_that_nobody_enters",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            let mut message = rts(&[(1, &[[0, 0, 0]], 0)], b"");
            for call in 0..50_000_u32 {
                message[8..12].copy_from_slice(&call.to_le_bytes());
                impostor.post(s, Kind::DpuRts, message.clone())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
    (
        "allreduces_without_end",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 1 << 16)?;
            let message = HostReduce {
                whole: 0,
                collective: arrival(0, 2).collective,
                rank: 0,
                reduction: Reduction::from_codes(2, 0).expect("a sum"),
                turn: None,
                open: 0,
                length: 4,
                members: (0..1 << 16).collect(),
                target: Target::All,
                send_memory: None,
                receive_memory: None,
                short: vec![1; 4],
            };
            let mut message = message.to_bytes();
            for call in 0..50_000_u32 {
                message[9..13].copy_from_slice(&call.to_le_bytes());
                member.post(s, Kind::HostReduce, message.clone())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
];
