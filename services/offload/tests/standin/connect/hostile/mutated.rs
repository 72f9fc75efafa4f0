//! Clients that are admitted and then send mutated messages and frames. Each ends its own job at the most, and the service
//! reads and writes nothing that the job's ranks have not exported.

use super::super::*;
use super::harness::{Beside, arrival, export, reason, table};
use crate::reduction::Reduction;
use crate::wire::{Block, HostReduce, HostTree, Route, Target};
use fastrand::Rng;

/// Clients of each kind.
const CLIENTS: u64 = 40;

/// A valid message of a rank.
fn sample(draw: &mut Rng, rank: u32) -> (Kind, Vec<u8>) {
    const LENGTH: u64 = 8192;
    let mut call = arrival(rank, 2);
    call.collective.sequence = draw.u32(0..3);
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * LENGTH,
        length: LENGTH,
    };
    let members = || (0..2).collect();
    match draw.u8(0..6) {
        0 => (Kind::HostArrive, call.to_bytes()),
        1..=3 => {
            call.sends = (0..2).map(block).collect();
            call.receives = call.sends.clone();
            (call.send_memory, call.receive_memory) = (export(2 * LENGTH), export(2 * LENGTH));
            call.short = Vec::new();
            if draw.bool() {
                let members = members();
                call.route = Route::Gather { root: 0, members };
            }
            (Kind::HostArrive, call.to_bytes())
        }
        4 => {
            let message = HostReduce {
                whole: 0,
                collective: call.collective,
                rank,
                reduction: Reduction::from_codes(2, 0).expect("a sum"),
                turn: Some(0),
                open: 0,
                length: LENGTH,
                members: members(),
                target: Target::All,
                send_memory: None,
                receive_memory: export(LENGTH),
                short: Vec::new(),
            };
            (Kind::HostReduce, message.to_bytes())
        }
        _ => {
            let message = HostTree {
                whole: 0,
                collective: call.collective,
                rank,
                root: draw.u32(0..2),
                is_barrier: draw.bool(),
                members: members(),
                memory: export(LENGTH),
                length: LENGTH,
                short: Vec::new(),
            };
            (Kind::HostTree, message.to_bytes())
        }
    }
}

fn mutate(draw: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..draw.usize(1..4) {
        if bytes.is_empty() {
            return;
        }
        let at = draw.usize(0..bytes.len());
        match draw.u8(0..5) {
            0 => bytes[at] ^= 1 << draw.u8(0..8),
            1 => bytes[at] = *draw.choice(&[0, 1, 127, 128, 255]).expect("some"),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, draw.u8(..)),
            _ => {
                let word = draw.u64(..).to_le_bytes();
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&word[..end - at]);
            }
        }
    }
}

/// The reason is of the client and its bytes, and not of what the service did with them.
#[track_caller]
fn is_of_the_client(seed: u64, reason: &str) {
    for fault in [OUTSIDE, "internal error"] {
        assert!(!reason.contains(fault), "seed {seed}: {reason}");
    }
}

#[test]
fn mutated_messages_end_their_job_alone_and_reach_no_other_memory() {
    let served = super::served();
    let mut beside = Beside::start(&served);
    let mut by_message = 0;
    for seed in 0..CLIENTS {
        let mut draw = Rng::with_seed(seed);
        let mut members = served
            .ready(JobId(1000 + u128::from(seed)), 2)
            .expect("ready");
        for _ in 0..12 {
            let rank = draw.u32(0..2);
            let (kind, mut data) = sample(&mut draw, rank);
            if draw.u8(0..3) == 0 {
                mutate(&mut draw, &mut data);
            }
            let sender = &members[rank as usize];
            sender.post(&served, kind, data).expect("posted");
        }
        // The service handles messages in their order: this one ends what has gone on until then.
        let last = members[0].post(&served, Kind::HostFin, Vec::new());
        last.expect("posted");
        beside.round(&served);
        let reason = reason(&mut members[0].rank.link);
        is_of_the_client(seed, &reason);
        by_message += u64::from(!reason.contains("was sent a message of kind"));
    }
    assert!(by_message > CLIENTS / 4, "{by_message} ended by a mutation");
    beside.round(&served);
}

#[test]
fn mutated_frames_end_their_job_alone() {
    let served = super::served();
    let mut beside = Beside::start(&served);
    for seed in 0..CLIENTS {
        let mut draw = Rng::with_seed(seed);
        let mut members = served
            .ready(JobId(2000 + u128::from(seed)), 2)
            .expect("ready");
        let services = [members[0].welcome.service.clone()];
        let link = &mut members[0].rank.link;
        for _ in 0..6 {
            let frame = match draw.u8(0..4) {
                0 => table(&[&services[0]], &[0, 0]),
                1 => Frame::Beat,
                2 => Frame::Abort("a reason".to_owned()),
                _ => Frame::Ready,
            };
            let mut bytes = frame.to_bytes();
            mutate(&mut draw, &mut bytes);
            // The service may have closed the connection.
            let _ = link.send(&bytes);
        }
        let _ = link.send(&Frame::Abort("the last".to_owned()).to_bytes());
        beside.round(&served);
        let reason = reason(&mut members[1].rank.link);
        is_of_the_client(seed, &reason);
    }
    beside.round(&served);
}
