//! Messages between all pairs of ranks, beside the collectives of a round. Receivers post the tags in another order than senders, and
//! some receives are longer or shorter than their messages.

use super::mix::mix;
use crate::{Client, Memory, Request};
use anyhow::{Result, bail, ensure};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::pattern::Pattern;

/// Tags of a pair's messages, in the order of the sender. Two of them have the same tag.
const TAGS: [u32; 3] = [7, 3, 7];

/// The place in [`TAGS`] of the receiver's messages, in its order.
const RECEIVED: [usize; 3] = [1, 0, 2];

/// What the ranks are told.
#[derive(Debug)]
pub(super) struct Pairs {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) seed: u64,
    /// Longest message.
    pub(super) block: usize,
}

/// What the memory of a receive has before.
const UNTOUCHED: u8 = 0xa5;

/// A message of this rank: the other rank, its place among the pair's messages, and its memory.
#[derive(Debug)]
pub(super) struct Message {
    peer: u32,
    at: usize,
    memory: Buffer,
    is_sent: bool,
}

/// The messages of a round, in the order of their start.
pub(super) fn prepare(args: &Pairs, round: u32) -> Result<Vec<Message>> {
    let peers = (0..args.size).filter(|peer| *peer != args.rank);
    let order: [(bool, [usize; 3]); 2] = [(true, [0, 1, 2]), (false, RECEIVED)];
    // One rank in two posts its receives first.
    let order = if args.rank.is_multiple_of(2) {
        order
    } else {
        [order[1], order[0]]
    };
    let mut messages = Vec::new();
    for (is_sent, places) in order {
        for (peer, at) in peers.clone().flat_map(|peer| places.map(|at| (peer, at))) {
            let (from, to) = pair(args, peer, is_sent);
            let length = length(args, round, (from, to), at);
            let mut memory;
            if is_sent {
                memory = Buffer::new(length)?;
                pattern(args, round, (from, to), at).fill(memory.as_mut_slice());
            } else {
                memory = Buffer::new(room(args, round, (from, to), at, length))?;
                memory.as_mut_slice().fill(UNTOUCHED);
            }
            messages.push(Message {
                peer,
                at,
                memory,
                is_sent,
            });
        }
    }
    Ok(messages)
}

pub(super) fn begin(client: &mut Client, messages: &mut [Message]) -> Result<Vec<Request>> {
    let mut requests = Vec::new();
    for message in messages {
        let (peer, tag) = (message.peer, TAGS[message.at]);
        let bytes = message.memory.as_mut_slice();
        let memory = Memory::Temporary {
            start: bytes.as_mut_ptr(),
            length: bytes.len(),
        };
        requests.push(match message.is_sent {
            // SAFETY: the memory stays allocated and unaccessed until run() has waited for the request.
            true => unsafe { client.send(peer, tag, memory) }?,
            // SAFETY: the same.
            false => unsafe { client.recv(peer, tag, memory) }?,
        });
    }
    Ok(requests)
}

/// Compares the received messages and their lengths with what was sent, and returns the number of their bytes.
pub(super) fn verify(
    args: &Pairs,
    round: u32,
    messages: &[Message],
    requests: &[Request],
) -> Result<u64> {
    let mut verified = 0;
    for (message, request) in messages.iter().zip(requests) {
        if message.is_sent {
            ensure!(request.message_length().is_none(), "a send has a length");
            continue;
        }
        let (pair, at) = ((message.peer, args.rank), message.at);
        let (room, sent) = (message.memory.len(), length(args, round, pair, at));
        let told = request.message_length();
        ensure!(
            told == (sent != room).then_some(sent as u64),
            "round {round}: a message of {sent} bytes for {room} has length {told:?}"
        );
        let (bytes, rest) = message.memory.as_slice().split_at(sent.min(room));
        let is_untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == UNTOUCHED);
        ensure!(
            is_untouched(rest),
            "round {round}: bytes behind a message of {sent} bytes for {room}"
        );
        // A service cannot write to memory that is shorter than a block for the device, of at most 64 KiB.
        if sent > room && room < 64 << 10 && is_untouched(bytes) {
            continue;
        }
        let pattern = pattern(args, round, pair, at);
        if let Some(wrong) = pattern.check(bytes) {
            bail!(
                "round {round}: {} of {} bytes of message {} from rank {} are wrong, the first at {}",
                wrong.bytes,
                bytes.len(),
                message.at,
                message.peer,
                wrong.first
            );
        }
        verified += bytes.len() as u64;
    }
    Ok(verified)
}

fn pair(args: &Pairs, peer: u32, is_sent: bool) -> (u32, u32) {
    match is_sent {
        true => (args.rank, peer),
        false => (peer, args.rank),
    }
}

/// Length of the receive of a message of this length: in one half of all cases the same.
fn room(args: &Pairs, round: u32, (from, to): (u32, u32), at: usize, length: usize) -> usize {
    let pair = u64::from(from) << 32 | u64::from(to);
    let bits = mix(&[args.seed, 1, u64::from(round), pair, at as u64]);
    let below = |limit: usize| usize::try_from((bits >> 8) % limit as u64).unwrap_or(0);
    match bits & 7 {
        0 => length + 1,
        1 => length + 1 + below(2000),
        2 => 1 + below(length),
        3 => 1 + below(length.min(1000)),
        _ => length,
    }
}

/// A few bytes, some hundred, or many; never none.
fn length(args: &Pairs, round: u32, (from, to): (u32, u32), at: usize) -> usize {
    let words = [
        args.seed,
        u64::from(round),
        u64::from(from),
        u64::from(to),
        at as u64,
    ];
    let bits = mix(&words);
    let most = [64, 2000, args.block, args.block][(bits & 3) as usize].min(args.block);
    1 + usize::try_from((bits >> 8) % most.max(1) as u64).unwrap_or(0)
}

fn pattern(args: &Pairs, round: u32, (from, to): (u32, u32), at: usize) -> Pattern {
    let pair = u64::from(from) << 32 | u64::from(to);
    Pattern::new(&[args.seed, u64::MAX, u64::from(round), pair, at as u64])
}
