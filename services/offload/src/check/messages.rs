//! Messages between all pairs of ranks, beside the collectives of a round. Receivers post the tags in another order than senders.

use super::mix::mix;
use crate::{Client, Memory, Request};
use anyhow::{Result, bail};
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
    /// In this round, the last rank receives a byte less.
    pub(super) short_receive_in: Option<u32>,
}

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
            let mut length = length(args, round, (from, to), at);
            if !is_sent && args.short_receive_in == Some(round) && to + 1 == args.size && length > 1
            {
                length -= 1;
            }
            let mut memory = Buffer::new(length)?;
            if is_sent {
                pattern(args, round, (from, to), at).fill(memory.as_mut_slice());
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

/// Compares the received messages and returns the number of their bytes.
pub(super) fn verify(args: &Pairs, round: u32, messages: &[Message]) -> Result<u64> {
    let mut verified = 0;
    for message in messages.iter().filter(|message| !message.is_sent) {
        let bytes = message.memory.as_slice();
        let pattern = pattern(args, round, (message.peer, args.rank), message.at);
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
